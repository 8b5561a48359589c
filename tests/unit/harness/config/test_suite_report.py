"""What a suite file may ask of its report."""

import json

import pytest

from harness.config.report import Choice, read_report, read_stored
from harness.config.suite import make_suite
from harness.core.errors import UserError

BASE = {
    "data": "breast-cancer",
    "partition": {"kind": "iid", "clients": 3},
    "model": "logistic",
    "algorithm": "fedavg",
}


def suite(**report):
    return make_suite({"base": BASE, "sweep": {"algorithm": ["fedavg", "fednova"]}, "report": report}).report


def test_names_of_one_method_are_those_of_algorithms_that_run():
    assert suite(same=["fedavg", "fednova"]).same == (("fedavg", "fednova"),)
    assert suite(same=[["fednova", "fedavg"]]).same == (("fednova", "fedavg"),)
    with pytest.raises(UserError, match=r"algorithm of report\.same 'fednoav'\. Did you mean 'fednova'"):
        suite(same=[["fedavg", "fednoav"]])
    with pytest.raises(UserError, match=r"algorithm of report\.same 'ditto'"):
        suite(same=[["fedavg", "ditto"]])
    content = {"base": BASE, "report": {"same": [["fedavg", "fednova"]]}}
    assert len(make_suite(content, instead={"algorithm": ["fedavg"]}).combinations) == 1


def test_names_of_one_method_meet_in_a_setting_of_the_suite():
    """What each row chooses for itself, and the algorithm's own settings, keep no pair apart."""
    report = {"same": [["fedavg", "fednova"]]}

    def read(first, second, **sections):
        blocks = [{"algorithm": ["fedavg"], **first}, {"algorithm": ["fednova"], **second}]
        return make_suite({"base": BASE, "sweep": blocks, "report": report, **sections})

    read({"seed": [0]}, {"seed": [1], "algorithm.lr": [0.5]})
    with pytest.raises(
        UserError, match=r"report\.same: fedavg is compared with fednova.*all else but the alg"
    ):
        read({"rounds": [5]}, {"rounds": [6]})
    read({"rounds": [5]}, {"rounds": [6]}, report={**report, "chosen": ["rounds"]})
    tune = {"settings": {"algorithm.lr": {"log_uniform": [0.1, 1]}, "rounds": {"choice": [5, 6]}}}
    read({"rounds": [5]}, {"rounds": [6]}, tune=tune)
    with pytest.raises(
        UserError, match=r"report\.same: fednova has no row to compare, as no run of it is poss"
    ):
        read({}, {"algorithm": [{"name": "fednova", "lr": 0.5}], "problem": ["fair_weights"]})
    three = {"same": [["fedavg", "fednova", "fedprox"]]}
    with pytest.raises(UserError, match="fedprox is compared with fedavg and fednova"):
        read({"algorithm": ["fedavg", "fednova"]}, {"algorithm": ["fedprox"], "rounds": [3]}, report=three)


def test_a_pivot_names_settings_of_runs():
    """Or the report would fail when all runs are done."""
    for wrong, near in (("algorithm.lrr", "algorithm.lr"), ("algorithm.alpha", "."), ("algorithm", ".")):
        with pytest.raises(UserError, match=rf"setting of report\.pivot '{wrong}'.*{near}"):
            suite(pivot=[["seed", "algorithm.lr"], ["seed", wrong]])


def test_a_target_and_one_or_several_pivots_are_read():
    one = suite(by="stationarity", target={"stationarity": "1e-2"}, pivot=["seed", "algorithm.lr"])
    assert one.target == ("stationarity", 0.01) and one.pivots == (("seed", "algorithm.lr", None),)
    two = suite(pivot=[["seed", "algorithm.lr"], ["problem.kind", "algorithm.name", "bytes_to_target"]])
    assert two.pivots == (
        ("seed", "algorithm.lr", None),
        ("problem.kind", "algorithm.name", "bytes_to_target"),
    )
    assert suite().target is None and suite().pivots == () and suite().along is None
    assert suite(along="compression.alpha").along == "compression.alpha"


