"""Process a cohort client by client, so that memory holds one model per worker instead of one per client.

A round is pure. If its only message from the clients is one `Channel.mean`, after all client computations
(`Meta.chunks`), the round may run once per client: each run stops at that call after posting its message, except
the last, which receives the mean and finishes the round for the server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from harness.core.clients.clients import Clients
from harness.core.execution.vectorize import ClientExecutor


class Posted(BaseException):
    """A client's message has been posted; the rest of the round is the server's.

    It ends a round through the author's code, so no ``except Exception`` there may stop it.
    """


class Assembly:
    """Sum of the clients' messages, added in the order of the clients.

    Parameters
    ----------
    clients : Clients
        The whole cohort.
    """

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self._turn = 0
        self._failed = False
        self._sums: list[Tensor] | None = None
        self._changed = threading.Condition()
        self._mine = threading.local()

    def enter(self, number: int) -> None:
        """Set the client that this worker thread processes."""
        self._mine.number = number

    def fail(self) -> None:
        """Release the workers that wait for a client that has failed."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def post(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """Add one client's weighted message and return the total for the last client.

        Raises
        ------
        Posted
            For every other client.
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


def round_in_chunks(
    round: Callable[[Clients, Any], Any],
    clients: Clients,
    channel_of: Callable[[Clients, Assembly], Any],
    executor: ClientExecutor,
) -> Any:
    """Run a round client by client, on the worker threads of ``executor`` if there are any.

    Parameters
    ----------
    round : Callable
        ``round(clients, channel)`` of the algorithm, from the state before the round.
    clients : Clients
        The cohort.
    channel_of : Callable
        Returns the channel of one client, a cohort of size 1, which posts to the assembly.
    executor : ClientExecutor
        The executor.

    Returns
    -------
    NamedTuple of tensors
        The state that the round returns for the entire cohort, up to rounding.
    """
    assembly = Assembly(clients)
    last = clients.ids.shape[-1] - 1

    def one(number: int) -> Any:
        assembly.enter(number)
        mine = clients.alone(number, books=number == last)  # all make the same releases
        try:
            return round(mine, channel_of(mine, assembly))
        except Posted:
            return None
        except BaseException:
            assembly.fail()
            raise

    return executor.each(one, range(last + 1))[last]
