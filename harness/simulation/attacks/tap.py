"""Tap of a run's messages as an attacker sees them, with their true inputs for scoring."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datasets.federation import Batch
from harness.core.clients.batches import Batches, BatchPlan
from harness.core.clients.clients import Clients
from harness.core.clients.local_batch import LocalBatch
from harness.core.wire.channel import Channel
from harness.core.wire.message import Part, Statistic
from harness.simulation.setup import Setup
from harness.simulation.simulation import Simulation


class Seen(NamedTuple):
    """A message as it arrives.

    Attributes
    ----------
    rows : Tensor
        The part about the model: ``(C, P)``, or the average ``(P,)`` where only that is released.
    ids : Tensor
        The clients of the cohort, ``(C,)``.
    taking_part : Tensor
        Which of them take part, ``(C,)``; others are padding.
    """

    rows: Tensor
    ids: Tensor
    taking_part: Tensor


class Tape:
    """Record of the round so far.

    Attributes
    ----------
    messages : list of Seen
        From clients, in order, if they are as long as ``length``.
    gradients : list of (Tensor, Batch)
        What the first party of a vertical problem gets about the samples of a batch, ``(B, d)``.
    positions : Tensor or None
        Samples of the first batches that were drawn, ``(S, C, B)`` in the pool.
    model : Tensor or None
        The first vector of the server that is as long as the model, ``(P,)``.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.messages: list[Seen] = []
        self.gradients: list[tuple[Tensor, Batch]] = []
        self.positions: Tensor | None = None
        self.model: Tensor | None = None

    def hear(self, parts: Sequence[Tensor]) -> None:
        """Keep the first vector of the server that is as long as the model, as the first client receives it."""
        for part in parts:
            if self.model is None and part.shape[-1] == self.length:
                self.model = part.detach().reshape(-1, self.length)[0].cpu().clone()

    def note(self, clients: Clients, parts: Sequence[Tensor]) -> None:
        """Keep the first part that is about the whole model."""
        for part in parts:
            if part.shape[-1] == self.length:
                self.messages.append(
                    Seen(part.detach().cpu(), clients.ids, clients.participation_mask.bool())
                )
                return


def _parts(values: Any) -> Sequence[Tensor]:
    return values if isinstance(values, tuple) else (values,)


class TapChannel(Channel):
    """A channel that records what arrives."""

    def __init__(self, clients: Clients, *, tape: Tape, **options: Any) -> None:
        super().__init__(clients, **options)
        self._tape = tape

    def down(self, *vectors: Tensor | Statistic) -> Any:
        """Send vectors of the server, which everybody sees."""
        arrived = super().down(*vectors)
        self._tape.hear(_parts(arrived))
        return arrived

    def mean_and_sent(self, *rows: Tensor | Part, **options: Any) -> tuple[Any, Any]:
        """Send rows; the server sees each, unless only averages are protected."""
        mean, sent = super().mean_and_sent(*rows, **options)
        averages = self._mechanism is not None and self._mechanism.averages
        self._tape.note(self._clients, _parts(mean if averages else sent))
        return mean, sent

    def gather(self, *rows: Tensor | Part, **options: Any) -> Any:
        """Send rows, which the server sees."""
        seen = super().gather(*rows, **options)
        if options.get("per_sample") is None:
            self._tape.note(self._clients, _parts(seen))
        return seen

    def scatter(self, *rows: Tensor, per_sample: LocalBatch | None = None) -> Any:
        """Send each client a row, of which the first one is the attacker."""
        arrived = super().scatter(*rows, per_sample=per_sample)
        if per_sample is not None:
            first = Batch(*(column[0] for column in per_sample.samples))
            self._tape.gradients.append((_parts(arrived)[0][0].detach().cpu(), first))
        return arrived

    def mix(self, *rows: Tensor | Part, **options: Any) -> Any:
        """Send rows to the neighbors, who see them."""
        heard = super().mix(*rows, **options)
        self._tape.note(self._clients, heard[0])
        return heard

    def mix_changes(self, *rows: Tensor | Part, **options: Any) -> Any:
        """Send changes of rows to the neighbors, who then know the rows."""
        heard = super().mix_changes(*rows, **options)
        self._tape.note(self._clients, heard[0])
        return heard


class TapClients(Clients):
    """Clients that record which samples they draw.

    Parameters
    ----------
    tape : Tape
        Where they record them.
    """

    def __init__(self, *arguments: Any, tape: Tape, **options: Any) -> None:
        self.tape = tape
        super().__init__(*arguments, **options)

    def _drawn(self, plan: BatchPlan) -> Batches:
        """Draw batches and record the first positions."""
        batches = super()._drawn(plan)
        if self.tape.positions is None:
            self.tape.positions = batches.positions.cpu()
        return batches


def tapped(setup: Setup) -> tuple[Simulation, Tape]:
    """Return a repetition of a run that records messages as long as its model."""
    tape = Tape(len(setup.start["x"]))
    clients, channel = partial(TapClients, tape=tape), partial(TapChannel, tape=tape)
    run = Simulation.from_setup(setup, clients=clients, channel=channel, in_chunks=False)
    if (model := shared_model(run)) is not None:
        tape.length = len(model)
    tape.clear()
    return run, tape


def step_of(message: Seen, before: Tensor, after: Tensor) -> tuple[Tensor, bool]:
    """Return what the senders of a message add to the model, and whether it was a gradient (then negated).

    Everybody sees the models before and after, ``(P,)``. What is nearer to the model than to zero is a model; what
    points away from where the model went is a gradient.

    Returns
    -------
    Tensor
        Rows like the message's, of steps or of gradients with the sign changed.
    bool
        Whether they are gradients.
    """
    rows = message.rows.to(before)
    if float((rows - before).norm()) < float(rows.norm()):
        rows = rows - before
    total = rows if rows.ndim == 1 else rows[message.taking_part].sum(0)
    gradient = bool(total @ (after - before) < 0)
    return (-rows if gradient else rows), gradient


def shared_model(run: Simulation, number: int = 0) -> Tensor | None:
    """Return the model that everybody has after the last round, ``(P,)``; None where clients keep their own."""
    model = run.each[number].algorithm.model(run.snapshot(number).state)
    if run.algorithm.meta.gossip and isinstance(model, Tensor) and model.ndim == 2:
        model = model.mean(0)
    return model if isinstance(model, Tensor) and model.ndim == 1 and torch.isfinite(model).all() else None
