"""The statement for a data protection officer: its figures by hand, and what it says where nothing is known."""

import re
from dataclasses import replace

import pytest

from harness.config.report import ReportSpec
from harness.core.errors import UserError
from harness.report.data.results import Results
from harness.report.statement import page
from harness.report.statement.costs import answers, bias, cost_rows, heads, method_note, note
from harness.report.statement.page import subjects, write_statement
from harness.report.statement.questions import NOT_ADDRESSED, annex, questions
from harness.report.tables.costs import method_table
from tests.support.records import done, evaluation, private, searched, spec

SPEC = ReportSpec(by="auroc", baseline="fedavg")
DATA = {"name": "heart", "client": "hospital", "sensitive": "sex"}
CLAIM = {"adjacency": "replace", "sampling": "full", "unit_most": 0, "units_most": 2, "epsilon_median": 2.0}
NASTY = "<script>alert(1)</script>"


def run(seed, auroc, missed, epsilon=None, names=("Bern", "Köln"), **claim):
    """Return a run of two hospitals: Bern with 40 cases, 0.1 above the mean, and Köln with 4."""
    line = evaluation(
        20, 1000, epsilon, accuracy=0.9, auroc=auroc, sensitivity_95=1 - missed, eqopp=missed / 2
    )
    line["privacy"] = line["privacy"] and {**line["privacy"], **CLAIM, **claim}
    protection = private(epsilon) if epsilon else None
    record = done(spec("fedavg", seed, data=DATA, privacy=protection), line)
    by_client = {
        "client": list(names),
        "n": [100, 10],
        "positives": [40, 4],
        "accuracy": [0.8, 0.8],
        "auroc": [auroc + 0.1, None if seed else auroc - 0.1],
        "sensitivity_95": [1 - missed, None],
        "loss": [0.5, 0.5],
    }
    final = {
        "by_client": by_client,
        "clients": 2,
        "public": ["client sizes"],
        "not_covered": ["test samples"],
    }
    return replace(record, final=final, tested={"positive": "ill", "samples": 110})


def records(**claim):
    """Without privacy AUROC 0.80 and 20 of 100 missed; at ε 2 three points less and 35 missed."""
    offsets = (0.0, 0.01, -0.01, 0.02, -0.02)
    plain = [run(seed, 0.8 + off, 0.2) for seed, off in enumerate(offsets)]
    return plain + [run(seed, 0.77 + off, 0.35, 2.0, **claim) for seed, off in enumerate(offsets)]


def protected(epsilon, **claim):
    """Return private runs of another setting."""
    return [run(seed, 0.78, 0.3, epsilon, **claim) for seed in range(5)]


def subject(made=None):
    (found,) = subjects(Results(records() if made is None else made), SPEC)
    return found


def told(one):
    """Return question -> answer."""
    return {question: answer for part in questions(one).values() for question, answer in part.items()}


def test_the_first_row_costs_what_the_sentence_says():
    """A searched row with further seeds counts all of them, as the sentence does: their mean is a point lower."""
    further = [run(seed, 0.75, 0.35, 2.0) for seed in range(5, 10)]
    plain, private_runs = records()[:5], [*records()[5:], *further]
    one = subject([*searched(plain, metric="auroc"), *searched(private_runs, metric="auroc", number=1)])
    assert answers(one)[0].startswith("On heart, ε = 2 costs 4.0 points of AUROC")
    assert cost_rows(one)[0].texts[1] == "-4.0"


def test_methods_with_a_model_for_each_site_are_not_compared_with_others():
    alone = [
        replace(one, spec=one.spec | {"algorithm": {"name": "local", "lr": 0.1}}) for one in records()[:5]
    ]
    one = subject([*records(), *alone])
    methods = method_table(one.comparison, one.results, one.resolution)
    text = method_note(one, methods)
    assert "Not comparable with the others: local, with a model for each hospital" in text
    assert "Over all hospitals its AUROC gains" in text
    assert "Not comparable" not in method_note(subject(), methods)


