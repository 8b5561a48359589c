"""Rules 3 to 5 and the vocabulary of a run file: what cannot be protected is refused, with the reason."""

from typing import Any

import pytest
import torch

from harness.config.run import read_spec
from harness.config.sweep import Combination
from harness.core.errors import Incompatible, UserError
from harness.core.settings.compression import Compression
from harness.simulation.build import prepare
from harness.simulation.calibration import calibrated
from harness.simulation.loop import simulate
from harness.simulation.plan import plan, vetted
from tests.support.runs import given, ready
from tests.support.wire import channel, cohort, privacy, record, rows

CENTRAL = {"unit": "client", "placement": "central", "clip": 1.0}


@pytest.mark.parametrize("verb", ["gather", "mix"])
def test_central_privacy_is_for_means_only(verb: str) -> None:
    way = channel(privacy("central", z=1.0), mixing=torch.full((4, 4), 0.25, dtype=torch.float64))
    with pytest.raises(Incompatible, match=r"central privacy protects only averages.*use placement local"):
        getattr(way, verb)(rows(3))
    assert way.ledger.made == 0 and int(way.cost.up) == 0


MATRICES = {"P": [1, -0.5], "B": [1, 2], "Q": [1, 2], "c": [2, -2], "d": [0, 4]}


def test_gossip_under_central_privacy_is_refused() -> None:
    spec = read_spec(
        {
            "problem": {"kind": "quadratic_minimax", **MATRICES},
            "algorithm": {"name": "k_gt_minimax", "local_steps": 1},
            "topology": "complete",
            "privacy": {**CENTRAL, "epsilon": 1.0},
        }
    )
    with pytest.raises(Incompatible, match=r"central privacy protects only averages.*use placement local"):
        calibrated(prepare(spec))


def test_each_is_refused_under_record_level_privacy() -> None:
    clients = cohort(mechanism=record(z=1.0))
    with pytest.raises(
        Incompatible, match="protects gradients only, but the algorithm computes something else"
    ):
        clients.each(lambda x: x, rows(3))


@pytest.mark.parametrize("mechanism", [None, record(z=1.0)])
def test_hand_made_batches_are_refused(mechanism) -> None:
    """Nothing could be counted for them, and as their sampling is unknown, nothing could be booked."""
    clients = cohort(mechanism=mechanism)
    batch = clients.federation.pool.at(clients.federation.splits["train"])
    with pytest.raises(Incompatible, match=r"needs batches drawn by Clients\.batches"):
        clients.grad(rows(8), batch)


def test_a_clip_norm_per_part_must_fit_the_message() -> None:
    with pytest.raises(Incompatible, match=r"privacy\.clip has 2 norms, but the message has 1 parts"):
        channel(privacy(clip=(1.0, 2.0))).gather(rows(3))


def test_random_k_with_ratios_per_client_is_refused() -> None:
    ratios = ((0, (0.1, 0.2, 0.3, 0.4)),)
    with pytest.raises(Incompatible, match="random_k uses one ratio for all clients"):
        channel(None, Compression(beta=ratios, select="random_k")).gather(rows(10))


