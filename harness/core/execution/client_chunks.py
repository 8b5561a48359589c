"""Process a cohort in chunks of one client, so that memory holds one model a worker and not one a client.

A round is pure. When an algorithm's round sends one `Channel.mean` as the last thing that concerns clients
(`Meta.parts`), running it for one client up to that call yields that client's message, and nothing else is
needed of that client. So the round is run once per client: each run but the last posts its message and
stops there; the last one receives the mean and finishes the round for the server.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol, Self

from torch import Tensor

from harness.core.execution.vectorize import Rows
from harness.core.wire.settings import PrivacyLog


class Chunked(Protocol):
    """A cohort that can be taken client by client."""

    ids: Tensor
    n: int
    sizes: Tensor
    participation_mask: Tensor

    def part(self, number: int) -> Self:
        """Return one client alone, as a cohort."""


class ChunkedChannel(Protocol):
    """A channel that can be taken client by client."""

    def part(self, number: int, assembly: Assembly) -> Self:
        """Return the channel of one client, which posts to the assembly."""

    @property
    def privacy_log(self) -> PrivacyLog:
        """Where releases are booked."""


class Rounds(Protocol):
    """What makes rounds: an algorithm."""

    def round(self, state: Any, clients: Any, channel: Any) -> Any:
        """Return the state after a round."""


class Posted(Exception):
    """A part's message has been posted; the rest of the round is the server's."""


class Assembly:
    """Adds up the parts' messages in the order of the clients, whichever worker finishes first.

    Parameters
    ----------
    clients : Chunked
        The whole cohort.
    """

    def __init__(self, clients: Chunked) -> None:
        self.clients = clients
        self._turn = 0
        self._failed = False
        self._sums: list[Tensor] | None = None
        self._changed = threading.Condition()
        self._mine = threading.local()

    def enter(self, number: int) -> None:
        """Say which client this worker is about to process."""
        self._mine.number = number

    def fail(self) -> None:
        """Let nobody wait for a part that has failed."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def post(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """Add one part's weighted message; the last part gets the total, the others stop here.

        Raises
        ------
        Posted
            In every part but the last.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._turn == self._mine.number or self._failed)
            if self._failed:
                raise Posted
            if self._sums is None:
                self._sums = list(sums)
            else:
                for total, share in zip(self._sums, sums, strict=True):
                    total.add_(share)
            self._turn += 1
            self._changed.notify_all()
            if self._turn < self.clients.ids.shape[-1]:
                raise Posted
            return self._sums


def round_in_parts(
    algorithm: Rounds, state: Any, clients: Chunked, channel: ChunkedChannel, rows: Rows
) -> Any:
    """Run one round client by client, on the worker threads of ``rows`` if there are any.

    Returns
    -------
    NamedTuple of tensors
        The state that ``algorithm.round(state, clients, channel)`` returns, up to rounding.
    """
    assembly = Assembly(clients)
    last = clients.ids.shape[-1] - 1

    def one(number: int) -> Any:
        assembly.enter(number)
        mine = channel.part(number, assembly)
        try:
            done = algorithm.round(state, clients.part(number), mine)
            channel.privacy_log.ledger = mine.privacy_log.ledger  # every part books the same releases
            return done
        except Posted:
            return None
        except BaseException:
            assembly.fail()
            raise

    return rows.each(one, range(last + 1))[last]
