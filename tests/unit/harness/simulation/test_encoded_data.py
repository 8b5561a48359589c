"""Runs on features of an encoder: their settings, their ids, what their statement says, and plans without data."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import harness
from datasets.encoders import ENCODERS, encoder, features
from harness.__main__ import main
from harness.config import plugins
from harness.config.code import code_of_encoder
from harness.config.fields import DataSpec
from harness.config.run import read_spec
from harness.config.sweep import Combination
from harness.core.errors import Incompatible, UserError
from harness.core.flat_model import constants_digest
from harness.models import build
from harness.simulation.build import identify, prepare
from harness.simulation.calibration import calibrated
from harness.simulation.federations import load_once, stand_in_federation
from harness.simulation.plan import plan
from harness.simulation.saved_model import check_savable
from harness.simulation.simulation import Simulation
from harness.simulation.statement import public_information
from tests.support.runs import given

pytestmark = pytest.mark.usefixtures("registries", "cache")

NOTES = ["good", "very good", "bad", "very bad", "so so"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFRONTIER_CACHE", str(tmp_path / "cache"))


class Letters(nn.Module):
    """Counts of the letters o and a in a text."""

    def forward(self, texts, most):
        return torch.tensor([[float(text[:most].count(letter)) for letter in "oa"] for text in texts])


@pytest.fixture
def encoders():
    """Encoders of images and of texts."""

    @encoder("pixels", reads="images", features=8, size=4)
    def pixels():
        return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 8), nn.ReLU())

    encoder("letters", reads="texts", features=2, size=9)(Letters)


def over(data, **fields):
    """Return a run file's content over some data."""
    return {**given(Path()), "data": data, **fields}


def spec(**data):
    return read_spec(over({"name": "digits", "encoder": "pixels", **data}))


def reviews(folder, **data):
    """Return a run on a table with a column of text, of which 300 cells differ."""
    lines = ["age,note,ill"]
    lines += [f"{20 + row},{NOTES[row % 5]} {row},{'yes' if row % 5 > 1 else 'no'}" for row in range(300)]
    path = folder / "notes.csv"
    path.write_text("\n".join(lines) + "\n")
    data = {"name": "csv", "path": str(path), "label": "ill", "encoder": "letters", "encode": "note", **data}
    return over(data)


def test_an_image_head_trains_on_the_features(encoders):
    setup = calibrated(prepare(spec(norm=6.0)))
    assert setup.federation.pool.x.shape == (1797, 8)
    assert setup.problem.init(torch.Generator())["x"].numel() == 10 * (8 + 1)
    lengths = setup.federation.pool.x.norm(dim=1)
    assert torch.allclose(lengths[lengths > 0], torch.tensor(6.0))
    run = Simulation.from_setup(setup)
    run.step()
    assert setup.federation.source == "digits (scikit-learn), pixels"


def test_an_encoded_column_is_no_category(encoders, tmp_path):
    setup = prepare(read_spec(reviews(tmp_path)))
    assert setup.federation.inputs.features == ("age", "note_1", "note_2")
    x = setup.federation.pool.x
    assert x[:2, 1:].tolist() == [[2, 0], [2, 0]]  # "good 0" and "very good 1", of which nine signs are read
    assert x[2, 1:].tolist() == [0, 1]
    assert not any("note" in fact for fact in setup.federation.public)


def test_a_table_may_have_nothing_but_text(encoders, tmp_path):
    setup = prepare(read_spec(reviews(tmp_path, drop="age")))
    assert setup.federation.pool.x.shape == (300, 2)


def test_texts_are_needed_once_for_a_table_without_an_encoder(tmp_path):
    plain = reviews(tmp_path)
    plain["data"] = {key: value for key, value in plain["data"].items() if not key.startswith("encode")}
    with pytest.raises(ValueError, match="encoder=minilm, encode=note"):
        prepare(read_spec(plain))


