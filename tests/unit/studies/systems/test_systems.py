"""Settings of other systems: figures known from elsewhere, and the page that shows them."""

import math
from pathlib import Path

import pytest

from privacy.accounting import account
from privacy.event import Event
from privacy.gaussian import gaussian_epsilon
from studies.__main__ import main
from studies.systems.settings import SETTINGS, evaluate

PAGE = Path(__file__).parents[4] / "docs" / "systems.md"


def _epsilons(name, **settings):
    return {(row.what, row.adjacency): row.epsilon for row in evaluate(name, settings).rows}


@pytest.mark.slow
def test_the_page_shows_what_the_command_prints(capsys):
    assert main(["systems", "--markdown"]) == 0
    printed = capsys.readouterr().out.strip()
    page = PAGE.read_text()
    shown = page.split("<!-- systems --markdown -->\n")[1].split("\n<!-- end -->")[0].strip()
    assert shown == printed


def test_every_setting_has_links_and_a_reason():
    for setting in SETTINGS.values():
        assert setting.sources
        assert all(source.startswith("https://github.com/") for source in setting.sources)
        assert len(setting.why) > 80
        assert setting.version.split()[0] in setting.title or setting.name == "flip-localdp"


@pytest.mark.slow
def test_figures_are_as_the_other_projects_say_today():
    """Replaced records of Poisson batches have 1.926, not 8.905; the filter of NVFlare logs its sum itself."""
    assert _epsilons("opacus")["Poisson batches (default)", "replace-one"] == pytest.approx(1.926, abs=0.005)
    svt = evaluate("nvflare-svt", {})
    assert svt.printed == pytest.approx(svt.rows[0].epsilon)
    assert "none" in SETTINGS["pfl"].why and "accountant" in SETTINGS["flower-fixed"].why


def test_localdp_of_a_hospital_project_is_two_hundred_million_a_round():
    """std 1e-4 sqrt(2 ln 125000) / 10 = 4.845e-5, as the project logs; epsilon about 1 / (2 std^2) at clip 1."""
    found = _epsilons("flip-localdp")
    std = 1e-4 * math.sqrt(2 * math.log(1.25e5)) / 10
    assert std == pytest.approx(4.845e-5, rel=1e-3)
    assert found["one round, an update left out", "add-remove"] == pytest.approx(2.13e8, rel=0.01)
    assert found["one round, an update replaced", "replace-one"] == pytest.approx(4 * 2.13e8, rel=0.01)
    assert found["50 rounds, were the sensitivity as set", "as set"] == pytest.approx(
        gaussian_epsilon(0.4845 / math.sqrt(50), 1e-5), rel=1e-3
    )


@pytest.mark.slow
def test_svt_defaults_cost_seventy_thousand_a_round_as_a_sum():
    """A tenth of 7 million entries at 0.1 each; at a delta far less, as by advanced composition."""
    found = _epsilons("nvflare-svt")
    assert found["selection and release, summed", "replace-one"] == pytest.approx(70_000.1)
    mean, spread = 700_000 * 0.1 * math.tanh(0.05), 0.1 * math.sqrt(700_000)
    assert mean < found["the same at a delta", "replace-one"] < mean + 6 * spread


def test_svt_of_a_few_entries_is_never_above_its_sum():
    found = _epsilons("nvflare-svt", params=10)
    assert (
        found["the same at a delta", "replace-one"] <= found["selection and release, summed", "replace-one"]
    )


def test_flamby_takes_more_steps_than_it_accounts_for():
    found = list(evaluate("flamby", {}).rows)
    assert [row.what.split()[0] for row in found] == ["120", "1500", "1500"]
    assert found[0].epsilon <= 1.0
    assert 4 < found[1].epsilon < 5 < 15 < found[2].epsilon < 16


@pytest.mark.slow
def test_printed_figures_that_hold_are_said_to_hold():
    pfl, opacus = evaluate("pfl", {}), evaluate("opacus", {})
    assert pfl.rows[0].epsilon == pytest.approx(pfl.printed, rel=1e-3)
    assert pfl.rows[1].epsilon > 1e4
    assert opacus.rows[0].epsilon == pytest.approx(opacus.printed, rel=0.01)


def test_adaptive_clipping_pays_for_its_count_under_replacement():
    """z_u^-2 = z^-2 - (2 s)^-2; replaced: 4 z_u^-2 + s^-2 = 4 z^-2. Left out: z_u^-2 + s^-2 > z^-2."""
    found = _epsilons("flower-adaptive", rounds=1)
    whole = account([Event(0.5)], 1e-5).epsilon
    assert found["cohorts known to the attacker", "replace-one"] == pytest.approx(whole, rel=1e-9)
    assert found["an update and its bit left out", "add-remove"] > account([Event(1.0)], 1e-5).epsilon


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("opacus:epochs=1e7", "opacus: epochs is at most 1,000,000; given 1e7"),
        ("flip-localpd", "Did you mean 'flip-localdp'?"),
        ("opacus:epoch=3", "Did you mean 'epochs'?"),
        ("opacus:epochs=many", "not a number"),
        ("opacus:epochs=0", "must be a number above 0"),
        ("flower-adaptive:noise_multiplier=3", "Flower refuses"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(text, said, capsys):
    assert main(["systems", text]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
