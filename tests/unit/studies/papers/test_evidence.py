"""Evidence for claims: which runs count, what is read from each, and when it is stale."""

from dataclasses import replace

import pytest
import yaml

from harness.config.recorded import versions
from harness.core.errors import UserError
from harness.report.data.results import Results
from studies.papers.claims import read_claims
from studies.papers.evidence import gather
from studies.papers.observations import count_differences, read_observations, stale, write_observations
from tests.support.records import done, evaluation, searched, spec, undone

GOOD = {"says": "A", "measure": "accuracy", "of": {"algorithm": "fedavg"}, "expect": {"above": 0, "least": 1}}


def claims_of(folder, suite="tiny", **fields):
    content = {"suite": suite, "claims": {"one": {**GOOD, **fields}}}
    (folder / "claims.yaml").write_text(yaml.safe_dump(content))
    return read_claims(folder)


def run(seed, *values, algorithm="fedavg", lr=0.1, status="done", **parts):
    """Return a run whose accuracy is the values, one after every 10 rounds; each 10 rounds send 300 bytes."""
    lines = [evaluation(10 * n, 100 * n, accuracy=v, loss=1 - v) for n, v in enumerate(values, 1)]
    record = done(spec(algorithm, seed, lr=lr, **parts), *lines)
    return replace(record, id=f"{algorithm}-{lr}-{seed}", status=status, versions=versions(record.spec))


def values(folder, records, **fields):
    """Return repetition -> value and bound, of the runs `of`."""
    found = gather(claims_of(folder, **fields), Results(records))
    return {one.repetition: (one.value, one.bound) for one in found if one.arm == "of"}


@pytest.mark.parametrize(
    "measure, value",
    [
        ("accuracy", 0.6),
        ("bytes", 1200.0),
        ({"measure": "accuracy", "round": 20}, 0.7),
        ({"measure": "accuracy", "last": 3}, 0.7),
        ({"max": "accuracy"}, 0.8),
        ({"min": "accuracy"}, 0.5),
        ({"rounds_to": {"accuracy": 0.7}}, 20),
        ({"bytes_to": {"accuracy": 0.75}}, 900),
        ({"oracle_calls_to": {"loss": 0.35}}, 1000),
    ],
)
def test_a_measure_is_read_from_the_evaluations(tmp_path, measure, value):
    """Accuracies .5, .7, .8, .6 after 10, ..., 40 rounds; (.7 + .8 + .6) / 3 = .7; loss is 1 - accuracy."""
    found = values(tmp_path, [run(0, 0.5, 0.7, 0.8, 0.6)], measure=measure)
    assert found == {"0": (pytest.approx(value), False)}


def test_a_run_below_its_target_counts_with_what_it_spent(tmp_path):
    records = [
        run(0, 0.5, 0.9),
        run(1, 0.5, 0.6, 0.7),
        run(2, 0.1, status="failed"),
        run(3, 0.9, status="failed"),
    ]
    found = values(tmp_path, records, measure={"rounds_to": {"accuracy": 0.8}})
    assert found == {"0": (20, False), "1": (30, True), "2": (10, True), "3": (10, False)}


def test_a_failed_run_has_no_last_accuracy(tmp_path):
    assert values(tmp_path, [run(0, 0.5), run(1, 0.9, status="failed")]) == {
        "0": (0.5, False),
        "1": (None, False),
    }


def test_settings_filter_runs(tmp_path):
    records = [
        run(0, 0.1, lr=0.1),
        run(0, 0.2, lr=0.2),
        run(0, 0.3, lr=0.3),
        run(0, 0.4, algorithm="scaffold"),
    ]
    assert values(tmp_path, records, at={"algorithm.lr": 0.2, "privacy": None}) == {"0": (0.2, False)}
    with pytest.raises(UserError, match=r"differ in algorithm\.lr \(0\.1, 0\.2\)"):
        values(tmp_path, records, at={"algorithm.lr": [0.1, 0.2]})


