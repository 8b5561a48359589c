"""Under privacy of clients, rows that never pass the mechanism decide nothing that is printed."""

import json
from dataclasses import replace

import pytest
import torch

from harness.config.run import read_spec
from harness.core.errors import Incompatible
from harness.metrics import METRICS
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.loop import simulate, simulate_all
from harness.simulation.recorder import Recorder
from harness.simulation.simulation import Simulation
from harness.simulation.snapshot import Diverged
from harness.simulation.stacking import obstacle
from harness.storage.store import RunFolder
from tests.support.runs import MM4, RAW, given, ready, table, with_features

CENTRAL = {"placement": "central", "clip": 1.0, "noise_multiplier": 5.0}


def printed(setup, folder=None) -> dict:
    done = simulate(setup, folder)
    return {name: value for name, value in done.items() if name not in ("timing", "diagnostics")}


@pytest.mark.parametrize("placement", ["central", "local"])
def test_features_that_overflow_print_what_empty_messages_print(tmp_path, placement) -> None:
    """Two clients whose messages are both replaced by zeros differ in nothing but what they keep."""
    privacy = {**CENTRAL, "placement": placement, "strict": True}
    setup = ready(table(tmp_path), "scaffold", privacy=privacy, rounds=4, eval_every=1, **RAW)
    first, second = (printed(with_features(setup, value)) for value in (1e36, torch.inf))
    usual = printed(setup)
    assert first == second
    assert first["round"] == 4 and first.keys() == usual.keys() and first["privacy"] == usual["privacy"]


def test_without_privacy_a_state_that_is_not_finite_ends_the_run(tmp_path) -> None:
    with pytest.raises(Diverged, match="in round 1"):
        simulate(with_features(ready(table(tmp_path), "scaffold", **RAW), torch.inf))


def test_only_the_row_that_is_not_finite_stays_as_it_was(tmp_path) -> None:
    setup = ready(table(tmp_path), "scaffold", privacy=CENTRAL, **RAW)
    usual, odd = (Simulation.from_setup(one) for one in (setup, with_features(setup, torch.inf, client=2)))
    for run in (usual, odd):
        run.step()
    others = torch.arange(7) != 2
    assert not bool(odd.state.ci[2].any()) and bool(usual.state.ci[2].any())
    assert torch.equal(odd.state.ci[others], usual.state.ci[others])


def test_a_stack_goes_on_with_the_run_whose_client_overflows(tmp_path) -> None:
    data = table(tmp_path)
    setups = [ready(data, "scaffold", privacy=CENTRAL, seed=seed, rounds=3, **RAW) for seed in (0, 1)]
    setups[1] = with_features(setups[1], 1e36)
    ends = simulate_all([Recorder(setup) for setup in setups])
    alone = [simulate(setup) for setup in setups]
    for end, other in zip(ends, alone, strict=True):
        assert end["timing"]["stacked"] == 2
        assert end["metrics"] == other["metrics"] and end["privacy"] == other["privacy"]


def test_models_that_clients_keep_do_not_end_a_run_by_their_loss(tmp_path) -> None:
    """Fine-tuning on data that overflow gives a model without a loss; no mechanism has seen it."""
    algorithm = {"name": "fedavg", "local_steps": 2, "batch_size": 8, "finetune_epochs": 1}
    setup = with_features(ready(table(tmp_path), algorithm, privacy=CENTRAL, eval_every=1, **RAW), torch.inf)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    done = simulate(setup, folder)
    assert done["metrics"]["loss"] is None and done["round"] == 2
    assert folder.status == "done"


def test_errors_of_embeddings_that_are_not_finite_are_not_numbers(tmp_path) -> None:
    parts = {"partition": {"kind": "columns", "clients": 2, "standardize": False}, "problem": "vertical"}
    setup = ready(table(tmp_path), "splitnn", privacy={**CENTRAL, "placement": "local"}, **parts)
    assert "omega" not in simulate(setup)["metrics"]  # unless it is asked for
    done = simulate(replace(with_features(setup, torch.inf), diagnostics=True))
    assert done["metrics"]["omega"] is None
    assert done["parties"]["omega"][0] is None and done["parties"]["omega"][1] is not None


SECRET = {**CENTRAL, "strict": True, "secure_rng": True}


def uneven(setup):
    """Return the run with fewer samples than a batch at all clients but the first."""
    index = setup.federation.splits["train"].clone()
    index[1:, 4:] = -1
    splits = {**setup.federation.splits, "train": index}
    return replace(setup, federation=replace(setup.federation, splits=splits))


