"""Privacy statements of runs, and the information that they treat as public."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from datasets.federation import Federation
from harness.config.recorded import own_version
from harness.core.clients.clients import ERRORS
from harness.core.errors import UserError
from harness.core.flat_model import seeded
from harness.core.settings.privacy import Privacy, PrivacyTerms
from harness.core.settings.privacy_kinds import DistributedPrivacy, PrivacySettings, UserPrivacy
from harness.models import adapters_of
from harness.simulation.setup import Setup
from privacy.event import SECRET
from privacy.ledger import Ledger
from privacy.own_mechanism import MechanismError

#: What a statement says where the runs of a seed have the same secret draws.
SHARED_DRAWS = "shared: runs of this seed come from one joint draw; they do not compose as independent"
PAIRED_DRAWS = "paired: runs of this seed share noise and draws, as in a search; epsilon is of this run alone"
SAMPLES = "numbers of training samples of the clients"
# Public in every statement, in addition to what the data set lists.
NAMES = "the names of features, categories and classes, and which sensitive groups there are"
TIME = "how long the run takes"
FROZEN_PART = (
    "the frozen part of the model, of digest {}: assumed to be trained on data other than the clients', "
    "as no mechanism protects what it was trained on"
)
ADAPTER = "the adapter, {}: its factors and the layers named by train are what is trained{}"
SEEDED_FACTORS = "; its factors A are drawn by the seed"
ENCODER = (
    "the weights of the encoder {}: assumed to be trained on data other than the clients', as no mechanism "
    "protects what they were trained on"
)
# Figures that no noise protects, and that are written for the researcher only if asked for.
DIAGNOSTICS = (
    "figures of the training samples (train_*, outer_loss, stationarity, distance), of messages before their noise "
    "(norms, share of clipped ones, noise to signal) and errors of embeddings "
    f"({', '.join(ERRORS)}): written on request (--diagnostics)"
)
TEST_OF_CLIENTS = (
    "all figures of test samples, which are data of the clients themselves: held out, not trained on, and "
    "evaluated without noise"
)
TEST_OF_SOURCE = "all figures of test samples, those of the source: evaluated without noise"
SELECTION = (
    "selection_* metrics, of samples that are held out to choose settings, and the choice that follows"
)
MEASURED = "figures of the objective on the clients' data (stationarity, distance, loss)"
KEPT = "predictions of models that clients keep to themselves, which no noise protects"
ATTACKED = "figures of attacks, which look at private data"
STATISTICS = (
    "statistics of the clients' data that are taken as public and enter without noise (listed under public)"
)
DIGEST = "a digest of the data, and the run's id made from it, which confirm a guess of all of them"

ENTROPY = "PCG64 seeded by the system's entropy; not a cryptographic generator"
KEYED = (
    "PCG64 keyed by the run's id and the code: noise follows from run file, data and code, and protects "
    "nobody if the id is published, as the name of its folder is; not a cryptographic generator"
)
OF_SEED = "PCG64 keyed by the seed and the code, the same in all paired runs; not a cryptographic generator"
SALTED = (
    "PCG64 keyed by the run's id, the code and a secret of the user who ran it; not a cryptographic generator"
)
ARITHMETIC = (
    "sums and noise in the number format of the run, float32 by default, not hardened: low bits may tell neighbors "
    "apart"
)
INTEGERS = (
    "sums of integers; their noise comes from 53-bit arithmetic, not hardened against attacks on its low bits"
)
TAILS = "; normals end at 8.2 standard deviations, so delta fails for single releases of an epsilon above about 24"
LARGEST_OF_TAILS = 24.0

# Scope of a statement about records in vertical problems.
FEATURES = (
    "the features that one party holds of one person, against the server and the other parties, labels being "
    "public: replaced by any others (sensitivity twice the clip norm), without amplification by sampling, as all "
    "know who is in a batch; charged is every release about the person who appears most often: the embedding in "
    "each appearance, and the share in each gradient of the party's network"
)


def guarantees(privacy: Privacy, ledger: Ledger, run: int = 0) -> dict[str, Any]:
    """Return the report of a run's ledger, with infinity as the text ``inf``, which JSON lacks."""
    try:
        report = ledger.report(
            privacy.delta,
            privacy.accountant,
            noise_multiplier=privacy.noise_multipliers,
            run=run,
            noise=privacy.user_noise,
        )
    except MechanismError as error:
        raise UserError(f"privacy.mechanism: {privacy.spec.mechanism}: {error}") from error
    return {name: "inf" if value == math.inf else value for name, value in report.items()}


