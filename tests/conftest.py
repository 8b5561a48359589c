"""What holds for every test: one torch thread, so that timings and roundings do not depend on the machine."""

from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from harness.config import code, plugins
from harness.core.registry import PLUGGED
from harness.metrics import RECALLED
from tests.support.runs import table
from tests.support.written import blank


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


# Noise of runs in this process does not change with every edit of the code; in other processes it does. Audits
# raise a false alarm in one of a hundred cases by design, so another text may make one of their tests fail.
code.OURS = "tests 2"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file for whole runs."""
    return table(tmp_path_factory.mktemp("data"))


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch):
    """Pictures show nothing: drawing them takes most of the time of a report whose other parts are tested."""

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", blank)


@pytest.fixture
def vectors_only(monkeypatch: pytest.MonkeyPatch):
    """Draw no PNG: it takes as long as the SVG, which these tests read."""
    honest = Figure.savefig

    def savefig(self, path, *, format, **given):
        path.touch() if format == "png" else honest(self, path, format=format, **given)

    monkeypatch.setattr(Figure, "savefig", savefig)


@pytest.fixture
def registries():
    """What a test registers is gone after it."""
    before = [(things, dict(things)) for things in (PLUGGED, RECALLED, plugins._files)]
    packages, names = set(plugins._packages), plugins._parts().keys()
    yield
    for kind, name in plugins._parts().keys() - names:
        del plugins.REGISTRIES[kind][name]
    for things, kept in before:
        things.clear()
        things.update(kept)
    plugins._packages.intersection_update(packages)
