"""Differential privacy: clipping, the Gaussian mechanism, accounting, the ledger and audits.

The functions work on tensors and numbers, independent of clients and rounds. Typical use: `clip` bounds a message,
`gaussian_noise` protects it, `Ledger.book` records the release, `Ledger.report` accounts for all releases, and
the functions of `privacy.audit` test the claim on released data, those of `privacy.one_run` bound it from below.

========================  ==============================================================================
`classic_sigma`           nominal calibration by the classical formula (as the papers print it)
`analytic_sigma`          exact calibration of one release
`gaussian_epsilon`        exact epsilon of one release (`gaussian_delta`: exact delta)
`calibrate`               calibration of any mixture of events to one budget
`epsilon`                 privacy of many equal releases (`account`: of any mixture of events)
`Ledger`                  record of releases, counted for each unit
`calibrate_all`           calibration for many units with different histories (`calibrate_each`: for each its own)
`clip`, `clip_each`       joint clip of a message; clip of each part (`joint_norm`: its total bound)
`clipped_sum`             sum of individually clipped rows, for per-sample gradients
`scale_to_norm`           gradient clipping without a guarantee for privacy
`AdaptiveClip`            clip norm that follows a quantile
`gaussian_noise`          noise, one generator per row
`coefficients`            noise that is correlated between rounds (`prefix_error`: what it leaves in sums)
`grid`                    noise that clients add together, as integers (`discrete_gaussian`, `rotate`)
`scale_p`, `inclusion_p`  tests of the claimed noise and sampling (`normal_p`, `correlation_p`: of draws)
`one_run_epsilon`         empirical lower bound on epsilon (`one_run_gaussian_epsilon`, `clopper_pearson_epsilon`)
`selection_epsilon`       what a search for settings costs, if it draws a random number of them
`attack_bound`            what an attacker can gain (`accuracy_bound`: from one epsilon alone)
========================  ==============================================================================

The names are imported on first use, as most parts need torch, and what reads results does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privacy.accounting import Account, account, calibrate, compose, epsilon
    from privacy.attacker import attack_bound
    from privacy.audit import correlation_p, inclusion_p, normal_p, scale_p
    from privacy.banded import Factorization, coefficients, prefix_error
    from privacy.clipping import (
        AdaptiveClip,
        Clipped,
        clip,
        clip_each,
        clip_factors,
        clipped_sum,
        joint_norm,
        scale_to_norm,
    )
    from privacy.discrete import (
        Grid,
        discrete_gaussian,
        grid,
        padded_length,
        rotate,
        rotate_back,
        rounded,
    )
    from privacy.event import Event
    from privacy.gaussian import (
        analytic_sigma,
        classic_sigma,
        gaussian_delta,
        gaussian_epsilon,
        gaussian_noise,
    )
    from privacy.individual import Histories, calibrate_all, calibrate_each
    from privacy.ledger import Draw, Ledger, PrivacyReport
    from privacy.one_run import clopper_pearson_epsilon, one_run_epsilon, one_run_gaussian_epsilon
    from privacy.selection import Selected, selection_epsilon
    from privacy.trade_off import accuracy_bound

__all__ = [
    "Account",
    "AdaptiveClip",
    "Clipped",
    "Draw",
    "Event",
    "Factorization",
    "Grid",
    "Histories",
    "Ledger",
    "PrivacyReport",
    "Selected",
    "account",
    "accuracy_bound",
    "analytic_sigma",
    "attack_bound",
    "calibrate",
    "calibrate_all",
    "calibrate_each",
    "classic_sigma",
    "clip",
    "clip_each",
    "clip_factors",
    "clipped_sum",
    "clopper_pearson_epsilon",
    "coefficients",
    "compose",
    "correlation_p",
    "discrete_gaussian",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_noise",
    "grid",
    "inclusion_p",
    "joint_norm",
    "normal_p",
    "one_run_epsilon",
    "one_run_gaussian_epsilon",
    "padded_length",
    "prefix_error",
    "rotate",
    "rotate_back",
    "rounded",
    "scale_p",
    "scale_to_norm",
    "selection_epsilon",
]

#: The names of every module.
_HOLDS = {
    "accounting": "Account account calibrate compose epsilon",
    "attacker": "attack_bound",
    "audit": "correlation_p inclusion_p normal_p scale_p",
    "banded": "Factorization coefficients prefix_error",
    "clipping": "AdaptiveClip Clipped clip clip_each clip_factors clipped_sum joint_norm scale_to_norm",
    "discrete": "Grid discrete_gaussian grid padded_length rotate rotate_back rounded",
    "event": "Event",
    "gaussian": "analytic_sigma classic_sigma gaussian_delta gaussian_epsilon gaussian_noise",
    "individual": "Histories calibrate_all calibrate_each",
    "ledger": "Draw Ledger PrivacyReport",
    "one_run": "clopper_pearson_epsilon one_run_epsilon one_run_gaussian_epsilon",
    "selection": "Selected selection_epsilon",
    "trade_off": "accuracy_bound",
}
_MODULE = {name: module for module, names in _HOLDS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE[name]}"), name)