@pytest.mark.parametrize(
    "fields, told",
    [
        ({"at": {"algorithm.lrr": 1}}, "Did you mean 'algorithm.lr'?"),
        ({"at": {"algorithm.lr": 7}}, "there is algorithm.lr 0.1"),
        ({"of": {"algorithm": "sagda"}}, "there is algorithm.name fedavg"),
        ({"measure": "accuracyx"}, "Did you mean 'accuracy'?"),
        ({"measure": {"measure": "accuracy", "round": 15}}, "no evaluation at round 15; there are 10, 20"),
        ({"measure": {"measure": "accuracy", "last": 9}}, "has 2 evaluations, fewer than the last 9"),
        ({"along": "algorithm.lr"}, "needs two of its values"),
        ({"along": "partition.kind"}, "along needs numbers above 0"),
        ({"over": "problem.sseed"}, "unknown setting that repeats"),
        ({"suite": "other"}, "no runs of suite other"),
        ({"choose": {"by": "accuracy", "seeds": [0]}}, "no run is left"),
    ],
)
def test_what_no_run_has_is_refused_with_what_there_is(tmp_path, fields, told):
    with pytest.raises(UserError) as refused:
        values(tmp_path, [run(0, 0.5, 0.6)], **fields)
    assert told in str(refused.value)


def test_a_schedule_is_one_value_and_not_several(tmp_path):
    steps = [[0, 0.2], [6, 0.4]]
    runs = [run(0, 0.5, compression={"beta": 0}), run(1, 0.6, compression={"beta": steps})]
    of = {"algorithm": "fedavg", "compression.beta": steps}
    assert values(tmp_path, runs, of=of) == {"1": (0.6, False)}


def test_a_choice_never_reports_the_seeds_it_chose_on(tmp_path):
    """On seed 9 lr 0.2 is best, by far the worst on the others; seed 9 is in no observation."""
    records = [run(s, 0.8, lr=0.1) for s in (0, 1)] + [run(s, 0.2, lr=0.2) for s in (0, 1)]
    records += [run(9, 0.1, lr=0.1), run(9, 0.9, lr=0.2)]
    claims = claims_of(tmp_path, choose={"by": "accuracy", "seeds": [9]})
    found = gather(claims, Results(records))
    assert {(one.repetition, one.value, one.settings) for one in found} == {
        ("0", 0.2, "algorithm.lr=0.2"),
        ("1", 0.2, "algorithm.lr=0.2"),
    }
    less = gather(claims_of(tmp_path, choose={"by": "loss", "seeds": [9]}), Results(records))
    assert {one.settings for one in less} == {"algorithm.lr=0.2"}


def test_a_choice_by_a_target_prefers_what_reaches_it(tmp_path):
    """Seeds 8 and 9: lr 0.1 needs 30 rounds; lr 0.2 needs 10, but one of its runs ended at 10 without reaching."""
    records = [run(s, 0.5, 0.5, 0.9, lr=0.1) for s in (0, 8, 9)]
    records += [run(0, 0.9, lr=0.2), run(8, 0.9, lr=0.2), run(9, 0.5, lr=0.2)]
    target = {"rounds_to": {"accuracy": 0.8}}
    assert values(tmp_path, records, choose={"by": target, "seeds": [8, 9]}) == {"0": (0.9, False)}
    (observation,) = gather(read_claims(tmp_path), Results(records))
    assert observation.settings == "algorithm.lr=0.1"


def test_another_seed_may_repeat(tmp_path):
    parts = [{"kind": "iid", "clients": 2, "test": 0.3, "selection_seed": n} for n in (2, 3)]
    records = [run(n, v, partition=part) for n, (v, part) in enumerate(zip((0.5, 0.6), parts, strict=True))]
    assert values(tmp_path, records, over="partition.selection_seed") == {
        "2": (0.5, False),
        "3": (0.6, False),
    }


