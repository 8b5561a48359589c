"""What a sweep expands to: lists, ranges, ladders of budgets, draws, and what a limit of time leaves of them."""

import math

import pytest
from pydantic import TypeAdapter

from harness.config import settings, sweep
from harness.config.run import validated
from harness.config.suite import make_suite
from harness.config.sweep import expand
from harness.core.errors import UserError
from harness.simulation.build import identify
from harness.simulation.plan import Trial, affordable

BASE = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 3},
    "model": "logistic",
    "algorithm": "fedavg",
    "rounds": 2,
    "privacy": {"placement": "local", "clip": 1, "noise_multiplier": 0},
}


def specs(**block):
    return [cell.spec for cell in expand(BASE, [block])]


def over(draws=5, seed=0, **fields):
    ways = {f"algorithm.{name}": way for name, way in fields.items()}
    return {"random": {"draws": draws, "seed": seed, "over": ways}}


def test_a_range_is_a_list_of_whole_numbers():
    assert [spec.seed for spec in specs(seed="3..6")] == [3, 4, 5, 6]
    assert [spec.seed for spec in specs(seed=["0..1", 7])] == [0, 1, 7]


def test_a_ladder_of_budgets_may_begin_without_privacy():
    base = BASE | {"privacy": {"placement": "local", "clip": 1}}
    first, second = (cell.spec for cell in expand(base, [{"privacy.epsilon": [None, 8]}]))
    assert first.privacy is None
    assert (second.privacy.epsilon, second.privacy.clip) == (8, 1)


def test_sections_and_their_fields_are_swept_in_any_order():
    """A whole section is set before fields in it, and a budget of null leaves all of privacy away."""
    inside = {"algorithm.lr": [0.1, 0.2]}
    for block in (inside | {"algorithm": ["fedprox"]}, {"algorithm": ["fedprox"]} | inside):
        assert [(spec.algorithm["name"], spec.algorithm["lr"]) for spec in specs(**block)] == [
            ("fedprox", 0.1),
            ("fedprox", 0.2),
        ]
    ladder = {"privacy.noise_multiplier": [None, 1]}
    norms = {"privacy.clip": [1, 2]}
    for block in (ladder | norms, norms | ladder):
        found = [spec.privacy and spec.privacy.clip for spec in specs(**block)]
        assert sorted(found, key=str) == [1.0, 2.0, None]


def test_draws_lie_in_bounds_and_are_crossed_with_lists():
    ways = {"lr": {"log_uniform": [1e-3, 1]}, "local_steps": {"integer": [1, 4]}}
    ways |= {"batch_size": {"choice": [8, 16]}, "server_lr": {"uniform": [0.5, 1]}}
    found = specs(seed="0..1", **over(20, **ways))
    assert len(found) == 40
    drawn = [spec.algorithm for spec in found if spec.seed == 0]
    assert [spec.algorithm for spec in found if spec.seed == 1] == drawn
    assert all(1e-3 <= one["lr"] <= 1 and 0.5 <= one["server_lr"] <= 1 for one in drawn)
    assert {one["local_steps"] for one in drawn} == {1, 2, 3, 4}
    assert {one["batch_size"] for one in drawn} == {8, 16}
    below = sum(one["lr"] < math.sqrt(1e-3) for one in drawn)
    assert 3 <= below <= 17, "half of log-uniform draws lie below the geometric middle"


