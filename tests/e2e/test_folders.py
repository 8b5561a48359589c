"""Folders that live: finished later, repeated, merged, and run from their own files."""

import fcntl
import json
import shutil
import threading

import pytest
import yaml

from harness.cli.parser import main
from harness.config.run import read_spec
from harness.core.errors import UserError
from harness.executors.scheduler import run_one
from harness.executors.work import Work
from harness.storage import files, seals
from harness.storage import merge as merging
from harness.storage.seals import read_sealed, write_sealed
from harness.storage.store import Store
from tests.support.written import blank, written

pytestmark = pytest.mark.usefixtures("blank_pictures")

BASE = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 3},
    "model": "logistic",
    "algorithm": "fedavg",
    "rounds": 4,
    "eval_every": 2,
}


def suite(folder, name="mine", seeds=(0, 1), base=BASE, jobs="1", **more):
    path = folder / "file.yaml"
    path.write_text(yaml.safe_dump({"suite": name, "base": base, "sweep": {"seed": list(seeds)}, **more}))
    return ["suite", str(path), "--jobs", jobs]


def figures(root, name=None):
    """Return what the runs of a folder are, without times."""
    return {
        record.id: [{k: v for k, v in line.items() if k != "timing"} for line in record.rounds]
        for record in Store(root).records(name)
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two folders of one suite, with seeds 0, 1 and 1, 2: only to be copied."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", blank)
        for name, seeds in (("a", (0, 1)), ("b", (1, 2))):
            assert main([*suite(root, seeds=seeds), "--out", str(root / name)]) == 0
    return root


@pytest.fixture
def made(finished, tmp_path):
    """The folder of a finished suite, which is that of `suite`."""
    return shutil.copytree(finished / "a", tmp_path / "out")


@pytest.fixture
def two(finished, tmp_path):
    """Two folders of one suite, with seeds 0, 1 and 1, 2."""
    return tuple(shutil.copytree(finished / name, tmp_path / name) for name in ("a", "b"))


def test_a_folder_resumes_without_the_command_that_made_it(tmp_path, capsys):
    """Runs interrupted, never begun and damaged end as they would have; what was done is not touched."""
    root = tmp_path / "out"
    assert main([*suite(tmp_path, seeds=range(4)), "--out", str(root)]) == 0
    straight, ids = figures(root), [record.id for record in Store(root).records("mine")]
    shutil.rmtree(root / "runs" / ids[1])
    lines = root / "runs" / ids[2] / "rounds.jsonl"
    lines.write_text(lines.read_text().replace("0.9", "0.8", 1))

    def stop(run, round, line):
        if round == 3:
            raise KeyboardInterrupt

    shutil.rmtree(root / "runs" / ids[3])
    with pytest.raises(KeyboardInterrupt):
        run_one(read_spec(BASE | {"seed": 3}), root, progress=stop)
    before = (root / "runs" / ids[0] / "done.json").stat().st_mtime_ns
    (tmp_path / "file.yaml").unlink()
    capsys.readouterr()
    assert main(["resume", str(root), "--jobs", "1"]) == 0
    assert "mine: 3 runs" in capsys.readouterr().err
    assert figures(root) == straight
    assert (root / "runs" / ids[0] / "done.json").stat().st_mtime_ns == before
    assert main(["resume", str(root)]) == 0
    assert "nothing in" in capsys.readouterr().err


def test_retry_repeats_what_failed_and_nothing_else(made, tmp_path, capsys):
    first, second = Store(made).records("mine")
    straight = figures(made)
    folder = Store(made).folder(first.id)
    (folder.path / "done.json").unlink()
    folder.fail({"reason": "bad luck"})
    assert main(["resume", str(made), "--jobs", "1"]) == 0
    assert Store(made).folder(first.id).status == "failed"
    capsys.readouterr()
    assert main([*suite(tmp_path), "--out", str(made)]) == 1
    assert "failed: bad luck (recorded earlier; --retry runs it again)" in capsys.readouterr().err
    kept = (Store(made).folder(second.id).path / "done.json").stat().st_mtime_ns
    assert main(["retry", str(made), "--suite", "mine", "--jobs", "1"]) == 0
    assert figures(made) == straight
    assert (Store(made).folder(second.id).path / "done.json").stat().st_mtime_ns == kept
    assert main(["retry", str(made), "--suite", "other"]) == 2


