"""Claims about committed tables: their rows are paired by seed, and what a table lacks is named."""

import pytest
import yaml

from harness.core.errors import UserError
from studies.papers.claims import read_claims
from studies.papers.observations import stale
from studies.papers.tables import from_tables
from studies.papers.verdicts import judge

CLAIM = {
    "says": "A is below B",
    "table": "losses.csv",
    "measure": "loss",
    "at": {"data": "adult"},
    "of": {"row": "a", "step": 0.1},
    "than": {"row": "b", "step": 1.0},
    "expect": {"below": 0, "least": 0.01},
}


def folder_of(path, **changes):
    """Write one claim, and a table in which `a` is below `b` by 0.10, 0.11, ... in five seeds of adult."""
    content = {"suite": "tiny", "claims": {"one": {**CLAIM, **changes}}}
    (path / "claims.yaml").write_text(yaml.safe_dump(content))
    rows = ["data,row,step,seed,loss", "german,a,0.1,0,9", "adult,a,1.0,0,9"]
    for seed in range(5):
        rows += [f"adult,a,0.1,{seed},{0.5 + seed}", f"adult,b,1.0,{seed},{0.6 + 1.01 * seed}"]
    (path / "losses.csv").write_text("\n".join(rows) + "\n")
    return read_claims(path)


def test_rows_of_a_table_are_evidence_paired_by_seed(tmp_path):
    claims = folder_of(tmp_path)
    observations = from_tables(claims)
    decision = judge(claims.claims[0], observations).decision
    assert (decision.seeds, decision.verdict) == (5, "held")
    assert decision.mean == pytest.approx(-0.12)
    assert stale(claims, observations) == []  # a table has no versions
    assert (
        claims.claims[0].compared == "loss in losses.csv: row=a step=0.1 minus row=b step=1.0, at data=adult"
    )


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"measure": "los"}, "Did you mean 'loss'"),
        ({"of": {"rwo": "a"}}, "Did you mean 'row'"),
        ({"of": {"row": "c"}}, "no row with data=adult row=c"),
        ({"of": {"row": "a"}}, "two rows of one seed"),
        ({"table": "others.csv"}, "is missing; a claim is about it"),
    ],
)
def test_what_a_table_lacks_is_named(tmp_path, changes, told):
    with pytest.raises(UserError, match=told):
        from_tables(folder_of(tmp_path, **changes))


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"table": "../losses.csv"}, "the name of a file beside claims.yaml"),
        ({"along": "rounds"}, "without along and choose"),
        ({"measure": {"max": "loss"}}, "measures one of its columns"),
    ],
)
def test_a_claim_about_a_table_asks_for_no_runs(tmp_path, changes, told):
    with pytest.raises(UserError, match=told):
        folder_of(tmp_path, **changes)


def test_a_confounded_comparison_is_not_judged(tmp_path):
    claims = folder_of(tmp_path, confounded="B has other data.")
    finding = judge(claims.claims[0], from_tables(claims))
    assert finding.decision.mean == pytest.approx(-0.12)
    assert finding.decision.verdict == "cannot be judged"
