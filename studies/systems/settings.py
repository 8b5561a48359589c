"""Privacy settings of other systems: the epsilon that each prints, and what it composes to.

Each setting is data and a function of its values. The facts are those of the sources it names, at the commits in
the links; the arithmetic is that of the package `privacy`. Where a source states its limits, so does the setting.

A message clipped to norm C moves by C when a unit is left out (add-remove) and by 2 C when its data are replaced
(replace-one).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from studies.systems import compositions
from studies.systems.compositions import Row, Values

GITHUB = "https://github.com/"
FLOWER = f"{GITHUB}adap/flower/blob/fdef7afb1dca3030553be302366cfd285ed6632c/framework/py/flwr/"
NVFLARE = f"{GITHUB}NVIDIA/NVFlare/blob/f3b7c1bffdfed90338d695a67b52a46d8bc4d28c/"
FLAMBY = f"{GITHUB}owkin/FLamby/blob/edacf54d5211520583b0133d55ac39b6fda8324b/flamby/"
PFL = f"{GITHUB}apple/pfl-research/blob/c9d1f32f6e84fec984f448e2bc19a3e3fd5a4807/benchmarks/"
OPACUS = f"{GITHUB}meta-pytorch/opacus/blob/88919b6677bb01366fd5966174fdcd57ad2c60d9/opacus/"
FLIP = f"{GITHUB}londonaicentre/FLIP/blob/362667fa4445ef0a82f44c5b52d81b547915fbac/flip-utils/flip/"
FL_BENCH = f"{GITHUB}KarhouTam/FL-bench/blob/06e658bca5af6ce732e25bb7c0f8be321e14a85e/"
FL_BENCH_COPY = f"{GITHUB}ASUKaiwenFang/FL-bench/blob/a79abfc16e1888d127a8fad55dc9e93bd5efc7a0/src/"


@dataclass(frozen=True)
class Setting:
    """A privacy setting of another system.

    Attributes
    ----------
    name, title : str
        Its name on the command line, and in words.
    version : str
        Version of the other system.
    defaults : dict
        Names and defaults of its values.
    meaning : str
        What the system says about the printed epsilon, or says instead of one.
    printed : callable
        Epsilon that the system prints; None if it prints none.
    composes : callable
        What the values compose to.
    why : str
        Why the two differ, or that they do not.
    sources : tuple of str
        Links to the facts.
    """

    name: str
    title: str
    version: str
    defaults: dict[str, float]
    meaning: str
    printed: Callable[[Values], float | None]
    composes: Callable[[Values], list[Row]]
    why: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Evaluation:
    """A setting at given values."""

    setting: Setting
    values: dict[str, float]
    printed: float | None
    rows: list[Row]

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values; an infinite epsilon is the text "inf"."""
        finite = [row.epsilon if math.isfinite(row.epsilon) else "inf" for row in self.rows]
        setting = self.setting
        return {
            "name": setting.name,
            "title": setting.title,
            "version": setting.version,
            "settings": self.values,
            "printed": self.printed,
            "says": setting.meaning,
            "composes_to": [
                {**vars(row), "epsilon": epsilon} for row, epsilon in zip(self.rows, finite, strict=True)
            ],
            "why": setting.why,
            "sources": list(setting.sources),
        }


def evaluate(name: str, values: Values) -> Evaluation:
    """Return what a setting prints and composes to; values that are left out have their defaults.

    Raises
    ------
    ValueError
        If a value is out of range.
    """
    setting = SETTINGS[name]
    values = {**setting.defaults, **values}
    for key, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}: {key} must be a number above 0, got {value}")
        if key in COUNTS and value != int(value):
            raise ValueError(f"{name}: {key} must be a whole number, got {value}")
    return Evaluation(setting, values, setting.printed(values), setting.composes(values))


COUNTS = ("rounds", "cohort", "clients", "records", "batch", "epochs", "updates", "users", "noise_cohort")


def _asked(at: Values) -> float:
    return at["epsilon"]


def _nothing(at: Values) -> None:
    return None