def test_the_costs_are_those_of_the_runs():
    """Bern is paired by five seeds, Köln by the one in which it has an AUROC."""
    one = subject()
    together, bern, cologne = cost_rows(one)
    assert together == ("All hospitals", "110 (44)", ["0.800", "-3.0", "20", "35"])
    assert bern == ("Bern", "100 (40)", ["0.900", "-3.0", "20", "35"])
    assert cologne == ("Köln *", "10 (4)", ["0.700", "-3.0", "", ""])
    assert heads(one) == ["AUROC, then its change in points", "of 100 cases (ill), missed"]
    cost, missed = answers(one)
    assert cost.startswith("On heart, ε = 2 costs 3.0 points of AUROC")
    assert missed == (
        "If 5 of 100 others may be flagged by mistake, 20 of 100 cases (ill) are missed without privacy, 35 at ε 2."
    )


def test_records_without_missed_cases_say_so():
    made = records()
    for record in made:
        del record.final["by_client"]["sensitivity_95"]
    one = subject(made)
    rows = cost_rows(one)
    assert rows[1].texts == ["0.900", "-3.0", "", ""] and "were not recorded" in note(one, rows)
    for record in made:
        record.rounds[-1]["metrics"]["sensitivity_95"] = None
    one = subject(made)
    assert len(heads(one)) == 1 and "does not apply" in answers(one)[1]


def test_sites_without_names_have_no_rows():
    made = [replace(record, final={"clients": 2}) for record in records()]
    one = subject(made)
    rows = cost_rows(one)
    assert [row.name for row in rows] == ["All hospitals"] and "no results of their own" in note(one, rows)


def test_answers_speak_of_the_unit_and_whom_it_leaves_out():
    """At ε 2 an attacker is right at most exp(2) / (1 + exp(2)) = 88.08 % of the time."""
    answered = told(subject())
    assert "88.08 % (ε 2)" in answered["What is promised?"]
    assert "any one hospital" in answered["What is promised?"]
    assert answered["Does it hold for all alike?"] == "Yes: ε is that of every hospital."
    assert "The largest gap between groups (sex)" in answered["Who bears the cost?"]
    assert answered["What does ε not cover?"].startswith("Test samples")
    assert "How settings were chosen is not recorded" in answered["What do all releases together reveal?"]
    record = told(subject(records(unit="record", units_most=1, epsilon_median=0.5)))
    assert "A person with several records is protected less" in record["Whom does it protect?"]
    assert (
        record["Does it hold for all alike?"] == "No: the largest ε is that of Bern; the median is 0.5 (ε 2)."
    )
    assert "own hospital has the data" in record["Whom must one trust?"]


def test_a_weak_guarantee_is_called_so():
    assert "next to nothing" in told(subject(records(epsilon_total=8.0)))["What is promised?"]
    assert "next to nothing" not in told(subject())["What is promised?"]


def test_without_a_finite_epsilon_nothing_is_promised():
    endless = told(subject(records(epsilon_total="inf")))
    assert endless["What is promised?"] == "Nothing is promised without a finite ε (clipped, no noise)."
    assert endless["Does it hold for all alike?"] == "No ε is finite."
    both = told(subject([*records(), *protected(epsilon=9.0, epsilon_total="inf")]))
    assert "88.08 % (ε 2) of the time" in both["What is promised?"]
    assert "Nothing is promised without a finite ε (clipped" in both["What is promised?"]


def test_extrapolated_noise_promises_nothing():
    answered = told(subject(records(noise_cohort=1000)))
    assert answered["What is promised?"].startswith(
        "Nothing to these hospitals: the noise is that of cohorts of 1,000"
    )


@pytest.mark.parametrize(
    ("claim", "seen"),
    [
        ({"placement": "central"}, "any one hospital from what the server sends"),
        ({"placement": "local"}, "any one hospital from all that is sent"),
        ({"placement": "distributed"}, "any one hospital from the sums that the server learns"),
    ],
)
def test_the_promise_is_about_what_noise_protects(claim, seen):
    """A server that adds the noise sees messages without it, so no ε limits what it learns."""
    answered = told(subject(records(**claim)))
    assert seen in answered["What is promised?"]
    assert "What ε does not cover (below) is protected from nobody" in answered["Whom must one trust?"]


def test_secret_cohorts_must_stay_secret():
    answered = told(subject(records(placement="central", sampling="poisson", adjacency="zero-out")))
    assert "whatever else they know but who took part" in answered["What is promised?"]
    assert "may tell who took part in which round" in answered["Whom must one trust?"]
    record = told(subject(records(unit="record", sampling="poisson")))
    assert "whatever else they know." in record["What is promised?"]
    assert "It may not tell which were in a batch" in record["Whom must one trust?"]


