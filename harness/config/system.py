"""Networks and devices that a report prices rounds by.

A file given in place of a name holds the fields of one profile::

    down_mbps: 50          # median client, megabits a second
    up_mbps: 10
    latency_ms: 40         # one way and back
    spread: 0.5            # standard deviation of the logarithm between clients
    dropout: 0.05          # share of a cohort whose messages do not arrive
    joules_per_mb_down: 1  # optional, for energy
    joules_per_mb_up: 5

or, for a device, ``gflops`` (that training reaches), ``watts`` and ``spread``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from harness.config.settings import construct
from harness.config.yaml import mapping, read_yaml
from harness.core.registry import UserError, unknown

FILE = Path(__file__).parent / "system.yaml"


@dataclass(frozen=True)
class Network:
    """Connection of the clients to the server, or to each other.

    Attributes
    ----------
    down_mbps, up_mbps : float
        Megabits a second of the median client.
    latency_ms : float
        Milliseconds of a round trip.
    spread : float
        Standard deviation of the logarithm of the speeds between clients; one draw of a client for both ways.
    dropout : float
        Share of a cohort whose messages do not arrive.
    joules_per_mb_down, joules_per_mb_up : float
        Energy of a client's radio for a megabyte.
    source : str
        Where the figures are from, and which are assumed.
    """

    down_mbps: float
    up_mbps: float
    latency_ms: float = 0.0
    spread: float = 0.0
    dropout: float = 0.0
    joules_per_mb_down: float = 0.0
    joules_per_mb_up: float = 0.0
    source: str = "given by the user"

    def __post_init__(self) -> None:
        _positive(self, "down_mbps", "up_mbps")
        _at_least_zero(self, "latency_ms", "spread", "joules_per_mb_down", "joules_per_mb_up")
        if not 0 <= self.dropout < 1:
            raise UserError(f"network: dropout is a share of at least 0 and below 1, given {self.dropout:g}")


@dataclass(frozen=True)
class Device:
    """Computer of a client.

    Attributes
    ----------
    gflops : float
        Billions of floating-point operations a second that training reaches on the median client.
    watts : float
        Power while it trains, above idle.
    spread : float
        Standard deviation of the logarithm of the speeds between clients.
    source : str
        Where the figures are from, and which are assumed.
    """

    gflops: float
    watts: float = 0.0
    spread: float = 0.0
    source: str = "given by the user"

    def __post_init__(self) -> None:
        _positive(self, "gflops")
        _at_least_zero(self, "watts", "spread")


class System(NamedTuple):
    """A network and a device, by the names they were given under."""

    network_name: str
    network: Network
    device_name: str
    device: Device

    def __str__(self) -> str:
        """Return ``lte, phone``."""
        return f"{self.network_name}, {self.device_name}"


T = TypeVar("T", Network, Device)


def read_system(network: str | None, device: str | None) -> System | None:
    """Read a network and a device by names or files; None without either.

    If one is missing, the network is ``datacenter`` and the device ``server``, which add least.

    Raises
    ------
    UserError
        If there is no such profile, or a file holds none.
    """
    if network is None and device is None:
        return None
    network, device = network or "datacenter", device or "server"
    return System(
        Path(network).stem,
        _profile("network", network, Network),
        Path(device).stem,
        _profile("device", device, Device),
    )


def names(kind: str) -> list[str]:
    """Return the names of the networks or of the devices that come with the harness."""
    return list(_profiles()[kind])


@cache
def _profiles() -> dict[str, dict[str, Any]]:
    content = read_yaml(FILE)
    return {"network": content["networks"], "device": content["devices"]}


def _profile(kind: str, given: str, cls: type[T]) -> T:
    known: dict[str, Any] = _profiles()[kind]
    if Path(given).suffix:
        content: Mapping[str, Any] = read_yaml(Path(given))
    elif given in known:
        content = mapping(f"{kind} {given}", known[given])
    else:
        raise unknown(kind, given, [*known, "FILE.yaml"])
    missing = [
        field.name
        for field in fields(cls)
        if field.default is field.default_factory and field.name not in content
    ]
    if missing:
        raise UserError(f"{kind} {given}: {', '.join(missing)} missing")
    return construct(f"{kind} {given}", cls, content)


def _positive(profile: Any, *fields: str) -> None:
    for name in fields:
        if not getattr(profile, name) > 0:
            raise UserError(
                f"{type(profile).__name__.lower()}: {name} is above 0, given {getattr(profile, name):g}"
            )


def _at_least_zero(profile: Any, *fields: str) -> None:
    for name in fields:
        if not getattr(profile, name) >= 0:
            raise UserError(
                f"{type(profile).__name__.lower()}: {name} is at least 0, given {getattr(profile, name):g}"
            )
