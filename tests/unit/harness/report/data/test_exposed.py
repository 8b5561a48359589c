"""Whose the largest epsilon of a statement is, as numbers and in words."""

import pytest

from harness.report.data.exposed import MostExposed, most_exposed

NAMES = ["Cleveland", "client 1", "Zurich"]


@pytest.mark.parametrize(
    ("claim", "total", "whose", "text"),
    [
        ({"unit_most": 2, "units_most": 1}, 3, MostExposed("client", 2, 0), "Zurich"),
        ({"unit_most": 1, "units_most": 2}, 3, MostExposed("client", 1, 1), "client 1 and 1 more"),
        ({"unit_most": 0, "units_most": 3}, 3, MostExposed("client", None, 2), "all clients"),
        (
            {"unit_most": 0, "units_most": 3, "protects": "a person"},
            3,
            MostExposed("person", 0, 2),
            "person 0 and 2 more",
        ),
        ({}, 3, None, None),
    ],
)
def test_a_statement_names_the_most_exposed_unit(claim, total, whose, text):
    """Persons of a vertical run have no names, and a client may be called like another one's number."""
    assert most_exposed(claim, total) == whose
    assert (whose and whose.text(NAMES)) == text