def test_an_id_depends_on_encoder_size_norm_and_weights(encoders, tmp_path):
    @encoder("others", reads="images", features=8, size=4)
    def others():
        return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh())

    torch.save({"scale": torch.tensor(1.0)}, tmp_path / "scale.pt")

    @encoder("scaled", reads="images", features=48, size=4, weights=tmp_path / "scale.pt")
    def scaled(path):
        return nn.Flatten()

    usual = identify(spec())
    assert identify(spec(size=4)) == usual  # the encoder's own
    before = identify(spec(encoder="scaled"))
    torch.save({"scale": torch.tensor(2.0)}, tmp_path / "scale.pt")
    ids = [usual, before, identify(spec(encoder="scaled"))]
    ids += [identify(spec(size=5)), identify(spec(norm=6.0)), identify(spec(encoder="others"))]
    assert len({*ids, identify(read_spec(over("digits")))}) == 7


def test_a_statement_names_the_weights_as_public(encoders):
    private = {"unit": "client", "placement": "central", "epsilon": 8, "clip": 1.0, "strict": True}
    data = {"name": "digits", "encoder": "pixels"}
    setup = calibrated(
        prepare(read_spec(over(data, privacy=private)))
    )  # strict: no statistic of the data is taken
    (fact,) = (fact for fact in public_information(setup) if "encoder" in fact)
    assert fact.startswith("the weights of the encoder pixels, of digest sha256:")
    assert "assumed to be trained on data other than the clients'" in fact
    plain = calibrated(prepare(read_spec(over("digits", privacy=private))))
    assert not any("encoder" in fact for fact in public_information(plain))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"encoder": "pixel"}, "unknown encoder 'pixel'. Did you mean 'pixels'"),
        ({"encoder": None, "size": 3}, "data.size: is for encoders; give data.encoder: "),
        ({"encoder": None, "norm": 3.0}, "data.norm: is for encoders"),
        ({"encode": "note"}, "data.encode: encoder pixels reads images"),
        ({"normalize": "none"}, "data.normalize: encoder pixels reads images and scales pixels itself"),
        ({"encoder": "letters"}, "data.encode: missing; name the column of text that encoder letters reads"),
        ({"norm": 0.0}, "data.norm: input should be greater than 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(encoders, data, says):
    with pytest.raises(UserError) as error:
        spec(**data)
    assert says in str(error.value)


def test_an_encoded_column_has_no_other_role(encoders, tmp_path):
    for other in ({"drop": "note"}, {"sensitive": "note"}, {"client": "note"}):
        with pytest.raises(ValueError, match="'note' cannot be encoded, as it has another role"):
            prepare(read_spec(reviews(tmp_path, **other)))
    with pytest.raises(ValueError, match="has no column 'nots'; did you mean 'note'"):
        prepare(read_spec(reviews(tmp_path, encode="nots")))


def test_an_address_names_encoder_and_column(encoders, tmp_path):
    path = reviews(tmp_path)["data"]["path"]
    data = DataSpec.model_validate(f"csv:{path}?label=ill&encoder=letters&encode=note&encode=age")
    assert (data.encoder, data.encode, data.size) == ("letters", ("note", "age"), 9)
    described = harness.describe(f"csv:{path}?label=ill&encoder=letters&encode=note")
    note = next(column for column in described.columns if column.name == "note")
    assert (note.role, note.why) == ("encoded", "asked for by encode") and not described.problems
    assert (
        described.summary[0] == "notes.csv: 300 rows; 1 feature from 2 columns: numbers: age; encoded: note"
    )


def test_changed_weights_are_read_again_in_one_process(tmp_path):
    torch.save({"scale": torch.tensor(1.0)}, tmp_path / "scale.pt")

    @encoder("scaled", reads="images", features=48, size=4, weights=tmp_path / "scale.pt")
    def scaled(path):
        scale = torch.load(path, weights_only=True)["scale"]
        module = nn.Flatten()
        module.register_forward_hook(lambda _, inputs, out: out * scale)
        return module

    data = spec(encoder="scaled").data
    first = load_once(data)
    assert load_once(data) is first
    torch.save({"scale": torch.tensor([2.0])}, tmp_path / "scale.pt")
    torch.testing.assert_close(load_once(data).x, 2 * first.x)


def test_code_outside_of_plugins_is_not_known(encoders):
    """Its features would be kept whatever becomes of it; that of our encoders is covered in any case."""
    assert code_of_encoder("minilm") == "" == code_of_encoder("nobody")
    assert code_of_encoder("pixels") is None


def test_models_of_encoded_columns_are_not_saved(encoders, tmp_path):
    with pytest.raises(UserError, match="features here are those of encoder letters"):
        check_savable(calibrated(prepare(read_spec(reviews(tmp_path)))))


def test_images_that_are_not_here_are_planned_with_the_features(encoders, monkeypatch):
    monkeypatch.setenv("FEDFRONTIER_DATA", "/nowhere")
    federation = stand_in_federation(spec(name="cifar10"))
    assert federation.pool.x.shape == (60_000, 8)


def test_a_plan_without_trials_computes_no_features(encoders, tmp_path, monkeypatch):
    """Its ids are those of the runs."""
    factors = {"name": "mlp", "adapter": {"kind": "lora", "rank": 1, "on": ["Linear"]}}
    run = read_spec(over({"name": "digits", "encoder": "pixels"}, model=factors))
    monkeypatch.setattr(features, "_computed", None)  # which would raise
    (row,) = plan([Combination({}, run)], timed=False)
    monkeypatch.undo()
    assert row["id"] == prepare(run).id


PLUGIN = """
import torch
from helper import WIDTH
from torch import nn
from datasets.encoders import ENCODERS, encoder

@encoder("mine", reads="images", features=WIDTH, size=4)
def mine():
    \"\"\"A layer of my own.\"\"\"
    return nn.Sequential(nn.Flatten(), nn.Linear(48, WIDTH))
"""


@pytest.mark.slow
def test_an_encoder_of_a_plugin_is_listed_and_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(PLUGIN)
    (tmp_path / "helper.py").write_text("WIDTH = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["list", "encoders", "--json", "--plugin", "mine.py"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["mine"] == {
        "name": "mine",
        "reads": "images",
        "features": 3,
        "size": 4,
        "about": "A layer of my own.",
    }
    assert rows["efficientnet-lite0"]["features"] == 1280
    content = over({"name": "digits", "encoder": "mine"})
    harness.run(content, "results")
    (record,) = (tmp_path / "results" / "runs").glob("*/spec.json")
    versions = json.loads(record.read_text())["versions"]
    assert versions["plugins"].keys() == {"encoder"}
    before = code_of_encoder("mine")
    assert before and code_of_encoder("minilm") == ""
    monkeypatch.setitem(plugins.sources("encoder", "mine").files, "helper", "another digest")
    assert code_of_encoder("mine") != before  # what a plugin imports decides its features, too


@pytest.fixture
def layered():
    """Register an encoder of three layers; the value does it anew, with other weights by the seed."""

    def again(seed=0):
        ENCODERS.pop("layered", None)
        generator = torch.Generator().manual_seed(seed)

        @encoder("layered", reads="images", features=5, size=4)
        def layers():
            parts = {
                "first": nn.Conv2d(3, 4, 3),
                "act": nn.ReLU(),
                "last": nn.Conv2d(4, 5, 2),
                "flat": nn.Flatten(),
            }
            network = nn.Sequential(OrderedDict(parts))
            with torch.no_grad():
                for value in network.parameters():
                    value.copy_(torch.randn(value.shape, generator=generator.manual_seed(seed)))
            return network

    again()
    return again


def cut(**model):
    rest = {"name": "encoder_rest", "encoder": "layered", "after": "act", **model}
    return read_spec(over({"name": "digits", "encoder": "layered", "until": "act"}, model=rest))


def test_the_rest_of_an_encoder_starts_as_it_was_pretrained(layered):
    """The network of a run is the encoder from images to features, and a head."""
    setup = calibrated(prepare(cut()))
    x = setup.federation.pool.x
    assert x.shape == (1797, 4, 2, 2)
    whole = load_once(DataSpec.model_validate({"name": "digits", "encoder": "layered"})).x
    start = setup.problem.init(torch.Generator().manual_seed(1))["x"]
    assert start.numel() == 4 * 5 * 4 + 5 + 10 * 5 + 10  # the last convolution and the head
    weights = ENCODERS["layered"].build().last.weight.flatten()
    assert torch.equal(start[: weights.numel()], weights)
    layers = ENCODERS["layered"].parts("act")[1]
    order = torch.tensor([(whole - row).abs().sum(1).argmin() for row in layers(x[:20]).detach()])
    torch.testing.assert_close(layers(x[:20]).detach(), whole[order])
    run = Simulation.from_setup(setup)
    run.step()
    assert not torch.equal(run.state.x.flatten()[: weights.numel()], weights)


def test_adapters_train_factors_of_the_rest_alone(layered):
    setup = calibrated(prepare(cut(adapter={"kind": "lora", "rank": 1, "on": ["*.last"]})))
    assert setup.problem.init(torch.Generator())["x"].numel() == 4 * 4 + 5 + 10 * 5 + 10
    assert "pretrained" in dict(setup.problem.module.named_buffers())


def test_weights_of_a_rest_are_in_its_digest_where_all_are_trained(layered):
    """So a run's id names them; in one process other weights under the same name are refused."""
    network = build("encoder_rest", (4, 2, 2), 10, {"encoder": "layered", "after": "act"})
    assert constants_digest(network)
    layered(seed=1)
    with pytest.raises(UserError, match="others than when it was first built"):
        build("encoder_rest", (4, 2, 2), 10, {"encoder": "layered", "after": "act"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"after": "first_"}, "no layer 'first_' to be cut at; did you mean 'first'"),
        ({"encoder": "layred"}, "unknown encoder 'layred'. Did you mean 'layered'"),
    ],
)
def test_a_rest_that_does_not_fit_is_refused(layered, fields, message):
    with pytest.raises(UserError, match=message):
        prepare(cut(**fields))
    with pytest.raises(
        UserError, match=r"cannot take inputs of shape \(3, 8, 8\), which are no outputs of 'act'"
    ):
        build("encoder_rest", (3, 8, 8), 10, {"encoder": "layered", "after": "act"})


@pytest.mark.parametrize("fields", [{"after": "first"}, {"encoder": "another"}])
def test_a_rest_goes_on_where_the_data_stop(layered, fields):
    """Outputs of an activation have the shape of its inputs: a layer would be left out, or come twice."""
    ENCODERS["another"] = replace(ENCODERS["layered"], name="another")
    rest = {"name": "encoder_rest", "encoder": "layered", "after": "act", **fields}
    data = {"name": "digits", "encoder": "layered", "until": "act"}
    with pytest.raises(
        Incompatible, match=r"give model\.encoder and model\.after the values of data\.encoder"
    ):
        prepare(read_spec(over(data, model=rest)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "digits", "until": "act"}, r"data\.until: is for encoders"),
        (
            {"name": "digits", "encoder": "layered", "until": "act", "norm": 6},
            r"data\.until: cannot go with data\.norm",
        ),
        (
            {"name": "csv", "path": "a.csv", "encoder": "letters", "encode": "note", "until": "act"},
            "encoders of texts",
        ),
    ],
)
def test_a_cut_that_has_no_meaning_is_refused(encoders, layered, data, message):
    with pytest.raises(UserError, match=message):
        read_spec(over(data))