def test_whether_runs_stay_stacked_does_not_depend_on_a_secret_cohort(tmp_path) -> None:
    """With one client of seven in a round, a stack fell apart when one run drew the large one and another not."""
    data, ends = table(tmp_path), {"uneven": [], "even": []}
    for seed in range(4):
        pair = [
            ready(data, privacy=SECRET, cohort={"size": 1}, rounds=1, seed=2 * seed + n, **RAW)
            for n in (0, 1)
        ]
        assert {obstacle(setup) for setup in pair} == {None}
        for name, setups in (("uneven", [uneven(setup) for setup in pair]), ("even", pair)):
            try:
                ends[name] += [end["round"] for end in simulate_all([Recorder(setup) for setup in setups])]
            except Incompatible:
                ends[name].append("apart")
    assert ends == {"uneven": ["apart"] * 4, "even": [1] * 8}
    why = obstacle(uneven(pair[0]))
    assert why is not None and "who is in the cohort, which is secret" in why
    public = ready(data, privacy={**SECRET, "sampling": "fixed"}, cohort={"size": 1}, **RAW)
    assert obstacle(uneven(public)) is None


@pytest.mark.parametrize(
    ("changes", "lines", "end"),
    [
        ({"strict": True}, [False] * 3, (False, False)),
        ({}, [False, False, True], (True, False)),
        ({"strict": True, "sampling": "fixed"}, [True] * 3, (True, False)),
        ({"sampling": "fixed"}, [True] * 3, (True, True)),
    ],
)
def test_times_tell_nothing_about_a_secret_cohort(tmp_path, changes, lines, end) -> None:
    """The time of all rounds is longer with a client that takes many steps: strict leaves it out."""
    setup = ready(table(tmp_path), privacy={**CENTRAL, **changes}, cohort={"size": 3}, eval_every=1, **RAW)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    done = simulate(setup, folder)
    written = (folder.path / "rounds.jsonl").read_text().splitlines()
    assert ["seconds" in json.loads(line)["timing"] for line in written] == lines
    assert ("seconds" in done["timing"], "stacked" in done["timing"]) == end
    assert ("how long the run takes" in done["public"]) == end[0]


SELECTION = {"partition": {"kind": "iid", "clients": 7, "standardize": False, "selection": 0.3}}
COLUMNS = {"partition": {"kind": "columns", "clients": 2, "standardize": False}, "problem": "vertical"}


def test_strict_prints_no_metric_of_samples_that_are_not_test_samples(tmp_path) -> None:
    """Which of a client's samples serve for selection is up to the harness; they are its private data."""
    data = table(tmp_path)
    strict, free = (ready(data, privacy={**CENTRAL, "strict": it}, **SELECTION) for it in (True, False))
    usual, other = (
        simulate(one)["metrics"] for one in (strict, with_features(strict, 9.0, split="selection"))
    )
    assert usual == other and "accuracy" in usual
    for diagnostics, kinds in ((False, {"selection"}), (True, {"selection", "train"})):
        left_out = simulate(replace(free, diagnostics=diagnostics))["metrics"].keys() - usual.keys()
        assert {name.partition("_")[0] for name in left_out} == kinds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [
        ("fedavg", SELECTION),
        ("local_sgda", {"problem": MM4, "data": None, "partition": None, "model": None}),
        ("fedbio", {"problem": "fair_weights"}),
        ("splitnn", {**COLUMNS, "compression": {"alpha": [[0, 0.0], [1, 0.5]]}}),
    ],
)
def test_whatever_private_data_are_measured_for_is_named(tmp_path, algorithm: str, fields) -> None:
    """No figure but those of test samples is written that is not in the list of what epsilon does not cover."""
    if algorithm == "splitnn":
        fields = {**fields, "model": {"name": "mlp", "hidden": [8]}}
    whole = given(table(tmp_path), algorithm, privacy={**CENTRAL, "placement": "local"}) | fields
    setup = calibrated(
        prepare(read_spec({name: value for name, value in whole.items() if value is not None}))
    )
    usual, asked = simulate(setup), simulate(replace(setup, diagnostics=True))
    assert asked["not_covered"][0].startswith("figures of the training samples")
    for done in (usual, asked):
        assert next(iter(done)) == "not_covered"  # before the claim
        listed = " ".join(done["not_covered"])
        others = [name for name in done["metrics"] if name not in METRICS]
        assert [
            name for name in others if name not in listed and f"{name.partition('_')[0]}_*" not in listed
        ] == []
    assert len(asked["metrics"]) > len(usual["metrics"]) or algorithm in ("local_sgda", "fedavg")
