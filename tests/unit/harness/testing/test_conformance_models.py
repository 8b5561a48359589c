"""The checks of models pass for models that are right, and find those that are not."""

import pytest
import torch
from torch import nn

from harness.cli.parser import main
from harness.core.errors import UserError
from harness.models import model
from harness.testing.conformance_models import check_model
from privacy.own_mechanism import MECHANISMS

pytestmark = pytest.mark.usefixtures("registries")


def headed(shape, outputs):
    """Frozen extractor with a linear head."""
    body = nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), nn.BatchNorm1d(8)).requires_grad_(False)
    return nn.Sequential(body.eval(), nn.Linear(8, outputs))


class Unused(nn.Module):
    """A layer whose second half no output reads."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.used, self.unused = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.used(x)


def idle(shape, outputs):
    """Model with parameters without effect."""
    return Unused(shape[0], outputs)


def fixed(shape, outputs):
    """Model that starts at zero whatever the seed."""
    made = nn.Linear(shape[0], outputs)
    with torch.no_grad():
        made.weight.zero_()
        made.bias.zero_()
    return made


def results(make):
    model("tables")(make)
    return {row["check"]: row["why"] for row in check_model(make.__name__)}


def test_models_with_a_frozen_part_and_ours_pass():
    assert set(results(headed).values()) == {None}
    assert {row["why"] for row in check_model("mlp")} == {None}


def test_parameters_that_do_not_move_are_named():
    assert results(idle)["Every trained parameter moves"] == (
        "a round of FedAvg did not move unused.bias, unused.weight"
    )


def test_a_start_that_ignores_the_seed_is_named():
    assert results(fixed)["Start values follow the seed"] == "start values of two seeds are equal"


def test_a_model_that_fits_no_input_is_refused():
    def odd(shape, outputs):
        raise UserError("never fits")

    model("tables")(odd)
    with pytest.raises(UserError, match=r"check odd: none of these inputs fits.*never fits"):
        check_model("odd")


def test_the_command_takes_models_by_name(capsys):
    model("tables")(headed)
    assert main(["check", "headed"]) == 0
    assert "headed: 6 of 6 checks passed" in capsys.readouterr().out
    assert main(["check", "heeded"]) == 2
    assert "unknown algorithm or model 'heeded'" in capsys.readouterr().err


def test_a_mechanism_is_sent_to_the_audit(monkeypatch, capsys):
    monkeypatch.setitem(MECHANISMS, "secant", object())
    assert main(["check", "secant"]) == 2
    assert "secant is a mechanism; audit tests its noise" in capsys.readouterr().err