def statement(
    privacy: Privacy, ledger: Ledger, run: int = 0, *, vertical: bool = False, units: float | None = None
) -> dict[str, Any]:
    """Return the privacy statement of a run: its mechanism and the guarantees of its ledger so far.

    Parameters
    ----------
    privacy, ledger, run : Privacy, Ledger, int
        The mechanism, the releases, and the number of the run in its stack.
    vertical : bool
        Whether clients are parties.
    units : float, optional
        How many units are protected, or the public number that stands for it; to tell whether delta is too large.
    """
    spec, guaranteed = privacy.spec, guarantees(privacy, ledger, run)
    return {
        **({"warning": large_delta(privacy, units)} if large_delta(privacy, units) else {}),
        "unit": privacy.unit,
        **({"protects": FEATURES} if vertical and privacy.by_gradient else {}),
        **(
            {"user": spec.user, "user_records": privacy.user_records} if isinstance(spec, UserPrivacy) else {}
        ),
        "placement": privacy.placement,
        "clip": privacy.clip,
        "adjacency": privacy.adjacency,
        "sampling": privacy.sampling,
        "sampling_rate": max((event["rate"] for event in guaranteed["composition"]), default=privacy.rate)
        if privacy.by_gradient
        else privacy.rate,
        **({"sampling_rates": _rates(ledger, run)} if privacy.by_gradient and not vertical else {}),
        **_draws(privacy),
        **({"mechanism": "banded", "bands": privacy.bands} if privacy.spec.mechanism == "banded" else {}),
        **(_of_user(privacy.spec.mechanism) if privacy.user_noise is not None else {}),
        **(
            {"bits": spec.bits, "dropouts": spec.dropouts, "aggregation": spec.aggregation}
            if isinstance(spec, DistributedPrivacy)
            else {}
        ),
        **({"noise_cohort": privacy.noise_cohort} if privacy.noise_cohort else {}),
        "strict": privacy.spec.strict,
        "epsilon_nominal": dict([spec.budget]).get("epsilon_nominal"),
        "generator": _generator(privacy.spec),
        "arithmetic": _arithmetic(privacy, guaranteed["epsilon_release"]),
        **guaranteed,
    }


def protected_units(privacy: PrivacyTerms, training: Federation, *, vertical: bool = False) -> int:
    """Return how many clients, records or users of a federation a statement is about."""
    if not privacy.by_gradient:
        return training.clients
    if privacy.unit == "user" and training.users is not None:
        rows = training.splits["train"]
        return len(training.users[rows[rows >= 0]].unique())
    return int(training.counts()[0] if vertical else training.counts().sum())


def large_delta(privacy: PrivacyTerms, units: float | None) -> str:
    """Return a warning if a delta is too large for the number of units, else an empty text.

    A mechanism that publishes one unit, drawn by chance, as it is has epsilon 0 at a delta of 1 over their number.
    """
    if units is None or privacy.delta * units < 1:
        return ""
    number = f"{units:,.0f} {privacy.unit}{'' if units == 1 else 's'}"
    return (
        f"delta {privacy.delta:g} is not below 1 / {number}: it would allow to publish one of them as it is; give "
        f"privacy.delta well below {1 / units:.2g}"
    )


def _generator(spec: PrivacySettings) -> str:
    """Return what draws the noise, and from what."""
    if spec.secure_rng:
        return ENTROPY
    if spec.draws == "paired":
        return OF_SEED
    return SALTED if spec.strict else KEYED


def _arithmetic(privacy: Privacy, release: float | str) -> str:
    """Return in which arithmetic noise is added, and where its tails end."""
    if privacy.placement == "distributed":
        return INTEGERS
    loud = privacy.user_noise is None and (release == "inf" or float(release) > LARGEST_OF_TAILS)
    return ARITHMETIC + (TAILS if loud and privacy.noise_multiplier else "")


