"""Functions that make runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from harness.api.reading import leaderboard, load_results
from harness.config import plugins
from harness.config.default_search import METRIC, searched_suite
from harness.config.recorded import results_folder
from harness.config.run import RunSpec, read_spec
from harness.config.suite import Suite, checked_name, make_suite, read_suite
from harness.config.tuned_runs import estimate
from harness.config.yaml import read_yaml
from harness.core.errors import UserError
from harness.core.units import counted
from harness.executors.local import torch_threads
from harness.executors.scheduler import Outcome, choose, run_one
from harness.executors.suites import run_suite
from harness.executors.work import Follower, Work, unfollowed
from harness.simulation import build
from harness.simulation import plan as plans
from harness.simulation.calibration import calibrated
from harness.simulation.callbacks import Callback, observed
from harness.simulation.saved_model import check_savable
from harness.simulation.setup import Execution, Setup
from harness.storage.run_files import EXTRAS
from harness.storage.store import RunRecord, Store

Given = RunSpec | Mapping[str, Any] | str | Path


def run(
    spec: Given,
    out: str | Path = "results",
    *,
    execution: Execution | None = None,
    retry: bool = False,
    save_predictions: bool = False,
    save_model: bool = False,
    callbacks: Sequence[Callback] = (),
) -> RunRecord:
    """Run one benchmark like ``python -m harness run``, unless it is done already.

    Parameters
    ----------
    spec : RunSpec, Mapping, str or Path
        A validated spec, the fields of a run file, or the path of one.
    out : str or Path
        Results folder.
    execution : Execution, optional
        Execution options, which do not affect the result.
    retry : bool
        Repeat a failed run, or continue a stopped one; not under ``privacy.secure_rng``, where repeated rounds
        spend their budget again.
    save_predictions : bool
        Write ``predictions.csv`` beside the results.
    save_model : bool
        Write ``model.safetensors`` beside the results, for `predict`.
    callbacks : sequence of Callback
        What is called at rounds, evaluations and the end. What they raise is raised here; `StopEarly` ends the run.

    Returns
    -------
    RunRecord
        ``status`` is ``done``, ``failed`` (for example diverged, see ``reason``), ``stopped`` (by a callback),
        ``running`` (in another process) or ``damaged`` (under ``privacy.secure_rng``, where it is not repeated).
        ``rounds`` holds the evaluations, ``final`` the content of ``done.json``.

    Raises
    ------
    UserError, ValueError
        If the spec is not valid or its parts are incompatible, or predictions are asked of a finished run whose
        noise cannot be drawn again; then nothing has been written.
    """
    checked = _checked(spec)
    execution, root = execution or Execution(), Path(out)
    requested = dict(zip(EXTRAS, (save_predictions, save_model), strict=True))
    with torch_threads(execution.threads):
        build.identify(checked)  # refuses parts of notebooks before anything is written
        setup = calibrated(build.prepare(checked, execution))
        if save_model:
            check_savable(setup)
        save = [name for name in requested if requested[name]]
        observe = observed(callbacks)
        outcome = run_one(checked, root, execution, retry=retry, progress=observe, save=save, setup=setup)
    record = Store(root).record(outcome.id, checked.model_dump(mode="json"))
    for callback in callbacks:
        callback.on_run_end(record)
    return record


def prepare(spec: Given, *, execution: Execution | None = None) -> Setup:
    """Prepare a run with the noise that its budget requires, without running it.

    `Simulation` takes its ``problem``, ``federation`` and ``algorithm``; `Simulation.from_setup` takes all of it.

    Parameters
    ----------
    spec : RunSpec, Mapping, str or Path
        A validated spec, the fields of a run file, or the path of one.
    execution : Execution, optional
        Execution options.

    Raises
    ------
    UserError, ValueError
        If the spec is not valid or its parts are incompatible.
    """
    return calibrated(build.prepare(_checked(spec), execution))


@dataclass(frozen=True)
class Study:
    """A suite that was carried out.

    Attributes
    ----------
    folder : Path
        Results folder.
    suite : str
        Its name.
    ends : Counter
        How many runs ended in which way.
    """

    folder: Path
    suite: str
    ends: Counter[str]

    @property
    def records(self) -> list[RunRecord]:
        """Its runs, and combinations that were skipped."""
        return results_folder(self.folder).records(self.suite)

    def results(self) -> pd.DataFrame:
        """Return one row per evaluation, as `load_results` does."""
        return load_results(self.folder, self.suite)

    def leaderboard(self, **options: Any) -> pd.DataFrame:
        """Return one row per cell; the options are those of `harness.leaderboard`."""
        return leaderboard(self.folder, self.suite, **options)

    def chosen(self) -> pd.DataFrame:
        """Return the settings that its searches chose, one row per run that has them; empty without a search."""
        rows = []
        for record in self.records:
            number = record.search.get("chosen")
            if record.id is not None and number is not None:
                settings = record.search["trials"][number]["settings"]
                rows.append({"algorithm": record.spec["algorithm"]["name"], "run": record.id, **settings})
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        """Show how the runs ended, and the leaderboard, in a notebook."""
        ends = ", ".join(f"{count} {status}" for status, count in sorted(self.ends.items()))
        frame = self.leaderboard()
        columns = [name for name in SHOWN if name in frame and frame[name].notna().any()]
        return f"<p>{counted(len(self.records), 'run')}: {ends}</p>{frame[columns].to_html(index=False)}"


#: Columns of the leaderboard that a notebook shows.
SHOWN = (
    *(
        "rank",
        "dataset",
        "partition",
        "algorithm",
        "dp_unit",
        "dp_placement",
        "epsilon_total",
        "alpha",
        "beta",
    ),
    *("accuracy_mean", "accuracy_std", "auroc_mean", "auroc_std", "bytes_up", "done", "seeds"),
)


def suite(
    given: Mapping[str, Any] | str | Path,
    out: str | Path = "results",
    *,
    profile: str = "smoke",
    over: Mapping[str, Any] | None = None,
    name: str | None = None,
    jobs: int | None = 1,
    executor: str | None = None,
    address: str | None = None,
    execution: Execution | None = None,
    retry: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Study:
    """Carry out a suite like ``python -m harness suite``; runs that are done are not repeated.

    Parameters
    ----------
    given : Mapping, str or Path
        The content of a suite file, its path, or the name of a built-in suite.
    out : str or Path
        Results folder.
    profile : str
        Size, one of the suite's profiles.
    over : Mapping, optional
        Lists of values that replace those of the suite, such as ``{"seed": range(3)}``.
    name : str, optional
        Another name, and so another folder for its tables.
    jobs, executor, address : optional
        Number of workers (None: one per core), and where they run. More than one worker needs a script whose main
        part is under ``if __name__ == "__main__"``.
    execution : Execution, optional
        Execution options, which do not affect results.
    retry : bool
        Repeat failed runs, and continue stopped ones.
    progress : bool
        Show a bar, in notebooks too.
    callbacks : sequence of Callback
        As in `run`. Those at rounds and evaluations need runs in this process: ``jobs=1``.

    Returns
    -------
    Study
        Its tables, and how the runs ended. In a notebook it shows the leaderboard.

    Raises
    ------
    UserError
        If the suite is not valid; then nothing has been run.
    """
    return _carry_out(
        _suite(given, over, profile, name), out, progress=progress, callbacks=callbacks, jobs=jobs,
        executor=executor, address=address, execution=execution, retry=retry,
    )  # fmt: skip


def sweep(
    spec: Given,
    over: Mapping[str, Any],
    out: str | Path = "results",
    *,
    name: str = "sweep",
    **options: Any,
) -> Study:
    """Run one benchmark over lists of values, as ``python -m harness sweep`` does.

    Parameters
    ----------
    spec : RunSpec, Mapping, str or Path
        The run that is varied; it need not be complete where `over` has values.
    over : Mapping
        Dotted name of a field -> its values, such as ``{"privacy.epsilon": [None, 8, 2], "seed": range(3)}``.
    out, name, **options
        As in `suite`.

    Raises
    ------
    UserError
        If a combination is not valid; then nothing has been run.
    """
    return suite({"suite": name, "base": _fields(spec), "sweep": _listed(over)}, out, profile="", **options)


def tune(
    spec: Given,
    settings: Mapping[str, Any] | None = None,
    out: str | Path = "results",
    *,
    over: Mapping[str, Any] | None = None,
    name: str = "tuned",
    metric: str = METRIC,
    search: Mapping[str, Any] | None = None,
    **options: Any,
) -> Study:
    """Search for settings, then run with what was chosen; see docs/comparing.md.

    Parameters
    ----------
    spec : RunSpec, Mapping, str or Path
        The run.
    settings : Mapping, optional
        What is searched, such as ``{"algorithm.lr": {"log_uniform": [0.01, 1]}}``. By default step sizes, local
        steps, clip norms and rounds, see `harness.config.default_search`; a fifth of the samples is then held out
        to choose on, if the run holds out none.
    out, name, **options
        As in `suite`.
    over : Mapping, optional
        As in `sweep`; budgets of a method are searched together.
    metric : str
        The metric on selection samples that chooses.
    search : Mapping, optional
        Further fields of the section ``tune``, such as ``{"budget": 48}``.

    Returns
    -------
    Study
        ``chosen()`` has the settings.
    """
    plugins.load()
    section = {**(search or {}), "settings": dict(settings or {}), "metric": metric}
    content = {"suite": name, "base": _fields(spec), "sweep": _listed(over)}
    return _carry_out(searched_suite(content, search=section), out, **options)


def plan(given: Given, over: Mapping[str, Any] | None = None, *, profile: str = "smoke") -> pd.DataFrame:
    """Return the costs of runs before they are made, as ``python -m harness plan`` prints them.

    Parameters
    ----------
    given : RunSpec, Mapping, str or Path
        A run, or a suite: the name of a built-in one, or content or path of a file with ``base``.
    over : Mapping, optional
        Lists of values, as in `sweep`.
    profile : str
        Size of a suite.

    Returns
    -------
    DataFrame
        One row per run; of searches as many as they make at least. ``epsilon_total``, ``noise_multiplier``,
        ``bytes_up``, ``bytes_down``, ``flops``, ``seconds`` (estimated) and more, see
        `harness.simulation.plan.plan`; skipped ones have a ``reason``.

    Raises
    ------
    UserError
        If a combination is not valid.
    """
    named = isinstance(given, str) and not Path(given).suffix
    if named or "base" in _fields(given):
        planned = _suite(given, over, profile, None)
    else:
        plugins.load()
        content = {"suite": "plan", "base": _fields(given), "sweep": _listed(over)}
        planned = make_suite(content, profile="")
    reported, searched, _ = estimate(planned.combinations, planned.tune)
    return pd.DataFrame(plans.plan([*reported, *searched]))


def load_plugin(path: str | Path) -> None:
    """Load a file that registers algorithms, models, codecs, metrics, data sets or partitions, as ``--plugin``.

    After a change, call it again: the parts of the file take the place of its earlier ones.

    Raises
    ------
    UserError
        If it cannot be read, raises, registers nothing or takes an existing name.
    """
    plugins.load([path])


def _checked(spec: Given) -> RunSpec:
    """Read and validate a spec."""
    plugins.load()
    if isinstance(spec, str | Path):
        spec = read_yaml(Path(spec))
    return spec if isinstance(spec, RunSpec) else read_spec(spec)


def _fields(spec: Given) -> dict[str, Any]:
    """Return the fields of a run file."""
    if isinstance(spec, RunSpec):
        return spec.model_dump(mode="json")
    return dict(read_yaml(Path(spec)) if isinstance(spec, str | Path) else spec)


def _listed(over: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return values to sweep over; ranges become lists."""
    return {
        key: list(values) if isinstance(values, range) else values for key, values in (over or {}).items()
    }