def test_curves_and_how_settings_are_chosen_are_read():
    assert suite(curves=["outer_loss", "bytes"]).curves == (("outer_loss", "bytes"),)
    assert suite(curves=[["loss", "round"], ["loss", "bytes"]]).curves == (
        ("loss", "round"),
        ("loss", "bytes"),
    )
    assert suite(select={"by": "selection_eqopp"}).choice == Choice("selection_eqopp")
    assert suite(overview=["accuracy"]).overview == ("accuracy",)
    assert suite(chosen=["algorithm.lr", "rounds"]).chosen == ("algorithm.lr", "rounds")
    assert suite().curves == () and suite().choice is None and suite().overview == ()


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"target": 0.01}, "target: one measure"),
        ({"pivot": ["seed"]}, "rows, columns"),
        ({"pivot": [["seed", "rounds"], "seed"]}, "rows, columns"),
        ({"pivot": ["rounds", "seeds"]}, "'seeds'.*'seed'"),
        ({"pivots": []}, "'pivots'.*'pivot'"),
        ({"curves": ["loss", "rounds"]}, "round or bytes"),
        ({"curves": ["loss"]}, "round or bytes"),
        ({"select": "eqopp"}, "report.select"),
        ({"along": "kompression"}, "'kompression'.*'compression'"),
        ({"along": ["compression"]}, r"report.along: a text is needed, given \['compression'\]"),
        ({"overview": "accuracy"}, "report.overview: a list is needed, given 'accuracy'"),
        ({"chosen": "rounds"}, "report.chosen: a list is needed, given 'rounds'"),
        ({"chosen": ["algorithm.lr", "round"]}, "section of a run 'round'.*'rounds'"),
        ({"same": "fedavg"}, "report.same.*list.*given 'fedavg'"),
        ({"same": [["fedavg"]]}, r"report.same: two or more different names.*\['fedavg'\]"),
        ({"same": [["fedavg", "fedavg"]]}, "report.same: two or more different names"),
        ({"same": [["fedavg", 5]]}, "report.same: lists of names of one method"),
        ({"overview": ["accurady"]}, "measure to draw 'accurady'.*'accuracy'"),
        ({"by": "accurady"}, "measure to rank by 'accurady'.*'accuracy'"),
        ({"by": 5}, "report.by"),
        ({"target": {"accurady": 1}}, "measure to reach 'accurady'"),
        ({"select": {"by": "accuracy", "near": 2}}, "report.select.near: named fields are needed, given 2"),
        ({"select": {"by": "accuracy", "show": 5}}, "report.select.show"),
        ({"select": {"by": "accuracy", "published": [5]}}, "report.select.published"),
    ],
)
def test_what_cannot_be_meant_is_refused(report, message):
    with pytest.raises(UserError, match=message):
        suite(**report)


def test_what_is_stored_reads_back_as_the_same_settings():
    spec = suite(
        by="stationarity",
        baseline="fedavg",
        target={"stationarity": 0.01},
        pivot=[["seed", "algorithm.lr"], ["seed", "rounds", "bytes_to_target"]],
        curves=["loss", "bytes"],
        along="compression",
        overview=["accuracy"],
        chosen=["rounds"],
        same=["fedavg", "fednova"],
        select={
            "by": "accuracy",
            "near": {"loss": 0.1},
            "show": ["loss"],
            "published": [{"where": {"data.name": "adult"}, "values": {"fedavg": [0.5]}}],
        },
    )
    stored = json.loads(json.dumps(spec.stored()))
    assert list(stored) == [
        "by",
        "baseline",
        "target",
        "pivot",
        "curves",
        "select",
        "along",
        "overview",
        "chosen",
        "same",
    ]
    assert stored["pivot"] == [["seed", "algorithm.lr"], ["seed", "rounds", "bytes_to_target"]]
    assert read_report(stored) == spec and read_stored(stored | {"command": "again", "metrics": {}}) == spec


def test_settings_stored_by_earlier_versions_are_read():
    """As they stand in the suite.json of the reference results: nulls, and the selection as its file had it."""
    stored = {"by": "accuracy", "baseline": None, "target": None, "pivot": [], "select": {"by": "loss"}}
    assert read_stored(stored).choice == Choice("loss")
    assert read_stored({}) == suite()