def test_where_nothing_is_left_no_empty_table_is_printed(made, capsys):
    """It said "No runs yet." of a folder full of runs."""
    assert main(["leaderboard", str(made), "--where", "accuracy > 2"]) == 0
    told = capsys.readouterr()
    assert told.out == "" and "no row is within accuracy > 2; recommend says why" in told.err


def test_files_of_one_s_own_are_named_in_plans_and_progress(tmp_path, capsys):
    """Two files were both csv, and one row of a plan."""
    for name, n in (("a.csv", 60), ("b.csv", 70)):
        (tmp_path / name).write_text("\n".join(["a,b,y", *(f"{i},{i % 7},{i % 2}" for i in range(n))]))
    data = [{"name": "csv", "path": str(tmp_path / name), "label": "y"} for name in ("a.csv", "b.csv")]
    given = suite(tmp_path, seeds=[0])
    written = yaml.safe_load((tmp_path / "file.yaml").read_text())
    written["sweep"]["data"] = data
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(written))
    assert main(["plan", given[1], "--json", "--untimed"]) == 0
    assert [row["data"] for row in json.loads(capsys.readouterr().out)] == ["a.csv", "b.csv"]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    assert "fedavg on a.csv, seed 0" in capsys.readouterr().err


def test_runs_of_other_data_are_left_as_they_are(tmp_path, capsys):
    """To make them under their ids is impossible: a repeated run would be another one."""
    rows = [f"{i},{i % 7},{i % 2}" for i in range(60)]
    table, root = tmp_path / "t.csv", tmp_path / "out"
    table.write_text("\n".join(["a,b,y", *rows]))
    base = BASE | {"data": {"name": "csv", "path": str(table), "label": "y"}}
    assert main([*suite(tmp_path, base=base), "--out", str(root)]) == 0
    first, _ = Store(root).records("mine")
    (root / "runs" / first.id / "done.json").unlink()
    table.write_text("\n".join(["a,b,y", *rows, "60,1,0"]))
    assert main(["resume", str(root)]) == 1
    assert f"run {first.id} is skipped: it was made by another version" in capsys.readouterr().err
    assert Store(root).folder(first.id).status == "interrupted" and len(Store(root).run_folders()) == 2


def test_a_run_and_a_suite_are_repeated_from_their_own_files(tmp_path):
    root, again = tmp_path / "out", tmp_path / "again"
    assert main([*suite(tmp_path, report={"by": "auroc"}), "--out", str(root)]) == 0
    first = Store(root).records("mine")[0]
    spec = root / "runs" / first.id / "spec.json"
    assert main(["run", "--spec", str(spec), "--out", str(tmp_path / "one")]) == 0
    assert figures(tmp_path / "one") == {first.id: figures(root)[first.id]}
    assert main(["suite", str(root / "mine" / "suite.json"), "--jobs", "1", "--out", str(again)]) == 0
    assert figures(again, "mine") == figures(root, "mine")
    assert Store(again).report_settings("mine")["by"] == "auroc"
    assert main(["suite", str(root / "mine" / "suite.json"), "--sweep", "seed=7", "--out", str(again)]) == 2


