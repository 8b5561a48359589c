"""Names lead to things; unknown ones to the nearest name."""

import pytest

import algorithms
from harness.core import ALGORITHMS, UserError
from harness.core.errors import unknown
from harness.core.registry import Registry
from harness.problems import PROBLEMS


def test_things_come_back_by_name_in_order():
    registry = Registry("animal")
    registry.add("zebra", 1)
    registry.add("ant", 2)
    assert list(registry) == ["ant", "zebra"]
    assert (registry["ant"], len(registry), "ant" in registry, "cat" in registry) == (2, 2, True, False)


def test_an_unknown_name_gets_the_nearest_and_all_names():
    registry = Registry("animal")
    registry.add("zebra", 1)
    registry.add("ant", 2)
    with pytest.raises(
        UserError, match=r"unknown animal 'zebar'. Did you mean 'zebra'\? Allowed: ant, zebra\."
    ):
        registry["zebar"]


def test_nothing_is_guessed_when_nothing_is_near():
    message = str(unknown("animal", "qqqq", ["zebra", "ant"]))
    assert message == "unknown animal 'qqqq'. Allowed: ant, zebra."


def test_a_name_is_registered_for_one_thing_only():
    registry, thing = Registry("animal"), object()
    registry.add("ant", thing)
    assert registry.add("ant", thing) is thing
    with pytest.raises(ValueError, match="two animals are called 'ant'"):
        registry.add("ant", object())
    assert registry["ant"] is thing


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_algorithms_have_their_own_name_and_family(name):
    cls = ALGORITHMS[name]
    assert cls.meta.name == name
    assert cls.__module__ == f"algorithms.{cls.meta.family}.{cls.__module__.rsplit('.', 1)[1]}"
    assert cls.meta.solves
    assert cls().meta is cls.meta


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_problems_are_registered_under_their_own_name(name):
    assert PROBLEMS[name].name == name
    assert PROBLEMS[name].version >= 1
    assert any(PROBLEMS[name].kind in ALGORITHMS[one].meta.solves for one in ALGORITHMS)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lr": 0.0}, "lr must be above 0, given 0.0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"lr": float("inf")}, "lr must be above 0"),
        ({"local_steps": 0}, "local_steps must be at least 1, given 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"local_steps": 1, "local_epochs": 1}, "local_steps or local_epochs, not both"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(settings, says):
    with pytest.raises(UserError, match=f"algorithm fedavg: .*{says}"):
        ALGORITHMS["fedavg"](**settings)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("def f(:", "mine.py cannot be imported: SyntaxError"),
        (
            "from harness.core import Algorithm\nclass Mine(Algorithm): pass",
            "class Mine is not registered; add @register",
        ),
    ],
)
def test_an_algorithm_file_that_is_broken_is_named(tmp_path, monkeypatch, content, complaint):
    (tmp_path / "mine.py").write_text(content)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    with pytest.raises(UserError, match=complaint):
        algorithms.load()
