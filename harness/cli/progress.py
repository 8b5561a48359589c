"""Progress display of a suite: runs done and time left."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from harness.cli.console import log
from harness.config.run import RunSpec
from harness.core.units import counted
from harness.executors.scheduler import Outcome
from harness.executors.work import Follower
from harness.simulation.status import RunStatus, Watch
from harness.storage.store import Store

TENTHS = 10  # lines of a suite whose progress goes to a file
REFRESH_SECONDS = 1.0


class SuiteProgress(Follower):
    """Progress of a suite on standard error: a live display on a terminal, else a line at every tenth of the runs.

    Parameters
    ----------
    title : str
        Name of the suite.
    store : Store
        Its results folder.
    runs : Mapping[str, RunSpec]
        The runs by id, in the order of their numbers.
    """

    def __init__(self, title: str, store: Store, runs: Mapping[str, RunSpec]) -> None:
        self._ends: Counter[str] = Counter()
        self._later = 0  # runs that follow those of this display
        self._runs, self._ids = runs, list(runs)
        self._watch = Watch(store, {id: spec.rounds for id, spec in runs.items()})
        self._began = time.monotonic()
        count = MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=9))
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=12), count)
        status = TextColumn("{task.fields[status]}", markup=False)
        self._bar = Progress(*columns, status, console=log, transient=True)
        self._total = self._bar.add_task(title, total=len(runs), status="")
        self._over = threading.Event()
        self._lock = threading.Lock()  # runs end while the display is updated
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def expect(self, later: int) -> None:
        """Record how many runs will follow these."""
        self._later = later

    def begin(self, numbers: Sequence[int]) -> None:
        """Record that runs have started."""
        with self._lock:
            self._watch.begin(self._ids[number] for number in numbers)

    def finished(self, outcome: Outcome) -> None:
        """Record and report that a run has ended."""
        label = run_label(self._runs[outcome.id])
        with self._lock:
            self._watch.end(outcome.id)
            self._ends[outcome.status] += 1
            ended, total = self._ends.total(), len(self._runs)
            if not log.is_terminal and ended * TENTHS // total > (ended - 1) * TENTHS // total:
                remaining = self._left(self._watch.under_way(REFRESH_SECONDS))
                log.print(
                    f"{ended}/{total} {label} {outcome.status}{remaining and ', '}{remaining}", markup=False
                )
        if outcome.why:
            log.print(f"{label} ({outcome.id}) {outcome.status}: {outcome.why}", markup=False)

    def refresh(self) -> None:
        """Update the display from the runs' files."""
        with self._lock:
            now = self._watch.under_way()
            failed = f"{self._ends['failed']} failed" if self._ends["failed"] else ""
            status = ", ".join(text for text in (self._left(now), failed) if text)
            self._bar.update(self._total, completed=self._watch.made(now), status=status)

    def _left(self, now: Mapping[str, RunStatus]) -> str:
        passed = time.monotonic() - self._began
        shares = [self._watch.left(now, later) for later in dict.fromkeys((0, self._later))]
        times = [timedelta(seconds=round(passed * share)) for share in shares if share]
        if not times:
            return ""
        after = f", {times[-1]} with at least {counted(self._later, 'run')} to follow" if self._later else ""
        return f"about {times[0]} left{after}" if len(times) == len(shares) else after.lstrip(", ")

    def _follow(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            with suppress(OSError):  # a shared folder may be unavailable for a moment
                self.refresh()

    def __enter__(self) -> SuiteProgress:
        if log.is_terminal:
            self._bar.start()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._bar.stop()


def run_label(spec: RunSpec) -> str:
    """Return the label of a run, such as ``fedavg on adult, ε 2, beta 0.9, seed 3``."""
    on = spec.data.short_name if spec.data else spec.problem["kind"]
    epsilon = spec.privacy.epsilon if spec.privacy else None
    ratios = {name: getattr(spec.compression, name) for name in ("alpha", "beta")}
    parts = [
        f"{spec.algorithm['name']} on {on}",
        *([] if epsilon is None else [f"ε {epsilon:g}"]),
        *(
            f"{name} {ratio:g}" if isinstance(ratio, float) else f"scheduled {name}"
            for name, ratio in ratios.items()
            if ratio
        ),
        f"seed {spec.seed}",
    ]
    return ", ".join(parts)