def _suite(given: Given, over: Mapping[str, Any] | None, profile: str, name: str | None) -> Suite:
    """Return the suite of a name, a file or its content."""
    plugins.load()
    if isinstance(given, str | Path):
        result = read_suite(str(given), profile, _listed(over))
    else:
        result = make_suite(_fields(given), profile, instead=_listed(over))
    return replace(result, name=checked_name(name)) if name else result


def _carry_out(
    study_suite: Suite,
    out: str | Path,
    *,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    jobs: int | None = 1,
    executor: str | None = None,
    address: str | None = None,
    execution: Execution | None = None,
    retry: bool = False,
) -> Study:
    """Carry out a suite, watched by callbacks."""
    chosen = choose(executor, jobs, address, len(study_suite.combinations))
    if observed(callbacks) is not None and chosen != "serial":
        raise UserError(
            f"callbacks: rounds and evaluations are made in other processes by executor {chosen}, where nothing "
            "is called; use jobs=1, or override on_run_end only"
        )
    follow = _with_bar if progress else unfollowed
    work = Work(
        Path(out), follow=follow, callbacks=tuple(callbacks), jobs=jobs, executor=executor, address=address,
        execution=execution or Execution(), retry=retry,
    )  # fmt: skip
    with torch_threads(work.execution.threads):
        ends = run_suite(study_suite, work)
    return Study(Path(out), study_suite.name, ends)


@contextmanager
def _with_bar(title: str, store: Store, runs: Mapping[str, RunSpec]) -> Iterator[Follower]:
    """Show a bar of tqdm, which notebooks draw as one of theirs."""
    from tqdm.auto import tqdm

    with tqdm(total=len(runs), desc=title, unit="run") as bar:
        yield _Bar(bar)


class _Bar(Follower):
    """Advances a bar at every end of a run."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def finished(self, outcome: Outcome) -> None:
        """Advance the bar."""
        self._bar.update()