def test_draws_stay_when_there_are_more_of_them_or_of_fields():
    few = [spec.algorithm["lr"] for spec in specs(**over(3, lr={"uniform": [0, 1]}))]
    more = specs(**over(6, lr={"uniform": [0, 1]}, local_steps={"integer": [1, 9]}))
    assert [spec.algorithm["lr"] for spec in more[:3]] == few
    other = [spec.algorithm["lr"] for spec in specs(**over(3, seed=1, lr={"uniform": [0, 1]}))]
    assert not set(other) & set(few)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"seed": "5..2"}, "a range ascends over at most"),
        ({"seed": "0...4"}, r"sweep.seed: '0\.\.\.4' is no range. Did you mean '0\.\.4'"),
        ({"seed": []}, "sweep.seed: the list has no values"),
        (
            {"algorithm.lr": [1]} | over(lr={"uniform": [0, 1]}),
            "algorithm.lr has both a list of values and a random draw",
        ),
        (over(0, lr={"uniform": [0, 1]}), "draws: input should be greater than or equal to 1, given 0"),
        ({"seed": "0..999999999"}, "over at most 100,000 numbers"),
        ({"seed": "0..9999", "rounds": "1..9999"}, "more than 100,000 runs"),
        ({"random": {"draws": 3}}, "name the fields to draw"),
        ({"random": {"draw": 3, "over": {"seed": {"integer": [0, 1]}}}}, "Did you mean 'draws'"),
        (over(-1, lr={"uniform": [0, 1]}), "draws: input should be greater than or equal to 1, given -1"),
        (over(lr={"loguniform": [0.1, 1]}), "Did you mean 'log_uniform'"),
        (over(lr={"log_uniform": [0, 1]}), "above 0"),
        (over(lr={"uniform": [1, 0]}), r"\[lowest, highest\]"),
        (over(lr={"uniform": [0, math.inf]}), r"\[lowest, highest\]"),
        (over(local_steps={"integer": [1, 2.5]}), "whole numbers"),
        (over(lr={"choice": []}), "a list of values"),
        (over(lr=0.1), "named fields"),
        ({"algorithm.lrr": [1]}, "Did you mean 'lr'"),
    ],
)
def test_what_cannot_be_meant_is_refused(block, message):
    with pytest.raises(UserError, match=message):
        specs(**block)


def test_a_suite_of_no_runs_is_refused():
    with pytest.raises(UserError, match="a list of blocks is empty"):
        make_suite({"base": BASE, "sweep": []})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"bse": BASE}, "unknown field of suite 'bse'. Did you mean 'base'"),
        ({"base": 3}, "suite.base: named fields are needed, given 3"),
        ({"sweep": 3}, "sweep: named fields are needed, given 3"),
        (
            {"profiles": {"paper": {"bse": {}}}},
            "unknown field of suite.profiles.paper 'bse'. Did you mean 'base'",
        ),
        ({"profiles": {"smoke": {}, "paper": 3}}, "suite.profiles.paper: needs named fields, given 3"),
        ({"profiles": {"paper": {}}}, "unknown profile 'smoke'"),
    ],
)
def test_a_suite_that_cannot_be_meant_is_refused(content, message):
    """Also where the mistake is in a profile that is not asked for."""
    with pytest.raises(UserError, match=message):
        make_suite({"base": BASE} | content)


def test_only_a_file_with_profiles_has_one():
    assert make_suite({"base": BASE, "sweep": {"algorithm": ["fedavg"]}}).profile == ""
    profiles = {"smoke": {}, "paper": {}}
    assert (
        make_suite({"base": BASE, "sweep": {"algorithm": ["fedavg"]}, "profiles": profiles}).profile
        == "smoke"
    )


def test_the_command_line_takes_the_place_of_a_suites_lists():
    content = {"base": BASE, "sweep": [{"seed": [0, 1]}, {"seed": [0], "rounds": [3, 4]}]}
    found = make_suite(content, instead={"seed": ["5..6"]}).combinations
    assert sorted((cell.spec.rounds, cell.spec.seed) for cell in found) == [
        (2, 5),
        (2, 6),
        (3, 5),
        (3, 6),
        (4, 5),
        (4, 6),
    ]