def test_a_choice_tells_what_was_tried(tmp_path):
    """Of 0.1, 0.2 and 0.4 the chosen 0.4 is the largest; the kinds of partitions are no numbers."""
    rates = {0.1: 0.3, 0.2: 0.5, 0.4: 0.9}
    parts = [{"kind": "iid", "clients": 2, "test": 0.3}, {"kind": "classes", "clients": 2, "test": 0.3}]
    records = [
        run(s, v - 0.1 * n, lr=lr, partition=part)
        for s in (0, 9) for lr, v in rates.items() for n, part in enumerate(parts)
    ]  # fmt: skip
    fields = {"choose": {"by": "accuracy", "seeds": [9]}}
    (observation,) = gather(claims_of(tmp_path, **fields), Results(records))
    assert observation.tried == "algorithm.lr=0.1/0.2/0.4"
    assert "partition.kind=iid" in observation.settings
    assert observation.edges == ["algorithm.lr=0.4"]
    write_observations(tmp_path / "claims.csv", [observation])
    assert read_observations(tmp_path / "claims.csv") == [observation]
    middle = observation._replace(settings="algorithm.lr=0.2 partition.kind=iid")
    assert middle.edges == [] == observation._replace(tried="").edges


def test_points_of_a_slope_choose_for_themselves(tmp_path):
    """At 2 clients lr 0.1 is best on seed 9, at 4 clients lr 0.2."""
    best = {2: 0.1, 4: 0.2}
    records = [
        run(seed, 0.9 if best[n] == lr else 0.3, lr=lr, partition={"kind": "iid", "clients": n, "test": 0.3})
        for n in best for lr in (0.1, 0.2) for seed in (0, 9)
    ]  # fmt: skip
    fields = {"along": "partition.clients", "choose": {"by": "accuracy", "seeds": [9]}}
    found = gather(claims_of(tmp_path, **fields), Results(records))
    assert [(one.point, one.settings) for one in found] == [
        (2.0, "algorithm.lr=0.1"),
        (4.0, "algorithm.lr=0.2"),
    ]


def test_skipped_and_missing_runs_are_no_evidence(tmp_path):
    records = [run(0, 0.5), undone(spec("fedavg", 1), "skipped", "why"), undone(spec("fedavg", 2), "missing")]
    assert values(tmp_path, records) == {"0": (0.5, False), "2": (None, False)}


def test_runs_of_several_versions_are_not_mixed(tmp_path):
    first, second = run(0, 0.5), run(1, 0.5)
    second = replace(second, versions={**second.versions, "algorithm": 99})
    with pytest.raises(UserError, match=r"differ in versions\.algorithm"):
        values(tmp_path, [first, second])


def test_a_log_scale_refuses_what_has_no_logarithm(tmp_path):
    with pytest.raises(UserError, match="scale log needs values above 0"):
        values(tmp_path, [run(0, 0.0)], scale="log", expect={"ratio_above": 1, "least_ratio": 2})


def test_figures_come_back_from_their_file(tmp_path):
    records = [run(0, 0.1234567890123), run(1, 0.5), run(2, 0.9, status="failed")]
    target = {"rounds_to": {"accuracy": 0.4}}
    for measure in ("accuracy", target):
        found = gather(claims_of(tmp_path, measure=measure), Results(records))
        write_observations(tmp_path / "claims.csv", found)
        again = read_observations(tmp_path / "claims.csv")
        assert count_differences(again, found) == 0
        assert [one.bound for one in again] == [one.bound for one in found]
        assert count_differences([again[0]._replace(value=0.2), *again[1:]], found) == 1
        assert count_differences(again[1:], found) == 1


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("claim,question", "claim,asked", "the columns claim, question"),
        (",0.5,", ",half,", "cannot be read"),
        (",of,", ",from,", "cannot be read"),
        ("tiny/one", "tiny/one,,", "cannot be read"),
    ],
)
def test_a_damaged_file_of_figures_is_refused(tmp_path, old, new, told):
    path = tmp_path / "claims.csv"
    write_observations(path, gather(claims_of(tmp_path), Results([run(0, 0.5)])))
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError) as refused:
        read_observations(path)
    assert told in str(refused.value)


