"""Refusals of runs whose parts do not fit their data, and warnings."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from compression.codec import find_codec
from datasets.errors import warn_once
from datasets.federation import Federation
from datasets.users import most_of_a_user
from datasets.vertical import VERTICAL
from harness import models
from harness.config.run import RunSpec, refuse_too_many
from harness.core.algorithm import Algorithm
from harness.core.clients.pruning import prunable
from harness.core.errors import Incompatible, UserError
from harness.core.methods.personal import Split
from harness.core.problem import Problem, names_by_length
from harness.core.settings.privacy import PrivacyTerms
from harness.core.settings.privacy_kinds import GradientPrivacy
from harness.core.wire import low_rank
from harness.problems import PROBLEMS
from harness.simulation.federations import user_column
from harness.simulation.setup import Execution

AS_THEY_ARE = "leave the data as they are (partition.standardize false; no data.rare; data.missing drop)"


def check_data(spec: RunSpec, algorithm: Algorithm, federation: Federation) -> None:
    """Refuse data that lack what a run needs of them."""
    kind = PROBLEMS[spec.problem["kind"]]
    if spec.cohort is not None and spec.cohort.size is not None:
        refuse_too_many(spec.cohort.size, federation.clients)
    if algorithm.meta.groups and len(federation.groups) < 2:
        raise Incompatible(
            f"algorithm {algorithm.meta.name} compares sensitive groups, and the data have "
            f"{len(federation.groups) or 'none'}; name an attribute: data.sensitive"
        )
    if algorithm.meta.classes and kind.labels == "numbers":
        raise Incompatible(
            f"algorithm {algorithm.meta.name} distinguishes classes, and problem {kind.name} predicts numbers"
        )
    if user_column(spec) is not None and federation.users is None:
        raise Incompatible(f"privacy.user: problem {kind.name} has its own data, without users")


def check_rest(spec: RunSpec) -> None:
    """Refuse the rest of an encoder after another layer than the one whose outputs the data are."""
    if spec.data is None or spec.model is None or spec.model["name"] != "encoder_rest":
        return
    rest, until = (spec.model["encoder"], spec.model["after"]), (spec.data.encoder, spec.data.until)
    if spec.data.encoder is not None and rest != until:
        raise Incompatible(
            f"model.after: the model goes on after layer {rest[1]} of encoder {rest[0]}, and the data are outputs "
            f"of {until[0]} {'at its end' if until[1] is None else f'after layer {until[1]}'}; give model.encoder "
            "and model.after the values of data.encoder and data.until"
        )


def check_adapter(problem: Problem, algorithm: Algorithm, start: dict[str, Tensor]) -> None:
    """Refuse an adapter of which clients keep a factor where the algorithm makes no such division."""
    if problem.module is None or not (names := models.factors_to_share(problem.module)):
        return
    shared = sum(problem.module.get_parameter(name).numel() for name in names)
    if not isinstance(algorithm, Split) or len(start["x"]) != shared:
        raise Incompatible(
            f"model.adapter.kind: under fedsa_lora clients share A and keep B, and algorithm {algorithm.meta.name} "
            "does not divide a model so; use one that shares a part and keeps the rest (fedper, fedrep), "
            "or kind lora"
        )


def check_compression(spec: RunSpec, problem: Problem, start: dict[str, Tensor], clients: int) -> None:
    """Refuse compression that does not fit the model or the clients."""
    hidden = spec.cohort is not None and spec.cohort.rate is not None
    spec.compression.check_clients(clients, hidden=hidden)
    if spec.compression.alpha != 0:
        prunable(problem)
        names_by_length(start, "alpha")
    if spec.compression.rank is not None:
        low_rank.checked(problem, spec.compression.rank)


def check_privacy(
    spec: RunSpec, privacy: PrivacyTerms, algorithm: Algorithm, federation: Federation, execution: Execution
) -> None:
    """Refuse what would tell more than the mechanism does, and warn of users whom it does not protect."""
    if privacy.costs_expected and not find_codec(spec.compression.codec).fixed:
        raise Incompatible(
            f"compression.codec: under {privacy.placement} placement bytes are expected values, as lengths of "
            f"messages tell of the data; those of codec {spec.compression.codec} follow from the data alone. Use a "
            "codec of fixed length, or local placement"
        )
    if privacy.spec.strict:
        _strict(spec, algorithm, federation)
        if execution.diagnostics:
            raise UserError(
                "privacy.strict: such a run writes no figure of private data; remove --diagnostics"
            )
    if federation.users is not None and privacy.unit != "user":
        _remark_users(spec, federation, privacy.counts_private)


def _strict(spec: RunSpec, algorithm: Algorithm, federation: Federation) -> None:
    """Raise Incompatible if the run treats something about the clients' data as public."""
    taken = list(federation.public)
    remedies = [AS_THEY_ARE] if taken else []
    if isinstance(spec.privacy, GradientPrivacy):
        if spec.privacy.record_rate is None:
            taken.append("numbers of samples, as the rate at which a record is drawn")
            remedies.append("give privacy.adjacency add-remove with a privacy.record_rate of your choice")
    elif algorithm.local_steps is None:
        taken.append("numbers of samples, as the steps of an epoch")
        remedies.append("give algorithm.local_steps")
    if taken:
        raise Incompatible(
            f"privacy.strict: the run takes as public: {'; '.join(taken)}. To keep them private, "
            f"{', and '.join(remedies)}"
        )


def _remark_users(spec: RunSpec, federation: Federation, private: bool) -> None:
    """Warn that an epsilon of a record, or of a client, does not cover a user who has several or is at several."""
    unit: Literal["record", "client"] = "client"
    if spec.privacy is not None and spec.privacy.unit == "record":
        unit = "record"
    train = federation.splits["train"]
    if spec.partition is not None and spec.partition.kind in VERTICAL:
        train = train[:1]  # parties hold columns of the same records
    assert federation.users is not None
    if (most := most_of_a_user(federation.users, train, unit)) > 1:
        where = "training records" if unit == "record" else "clients, with training records at each"
        warn_once(
            f"privacy.unit: a user of column {user_column(spec)!r} has {'several' if private else f'up to {most}'} "
            f"{where}, so the epsilon is one of a {unit} and not of a user; unit user protects users at one client"
        )