def test_a_time_limit_refuses_runs_or_drops_the_last_seeds(monkeypatch):
    """An hour a run of 2 rounds, two hours one of 4: three seeds of both take 9 hours, two 6, one 3."""
    monkeypatch.setattr(
        "harness.simulation.plan.trial", lambda setup: Trial(1800.0 * setup.spec.rounds, None, None)
    )
    cells = expand(BASE, [{"rounds": [2, 4], "seed": "0..2"}])
    assert affordable(cells, 9) == list(cells)
    assert affordable(cells, 4.5, jobs=2) == list(cells)
    with pytest.raises(UserError, match="about 9 hours with 1 at a time, and the limit is 7"):
        affordable(cells, 7)
    left = affordable(cells, 7, trim=True)
    assert len(left) == 6, "what is left out stays visible"
    assert [cell.spec is None for cell in left] == [False, False, True] * 2
    assert all("--limit-hours 7" in cell.reason for cell in left if cell.spec is None)
    assert left[2].given == cells[2].spec.model_dump(mode="json")
    with pytest.raises(UserError, match="not even one seed"):
        affordable(cells, 2, trim=True)


def test_runs_that_are_done_cost_nothing(monkeypatch):
    monkeypatch.setattr("harness.simulation.plan.trial", lambda setup: Trial(3600.0, None, None))
    cells = expand(BASE, [{"seed": "0..3"}])
    done = [identify(cell.spec) for cell in cells[:3]]
    assert affordable(cells, 1, ended=done) == list(cells)


def test_runs_that_are_done_are_never_left_out(monkeypatch):
    """Of four seeds the last is done; of the other three, an hour each, two fit."""
    monkeypatch.setattr("harness.simulation.plan.trial", lambda setup: Trial(3600.0, None, None))
    cells = expand(BASE, [{"seed": "0..3"}])
    left = affordable(cells, 2, ended=[identify(cells[3].spec)], trim=True)
    assert [cell.spec is None for cell in left] == [False, False, True, False]


def test_workers_that_have_nothing_to_do_save_no_time(monkeypatch):
    monkeypatch.setattr("harness.simulation.plan.trial", lambda setup: Trial(3600.0, None, None))
    cells = expand(BASE, [{"seed": "0..1"}])
    assert affordable(cells, 1, jobs=2) == list(cells)
    with pytest.raises(UserError, match="about 1 hours with 8 at a time, and the limit is"):
        affordable(cells, 0.5, jobs=8)


def test_a_class_of_settings_is_analyzed_once_however_many_runs_there_are(monkeypatch):
    """It takes as long as twenty validations, and was done for every run."""
    made = []
    monkeypatch.setattr(settings, "TypeAdapter", lambda cls: made.append(cls) or TypeAdapter(cls))
    settings._adapter.cache_clear()
    assert len(specs(seed="0..30")) == 31
    assert len(made) == len(set(made)) > 0


def test_runs_of_one_cell_are_checked_once_and_are_those_of_separate_checks(monkeypatch):
    """A hundred thousand seeds took half a minute; what depends on the seed alone is its range."""
    block = {"seed": ["0..4"], "rounds": [3, 4], "algorithm": ["fedavg", "k_gt_minimax"]}
    apart = [cell for seed in range(5) for cell in expand(BASE, [block | {"seed": [seed]}])]
    asked = []
    monkeypatch.setattr(sweep, "validated", lambda given: asked.append(given) or validated(given))
    together = expand(BASE, [block])
    assert len(asked) == 4 and len(together) == 20
    assert sorted(map(str, together)) == sorted(map(str, apart))
    with pytest.raises(UserError, match="seed"):
        expand(BASE, [{"seed": [0, -1]}])
    with pytest.raises(UserError, match="seed"):
        expand(BASE, [{"seed": [0, True]}])


def test_combinations_share_no_part_that_could_change():
    base = BASE | {"compression": {"alpha": [[0, 0.1], [5, 0.2]]}}
    first, second = (
        cell.given for cell in expand(base, [{"seed": [0, 1], "model": [{"name": "mlp", "hidden": [3]}]}])
    )
    assert first["compression"] == second["compression"] == base["compression"]
    first["compression"]["alpha"][0][1] = first["model"]["hidden"][0] = 9
    assert second["compression"]["alpha"][0][1] == base["compression"]["alpha"][0][1] == 0.1
    assert second["model"]["hidden"] == [3]
