"""The search of a file that names none."""

import pytest

from harness.config.default_search import (
    CLIP,
    LOCAL_STEPS,
    ROUNDS,
    STEP_SIZE,
    default_ranges,
    searched_suite,
)
from harness.config.run import read_spec
from harness.core.errors import Incompatible

RUN = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 3},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": "fedavg",
}
PRIVATE = {"placement": "central", "clip": 1, "epsilon": 8}


def ranges(**changes):
    return default_ranges([read_spec(RUN | changes)])


def test_a_run_has_the_ranges_of_its_settings():
    plain = {"algorithm.lr": STEP_SIZE, "algorithm.local_steps": LOCAL_STEPS, "rounds": ROUNDS}
    assert ranges() == plain
    assert ranges(privacy=PRIVATE) == plain | {"privacy.clip": CLIP}
    assert ranges(privacy=PRIVATE | {"clip": "adaptive"}) == plain
    epochs = ranges(algorithm={"name": "fedavg", "local_epochs": 2})
    assert epochs == {path: over for path, over in plain.items() if "local" not in path}
    assert set(ranges(algorithm="fedrep")) > {"algorithm.lr_u", "algorithm.lr_v"}


def test_a_suite_has_those_of_all_its_runs():
    content = {"base": RUN, "sweep": {"algorithm": ["fedavg", "fedrep"], "privacy": [None, PRIVATE]}}
    tune = searched_suite(content).tune
    assert list(tune.settings) == [
        *("algorithm.lr", "algorithm.lr_u", "algorithm.lr_v"),
        *("algorithm.local_steps", "privacy.clip", "rounds"),
    ]


def test_samples_to_choose_on_are_held_out_where_none_are():
    content = {"base": RUN, "sweep": [{"seed": [0]}, {"seed": [1], "partition": [RUN["partition"]]}]}
    made = searched_suite(content)
    assert {cell.spec.partition.selection for cell in made.combinations} == {0.2}
    given = content | {"base": RUN | {"partition": {**RUN["partition"], "selection": 0.3}}}
    assert {cell.spec.partition.selection for cell in searched_suite(given | {"sweep": {}}).combinations} == {
        0.3
    }


def test_a_section_of_the_file_is_kept_and_options_change_it():
    section = {"settings": {"algorithm.lr": {"log_uniform": [0.1, 1]}}, "budget": 20, "metric": "loss"}
    profiles = {"smoke": {"tune": {"budget": 10}}, "paper": {}}
    base = RUN | {"partition": {**RUN["partition"], "selection": 0.3}}
    content = {"base": base, "sweep": {"seed": [0]}, "tune": section, "profiles": profiles}
    made = searched_suite(content, "smoke")
    assert (made.tune.budget, made.tune.metric, made.profile) == (10, "loss", "smoke")
    assert list(made.tune.settings) == ["algorithm.lr"]
    changed = searched_suite(content, "smoke", search={"budget": 5, "metric": "auroc"})
    assert (changed.tune.budget, changed.tune.metric) == (5, "auroc")
    without = {**content, "base": RUN}
    assert {cell.spec.partition.selection for cell in searched_suite(without, "smoke").combinations} == {0.0}


def test_the_measure_that_ranks_also_chooses():
    content = {"base": RUN, "sweep": {}, "report": {"by": "auroc"}}
    assert searched_suite(content).tune.metric == "auroc"
    assert searched_suite(content | {"report": {"by": "bytes"}}).tune.metric == "accuracy"


def test_what_cannot_be_run_is_refused_with_the_reason():
    with pytest.raises(Incompatible, match="centralized"):
        searched_suite({"base": RUN | {"algorithm": "centralized", "privacy": PRIVATE}, "sweep": {}})
