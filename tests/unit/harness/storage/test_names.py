"""Packages of others with the names of ours are told, with what to do."""

from types import SimpleNamespace

import pytest

import datasets
import harness
from harness.cli import parser
from harness.storage import names


def test_who_asks_ours_for_another_s_names_is_told():
    """Python's own words are "cannot import name", which tell nothing."""
    with pytest.raises(ImportError, match=r"datasets of Hugging Face.*separate environments"):
        from datasets import load_dataset  # noqa: F401
    assert not hasattr(datasets, "other")


def test_a_distribution_among_our_files_is_told_in_every_command(tmp_path, monkeypatch, caplog, capsys):
    """As after an installation of Hugging Face's datasets into the same folder."""
    for place in (tmp_path, tmp_path / "elsewhere"):
        info = place / "datasets-9.9.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: datasets\nVersion: 9.9\n")
        (place / "datasets").mkdir()
        (place / "datasets" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert names.shared() == []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(names, "ROOT", tmp_path)
    monkeypatch.setattr(parser, "shadowed", list)
    assert parser.main(["list", "suites", "--json"]) == 0
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("datasets 9.9 and fedfrontier") and "pip uninstall datasets" in said
    capsys.readouterr()


def test_a_package_that_hides_ours_is_refused_in_python(monkeypatch):
    hidden = SimpleNamespace(origin="/elsewhere/datasets/__init__.py")
    monkeypatch.setattr(names, "find_spec", lambda name: hidden)
    with pytest.raises(ImportError, match=r"/elsewhere/datasets/__init__\.py hides the package algorithms"):
        harness.run  # noqa: B018
