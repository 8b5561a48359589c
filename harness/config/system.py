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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field

from harness.config.settings import construct
from harness.config.yaml import mapping, read_yaml
from harness.core.errors import unknown

Positive = Annotated[float, Field(gt=0)]
AtLeastZero = Annotated[float, Field(ge=0)]

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
        Where the numbers are from, and which are assumed.
    """

    down_mbps: Positive
    up_mbps: Positive
    latency_ms: AtLeastZero = 0.0
    spread: AtLeastZero = 0.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    joules_per_mb_down: AtLeastZero = 0.0
    joules_per_mb_up: AtLeastZero = 0.0
    source: str = "given by the user"


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
        Where the numbers are from, and which are assumed.
    """

    gflops: Positive
    watts: AtLeastZero = 0.0
    spread: AtLeastZero = 0.0
    source: str = "given by the user"


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


@cache
def _profiles() -> dict[str, dict[str, Any]]:
    content = read_yaml(FILE)
    return {"network": content["networks"], "device": content["devices"]}


def _profile(kind: str, name: str, cls: type[T]) -> T:
    profiles: dict[str, Any] = _profiles()[kind]
    if Path(name).suffix:
        content: Mapping[str, Any] = read_yaml(Path(name))
    elif name in profiles:
        content = mapping(f"{kind} {name}", profiles[name])
    else:
        raise unknown(kind, name, [*profiles, "FILE.yaml"])
    return construct(f"{kind} {name}", cls, content)