PRIVACY = [
    ({"placement": "local"}, r"privacy: give exactly one of epsilon, .*; given none"),
    ({"placement": "local", "epsilon": 1, "noise_multiplier": 1}, "given epsilon and noise_multiplier"),
    (
        {"placement": "local", "epsilon_release": 1, "epsilon_nominal": 1},
        "given epsilon_release and epsilon_nominal",
    ),
    ({"placement": "local", "epsilon": 0}, r"privacy\.epsilon: input should be greater than 0, given 0"),
    (
        {"placement": "local", "epsilon_nominal": -1},
        r"privacy\.epsilon_nominal: input should be greater than 0, given -1",
    ),
    (
        {"placement": "local", "noise_multiplier": -0.1},
        r"privacy\.noise_multiplier: .*greater than or equal to 0, given -0\.1",
    ),
    (
        {"placement": "local", "epsilon": 1, "delta": 0},
        r"privacy\.delta: input should be greater than 0, given 0",
    ),
    (
        {"placement": "local", "epsilon": 1, "delta": 1},
        r"privacy\.delta: input should be less than 1, given 1",
    ),
    ({"placement": "local", "epsilon": 1, "clip": 0}, r"privacy\.clip: clip norms must be above 0, given 0"),
    (
        {"placement": "local", "epsilon": 1, "clip": [1, -1]},
        r"privacy\.clip: clip norms must be above 0, given",
    ),
    (
        {"placement": "local", "epsilon": 1, "clip": float("inf")},
        r"privacy\.clip: an infinite clip norm needs noise_multiplier 0",
    ),
    (
        {"placement": "local", "epsilon": float("inf")},
        r"privacy\.epsilon: must be between 1e-09 and 1e\+09, given inf",
    ),
    ({"placement": "local", "noise_multiplier": 1e300}, r"privacy\.noise_multiplier: must be between"),
    ({"placement": "local", "noise_multiplier": 1e-200}, r"privacy\.noise_multiplier: must be between"),
    ({"placement": "local", "epsilon": 1, "delta": 1e-320}, r"privacy\.delta: must be at least 1e-30"),
    ({"epsilon": 1, "unit": "record", "clip": 1, "server_clip": 1}, "does not support server_clip"),
    ({"placement": "local", "epsilon": 1, "clip": []}, r"privacy\.clip: clip norms must be above 0, given"),
    ({"placement": "local", "epsilon": 1, "clip": "adaptiv"}, r"privacy\.clip"),
    (
        {"placement": "local", "epsilon": 1, "server_clip": 0},
        r"privacy\.server_clip: input should be greater than 0",
    ),
    (
        {"placement": "local", "epsilon": 1, "unit": "person"},
        r"privacy\.unit: input should be 'client', 'record' or 'user', given 'person'",
    ),
    (
        {"epsilon": 1, "placement": "shuffle"},
        r"privacy\.placement: input should be 'local', 'central' or 'distributed'",
    ),
    (
        {"placement": "local", "epsilon": 1, "adjacency": "zero-out"},
        r"privacy\.adjacency: .* local placement protects against replacing .* given 'zero-out'",
    ),
    (
        {"placement": "local", "epsilon": 1, "accountant": "gdp"},
        r"privacy\.accountant: input should be 'pld', 'prv' or 'rdp'",
    ),
    (
        {"placement": "local", "epsilon": 1, "sampling": "random"},
        r"privacy\.sampling: input should be 'fixed' or 'full'; .* given 'random'",
    ),
    ({"placement": "local", "epsilon": 1, "norm": 3}, r"unknown field.*privacy.*norm"),
    (
        {"epsilon": 1, "unit": "record", "placement": "central"},
        "units record and user protect every local gradient",
    ),
    ({"epsilon": 1, "unit": "record", "clip": [1, 2]}, "give clip as a number"),
    ({"epsilon": 1, "unit": "record", "clip": "adaptive"}, "give clip as a number"),
    ({"epsilon": 1, "unit": "record", "sampling": "fixed"}, "omit placement, sampling"),
    ({"epsilon": 1, "unit": "record", "sampling": "full"}, "remove privacy.sampling"),
    ({"epsilon": 1, "unit": "record", "adjacency": "replace"}, "accounted by zero-out or add-remove"),
    ({"epsilon_nominal": 1, "unit": "record"}, "does not support epsilon_nominal"),
    (
        {"placement": "local", "epsilon": 1, "adjacency": "add-remove"},
        "local placement protects against replacing a client's data",
    ),
    (
        {"placement": "local", "epsilon": 1, "sampling": "poisson"},
        "local placement .* is not amplified by sampling",
    ),
    (
        {"placement": "local", "epsilon": 1, "clip": "adaptive"},
        "local placement .* adaptive clipping needs a count at the server",
    ),
    (
        {"epsilon": 1, "placement": "central", "sampling": "fixed", "adjacency": "add-remove"},
        "fixed cohorts need adjacency replace or zero-out, given add-remove; add-remove is for sampling poisson",
    ),
    (
        {"epsilon": 1, "placement": "central", "sampling": "full", "adjacency": "add-remove"},
        "full cohorts need adjacency replace or zero-out, given add-remove",
    ),
    (
        {"epsilon": 1, "placement": "central", "sampling": "poisson", "adjacency": "replace"},
        "poisson cohorts need adjacency zero-out or add-remove, given replace",
    ),
    (
        {"placement": "local", "epsilon": 1, "sampling": "fixed"},
        r"privacy\.sampling: fixed needs a cohort; give cohort\.size",
    ),
    (
        {"epsilon": 1, "placement": "central", "sampling": "poisson"},
        r"privacy\.sampling: poisson needs a cohort; give cohort\.size",
    ),
]


