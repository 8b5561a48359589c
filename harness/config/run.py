"""Run specs: the validated content of a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

import algorithms
from datasets.topology import TOPOLOGIES
from datasets.vertical import VERTICAL
from harness import models
from harness.config.attacks import AttackSpec
from harness.config.fields import CohortSpec, DataSpec, Named, PartitionSpec
from harness.config.settings import checked, construct, settings_of
from harness.config.yaml import bounded, shown
from harness.core.algorithm import ALGORITHMS, Meta
from harness.core.errors import Incompatible, UserError, unknown
from harness.core.settings.compression import Compression, steps_of
from harness.core.settings.privacy_kinds import (
    USER_RECORDS,
    CentralPrivacy,
    GradientPrivacy,
    RecordPrivacy,
    UserPrivacy,
)
from harness.core.settings.privacy_section import PrivacySection, PrivacySpec
from harness.core.settings.section import Section
from harness.problems import PROBLEMS
from harness.problems.base import ProblemType
from privacy.event import SECRET

algorithms.load()

MOST_ROUNDS = 1_000_000
USUAL_PROBLEM = "classify"


class RunSpec(Section):
    """A complete run; runs with equal specs are the same run.

    Attributes
    ----------
    data, partition, problem, model, algorithm, compression, cohort, topology : see their classes
        The parts of the run. ``problem``, ``model``, ``algorithm`` and ``topology`` hold a name and all settings,
        defaults included.
    rounds, eval_every : int
        Communication rounds, and the number of rounds between evaluations.
    seed : int
        Seed of every random draw.
    precision : {"float32", "float64", "bfloat16"}
        Precision of the computation. bfloat16 applies to forward and backward passes of networks; parameters,
        gradients and operations on them (steps, sums, clipping, noise) are float32.
    attacks : AttackSpec or None
        Attacks on what the run releases, carried out at its end; they change nothing of the run.
    """

    data: DataSpec | None = None
    partition: PartitionSpec | None = None
    problem: Named = Field(
        default_factory=lambda: Named({"kind": USUAL_PROBLEM}, PROBLEMS[USUAL_PROBLEM].settings())
    )
    model: Named | None = None
    algorithm: Named
    privacy: PrivacySection = None
    compression: Compression = Compression()
    cohort: CohortSpec | None = None
    topology: Named | None = None
    rounds: int = Field(default=100, ge=1, le=MOST_ROUNDS)
    eval_every: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0)
    precision: Literal["float32", "float64", "bfloat16"] | None = None
    attacks: AttackSpec | None = None

    @field_validator("algorithm", "problem", "model", "topology", mode="before")
    @classmethod
    def _part(cls, value: object, info: ValidationInfo) -> Named | None:
        """Make a named part from its settings; model and topology may be absent."""
        section = str(info.field_name)
        if value is None and section in ("model", "topology"):
            return None
        key = "kind" if section in ("problem", "topology") else "name"
        name, settings = _split_name(section, value, key)
        if section == "model":
            if name not in models.names():
                raise unknown(section, name, models.names())
            complete = models.complete(name, settings)
            return Named({key: name, **complete}, complete)
        part: Any = construct(f"{section}.{name}", _class_of(section, name), settings)
        return Named({key: name, **settings_of(part)}, part)

    @field_validator("privacy", mode="before")
    @classmethod
    def _users(cls, value: object, info: ValidationInfo) -> object:
        """Protect the users that the data name, unless privacy names their column itself."""
        data = info.data.get("data")
        if data is None or not isinstance(value, Mapping):
            return value
        of_users = value.get("unit") == "user" and value.get("user") is None
        return {**value, "user": data.user} if of_users else value

    @model_validator(mode="after")
    def _together(self) -> RunSpec:
        problem, meta = PROBLEMS[self.problem["kind"]], ALGORITHMS[self.algorithm["name"]].meta
        if self.precision is None:
            object.__setattr__(self, "precision", "float64" if problem.float64 else "float32")
        if problem.data == "own":
            self._check_own_data(problem)
        else:
            self._check_data(problem)
        self._check_algorithm(problem, meta)
        ratios = [ratio for _, ratio in steps_of(self.compression.alpha)]
        if problem.kind != "vertical" and any(isinstance(ratio, tuple) for ratio in ratios):
            raise Incompatible(
                "compression.alpha: only parties of a vertical problem have ratios of their own that change; their "
                "models are not contained in each other"
            )
        if self.privacy is not None:
            object.__setattr__(self, "privacy", _shared_draws(self._sampled(self.privacy)))
            self._check_privacy(self.privacy, meta)
        if self.cohort is not None and self.cohort.size is not None and self.clients is not None:
            refuse_too_many(self.cohort.size, self.clients)
        if self.cohort is not None and self.cohort.rate is not None:
            self._check_rate()
        return self

    def _check_own_data(self, problem: ProblemType) -> None:
        """Refuse data and networks for a problem that has its own."""
        for name in ("data", "partition", "model"):
            if getattr(self, name) is not None:
                raise UserError(f"{name}: problem {problem.name} has its own data; remove {name}")
        if self.precision == "bfloat16":
            raise Incompatible(f"precision: bfloat16 is for networks; problem {problem.name} has none")

    def _check_data(self, problem: ProblemType) -> None:
        """Refuse a problem without data and a model, or with another kind of partition than it needs."""
        for name in ("data", "partition", "model"):
            if getattr(self, name) is None:
                raise UserError(f"{name}: missing; problem {problem.name} needs data, partition and model")
        columns = self.partition is not None and self.partition.kind in VERTICAL
        if columns != (problem.data == "vertical"):
            allowed = " or ".join(VERTICAL) if problem.data == "vertical" else "one that deals rows"
            kind = self.partition.kind if self.partition is not None else None
            raise Incompatible(f"partition.kind: problem {problem.name} needs {allowed}, given {kind!r}")
        if columns and self.cohort is not None:
            raise Incompatible("cohort: parties hold different columns; all take part in every round")

    def _check_algorithm(self, problem: ProblemType, meta: Meta) -> None:
        """Refuse an algorithm for problems of other kinds, and a topology where there is a server."""
        if problem.kind not in meta.solves:
            fitting = [name for name in PROBLEMS if PROBLEMS[name].kind in meta.solves]
            raise Incompatible(
                f"algorithm {meta.name} solves problems of kind {' or '.join(meta.solves)}; "
                f"problem {problem.name} is {problem.kind}. Problems that it solves: {', '.join(fitting)}"
            )
        if meta.gossip and self.topology is None:
            raise UserError(f"topology: missing; algorithm {meta.name} has no server and needs one")
        if meta.gossip and self.cohort is not None:
            raise Incompatible(
                f"cohort: algorithm {meta.name} has no server; all nodes take part in every round"
            )
        if not meta.gossip and self.topology is not None:
            raise Incompatible(f"topology: algorithm {meta.name} has a server; remove topology")

    def _check_privacy(self, privacy: PrivacySpec, meta: Meta) -> None:
        """Refuse mechanisms that protect nothing, and settings that they exclude."""
        if meta.pooled:
            raise Incompatible(
                f"privacy: algorithm {meta.name} collects the raw data of all clients, so no mechanism applies"
            )
        named = self.data and self.data.user
        protected = privacy.user if isinstance(privacy, UserPrivacy) else None
        if named and protected and named != protected:
            raise UserError(
                f"privacy.user: the data name {named!r} as the column of users (data.user), given "
                f"{protected!r}; give the same column"
            )
        if privacy.placement == "distributed":
            self._refuse_codes()
        if self.attacks is not None and (privacy.strict or privacy.secure_rng):
            raise Incompatible(
                "attacks: they repeat the run and compare with private data, which neither privacy.strict nor "
                "privacy.secure_rng allows; remove attacks or these"
            )

    def _check_rate(self) -> None:
        """Refuse a rate of clients where nothing hides them, or where their number would show."""
        privacy = self.privacy
        if not isinstance(privacy, CentralPrivacy) or privacy.sampling != "poisson":
            raise UserError(
                "cohort.rate: is for secret Poisson cohorts, in which it hides how many clients there are; needs "
                "privacy with unit client, placement central and sampling poisson. Use cohort.size"
            )
        if isinstance(privacy, CentralPrivacy) and privacy.noise_cohort is not None:
            raise UserError("privacy.noise_cohort: extrapolates a cohort.size; remove it or cohort.rate")
        if self.algorithm.made.local_steps is None:
            raise Incompatible(
                "algorithm.local_epochs: with cohort.rate nothing may depend on the clients' numbers of "
                "samples, and the steps of an epoch do; use algorithm.local_steps"
            )

    def _refuse_codes(self) -> None:
        """Refuse codes of single messages where clients send integers to a sum."""
        compression = self.compression
        coded = compression.codec != "float32" and not compression.downlink
        chosen = compression.sparsifies and compression.select != "random_k"
        if coded or chosen or compression.joins:
            raise Incompatible(
                "compression: with privacy.placement distributed clients send integers of privacy.bits, all the "
                "same entries; of settings for their messages only alpha and select random_k remain"
            )

    def _sampled(self, privacy: PrivacySpec) -> PrivacySpec:
        """Fill in how units are sampled, and the adjacency that follows."""
        if isinstance(privacy, GradientPrivacy):
            return self._sampled_records(privacy)
        return self._sampled_clients(privacy)

    def _sampled_records(self, privacy: RecordPrivacy | UserPrivacy) -> PrivacySpec:
        """Fill in how records or users inside clients are sampled."""
        # All parties of a vertical problem know who is in a batch, so sampling amplifies nothing.
        vertical = PROBLEMS[self.problem["kind"]].kind == "vertical"
        if vertical and privacy.unit == "user":
            raise UserError(
                "privacy.unit: parties of a vertical problem hold columns of the same people; use unit record"
            )
        possible = {"sampling": ("poisson",), "adjacency": ("zero-out", "add-remove")}
        if vertical:
            possible = {"sampling": ("full",), "adjacency": ("replace",)}
        for name, allowed in possible.items():
            if getattr(privacy, name) not in (None, *allowed):
                raise UserError(
                    f"privacy.{name}: unit {privacy.unit} is accounted by {' or '.join(allowed)} in problem "
                    f"{self.problem['kind']}, given {getattr(privacy, name)}; remove privacy.{name}"
                )
        if vertical and privacy.noise != "shared":
            raise UserError(
                "privacy.noise: per_client is for clients with records of their own; the parties of a vertical "
                "problem share them; use shared"
            )
        settings: dict[str, Any] = {
            name: getattr(privacy, name) or usual[0] for name, usual in possible.items()
        }
        if isinstance(privacy, UserPrivacy):
            settings["user_records"] = privacy.user_records or USER_RECORDS
        return privacy.model_copy(update=settings)

    def _sampled_clients(self, privacy: PrivacySpec) -> PrivacySpec:
        """Fill in how cohorts are drawn."""
        balanced = self.cohort is not None and self.cohort.kind == "balanced"
        usual = "poisson" if privacy.placement == "central" and not balanced else "fixed"
        sampling = privacy.sampling or ("full" if self.cohort is None else usual)
        if balanced and sampling != "fixed":
            raise UserError(
                f"privacy.sampling: balanced cohorts are public and not drawn, given {sampling}; use fixed, "
                "or cohort kind random"
            )
        if (sampling == "full") != (self.cohort is None):
            needs, remedy = (
                ("needs a cohort", "give cohort.size")
                if self.cohort is None
                else ("takes everybody", "remove cohort")
            )
            raise UserError(f"privacy.sampling: {sampling} {needs}; {remedy}")
        rate = None if self.cohort is None else self.cohort.rate
        usual_adjacency = "replace" if sampling != "poisson" else "zero-out" if rate is None else "add-remove"
        adjacency = privacy.adjacency or usual_adjacency
        if adjacency == "add-remove" and rate is None:
            raise UserError(
                "privacy.adjacency: add-remove hides how many clients there are, but cohorts are drawn at rate "
                "cohort.size / clients, which changes when a client leaves; give cohort.rate and cohort.divisor "
                "instead of cohort.size, or adjacency zero-out, in which the number of clients is public"
            )
        return type(privacy).model_validate(
            privacy.model_dump() | {"sampling": sampling, "adjacency": adjacency}
        )

    @property
    def clients(self) -> int | None:
        """Number of clients, if the spec determines it."""
        return self.partition.clients if self.partition else None

    def protected(self, **settings: bool) -> RunSpec:
        """Return the run with settings of ``privacy``; a run without privacy is unchanged."""
        if self.privacy is None:
            return self
        return self.model_copy(update={"privacy": self.privacy.model_copy(update=settings)})


def refuse_too_many(size: int, clients: int) -> None:
    """Refuse cohorts of more clients than there are.

    Raises
    ------
    UserError
        If there are fewer.
    """
    if size > clients:
        raise UserError(f"cohort.size: at most the {clients} clients there are, given {size}")


def _shared_draws(privacy: PrivacySpec) -> PrivacySpec:
    """Return settings of which only secret draws can be shared: public ones are those of the seed in any case."""
    shares_nothing = privacy.draws == "shared" and privacy.sampling not in SECRET
    return privacy.model_copy(update={"draws": "own"}) if shares_nothing else privacy


def read_spec(content: Mapping[str, Any]) -> RunSpec:
    """Validate the content of a run file.

    Raises
    ------
    UserError
        If a field is not valid.
    """
    bounded("run", content)
    if {"suite", "base"} <= content.keys():
        raise UserError("these are the fields of a suite of runs, not of a run: python -m harness suite FILE")
    return validated(content)


def validated(content: Mapping[str, Any]) -> RunSpec:
    """Validate content like `read_spec`, if it is known to be bounded."""
    spec = checked("", RunSpec.model_validate, content)
    bounded("run", spec.model_dump())  # pydantic reads the text "nan" as a float
    return spec


def _split_name(section: str, value: object, key: str) -> tuple[str, dict[str, Any]]:
    """Split ``name`` or ``{name: ..., setting: ...}`` into name and settings."""
    value = {key: value} if isinstance(value, str) else value
    if not isinstance(value, Mapping) or not isinstance(value.get(key), str):
        raise UserError(f"{section}: give a name, or {key} and settings, given {shown(value)}")
    return value[key], {k: v for k, v in value.items() if k != key}


def _class_of(section: str, name: str) -> type[Any]:
    """Return the dataclass that holds the settings of an algorithm, a problem or a topology."""
    if section == "algorithm":
        return ALGORITHMS[name]
    if section == "problem":
        return PROBLEMS[name].settings
    if name not in TOPOLOGIES:
        raise unknown(section, name, TOPOLOGIES)
    return TOPOLOGIES[name]
