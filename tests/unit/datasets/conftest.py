"""Surroundings for the tests of data sources: an empty cache, and no network."""

import subprocess
from urllib.error import URLError

import pooch
import pytest
import sklearn.datasets

from datasets import sources


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no copy of any data set elsewhere on the machine."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDFRONTIER_CACHE", str(folder))
    monkeypatch.delenv("FEDFRONTIER_DATA", raising=False)
    monkeypatch.setattr(sources, "FASHION_SYSTEM", tmp_path / "no-system-folder")
    return folder


@pytest.fixture
def offline(cache, monkeypatch):
    """An empty cache and a machine without network; the value is the cache folder."""

    def no_download(url, **_):
        raise OSError("name resolution failed")

    def no_pip(command, **_):
        raise subprocess.CalledProcessError(1, command, stderr="ERROR: No matching distribution found\n")

    def no_openml(*_, **__):
        raise URLError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", no_download)
    monkeypatch.setattr(subprocess, "run", no_pip)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", no_openml)
    return cache