def test_a_lost_row_is_noticed(tmp_path):
    """Also where both sides lose the same seed, which would leave whole pairs."""
    path, claims = tmp_path / "claims.csv", claims_of(tmp_path, than={"algorithm": "scaffold"})
    records = [run(s, 0.5, algorithm=name) for s in range(6) for name in ("fedavg", "scaffold")]
    write_observations(path, gather(claims, Results(records)))
    assert len(read_observations(path)) == 12
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if ",,5," not in line) + "\n")
    with pytest.raises(UserError, match="tiny/one has 10 rows, expected 12"):
        read_observations(path)


def test_a_run_counts_once(tmp_path):
    path = tmp_path / "claims.csv"
    write_observations(path, gather(claims_of(tmp_path), Results([run(0, 0.5)])))
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    with pytest.raises(UserError, match="two rows have the same"):
        read_observations(path)


@pytest.mark.parametrize("own", [{}, {"sampling": "poisson"}, {"clip": "adaptive"}])
def test_evidence_of_today_is_not_stale(tmp_path, own):
    private = {"unit": "client", "placement": "central", "clip": 1.0, "epsilon": 8.0, "delta": 1e-5} | own
    records = [run(0, 0.5, privacy=private)]
    claims = claims_of(tmp_path)
    found = gather(claims, Results(records))
    assert "algorithm=fedavg@" in found[0].versions and "privacy=@" in found[0].versions
    assert stale(claims, found) == []


@pytest.mark.parametrize("section", ["algorithm", "problem", "partition", "privacy"])
def test_evidence_of_another_version_is_stale(tmp_path, section):
    record = run(0, 0.5, privacy={"unit": "client"})
    other = replace(record, versions={**record.versions, section: 99})
    claims = claims_of(tmp_path)
    (reason,) = stale(claims, gather(claims, Results([other])))
    assert reason.startswith(f"tiny/one: made with {section}=") and "@99, today " in reason


def test_evidence_of_unknown_code_is_stale(tmp_path):
    claims = claims_of(tmp_path)
    (observation,) = gather(claims, Results([run(0, 0.5)]))
    plugin = observation._replace(versions=observation.versions.replace("fedavg@", "mine@"))
    assert "not registered today" in stale(claims, [plugin])[0]
    assert stale(claims, [observation._replace(versions="")]) == [
        "tiny/one: versions of its runs are not known"
    ]


def test_evidence_for_another_question_is_stale(tmp_path):
    found = gather(claims_of(tmp_path), Results([run(0, 0.5)]))
    (reason,) = stale(claims_of(tmp_path, measure="loss"), found)
    assert "asks for other observations" in reason
    other = [one._replace(claim="tiny/gone") for one in found]
    assert [reason.split(":")[0] for reason in stale(claims_of(tmp_path), other)] == ["tiny/one", "tiny/gone"]


def tuned(algorithm, values, finalists=()):
    """Return runs of a search, of a suite that says FedNova is FedAvg."""
    runs = searched([run(seed, value, algorithm=algorithm) for seed, value in enumerate(values)], finalists)
    return [replace(record, same=(("fedavg", "fednova"),)) for record in runs]


def test_figures_of_tuned_suites_know_other_choices_and_namesakes(tmp_path):
    records = tuned("fedavg", [0.5, 0.6], [(0.25, [0.4, 0.45])]) + tuned("fednova", [0.6, 0.7])
    found = gather(claims_of(tmp_path, than={"algorithm": "fednova"}), Results(records))
    assert [(one.others, one.resolution) for one in found] == [
        ("0.25=0.4", pytest.approx(0.1)),
        ("0.25=0.45", pytest.approx(0.1)),
        ("", pytest.approx(0.1)),
        ("", pytest.approx(0.1)),
    ]
    assert found[0].choices == [(0.75, 0.5), (0.25, 0.4)]
    path = tmp_path / "claims.csv"
    write_observations(path, found)
    assert path.read_text().splitlines()[0].endswith("tried,others,resolution,rows")
    assert count_differences(read_observations(path), found) == 0
    best = gather(claims_of(tmp_path, measure={"max": "accuracy"}), Results(records))
    assert {(one.others, one.resolution) for one in best} == {("", None)}, (
        "other choices have the last evaluation"
    )
    write_observations(path, best)
    assert path.read_text().splitlines()[0].endswith("tried,rows"), "as files of suites without a search"