def test_distributed_noise_needs_all_whom_no_dropout_allows_for():
    trust = "Whom must one trust?"
    assert (
        "all other hospitals of a round"
        in told(subject(records(placement="distributed", dropouts=0.0)))[trust]
    )
    assert "all but 20% of" in told(subject(records(placement="distributed", dropouts=0.2)))[trust]


def test_a_vertical_run_protects_what_one_party_holds():
    claim = {
        "unit": "record",
        "protects": "the features that one party holds of one person, labels being public",
    }
    answered = told(subject(records(**claim, units_most=3, unit_most=7, sampling="poisson")))
    assert "Persons of a batch: known to all" in answered["How is it reached?"]
    assert "the features that one hospital holds of any one person" in answered["What is promised?"]
    assert answered["Whom does it protect?"].startswith("The features that one party holds of one person")
    assert "Labels are taken as known" in answered["Whom must one trust?"]
    assert "Predictions need new messages" in answered["Who may ask what?"]
    assert "person 7 and 2 more" in answered["Does it hold for all alike?"]


def test_kinds_of_guarantees_have_statements_of_their_own():
    """A budget for a record is none for a hospital, nor one with another δ."""
    others = protected(epsilon=9.0, epsilon_total=9.0, unit="record", placement="central", delta=1e-3)
    first, second = subjects(Results([*records(), *others]), SPEC)
    assert {one.apart for one in (first, second)} == {
        "unit client, placement local, delta 1e-05",
        "unit record, placement central, delta 0.001",
    }
    for one in (first, second):
        answered = told(one)
        assert len(one.private) == 1
        assert "Not with those of the other statements" in answered["Can these ε be compared?"]
        assert "runs with different units or adjacencies" in answered["What do all releases together reveal?"]


def test_more_budgets_than_columns_keep_the_smallest():
    made = records()
    for epsilon in (1.0, 4.0, 8.0, 16.0, 32.0):
        made += protected(epsilon=epsilon)
    one = subject(made)
    assert one.budgets == ["ε 32", "ε 16", "ε 8", "ε 1"]
    assert "2 more budgets in the report" in note(one, cost_rows(one))


def test_searches_of_each_budget_are_not_one():
    """Searches by halving have a price each, and the largest is not that of all."""
    tune = {"metric": "auroc", "sampler": "surface", "repeats": [1, 2, 4], "budget": 3, "finalists": 1}
    made = []
    for record in [*records(), *protected(epsilon=9.0)]:
        epsilon = 12.0 if (record.spec["privacy"] or {}).get("epsilon") == 9.0 else 3.0
        price = {"runs": 96, "unfinished": 0, "epsilon": epsilon}
        search = {"number": 0, "paths": [], "trials": [{"values": [0.5]}], "chosen": None, "epsilon": None}
        made.append(replace(record, search={**search, "price": price, "tune": tune}))
    text = told(subject(made))["What do all releases together reveal?"]
    assert "ε = 12 together" in text and "ε = 3 together" in text
    assert "All searches together reveal more" in text


def test_nothing_is_counted_where_cases_do_not_apply():
    made = records()
    for record in made:
        record.final["by_client"]["positives"] = [None, None]
    assert cost_rows(subject(made))[0].tested == "110"


def test_facts_that_epsilon_does_not_cover_are_all_listed():
    made = records()
    for record in made:
        record.final["not_covered"] = [f"fact {number} {'x' * 60}" for number in range(9)]
        record.final["public"] = []
    answer = told(subject(made))["What does ε not cover?"]
    assert "fact 8" in answer and answer.endswith("Taken as known to everybody: not recorded.")


def test_what_no_record_answers_is_not_addressed():
    open_questions = [question for question, answer in told(subject()).items() if NOT_ADDRESSED in answer]
    assert open_questions == [
        "Was it attacked?",
        "Who has access, and how are data secured?",
        "How were the data collected, and with what consent?",
    ]


def test_the_price_of_the_search_is_told():
    price = {"runs": 96, "unfinished": 0, "epsilon": 12.345}
    search = {
        "number": 0,
        "paths": [],
        "trials": [{"values": [0.5]}] * 3,
        "chosen": None,
        "epsilon": None,
        "price": price,
    }
    tune = {"metric": "auroc", "sampler": "surface", "repeats": [1, 2, 4], "budget": 3, "finalists": 1}
    made = [replace(record, search={**search, "tune": tune}) for record in records()]
    text = told(subject(made))["What do all releases together reveal?"]
    assert "made 96 private runs on top: ε = 12.4 together" in text, "a bound is rounded up"