@pytest.mark.parametrize(("section", "message"), PRIVACY)
def test_a_privacy_section_that_makes_no_sense_is_refused(data, section, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_spec(given(data, privacy=section))


def test_everybody_in_every_round_is_not_a_cohort(data) -> None:
    with pytest.raises(UserError, match=r"privacy\.sampling: full takes everybody; remove cohort"):
        read_spec(
            given(data, privacy={"placement": "local", "epsilon": 1, "sampling": "full"}, cohort={"size": 2})
        )


def test_pooled_data_cannot_be_protected(data) -> None:
    with pytest.raises(Incompatible, match="algorithm centralized collects the raw data of all clients"):
        read_spec(given(data, "centralized", privacy={"placement": "local", "epsilon": 1}))


def test_central_privacy_needs_a_clear_adjacency(data) -> None:
    """The defaults: everybody is replaced; in Poisson cohorts one has no effect, or at a public rate is away."""
    everybody = read_spec(given(data, privacy={**CENTRAL, "epsilon": 1})).privacy
    assert (everybody.sampling, everybody.adjacency) == ("full", "replace")
    cohorts = read_spec(given(data, privacy={**CENTRAL, "epsilon": 1}, cohort={"size": 2})).privacy
    assert (cohorts.sampling, cohorts.adjacency) == ("poisson", "zero-out")
    public = {"rate": 0.3, "divisor": 2}
    cohorts = read_spec(given(data, privacy={**CENTRAL, "epsilon": 1}, cohort=public)).privacy
    assert (cohorts.sampling, cohorts.adjacency) == ("poisson", "add-remove")
    local = read_spec(given(data, privacy={"placement": "local", "epsilon": 1}, cohort={"size": 2})).privacy
    assert (local.sampling, local.adjacency) == ("fixed", "replace")
    one = read_spec(given(data, privacy={"epsilon": 1, "unit": "record"})).privacy
    assert (one.sampling, one.adjacency) == ("poisson", "zero-out")


COMPRESSION = [
    ({"select": "threshold"}, "select threshold needs a threshold"),
    ({"threshold": 0.1}, "select threshold needs a threshold"),
    ({"select": "threshold", "threshold": 0.1, "beta": 0.5}, "and beta 0"),
    (
        {"beta": 0.5, "select": "random_k", "error_feedback": True},
        "error_feedback supports neither select random_k",
    ),
    ({"beta": 0.5, "downlink": True, "error_feedback": True}, "nor downlink"),
    ({"beta": 0.5, "select": "random_k", "shift": 1.0}, "shift supports neither select random_k"),
    ({"beta": 0.5, "error_feedback": True, "shift": 1.0}, "nor error_feedback"),
    ({"beta": 0.5, "shift": 1.5}, "less than or equal to 1"),
    ({"rank": 0}, r"compression\.rank"),
    ({"rank": 2, "beta": 0.5}, "rank supports neither beta nor select"),
    ({"rank": 2, "select": "random_k"}, "rank supports neither beta nor select"),
    ({"rank": 2, "downlink": True}, "rank supports no downlink"),
    ({"beta": [0.1] * 7, "downlink": True}, "one beta for all clients"),
    ({"beta": []}, "a schedule needs at least one step"),
    ({"beta": [[-5, 0.5]]}, "from round 0 on"),
    ({"codec": "float31"}, "float32"),
    ({"beta": 1.0}, r"compression\.beta: .*in \[0, 1\).* 1\.0"),
    ({"beta": -0.1}, r"compression\.beta: .*in \[0, 1\).*-0\.1"),
    ({"alpha": 1.0}, r"compression\.alpha: .*in \[0, 1\).* 1\.0"),
    ({"beta": [[5, 0.1], [5, 0.2]]}, r"compression\.beta: .*must ascend; 5 follows 5"),
    ({"alpha": [[0, 0.1], [3, 1.5]]}, r"compression\.alpha: .*in \[0, 1\).*1\.5"),
    (
        {"select": "top"},
        r"compression\.select: input should be 'top_k', 'random_k' or 'threshold', given 'top'",
    ),
    ({"gamma": 1}, r"unknown field.*compression.*gamma"),
]


@pytest.mark.parametrize(("section", "message"), COMPRESSION)
def test_a_compression_section_that_makes_no_sense_is_refused(data, section, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_spec(given(data, compression=section))


def test_a_model_without_hidden_units_cannot_be_pruned(data) -> None:
    with pytest.raises(Incompatible, match=r"compression\.alpha: the model of problem classify has no"):
        ready(data, compression={"alpha": 0.5})


def test_a_server_clip_is_for_servers_that_average() -> None:
    """What is gathered one by one, beside averages, is left as it is; where nothing is averaged it is refused."""
    way = channel(privacy(z=1.0, server_clip=1.0), mixing=torch.full((4, 4), 0.25, dtype=torch.float64))
    assert way.gather(rows(3)).norm() > 1.0
    with pytest.raises(Incompatible, match=r"privacy\.server_clip: gossip has no server"):
        way.mix(rows(3))


def test_gossip_has_no_downlink() -> None:
    mixing = torch.full((4, 4), 0.25, dtype=torch.float64)
    with pytest.raises(Incompatible, match="gossip has no server"):
        channel(None, Compression(downlink=True), mixing=mixing).mix(rows(3))


STRICT = {"placement": "local", "clip": 1.0, "noise_multiplier": 1.0, "strict": True}


def test_strict_privacy_refuses_weights_by_sample_numbers(data) -> None:
    for fields, why in (
        (
            {"privacy": STRICT, "algorithm": {"name": "fedavg", "local_epochs": 1}},
            "steps of an epoch.*give algorithm.local_steps",
        ),
        (
            {"privacy": {**STRICT, "unit": "record"}},
            "rate at which a record is drawn.*give privacy.adjacency add-remove with a privacy.record_rate",
        ),
    ):
        with pytest.raises(Incompatible, match=f"privacy.strict: the run takes as public: .*{why}"):
            ready(data, **fields)
    way = channel(privacy(strict=True))
    with pytest.raises(
        Incompatible, match="private counts of samples exclude a mean weighted by sample counts"
    ):
        way.mean(rows(3), weighting="size")


def test_strict_privacy_averages_plainly_where_it_may() -> None:
    messages = rows(3, scale=0.01)
    torch.testing.assert_close(channel(privacy(strict=True)).mean(messages), messages.mean(0))
    weights = torch.tensor([4, 8, 2, 6], dtype=torch.float64) / 20
    torch.testing.assert_close(channel(privacy()).mean(messages), weights @ messages)


def test_strict_privacy_refuses_columns_standardized_by_the_data(tmp_path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text(
        "a,label\n" + "\n".join(f"{0.5 * i},{'yes' if i % 3 else 'no'}" for i in range(40)) + "\n"
    )
    fields = {"data": {"name": "csv", "path": str(path), "label": "label"}}
    settings = given(path) | fields | {"privacy": STRICT}
    with pytest.raises(Incompatible, match="mean and standard deviation over all training samples of: a"):
        prepare(read_spec(settings))
    settings["partition"] = {"kind": "iid", "clients": 7, "standardize": False}
    setup = prepare(read_spec(settings))
    assert setup.federation.pool.x.max() == 19.5  # as it stands in the file


def test_a_strict_run_keeps_sample_numbers_secret(data) -> None:
    raw = {"kind": "iid", "clients": 7, "standardize": False}
    lists = [
        simulate(ready(data, partition=raw, privacy={**STRICT, "strict": strict}))["public"]
        for strict in (True, False)
    ]
    assert not any("numbers of training samples" in line for line in lists[0])
    assert any("numbers of training samples" in line for line in lists[1])


@pytest.mark.parametrize(
    ("algorithm", "fields", "reason"),
    [
        (
            "dm_hsgd",
            {"compression": {"beta": 0.5, "error_feedback": True}},
            "must not be added to the next one",
        ),
        ("k_gt_minimax", {"compression": {"downlink": True}}, "gossip has no server"),
        ("dream", {"privacy": {"unit": "record", "clip": 1.0, "epsilon": 1.0}}, "decide by a public coin"),
    ],
)
def test_impossible_gossip_is_refused_and_skipped_in_suites(
    algorithm: str, fields: dict[str, Any], reason: str
) -> None:
    given = {"problem": {"kind": "quadratic_minimax", **MATRICES}, "algorithm": algorithm, **fields}
    spec = read_spec({**given, "topology": "complete"})
    with pytest.raises(Incompatible, match=reason):
        calibrated(prepare(spec))
    (cell,) = vetted([Combination({}, spec)])
    assert cell.spec is None and reason in str(cell.reason)
    (row,) = plan([Combination({}, spec)])
    assert row["status"] == "skipped" and reason in row["reason"]


def test_what_clients_have_kept_is_told_again_for_nothing() -> None:
    vector = rows(6)[0]
    way = channel(None, Compression(codec="float16", downlink=True))
    assert torch.equal(way.rebroadcast(vector), way.down(vector))
    assert int(way.cost.down) == 4 * 6 * 2


@pytest.mark.parametrize(
    "compression",
    [{"codec": "q3"}, {"codec": "sign"}, {"beta": 0.5}, {"beta": 0.5, "select": "random_k"}],
)
def test_random_codes_cannot_refer_to_what_clients_keep(
    compression: dict[str, Any],
) -> None:
    """Two vectors of 1000 in one message, half of it dropped: clients get about 500 entries of the first, fewer if
    the other is larger. Told again alone, about 500 would come that are not those: more than was paid for. The sign
    code's magnitude is that of the whole message. A cohort that pays for it again may be sent anything."""
    setting = Compression(**compression, downlink=True)
    with pytest.raises(Incompatible, match="clients reuse what they received before"):
        channel(None, setting).rebroadcast(rows(6)[0])
    paying = channel(None, setting, ids=(0, 2))
    paying.rebroadcast(rows(6)[0])
    assert int(paying.cost.down) > 0


THINNED = {"beta": 0.5, "downlink": True}


@pytest.mark.parametrize(
    ("algorithm", "compression", "reason"),
    [
        ("fedavg", {"beta": [0.1] * 7, "select": "random_k"}, "random_k uses one ratio"),
        ("fedavg", {"alpha": [0.1] * 7, "beta": 0.5, "select": "random_k"}, "random_k uses one mask"),
        ("local_sgda_plus", THINNED, "clients reuse what they received before"),
    ],
)
def test_refused_compression_is_planned_as_skipped(
    data: Any, algorithm: str, compression: dict[str, Any], reason: str
) -> None:
    """One such cell must not end a plan, nor fail in a suite seed by seed."""
    kind = "classify" if algorithm == "fedavg" else "fair_classification"
    fields = {"problem": kind, "model": {"name": "mlp", "hidden": [8]}, "compression": compression}
    spec = read_spec(given(data, algorithm, **fields))
    (row,) = plan([Combination({}, spec)])
    assert row["status"] == "skipped" and reason in row["reason"]
    (cell,) = vetted([Combination({}, spec)])
    assert cell.spec is None and reason in str(cell.reason)


@pytest.mark.parametrize(
    "fields", [{}, {"privacy": {"placement": "local", "clip": 1.0, "noise_multiplier": 1.0}}]
)
def test_a_model_without_an_extractor_is_skipped_not_failed(data: Any, fields: dict[str, Any]) -> None:
    """Without privacy nothing was tried before the run, which then failed."""
    (cell,) = vetted([Combination({}, read_spec(given(data, "fedrep", model="logistic", **fields)))])
    assert cell.spec is None and "no hidden layer" in str(cell.reason)


@pytest.mark.parametrize(
    "protected", [{}, {"privacy": {"placement": "local", "clip": 1.0, "noise_multiplier": 1.0}}]
)
def test_refusals_of_full_cohorts_do_not_hold_for_partial_ones(data: Any, protected: dict[str, Any]) -> None:
    """Three of seven pay for the snapshot in every round, so it may be sent thinned like anything else."""
    fields = {"problem": "fair_classification", "compression": THINNED, **protected}
    ready(data, "local_sgda_plus", **fields, cohort={"size": 3})
    with pytest.raises(Incompatible, match="clients reuse what they received before"):
        ready(data, "local_sgda_plus", **fields)


@pytest.mark.parametrize("algorithm", ["per_fedavg", {"name": "fedavg", "finetune_epochs": 1}])
def test_training_for_an_evaluation_is_refused_under_record_level_privacy_before_a_run(
    data, algorithm
) -> None:
    """It was refused at the first evaluation: 96 runs of a search failed, and a plan of them ended."""
    fields = {"privacy": {"unit": "record", "placement": "local", "clip": 1.0, "epsilon": 8.0}}
    cell = Combination({}, read_spec(given(data, algorithm, **fields)))
    (checked,) = vetted([cell])
    assert checked.spec is None and "trains for an evaluation without noise" in str(checked.reason)
    (row,) = plan([cell])
    assert row["status"] == "skipped"
