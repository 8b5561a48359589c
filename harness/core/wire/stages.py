"""The stages of a message between sender and receiver."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from harness.core.clients.clients import Clients
from harness.core.errors import Incompatible
from harness.core.execution.exact.sums import summed
from harness.core.settings.compression import Compression
from harness.core.wire import masks
from harness.core.wire.client_chunks import Assembly
from harness.core.wire.coding import Coding
from harness.core.wire.diagnostics import Diagnostics
from harness.core.wire.dp_client import Mechanism
from harness.core.wire.dp_distributed import DistributedMechanism
from harness.core.wire.message import (
    Average,
    Code,
    Message,
    joined,
    masked,
    of_server,
    placed,
    sent_entries,
    split,
)
from harness.core.wire.notes import Notes


class Stages:
    """The stages, and their common state in a round. A dry run replaces some of them.

    A stage takes what the one before has made: a row, its code, an average. The order is that of
    `harness.core.wire.pipeline`.

    Parameters
    ----------
    clients : Clients
        The cohort.
    mechanism : Mechanism or None
        The privacy mechanism.
    compression : Compression
        Sparsification and wire format.
    state : dict[str, Tensor]
        State kept between rounds, by message slot; residuals and shifts are ``(..., total, n)``.
    assembly : Assembly or None
        Receives the shares of an average from the chunks of a cohort.
    diagnostics : Diagnostics or None
        Receives norms and noise levels.
    """

    def __init__(
        self,
        clients: Clients,
        mechanism: Mechanism | None,
        compression: Compression,
        state: dict[str, Tensor],
        assembly: Assembly | None = None,
        diagnostics: Diagnostics | None = None,
    ) -> None:
        self.clients = clients
        self.mechanism = mechanism
        self.compression = compression
        self.state = state
        self.assembly = assembly
        self.notes = Notes(clients, mechanism, diagnostics)
        self.coding = Coding(clients, compression, state)

    def join(self, message: Message) -> Tensor:
        """Subtract the base, divide by the public scales and concatenate the parts."""
        return joined([part.scaled for part in message.parts])

    def mask(self, message: Message, row: Tensor) -> Tensor:
        """Apply the public mask."""
        return masked(row, message.mask)

    def subtract_known(self, message: Message, row: Tensor) -> Tensor:
        """Subtract the terms that follow from earlier releases, where the rest is protected."""
        if message.known is None or self.mechanism is None:
            return row
        return row - masked(joined(message.known.rows), message.mask)

    def add_known(self, message: Message, row: Tensor) -> Tensor:
        """Add the terms that `subtract_known` has subtracted."""
        if message.known is None or self.mechanism is None:
            return row
        return row + masked(joined(message.known.rows), message.mask)

    def clip(self, message: Message, row: Tensor) -> Tensor:
        """Bound the joint norm of every client's message."""
        if self.mechanism is None:
            self.notes.unclipped(message, row)
            return row
        clipped = self.mechanism.clip(message.slot, split(row, message.parts), message.samples)
        self.notes.clipped(message, clipped)
        return joined(clipped.parts)

    def add_noise(self, message: Message, row: Tensor) -> Tensor:
        """Add each client's noise, on the entries of the mask."""
        if self.mechanism is None:
            return row
        sensitivity = self.mechanism.sensitivity(message.slot)
        row = row + self.mechanism.noise(row, message.slot, sensitivity, "client", message.mask)
        self.notes.noise(message, row, sensitivity)
        return row

    def recall(self, message: Message, row: Tensor) -> Tensor:
        """Add the residual of the slot's earlier messages (error feedback), or subtract the slot's shift."""
        return self.coding.recall(message, row)

    def encode(self, message: Message, row: Tensor) -> Code:
        """Select entries, or compute factors; encode and decode. A message that is not finite arrives as NaN."""
        finite = row.isfinite().all(-1, keepdim=True)
        code = self.coding.encode(message, row, partial(self._summed, message))
        if bool(finite.all()):
            return code
        return code._replace(row=torch.where(finite, code.row, torch.nan))  # what has no code would vanish

    def approach(self, message: Message, row: Tensor) -> Code:
        """Move rows towards their neighbors' along factors of the differences."""
        return self.coding.approach(message, row)

    def remember(self, message: Message, entered: Tensor, code: Code) -> Tensor:
        """Store the input minus the output of the encoder; or add the shift and move it along the output."""
        return self.coding.remember(message, entered, code)

    def count(self, message: Message, code: Code) -> None:
        """Count the bytes of the code and of its forwarded copies. No other place counts bytes."""
        sizes, copies = code.sizes, message.copies
        sizes = (sizes.unsqueeze(-1) if sizes.ndim < copies.ndim else sizes) * copies
        self.clients.cost.sent(sizes, up=message.sender != "server")
        if code.answers is not None:
            self.clients.cost.sent(code.answers.unsqueeze(-1) * self.clients.participation_mask, up=False)
        if message.pass_on is not None:
            onward = sizes.sum(-1, keepdim=True) - (sizes if message.pass_on == "others" else 0)
            self.clients.cost.sent(onward * self.clients.participation_mask, up=False)

    def book(self, message: Message) -> None:
        """Book the release."""
        if self.mechanism is not None:
            self.mechanism.book(message.samples)

    def average(self, message: Message, row: Tensor) -> Average:
        """Average over the cohort; if models differ, also compute the weight of each entry's holders."""
        models = masks.per_client_mask(self.clients, message.mask)
        if self.clients.pruned is not None and self.clients.pruned.recovered:
            models = None
        sums = [self._summed(message, rows) for rows in ([row] if models is None else [row, models.to(row)])]
        if self.assembly is not None:
            sums = self.assembly.post(sums)
        return Average(sums[0], None if models is None else sums[1])

    def add_noise_to_average(self, message: Message, average: Average) -> Average:
        """Add the server's noise, for the sensitivity of a message over the expected cohort size."""
        assert self.mechanism is not None
        mask = _mask_of_average(self.clients, message, average)
        cohort = self.mechanism.privacy.noise_cohort or self.clients.n
        sensitivity = self.mechanism.sensitivity(message.slot) / cohort
        noise = self.mechanism.noise(average.row, message.slot, sensitivity, "server", mask)
        self.notes.noise_of_average(message, average.row, mask, sensitivity)
        return average._replace(row=average.row + noise)

    def count_sum(self, message: Message, row: Tensor) -> None:
        """Count the bytes of a secure sum, which depend only on the length of the message."""
        if masks.per_client_mask(self.clients, message.mask) is not None:
            raise Incompatible(
                "privacy.placement: distributed noise is for sums of equal entries, and the clients' models "
                "differ; use placement local or central, or one alpha for all"
            )
        lead = message.copies.shape[:-1]
        sizes = _of_sums(self.mechanism).sizes(sent_entries(row, message.mask).shape[-1])
        for up, each in (
            (True, [bytes_of_run.up for bytes_of_run in sizes]),
            (False, [bytes_of_run.down for bytes_of_run in sizes]),
        ):
            self.clients.cost.sent(torch.tensor(each).view(*lead, 1) * message.copies, up=up)

    def discretize(self, message: Message, row: Tensor) -> Tensor:
        """Make integers with noise, ``(..., C, N)``, from the clipped messages."""
        return _of_sums(self.mechanism).integers(sent_entries(row, message.mask), message.slot)

    def add_up(self, message: Message, row: Tensor, integers: Tensor) -> Average:
        """Add up the integers of the cohort, and turn the sum into an average."""
        mechanism, inside = _of_sums(self.mechanism), sent_entries(row, message.mask)
        sums = [integers.sum(-2)]
        if self.notes.on(message) is not None:
            sums.append(self._summed(message, inside))  # what the average would be without noise
        if self.assembly is not None:
            sums = self.assembly.post(sums)
        average = mechanism.average(sums[0], inside[..., 0, :], message.slot)
        self.notes.noise_of_sum(message, average, sums[-1], mechanism)
        whole = row[..., 0, :]
        return Average(placed(average, of_server(message.mask, whole), whole))

    def normalize(self, message: Message, average: Average) -> Average:
        """Divide each entry by the weight of the clients that have it in their models."""
        if average.held is None:
            return average
        held = average.held
        if self.mechanism is not None and self.mechanism.averages:
            # The cohort is secret under central privacy, so the models of all clients count.
            held = masks.holders(self.clients, message.parts).to(held)
        return average._replace(row=average.row / torch.where(held > 0, held, 1.0))

    def clip_average(self, message: Message, average: Average) -> Average:
        """Bound the norm of the average."""
        if self.mechanism is None:
            return average
        return average._replace(row=self.mechanism.clip_average(average.row))

    def add_known_mean(self, message: Message, average: Average) -> Average:
        """Add what the server takes as the mean of the terms that `subtract_known` has subtracted."""
        if message.known is None or message.known.mean is None:
            return average
        mean = masked(joined(message.known.mean), _mask_of_average(self.clients, message, average))
        return average._replace(row=average.row + mean)

    def restore(self, message: Message, row: Tensor) -> list[Tensor]:
        """Split the row into its parts and multiply them by their scales."""
        pairs = zip(message.parts, split(row, message.parts), strict=True)
        return [part.restored(received) for part, received in pairs]

    def weights(self, message: Message) -> Tensor:
        """Return the clients' weights in the average, ``(..., C)``."""
        cohort = self.clients if self.assembly is None else self.assembly.clients
        mask = self.clients.participation_mask.double()
        if message.weighting == "uniform":
            return mask / cohort.n
        sizes = cohort.sizes * cohort.participation_mask
        return self.clients.sizes * mask / sizes.sum(-1, keepdim=True).clamp(min=1)

    def _summed(self, message: Message, rows: Tensor) -> Tensor:
        """Return the sum of rows ``(..., C, P)`` with the weights of a message."""
        return summed(self.weights(message), rows, self.clients.participation_mask.bool())


def _of_sums(mechanism: Mechanism | None) -> DistributedMechanism:
    """Return the mechanism of a secure sum."""
    assert isinstance(mechanism, DistributedMechanism)
    return mechanism


def _mask_of_average(clients: Clients, message: Message, average: Average) -> Tensor | None:
    """Return the entries that some client of the federation may send, ``(..., n)``; None: all."""
    mask = message.mask
    if average.held is not None:
        mask = masks.holders(clients, message.parts) > 0
    return of_server(mask, average.row)
