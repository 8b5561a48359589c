"""The command `papers`: exit status, and folders by name."""

import json
from types import SimpleNamespace

import pytest
import yaml

from harness.api import making
from studies.__main__ import main
from studies.papers import command, table
from studies.papers.claims import read_claims
from studies.papers.curves import read_curves
from studies.papers.observations import Observation, read_observations, write_observations

CLAIM = {
    "says": "A helps",
    "measure": "accuracy",
    "of": {"algorithm": "scaffold"},
    "than": {"algorithm": "fedavg"},
    "expect": {"above": 0, "least": 0.01},
    "verdict": "held",
    "reading": "By 0.1.",
}


def write(folder, values=(0.6, 0.61, 0.59, 0.6, 0.6), versions=None, **changes):
    """Write claims and observations: `of` has the values, `than` 0.5 in every seed."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"suite": folder.name, "claims": {"one": {**CLAIM, **changes}}}
    (folder / "claims.yaml").write_text(yaml.safe_dump(content))
    (claim,) = read_claims(folder).claims
    observations = [
        Observation(
            claim.id, claim.question, arm, None, "", str(seed), value, False, "id", versions or today()
        )
        for arm, row in (("of", values), ("than", [0.5] * len(values)))
        for seed, value in enumerate(row)
    ]
    write_observations(folder / "claims.csv", observations)
    return folder


def today():
    from algorithms import ALGORITHMS
    from harness.problems import PROBLEMS

    fedavg, classify = ALGORITHMS["fedavg"].meta, PROBLEMS["classify"]
    return f"algorithm=fedavg@{fedavg.version} problem=classify@{classify.version} partition=@1"


def test_verdicts_as_written_are_success(tmp_path, capsys):
    assert main(["papers", str(write(tmp_path / "mine"))]) == 0
    told = capsys.readouterr()
    assert "mine/one" in told.out and "held" in told.out and "By 0.1." in told.out
    assert told.err == ""


def test_a_changed_row_flips_the_verdict_and_the_exit_code(tmp_path, capsys):
    folder = write(tmp_path / "mine")
    path = folder / "claims.csv"
    assert path.read_text().count(",0.61,") == 1
    path.write_text(path.read_text().replace(",0.61,", ",0.11,"))
    assert main(["papers", str(folder)]) == 1
    told = capsys.readouterr()
    assert "mine/one: the verdict is 'cannot be judged', not 'held', as written" in told.err
    assert "cannot be" in told.out


def test_stale_evidence_is_an_error(tmp_path, capsys):
    folder = write(tmp_path / "mine", versions=today().replace("fedavg@", "fedavg@9"))
    assert main(["papers", str(folder)]) == 1
    assert "stale evidence: mine/one: made with algorithm=fedavg@9" in capsys.readouterr().err


def test_a_claim_without_a_verdict_asks_for_one(tmp_path, capsys):
    assert main(["papers", str(write(tmp_path / "mine", verdict=""))]) == 1
    assert "the verdict is 'held', and none is written in claims.yaml" in capsys.readouterr().err


def test_all_folders_of_a_folder_are_read(tmp_path, capsys, monkeypatch):
    write(tmp_path / "first")
    write(tmp_path / "second", verdict="refuted")
    (tmp_path / "without").mkdir()
    monkeypatch.setattr(command, "REFERENCE", tmp_path)
    assert main(["papers", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(one["claim"], one["verdict"], one["written"]) for one in found] == [
        ("first/one", "held", "held"),
        ("second/one", "held", "refuted"),
    ]
    assert main(["papers", "first"]) == 0


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["frst"], "Did you mean 'first'?"),
        (["first", "--update"], "--update: needs --from"),
        (["first", "--json", "--markdown"], "--json, --markdown: one of them"),
        (["empty"], "there is no claims.yaml"),
        (["bare"], "claims.csv is missing"),
        (["first", "--from", "nowhere"], "no results folder nowhere"),
    ],
)
def test_a_wrong_request_is_refused(tmp_path, capsys, monkeypatch, arguments, told):
    write(tmp_path / "first")
    (write(tmp_path / "bare") / "claims.csv").unlink()
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(command, "REFERENCE", tmp_path)
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["papers", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_markdown_has_a_row_for_every_claim_and_its_reading(tmp_path, capsys):
    """What is compared is in the notes that the command prints without the option."""
    folder = write(tmp_path / "mine", paper_value="5 %")
    assert main(["papers", str(folder)]) == 0
    assert "mine/one: accuracy: scaffold minus fedavg. By 0.1." in capsys.readouterr().out
    assert main(["papers", str(folder), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| mine/one | A helps | > 0 (least: 0.01) | 0.1 | ")
    assert lines[2].endswith("| 5 % | held |")
    assert lines[-1] == "</details>" and lines[-3] == "- `mine/one`: By 0.1."


def test_markdown_says_once_what_is_true_of_several_claims():
    findings = [SimpleNamespace(claim=SimpleNamespace(id=name)) for name in "abc"]
    told = {"a": ["Few."], "b": ["Few.", "Late."], "c": []}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "rows", lambda findings: [])
        patch.setattr(table, "remarks", lambda finding, observations, short: told[finding.claim.id])
        assert table.markdown(findings, []).splitlines()[-4:-2] == ["- `a`, `b`: Few.", "- `b`: Late."]


def test_the_notes_name_the_edge_of_a_grid_and_small_effects(tmp_path, capsys):
    """The effect of 0.1 is held, but 0.5 would matter; 0.4 is the largest step size that was tried."""
    expect = {"above": 0, "least": 0.5}
    folder = write(tmp_path / "mine", expect=expect, choose={"by": "accuracy", "seeds": [9]})
    path = folder / "claims.csv"
    chosen = [
        one._replace(settings="algorithm.lr=0.4", tried="algorithm.lr=0.1/0.4") if one.arm == "of" else one
        for one in read_observations(path)
    ]
    write_observations(path, chosen)
    assert main(["papers", str(folder), "--markdown"]) == 0
    told = capsys.readouterr().out
    assert "- `mine/one`: Chosen at the edge of the grid: of.\n" in told
    assert "- `mine/one`: The effect is smaller than what would matter.\n" in told
    assert main(["papers", str(folder)]) == 0
    assert "Chosen at the edge of the grid: of (algorithm.lr=0.4)." in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.slow
def test_figures_are_read_from_runs_and_written(tmp_path, capsys):
    """Two rounds of ten steps come nearer to the saddle than two of one."""
    suite = {
        "suite": "tiny",
        "base": {
            "problem": {"kind": "random_quadratic", "clients": 2, "samples": 4, "noise": 0.1},
            "rounds": 2,
        },
        "sweep": {
            "algorithm": [{"name": "local_sgda", "lr_x": 0.05, "lr_y": 0.05, "batch_size": 2}],
            "algorithm.local_steps": [1, 10],
            "seed": [0, 1, 2, 3, 4],
        },
    }
    making.suite(suite, out=tmp_path / "out")
    steps = {"of": {"algorithm.local_steps": 10}, "than": {"algorithm.local_steps": 1}, "scale": "log"}
    expect = {"ratio_below": 1, "least_ratio": 1.1}
    folder = write(tmp_path / "tiny", measure="stationarity", expect=expect, **steps)
    (folder / "claims.csv").unlink()
    read = ["papers", str(folder), "--from", str(tmp_path / "out")]
    assert main(read) == 0 and "claims.csv is missing; --update writes it" in capsys.readouterr().err
    lines = [{"panel": "all", "line": "ten steps", "of": {"algorithm.local_steps": 10}}]
    content = yaml.safe_load((folder / "claims.yaml").read_text())
    content["curves"] = {"measure": "stationarity", "at": {"algorithm": "local_sgda"}, "lines": lines}
    (folder / "claims.yaml").write_text(yaml.safe_dump(content))
    assert main([*read, "--update"]) == 0
    assert main(["papers", str(folder)]) == 0 == main(read)
    *_, last = read_curves(folder / "curves.csv")
    assert (last.panel, last.line, last.round, last.seeds) == ("all", "ten steps", 2, 5)
    assert last.oracle_calls == 2 * 2 * 10 * 2  # rounds, clients, steps, and a gradient by each variable
    assert last.low < last.value < last.high
    path = folder / "claims.csv"
    text = path.read_text()
    lines = text.splitlines()
    value = lines[-1].split(",")[6]
    path.write_text("\n".join([*lines[:-1], lines[-1].replace(f",{value},", ",0.001,")]) + "\n")
    assert main(read) == 1 and "1 observation not as in" in capsys.readouterr().err
    path.write_text("\n".join(lines[:-1]) + "\n")
    assert main(read) == 2 and "has 9 rows, expected 10" in capsys.readouterr().err