def _rates(ledger: Ledger, run: int) -> list[float]:
    """Return the smallest and the largest rate at which units of any client are drawn; empty before a draw."""
    rates: list[float] = []
    for draw, times in ledger.counts.items():
        rate = ledger.rates[draw.rate] if isinstance(draw.rate, str) else np.asarray(draw.rate)
        drawn, took = np.broadcast_arrays(rate, times)
        if drawn.ndim > 1:
            drawn, took = drawn[run], took[run]
        rates += drawn[took > 0].tolist()
    return [min(rates), max(rates)] if rates else []


def _draws(privacy: Privacy) -> dict[str, str]:
    """Return the field on the owner of secret draws, by which several runs compose; empty without such draws."""
    if privacy.spec.draws == "paired":
        return {"secret_draws": PAIRED_DRAWS}
    if privacy.sampling not in SECRET:
        return {}
    return {"secret_draws": "own" if privacy.own_draws else SHARED_DRAWS}


def released(privacy: Privacy, ledger: Ledger, run: int = 0) -> list[list[Any]] | None:
    """Return what a run has released about its most exposed unit, as `privacy.joint` takes it from ``done.json``.

    None where no unit is at least as exposed as every other in every draw, or the noise is of a user's mechanism.
    """
    histories = ledger.histories(privacy.noise_multipliers, run, privacy.user_noise)
    most = histories.dominating()
    if most is None or privacy.user_noise is not None:
        return None
    return [list(event[:4]) for event in histories.events(most)]


def _of_user(name: str) -> dict[str, Any]:
    """Return a user's mechanism with the version of its plugin, and what is proved for it."""
    return {
        "mechanism": name,
        "mechanism_version": own_version("privacy", name),
        "noise": "independent, of one symmetric log-concave distribution; clip is of the L1 norm, and "
        "noise_multiplier the scale over the L1 sensitivity",
    }


def public_information(setup: Setup) -> list[str]:
    """Return everything that a run takes as known to everybody."""
    federation, privacy = list(setup.federation.public), setup.privacy
    if setup.federation.encoded:
        federation.append(ENCODER.format(setup.federation.encoded))
    if setup.problem.frozen:
        federation.append(FROZEN_PART.format(setup.problem.frozen))
    for adapter in {layer.adapter for layer in adapters_of(setup.problem.module)}:
        drawn = SEEDED_FACTORS if seeded(setup.problem.module) else ""
        federation.append(ADAPTER.format(adapter, drawn))
    if privacy is None:
        return federation
    public = [*federation, *([] if privacy.counts_private else [SAMPLES]), NAMES]
    public += [] if privacy.clients_private else ["the number of clients"]
    if privacy.unit == "user":
        public += [] if privacy.counts_private else ["numbers of users of the clients"]
        public.append("that every user is at one client")
    if setup.problem.kind == "vertical":
        return [*public, TIME, "which people are in which batch"]
    # Amplification relies on secret cohorts.
    secret = privacy.secret_cohorts
    public += [] if secret and privacy.spec.strict else [TIME]
    # Actual counts would tell who is in a secret cohort, the messages before their noise, or the size of a batch.
    expected = privacy.costs_expected or privacy.by_gradient
    public.append(f"bytes and operations{', as expected values' if expected else ''}")
    return [*public, *([] if secret else ["who takes part in which round"])]


def not_covered(setup: Setup, *, keeps_models: bool = False) -> list[str]:
    """Return what a run writes that is computed from private data and that its epsilon does not cover.

    Parameters
    ----------
    setup : Setup
        The run.
    keeps_models : bool
        Whether predictions are made by models that clients keep.
    """
    privacy, spec = setup.privacy, setup.spec
    if privacy is None:
        return []
    figures = [DIAGNOSTICS] if setup.diagnostics and not privacy.spec.strict else []
    if setup.problem.predict is not None:
        official = spec.partition is not None and spec.partition.test == "official"
        figures.append(TEST_OF_SOURCE if official else TEST_OF_CLIENTS)
    if not privacy.spec.strict:
        figures += [STATISTICS] if setup.federation.public else []
        figures += [SELECTION] if "selection" in setup.federation.splits else []
        figures += [MEASURED] if setup.problem.predict is None and setup.problem.measure is not None else []
        figures.append(DIGEST)
    if privacy.clients_private:
        figures.append("the number of clients, which the run file of a simulation names")
    return [*figures, *([KEPT] if keeps_models else []), *([ATTACKED] if spec.attacks is not None else [])]