_ALL = (
    Setting(
        "flip-localdp",
        "FLIP, a project of hospitals, on Flower's LocalDpMod",
        "Flower at fdef7af (2026), with the settings of FLIP at 362667f; Flower has no default for the "
        "sensitivity",
        {"epsilon": 10, "clip": 1, "sensitivity": 1e-4, "delta": 1e-5, "rounds": 50},
        "the privacy budget of the mechanism; FLIP's own comment adds that each round spends it again and "
        "that its defaults are not a defensible budget",
        _asked,
        compositions.flower_local,
        "The settings are those of one project, which says itself that they are no defensible budget. The "
        "noise is scaled to `sensitivity`, which Flower leaves to its users. What is sent is clipped to "
        "`clip`, and only that bounds how far it can move. A sensitivity of 2 clip / records, which "
        "FLIP's comment recommends, would need an average over records that are each clipped; a locally "
        "trained model is no such average. With sensitivity 2 clip the formula, which is proved for "
        "epsilon below 1 only, is that of one round, and rounds add up.",
        (
            f"{FLOWER}clientapp/mod/localdp_mod.py",
            f"{FLOWER}common/differential_privacy.py",
            f"{FLIP}flower/privacy.py",
            f"{GITHUB}londonaicentre/FLIP/pull/833",
        ),
    ),
    Setting(
        "flower-fixed",
        "Flower's server-side and client-side fixed clipping",
        "Flower at fdef7af (2026), before its accounting (7884, August 2026)",
        {"noise_multiplier": 1, "cohort": 20, "clients": 100, "rounds": 50, "weight": 1, "delta": 1e-5},
        "a noise multiplier of 1.0 or higher is recommended for strong privacy; at that commit nothing is "
        "accounted",
        _nothing,
        compositions.flower_fixed,
        "The noise on the average is multiplier times clip over the number sampled. Cohorts have a fixed "
        "size, so neighbors are replaced, and the sensitivity is twice the clip norm over that number. "
        "FedAvg weighs by the number of examples: a client of `weight` times an equal share is protected "
        "that much less. Since August 2026 Flower has RDP accounting (7884), and its strategies take an "
        "`accountant`.",
        (
            f"{FLOWER}serverapp/strategy/dp_fixed_clipping.py",
            f"{FLOWER}common/differential_privacy.py",
            f"{FLOWER}serverapp/strategy/fedavg.py",
        ),
    ),
    Setting(
        "flower-adaptive",
        "Flower's adaptive clipping",
        "Flower at fdef7af (2026), before its accounting (7884, August 2026)",
        {"noise_multiplier": 1, "cohort": 20, "clients": 100, "rounds": 50, "delta": 1e-5},
        "the noise multiplier is split between the updates and the count of clipped ones; at that commit "
        "nothing is accounted",
        _nothing,
        compositions.flower_adaptive,
        "The count of clipped updates is paid for: a replaced client gets exactly the noise of the whole "
        "multiplier over twice the clip norm. A client that is left out gets less than the multiplier "
        "says: the bits counted are 0 or 1, and the split is that of bits centered at 0. Weights count as "
        "in flower-fixed. Since August 2026 Flower has RDP accounting (7884), and its strategies take an "
        "`accountant`.",
        (
            f"{FLOWER}serverapp/strategy/dp_adaptive_clipping.py",
            f"{FLOWER}common/differential_privacy.py",
        ),
    ),
    Setting(
        "nvflare-svt",
        "NVFlare's SVTPrivacy at its defaults, for a model of 7 million parameters",
        "NVFlare at f3b7c1b (2026), after 4470",
        {"epsilon": 0.1, "fraction": 0.1, "noise_var": 0.1, "params": 7e6, "rounds": 1, "delta": 1e-5},
        "the sum that the filter logs itself; of it `epsilon`, 0.1, is the budget of selecting the "
        "entries that are sent",
        compositions.svt_printed,
        compositions.svt,
        "The printed epsilon holds as a sum of pure epsilons: the filter's log and its documentation say "
        "since 2026 that each of the entries sent costs `noise_var` more than the argument `epsilon`. At a delta "
        "above 0, many small releases compose to less than their sum. Not counted: a pass may accept more "
        "entries than the selection pays for, and scalars are sent without noise.",
        (
            f"{NVFLARE}nvflare/app_common/filters/svt_privacy.py",
            f"{NVFLARE}docs/user_guide/admin_guide/security/differential_privacy.rst",
            f"{GITHUB}NVIDIA/NVFlare/pull/4470",
        ),
    ),
    Setting(
        "nvflare-percentile",
        "NVFlare's PercentilePrivacy",
        "NVFlare at f3b7c1b (2026)",
        {"percentile": 10, "gamma": 0.01, "delta": 1e-5},
        "a policy of sharing the largest entries; an example of it is called a DP filter",
        _nothing,
        compositions.no_noise,
        "Small entries become 0 and large ones are cut to `gamma`. No noise is added, so two updates are "
        "told apart with certainty wherever what is left of them differs.",
        (
            f"{NVFLARE}nvflare/app_common/filters/percentile_privacy.py",
            f"{NVFLARE}examples/advanced/job_api/pt/fedavg_script_runner_dp_filter_cifar10.py",
        ),
    ),
    Setting(
        "nvflare-gaussian",
        "NVFlare's GaussianPrivacy, of its research on gradient leakage",
        "NVFlare at f3b7c1b (2026), a research example",
        {"sigma0": 0.1, "params": 7e6, "rounds": 1, "delta": 1e-5},
        "noise relative to a percentile of the update's entries; no guarantee is named",
        _nothing,
        compositions.nvflare_gaussian,
        "Nothing is clipped, so nothing bounds how far an update moves, and the size of the noise is "
        "computed from the update itself. Even if all entries were of one size, the noise would be "
        "`sigma0` over the root of their number.",
        (f"{NVFLARE}research/quantifying-data-leakage/src/nvflare_gradinv/filters/gaussian_privacy.py",),
    ),
    Setting(
        "fl-bench",
        "FL-bench's DP-FedAvg",
        "FL-bench with 200, merged in 2026, read at its author's commit a79abfc; defaults at 06e658b",
        {
            "epsilon": 1, "records": 600, "batch": 32, "epochs": 5, "join_ratio": 0.1, "rounds": 100, "delta": 1e-5,
        },
        "the target of a client's privacy budget; beyond it a warning is logged",
        _asked,
        compositions.fl_bench,
        "The noise is found for one round of whole epochs, without the number of rounds; the client takes "
        "one Poisson batch an epoch. So a client in few rounds stays below the target, and one in many "
        "exceeds it. The version first reviewed in the linked request found the noise for one step an "
        "epoch.",
        (
            f"{GITHUB}KarhouTam/FL-bench/pull/200",
            f"{FL_BENCH_COPY}utils/dp_manager.py",
            f"{FL_BENCH_COPY}client/dpfedavg.py",
            f"{FL_BENCH}config/defaults.yaml",
        ),
    ),
    Setting(
        "flamby",
        "FLamby's example on Fed-Heart-Disease, its smallest center",
        "FLamby at edacf54",
        {"epsilon": 1, "delta": 1e-4, "records": 30, "batch": 4, "updates": 100, "rounds": 15},
        "dp_target_epsilon, handed to Opacus with one epoch a round",
        _asked,
        compositions.flamby,
        "Opacus is told `epochs=nrounds`, one pass over the data a round, but every round takes "
        "`num_updates` batches. They are drawn from the loader that was there before, shuffled, not from "
        "the Poisson loader that Opacus returns, so that no amplification is proved for them.",
        (
            f"{FLAMBY}strategies/utils.py",
            f"{FLAMBY}strategies/fed_avg.py",
            f"{FLAMBY}dp_example/create_fed_heart_disease_dp_results.py",
            f"{FLAMBY}datasets/fed_heart_disease/README.md",
        ),
    ),
    Setting(
        "pfl",
        "pfl-research, the benchmark on CIFAR10 with central privacy, which its baseline has switched off",
        "pfl-research at c9d1f32",
        {
            "epsilon": 2, "delta": 1e-6, "population": 1e6, "noise_cohort": 1000, "cohort": 50, "users": 1000,
            "rounds": 1500,
        },
        "of a deployment with that noise cohort and population; the help says that results hold only "
        "there",
        _asked,
        compositions.pfl,
        "The printed epsilon holds for what it is said of. The baseline of the repository has "
        "`central_privacy_mechanism: none`; with the mechanism on, the run itself has fewer users and "
        "scales the noise down to its small cohort, so its model protects those users far less.",
        (
            f"{PFL}utils/argument_parsing.py",
            f"{PFL}image_classification/configs/baseline.yaml",
            f"{PFL}image_classification/pytorch/train.py",
        ),
    ),
    Setting(
        "opacus",
        "Opacus, PrivacyEngine.make_private",
        "Opacus at 88919b6",
        {"noise_multiplier": 1.1, "records": 60000, "batch": 256, "epochs": 15, "delta": 1e-5},
        "by its PRV accountant, for Poisson batches and one record more or less",
        compositions.opacus_printed,
        compositions.opacus,
        "The printed epsilon holds with the Poisson loader, which is the default, and for replaced records "
        "the same noise has less than twice the epsilon. With poisson_sampling=False the same accountant runs on, "
        "though batches are shuffled; what is certain then is one release of each record an epoch. The "
        "divisor is computed from the number of records, which add-remove would have to hide.",
        (
            f"{OPACUS}privacy_engine.py",
            f"{GITHUB}meta-pytorch/opacus/issues/571",
        ),
    ),

)  # fmt: skip

SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _ALL}
