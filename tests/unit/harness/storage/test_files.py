"""Files of a results folder."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.storage import files
from harness.storage.files import json_lines, json_value

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
CONTENT = st.recursive(
    SCALARS, lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts), max_leaves=9
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), CONTENT))
def test_lines_of_json_hold_the_content(content):
    assert json.loads(json_lines(content)) == content


def test_each_object_of_a_list_is_a_line():
    cells = [{"id": n, "spec": {"lr": 0.1, "steps": [1, 2]}} for n in range(3)]
    lines = json_lines({"suite": "one", "cells": cells}).splitlines()
    assert len(lines) == 8 and lines[1:3] == [' "suite": "one",', ' "cells": [']
    assert [json.loads(line.rstrip(",")) for line in lines[3:6]] == cells


def test_a_file_of_very_many_lists_is_refused_before_it_is_read(monkeypatch):
    """A quarter of a gigabyte of empty lists took six of memory, and packed well."""
    monkeypatch.setattr(files, "MOST_OPENED", 10)
    assert json_value(b"[" + b",".join([b"[]"] * 9) + b"]") == [[]] * 9
    monkeypatch.setattr(files.json, "loads", lambda text: pytest.fail("read"))
    with pytest.raises(ValueError, match="too many lists"):
        json_value(b"[" + b",".join([b"{}"] * 10) + b"]")
