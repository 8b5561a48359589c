"""Privacy claims of a run, and the information that they treat as public."""

from __future__ import annotations

import math
from typing import Any

from harness.config.registered import own_version
from harness.core.clients import ERRORS
from harness.core.registry import UserError
from harness.core.wire.privacy_settings import DISTRIBUTED, SECRET, Privacy
from harness.metrics import ELSEWHERE
from harness.simulation.build import Setup
from privacy import Ledger
from privacy.own_mechanism import MechanismError

#: What a statement says where the runs of a seed have the same secret draws.
SHARED_DRAWS = "shared: runs of this seed come from one joint draw; they do not compose as independent"
SAMPLES = "numbers of training samples of the clients"
# Public in every claim, in addition to what the data set lists.
PUBLIC = (
    "the number of clients, the names of features, categories and classes, and which sensitive groups there are",
    "the test data, on which the evaluations printed here are made",
    "a digest of the data, which confirms a guess of all of them",
)
TESTED = {"node", "worst_node"}  # metrics of test samples, with models that are sent
TIME = "how long the run takes"
# Not covered by a claim, although printed: figures of private data and of what is inside the simulator.
SIMULATOR = (
    f"{' and '.join(f'{split}_*' for split in sorted(ELSEWHERE.keys() - TESTED))} metrics, stationarity, distance, "
    "outer_loss, "
    f"errors of embeddings ({', '.join(ERRORS)}; also those of single parties), message diagnostics, predictions "
    "of models that clients keep to themselves, figures of attacks: computed from private data for the "
    "researcher, without noise; strict leaves them out or refuses the run"
)

# Scope of a claim about records in vertical problems.
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
            privacy.delta, privacy.accountant, noise_multiplier=privacy.noise, run=run, noise=privacy.own
        )
    except MechanismError as error:
        raise UserError(f"privacy.mechanism: {privacy.spec.mechanism}: {error}") from error
    return {name: "inf" if value == math.inf else value for name, value in report.items()}


def statement(privacy: Privacy, ledger: Ledger, run: int = 0, *, vertical: bool = False) -> dict[str, Any]:
    """Return the claim of a run: its mechanism and the guarantees of its ledger so far."""
    distributed = privacy.placement == "distributed"
    return {
        "unit": privacy.unit,
        **({"protects": FEATURES} if vertical and privacy.by_gradient else {}),
        **({"user": privacy.spec.user, "user_records": privacy.user_records} if privacy.spec.user else {}),
        "placement": privacy.placement,
        "clip": privacy.clip,
        "adjacency": privacy.adjacency,
        "sampling": privacy.sampling,
        "sampling_rate": privacy.rate,
        **_draws(privacy),
        **({"mechanism": "banded", "bands": privacy.bands} if privacy.spec.mechanism == "banded" else {}),
        **(_of_user(privacy.spec.mechanism) if privacy.own is not None else {}),
        **({name: getattr(privacy.spec, name) for name in DISTRIBUTED} if distributed else {}),
        **({"noise_cohort": privacy.spec.noise_cohort} if privacy.spec.noise_cohort else {}),
        "strict": privacy.strict,
        "epsilon_nominal": privacy.spec.epsilon_nominal,
        **guarantees(privacy, ledger, run),
    }


def _draws(privacy: Privacy) -> dict[str, str]:
    """Return whose the secret draws are, which decides how several runs compose; nothing without secret draws."""
    if privacy.sampling not in SECRET:
        return {}
    return {"secret_draws": "own" if privacy.own_draws else SHARED_DRAWS}


def released(privacy: Privacy, ledger: Ledger, run: int = 0) -> list[list[Any]] | None:
    """Return what a run has released about its most exposed unit, as `privacy.joint` takes it from ``done.json``.

    None where no unit is at least as exposed as every other in every draw, or the noise is of a user's mechanism.
    """
    histories = ledger.histories(privacy.noise, run, privacy.own)
    most = histories.dominating()
    if most is None or privacy.own is not None:
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
    """Return everything that a run treats as public."""
    federation, privacy = list(setup.federation.public), setup.privacy
    if privacy is None:
        return federation
    public = [*federation, *([] if privacy.counts_private else [SAMPLES]), *PUBLIC]
    if privacy.unit == "user":
        public += [] if privacy.counts_private else ["numbers of users of the clients"]
        public.append("that every user is at one client")
    if not privacy.strict:
        public.append(SIMULATOR)
    if setup.problem.kind == "vertical":
        return [*public, TIME, "which people are in which batch"]
    # Amplification relies on secret cohorts.
    secret = privacy.secret_cohorts
    public += [] if secret and privacy.strict else [TIME]
    # Actual counts would tell who is in a secret cohort, the messages before their noise, or the size of a batch.
    expected = privacy.costs_expected or privacy.by_gradient
    public.append(f"bytes and operations{', as expected values' if expected else ''}")
    return [*public, *([] if secret else ["who takes part in which round"])]
