"""Known terms: what a client would send if all its gradients were zero.

Such terms follow from broadcasts, from settings, and from what the client has sent before, so they need neither
clip nor noise. To find them, the round is gone through a second time, by clients whose gradients are zero
(`harness.core.clients.silenced`), up to the message that is about to be sent. Earlier messages of the round deliver
what they have delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves

from harness.core.clients.clients import Clients
from harness.core.clients.silenced import Silenced
from harness.core.wire.message import Known, Part, Statistic, Value, parts_of, plain

Round = Callable[[Clients, Any], Any]


class Delivered(NamedTuple):
    """The result of a call to a method of a channel.

    Attributes
    ----------
    method : str
        Name of the method.
    result : Any
        What it returned.
    versions : list of int
        How often each of its tensors had been written to by then.
    """

    method: str
    result: Any
    versions: list[int]

    @classmethod
    def of(cls, method: str, result: Any) -> Delivered:
        """Note what a method returns."""
        return cls(method, result, _versions(result))

    @property
    def changed(self) -> bool:
        """Whether the algorithm has written to what it received, so that it may now contain private data."""
        return _versions(self.result) != self.versions


def _versions(result: Any) -> list[int]:
    return [part._version for part in tree_leaves(result) if isinstance(part, Tensor)]


class Reached(BaseException):
    """The silenced round has reached the message to be sent; no ``except Exception`` of the author stops it."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self.parts = parts


class SilencedChannel:
    """A channel on which nothing is sent: its methods return what those of another one have returned.

    Parameters
    ----------
    clients : Silenced
        The cohort.
    delivered : sequence of Delivered
        Results in this round.
    method : str
        Name of the method that ends the round.
    gap : Callable
        Returns the spectral gap.
    """

    def __init__(
        self, clients: Silenced, delivered: Sequence[Delivered], method: str, gap: Callable[[], Any]
    ) -> None:
        self._clients = clients
        self._delivered = delivered
        self._method = method
        self._gap = gap
        self._place = 0

    @property
    def gap(self) -> Any:
        """As in `Channel`."""
        return self._gap()

    def down(self, *vectors: Tensor | Statistic) -> Any:
        """Return the rows that were received; for the average, the server's vectors themselves."""
        rows, parts = self._next("down"), parts_of(vectors)
        return plain([self._clients.rows(part.row) for part in parts]) if self._clients.average else rows

    def rebroadcast(self, *vectors: Tensor) -> Any:
        """Return rows as `down` does."""
        rows = self._next("rebroadcast")
        return plain([self._clients.rows(vector) for vector in vectors]) if self._clients.average else rows

    def announce(self, kept: Tensor, *, changed: bool) -> None:
        """Return nothing."""
        self._next("announce")

    def allot(self, x: Tensor, ratio: Tensor) -> Any:
        """Return the shares of the parameters."""
        return self._next("allot")

    def mean(self, *rows: Tensor | Part, **options: Any) -> Any:
        """Return the mean."""
        return self.mean_and_sent(*rows, **options)[0]

    def mean_and_sent(self, *rows: Tensor | Part, **options: Any) -> Any:
        """Return the mean and what was sent, unless this is the message to be sent.

        Of the average the server knows the mean only.
        """
        parts = parts_of(rows)
        mean, sent = self._next("mean_and_sent", parts)
        if self._clients.average:
            means = mean if isinstance(mean, tuple) else (mean,)
            sent = plain([self._kept(part, average) for part, average in zip(parts, means, strict=True)])
        return mean, sent

    def _kept(self, part: Part, mean: Tensor) -> Tensor:
        rows = self._clients.rows(mean)
        return part.of + rows if isinstance(part, Value) and part.of is not None else rows

    def gather(self, *rows: Tensor | Part, **options: Any) -> Any:
        """Return the rows received, unless this is the message to be sent."""
        return self._next("gather", parts_of(rows))

    def scatter(self, *rows: Tensor, **options: Any) -> Any:
        """Return the rows received; for the average, those sent to it."""
        received = self._next("scatter")
        return plain(rows) if self._clients.average else received

    def mix(self, *rows: Tensor | Part, **options: Any) -> Any:
        """Return the mixture, unless this is the message to be sent."""
        return self._next("mix", parts_of(rows))

    def mix_changes(self, *rows: Tensor | Part, **options: Any) -> Any:
        """Return the mixture, unless this is the message to be sent."""
        return self._next("mix_changes", parts_of(rows))

    def _next(self, method: str, parts: Sequence[Part] = ()) -> Any:
        last = self._place == len(self._delivered)
        expected = self._method if last else self._delivered[self._place].method
        if method != expected:
            raise ValueError(
                f"without gradients the round calls {method} where it called {expected}: which messages clients "
                "send must not depend on their data"
            )
        if last:
            raise Reached(parts)
        delivered = self._delivered[self._place]
        if delivered.changed:
            raise ValueError(
                f"the round has changed in place what {method} returned; what follows from earlier messages cannot "
                "be found without it: compute new tensors"
            )
        self._place += 1
        return delivered.result


def known_terms(
    round: Round, clients: Clients, channel: Callable[[Silenced], SilencedChannel], *, averages: bool
) -> Known:
    """Return what the next message of a round would be without gradients.

    Parameters
    ----------
    round : Callable
        ``round(clients, channel)`` of the algorithm, from the state before the round.
    clients : Clients
        The cohort.
    channel : Callable
        Returns the channel of a silenced cohort.
    averages : bool
        Whether the server learns averages only.
    """

    def terms(silenced: Silenced) -> list[Tensor]:
        try:
            round(silenced, channel(silenced))
        except Reached as reached:
            return [part.scaled for part in reached.parts]
        raise ValueError("without gradients the round ends before the message that it sends")

    rows = terms(Silenced(clients))
    if not averages:
        return Known(rows, None)
    means = terms(Silenced(clients, average=True))
    if any(part.shape[-2] != 1 for part in means):
        raise ValueError(
            "what the server knows of a message's mean would depend on rows of the cohort, which it may not use"
        )
    return Known(rows, [part.squeeze(-2) for part in means])


def refuse_private(known: Known, parts: Sequence[Part]) -> None:
    """Raise ValueError if known terms depend on rows that clients keep to themselves."""
    for number, part in enumerate(parts):
        terms = [known.rows[number], *([] if known.mean is None else [known.mean[number]])]
        if any(bool(term.isnan().any()) for term in terms) and not bool(part.row.isnan().any()):
            raise ValueError(
                f"part {number} of a message would depend on rows that clients keep to themselves even if all "
                "gradients were zero, or a mean on what the server does not know, such as coins of single clients. "
                "If rows follow from what their clients have sent, take them by clients.take(rows, mean=...), with "
                "the server's value for their mean; otherwise set release: change (docs/releases.md)"
            )