def test_merged_folders_are_one_folder(two, tmp_path, capsys):
    """The runs of both, one cell of three seeds, and a report; the sources stay as they are."""
    a, b = two
    before = written(a), written(b)
    out = tmp_path / "both"
    capsys.readouterr()
    assert main(["merge", str(a), str(b), "--out", str(out)]) == 0
    assert "3 runs copied, 1 there already, 0 left; suites: mine" in capsys.readouterr().out
    assert figures(out, "mine") == figures(a) | figures(b)
    assert main(["leaderboard", str(out), "--suite", "mine", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["done"], row["seeds"]) == (3, 3)
    assert main(["verify", str(out)]) == 0
    assert (written(a), written(b)) == before
    assert main(["merge", str(a), str(b), "--out", str(out)]) == 0
    assert "0 runs copied, 4 there already" in capsys.readouterr().out


def test_a_merge_replaces_no_figures_by_others(two, tmp_path, capsys):
    a, b = two
    (shared,) = {record.id for record in Store(a).records()} & {record.id for record in Store(b).records()}
    folder = Store(b).folder(shared)
    final = folder.end()
    final["metrics"]["accuracy"] = 1.0
    folder.finish(final)
    kept = figures(a)[shared], Store(a).folder(shared).end()
    assert main(["merge", str(b), "--out", str(a)]) == 1
    assert "ended with other values" in capsys.readouterr().err
    assert (figures(a)[shared], Store(a).folder(shared).end()) == kept


def test_a_run_that_later_versions_recorded_with_more_is_the_same(two, capsys):
    a, b = two
    (shared,) = {record.id for record in Store(a).records()} & {record.id for record in Store(b).records()}
    folder = Store(b).folder(shared)
    content, seal = read_sealed(folder.path / "spec.json")
    write_sealed(folder.path / "spec.json", {**content, "tested": {"samples": 5}, "meta": None}, seal)
    folder = Store(b).folder(shared)
    folder.finish(folder.end() | {"not_covered": ["figures of test samples"]})
    assert main(["merge", str(b), "--out", str(a)]) == 0
    assert capsys.readouterr().err == ""


def test_a_finished_run_replaces_an_interrupted_one(two, capsys):
    a, b = two
    (shared,) = {record.id for record in Store(a).records()} & {record.id for record in Store(b).records()}
    (a / "runs" / shared / "done.json").unlink()
    assert main(["merge", str(b), "--out", str(a)]) == 0
    assert Store(a).folder(shared).end() == Store(b).folder(shared).end()
    (b / "runs" / shared / "done.json").unlink()
    assert main(["merge", str(b), "--out", str(a)]) == 0
    assert Store(a).folder(shared).status == "done"


def test_a_merge_leaves_damaged_runs_where_they_are(two, tmp_path, capsys):
    a, b = two
    record = Store(b).records()[0]
    lines = b / "runs" / record.id / "rounds.jsonl"
    lines.write_text("")
    assert main(["merge", str(a), str(b), "--out", str(tmp_path / "c")]) == 1
    assert "it is damaged" in capsys.readouterr().err
    nowhere = ["merge", str(a), str(tmp_path / "no"), "--out", str(tmp_path / "d")]
    for given in (nowhere, ["merge", str(a), "--out", str(a)]):
        assert main(given) == 2
    assert not (tmp_path / "d").exists()


def tuned(folder, seeds, budget=2):
    search = {
        "settings": {"algorithm.lr": {"choice": [1e-6, 0.1]}},
        "budget": budget,
        "seeds": [100],
        "sampler": "latin",
    }
    return suite(folder, seeds=seeds, base=BASE | {"partition": {"kind": "iid", "clients": 3, "selection": 0.2}},
                 tune={**search})  # fmt: skip


@pytest.mark.slow
def test_searched_suites_are_pooled_with_their_searches(tmp_path, capsys):
    for name, seeds in (("a", (0, 1)), ("b", (2,))):
        assert main([*tuned(tmp_path, seeds), "--out", str(tmp_path / name)]) == 0
    assert main(["merge", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "c")]) == 0
    records = Store(tmp_path / "c").records("mine")
    assert [record.search["number"] for record in records] == [0, 0, 1]
    assert {record.spec["algorithm"]["lr"] for record in records} == {0.1}
    assert main([*tuned(tmp_path, (3,), budget=1), "--out", str(tmp_path / "d")]) == 0
    assert main(["merge", str(tmp_path / "a"), str(tmp_path / "d"), "--out", str(tmp_path / "e")]) == 2
    assert "searched in different ways" in capsys.readouterr().err
    again = ["suite", str(tmp_path / "a" / "mine" / "suite.json"), "--jobs", "1"]
    assert main([*again, "--out", str(tmp_path / "f")]) == 0
    assert figures(tmp_path / "f", "mine") == figures(tmp_path / "a", "mine")


def test_what_a_killed_merge_or_a_file_manager_leaves_is_no_run(two, tmp_path, capsys):
    """One such folder among the runs made every command refuse all of them."""
    a, _ = two
    id = figures(a).popitem()[0]
    for name in (f".copying-{id}", f"{id} (copy)"):
        shutil.copytree(a / "runs" / id, a / "runs" / name)
    for command in ("status", "leaderboard", "verify"):
        assert main([command, str(a)]) == 0, command
    assert main(["merge", str(a), "--out", str(tmp_path / "out")]) == 0
    assert "2 runs copied" in capsys.readouterr().out