def test_the_annex_has_the_settings():
    assert "rounds 20, clip 10.0" in annex(subject())["Settings"]


def test_the_page_escapes_names(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "BROWSERS", ())
    made = records()
    for record in made:
        record.final["by_client"]["client"] = [NASTY, "Köln"]
    files = write_statement(Results(made), tmp_path, SPEC)
    text = files["statement.html"].read_text()
    assert list(files) == ["statement.html"], "nothing prints it"
    assert NASTY not in text and "&lt;script&gt;" in text


def test_without_a_comparison_it_is_refused(tmp_path):
    with pytest.raises(UserError, match="Sweep privacy over null"):
        write_statement(Results(records()[:5]), tmp_path, SPEC)


def test_a_broken_browser_leaves_the_page(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(page, "BROWSERS", ("false",))
    (tmp_path / "statement.pdf").write_text("of an earlier report")
    assert list(write_statement(Results(records()), tmp_path, SPEC)) == ["statement.html"]
    assert "did not print" in caplog.text and not (tmp_path / "statement.pdf").exists()


def test_smallest_budget_decides_who_bears_the_cost():
    assert re.search(r"^The largest gap between groups \(sex\) .* 17\.5 at ε 2\.$", bias(subject()))


def test_who_bears_the_cost_is_said_of_sites_with_enough_cases():
    """Site 9 loses 3 points in every seed and Köln gains 1; Bern with four cases loses 30 and is not named."""
    made = records()
    for record in made:
        shift = 0 if record.spec["privacy"] is None else 1
        final = record.final["by_client"]
        final |= {"client": ["9", "Köln", "Bern"], "n": [100, 90, 10], "positives": [40, 12, 4]}
        final |= {name: [0.5] * 3 for name in ("accuracy", "sensitivity_95", "loss")}
        final["auroc"] = [0.9 - 0.03 * shift, 0.7 + 0.01 * shift, 0.8 - 0.3 * shift]
    assert bias(subject(made)).startswith(
        "At ε 2, hospital 9 changes by -3.0 [-3.0, -3.0] points of AUROC, Köln changes by +1.0 [+1.0, +1.0]: the "
        "lowest and the highest of 2 hospitals with at least 10 tested cases, so partly chance."
    )


def test_groups_that_data_bring_with_them_are_compared():
    """Built-in data name groups by themselves: the statement said that no column names them."""
    made = [replace(one, spec=one.spec | {"data": {**DATA, "sensitive": None}}) for one in records()]
    for record in made:
        record.final["groups"] = [{"group": name, "tpr": None} for name in ("Female", "Male")]
    assert "between groups (Female and Male)" in bias(subject(made))


def test_a_statement_begins_with_what_is_predicted():
    held = {"classes": {"well": "60 6", "ill": "40 4"}}
    made = [replace(one, held=held) for one in records()]
    assert answers(subject(made))[0] == (
        "A model (logistic) learns to tell ill from well, from 110 records at 2 hospitals."
    )


def test_a_list_of_facts_is_cut_between_facts():
    made = records()
    for record in made:
        record.final["public"] = [f"fact {number} {'x' * 90}" for number in range(6)]
    answer = told(subject(made))["What does ε not cover?"]
    assert answer.endswith("; and 3 more, in done.json of each run.") and answer.count("fact") == 3


def test_every_budget_has_its_median():
    made = [*records(unit="record", units_most=1, epsilon_median=0.5)]
    made += protected(4.0, unit="record", units_most=1, epsilon_median=1.5)
    assert told(subject(made))["Does it hold for all alike?"].endswith(
        "the median is 1.5 (ε 4) and 0.5 (ε 2)."
    )


def test_costs_are_told_in_auroc_whatever_ranks():
    """Ranked by accuracy, the first sentence spoke of that and the table below of AUROC."""
    (found,) = subjects(Results(records()), ReportSpec(by="accuracy", baseline="fedavg"))
    assert answers(found)[0] == answers(subject())[0] and "3.0 points of AUROC" in answers(found)[0]
    assert heads(found)[0].startswith("AUROC")
