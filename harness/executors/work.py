"""The way in which runs of a suite are carried out, and the content of ``suite.json``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets.errors import DataError
from harness.config.recorded import check_current, run_id, versions
from harness.config.run import RunSpec
from harness.config.sweep import Combination
from harness.core.errors import UserError
from harness.executors.scheduler import Outcome, run_all
from harness.simulation.build import data_digest, frozen_part
from harness.simulation.callbacks import Callback, observed
from harness.simulation.setup import Execution
from harness.storage.store import Store

log = logging.getLogger(__name__)


class Follower:
    """A receiver of the progress of runs; this one ignores it."""

    def expect(self, later: int) -> None:
        """Note how many runs will follow those that are followed now, at least."""

    def begin(self, numbers: Sequence[int]) -> None:
        """Note that runs have started."""

    def finished(self, outcome: Outcome) -> None:
        """Note that a run has ended."""


Follow = Callable[[str, Store, Mapping[str, RunSpec]], AbstractContextManager[Follower]]


@contextmanager
def unfollowed(title: str, store: Store, runs: Mapping[str, RunSpec]) -> Iterator[Follower]:
    """Follow nothing."""
    yield Follower()


@dataclass(frozen=True)
class Work:
    """Folder and execution options of runs; results do not depend on the options.

    Attributes
    ----------
    root : Path
        Results folder.
    follow : Callable
        Called with a title, the folder and the runs by id; its context follows them.
    say, busy : Callable
        Called with sentences for the user; the second returns a context that lasts while it is true.
    callbacks : sequence of Callback
        What users have called; at rounds and evaluations with the serial executor only.
    jobs, executor, address, execution, retry
        As in `harness.executors.scheduler.run_all`.
    """

    root: Path
    follow: Follow = unfollowed
    say: Callable[[str], object] = log.info
    busy: Callable[[str], AbstractContextManager[object]] = nullcontext
    callbacks: Sequence[Callback] = ()
    jobs: int | None = 1
    executor: str | None = None
    address: str | None = None
    execution: Execution = field(default_factory=Execution)
    retry: bool = False

    def carry_out(self, title: str, runs: Mapping[str, RunSpec], later: int = 0) -> Counter[str]:
        """Carry out runs, given by id, and return how many ended in which way.

        ``later`` runs will follow at least, as those of the next rungs of a search.
        """
        ends: Counter[str] = Counter()
        store = Store(self.root)
        with self.follow(title, store, runs) as follower:
            follower.expect(later)

            def report(outcome: Outcome) -> None:
                ends[outcome.status] += 1
                follower.finished(outcome)
                if self.callbacks:
                    record = store.record(outcome.id, runs[outcome.id].model_dump(mode="json"), title)
                    for callback in self.callbacks:
                        callback.on_run_end(record)

            run_all(
                list(runs.values()),
                self.root,
                jobs=self.jobs,
                executor=self.executor,
                address=self.address,
                execution=self.execution,
                retry=self.retry,
                begin=follower.begin,
                report=report,
                progress=observed(self.callbacks),
            )
        return ends


def in_suite(combination: Combination) -> dict[str, Any]:
    """Return what a suite records of a combination.

    Of a skipped one too: with the defaults, data and versions of the others its row stands among theirs.
    """
    parts = combination.parts
    spec = parts.model_dump(mode="json")
    check_current(spec)
    searched = {} if combination.search is None else {"search": combination.search}
    code = versions(spec, frozen_part(parts))
    content = {"id": None, "spec": spec, "reason": combination.reason, "versions": code, **searched}
    if combination.spec is None:
        with suppress(UserError, DataError):
            content["digest"] = data_digest(parts)
        return content
    digest = data_digest(parts)
    return content | {"id": run_id(spec, digest, code), "digest": digest}