def test_a_suite_is_written_nowhere_but_in_its_folder(two, tmp_path, capsys):
    """The name in suite.json led merge and resume to write outside the results folder."""
    a, _ = two
    path = a / "mine" / "suite.json"
    content, _ = seals.read_sealed(path)
    seals.write_sealed(path, content | {"suite": "../../evil"})
    (a / "runs" / content["cells"][0]["id"] / "done.json").unlink()
    for given in (["merge", str(a), "--out", str(tmp_path / "b" / "c")], ["resume", str(a), "--jobs", "1"]):
        assert main(given) == 2
        assert "suite.json is damaged" in capsys.readouterr().err
    assert main(["verify", str(a)]) == 2
    assert not list(tmp_path.rglob("evil"))
    with pytest.raises(UserError, match=r"given '\.\./x'"):
        files.make_own_folder(a, "../x")


def test_a_merge_writes_nothing_into_its_sources(two, tmp_path, monkeypatch):
    """It took claims there, so that the folder of a colleague could not be merged."""
    a, _ = two
    claims = sorted(a.glob("runs/*/claim"))
    assert claims
    claims[0].unlink()
    before = {path: path.stat().st_mtime_ns for path in a.rglob("*")}
    assert main(["merge", str(a), "--out", str(tmp_path / "out")]) == 0
    assert {path: path.stat().st_mtime_ns for path in a.rglob("*")} == before
    assert figures(tmp_path / "out") == figures(a)


def test_a_merge_keeps_profiles_apart(two, tmp_path, capsys):
    """The runs of another profile would be told as those of the first."""
    a, _ = two
    assert main([*suite(tmp_path, seeds=(5,), profiles={"smoke": {}}), "--out", str(tmp_path / "b")]) == 0
    assert (
        main([*suite(tmp_path, seeds=(6,), profiles={"paper": {}}), "--profile", "paper", "--out", str(a)])
        == 0
    )
    assert main(["merge", str(a), str(tmp_path / "b"), "--out", str(tmp_path / "c")]) == 2
    assert "of different profiles (paper and smoke)" in capsys.readouterr().err
    assert not Store(tmp_path / "c").run_folders()


def test_merges_into_one_folder_wait_for_each_other(two, tmp_path, monkeypatch):
    """Two at once copied into folders of one name: a run was counted and not there."""
    out, inside, most = tmp_path / "out", [], []
    copy = merging.copy

    def watched(source, target):
        inside.append(threading.get_ident())
        most.append(len(set(inside)))
        copy(source, target)
        inside.remove(threading.get_ident())

    monkeypatch.setattr(merging, "copy", watched)
    merges = [
        threading.Thread(target=main, args=(["merge", str(one), "--out", str(out)],)) for one in (*two, *two)
    ]
    for one in merges:
        one.start()
    for one in merges:
        one.join()
    assert set(most) == {1}
    assert figures(out) == figures(two[0]) | figures(two[1])


@pytest.mark.parametrize("refused", [None, OSError(95, "Operation not supported")])
def test_without_file_locks_one_process_works_and_says_so(tmp_path, monkeypatch, capsys, caplog, refused):
    """Every process would take every run, and they would damage each other's files."""

    def unlocked(file, kind):
        if refused is not None and not hasattr(file, "encoding"):
            raise refused

    monkeypatch.setattr(fcntl, "flock", unlocked)
    assert main([*suite(tmp_path, jobs="2"), "--out", str(tmp_path / "many")]) == 2
    assert "without file locks" in " ".join(capsys.readouterr().err.split())
    assert not Store(tmp_path / "many").run_folders()
    if refused is None:
        assert main([*suite(tmp_path), "--out", str(tmp_path / "one")]) == 0
        assert "give no second command" in caplog.text


def test_a_suite_whose_runs_are_damaged_at_the_end_says_so(tmp_path, monkeypatch, capsys):
    """Whoever damaged them, such as a second process where files are not locked: figures are missing."""
    carry_out = Work.carry_out

    def damaged(work, title, runs):
        ends = carry_out(work, title, runs)
        with open(work.root / "runs" / next(iter(runs)) / "rounds.jsonl", "a") as file:
            file.write("{}\n")
        return ends

    monkeypatch.setattr(Work, "carry_out", damaged)
    assert main([*suite(tmp_path), "--out", str(tmp_path / "out")]) == 1
