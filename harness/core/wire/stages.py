"""The stages of a message between sender and receiver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from harness.core.clients.clients import Clients
from harness.core.execution.exact.sums import summed
from harness.core.registry import Incompatible
from harness.core.settings.compression import Compression
from harness.core.wire import masks
from harness.core.wire.client_chunks import Assembly
from harness.core.wire.coding import Coding
from harness.core.wire.diagnostics import Diagnostics
from harness.core.wire.dp_client import Mechanism
from harness.core.wire.dp_distributed import DistributedMechanism
from harness.core.wire.message import Message, joined, of_server, placed, sent_entries, split

Stage = Callable[[Message], None]
Order = Callable[["Stages"], Sequence[Stage]]


class Stages:
    """The stages, and their common state in a round. A dry run replaces some of them.

    `harness.core.wire.pipeline` defines the order.

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
        self.diagnostics = diagnostics
        self.coding = Coding(clients, compression, state)

    def part(self, clients: Clients, assembly: Assembly) -> Stages:
        """Return the stages of a chunk of the cohort."""
        state = dict(self.state)
        mechanism = self.mechanism and self.mechanism.of(clients, state)
        return type(self)(clients, mechanism, self.compression, state, assembly, self.diagnostics)

    def process(self, message: Message, order: Order) -> list[Tensor]:
        """Apply the stages of an order and return the parts as received."""
        for stage in order(self):
            stage(message)
        return message.arrived

    def join(self, message: Message) -> None:
        """Subtract the base, divide by the public scales and concatenate the parts."""
        message.joint = joined([part.scaled for part in message.parts])

    def mask(self, message: Message) -> None:
        """Apply the public mask."""
        if message.mask is not None:
            message.joint = message.joint * message.mask

    def subtract_known(self, message: Message) -> None:
        """Subtract the terms that follow from earlier releases, where the rest is protected."""
        if message.known is not None and self.mechanism is not None:
            message.joint = message.joint - _masked(joined(message.known.rows), message.mask)

    def add_known(self, message: Message) -> None:
        """Add the terms that `subtract_known` has subtracted."""
        if message.known is not None and self.mechanism is not None:
            message.joint = message.joint + _masked(joined(message.known.rows), message.mask)

    def add_known_mean(self, message: Message) -> None:
        """Add what the server takes as the mean of these terms."""
        if message.known is not None and message.known.mean is not None:
            message.joint = message.joint + _masked(
                joined(message.known.mean), self._mask_of_average(message)
            )

    def clip(self, message: Message) -> None:
        """Bound the joint norm of every client's message."""
        if self.mechanism is not None:
            parts = split(message.joint, message.parts)
            clipped = self.mechanism.clip(message.slot, parts, message.samples)
            message.joint = joined(clipped.parts)
            if (noted := self._noted(message)) is not None:
                limits = self.mechanism.limits(message.slot)
                noted.messages(clipped.norms, self._present(message), clipped.exceeded, limits)
        elif (noted := self._noted(message)) is not None:
            private = message.joint
            if message.known is not None:  # what a mechanism would protect; rows that clients keep stay in it
                private = private - _masked(joined(message.known.rows), message.mask).nan_to_num()
            norms = torch.linalg.vector_norm(private, dim=-1, dtype=torch.float64)
            noted.messages(norms, self._present(message))

    def add_noise(self, message: Message) -> None:
        """Add each client's noise, on the entries of the mask."""
        if self.mechanism is None:
            return
        sensitivity = self.mechanism.sensitivity(message.slot)
        noise = self.mechanism.noise(message.joint, message.slot, sensitivity, "client", message.mask)
        message.joint = message.joint + noise
        if self.mechanism.noisy and (noted := self._noted(message)) is not None:
            present = self._present(message)
            sizes = _coordinates(message.joint, message.mask)
            if self.mechanism.by_sample and message.samples is not None:
                sizes = _coordinates(message.joint, None) / message.samples.weight.shape[-1]
            noted.noise(self.mechanism.deviation(sensitivity), sizes.expand(present.shape), present)

    def recall(self, message: Message) -> None:
        """Add the residual of the slot's earlier messages (error feedback), or subtract the slot's shift."""
        self.coding.recall(message)

    def encode(self, message: Message) -> None:
        """Select entries, or compute factors; encode and decode. A message that is not finite arrives as NaN."""
        finite = message.joint.isfinite().all(-1, keepdim=True)
        self.coding.encode(message, partial(self._summed, message))
        if not bool(finite.all()):  # what is not sent, or has no code, would vanish
            message.joint = torch.where(finite, message.joint, torch.nan)

    def approach(self, message: Message) -> None:
        """Move rows towards their neighbors' along factors of the differences."""
        self.coding.approach(message)

    def remember(self, message: Message) -> None:
        """Store the input minus the output of the encoder; or add the shift and move it along the output."""
        self.coding.remember(message)

    def count(self, message: Message) -> None:
        """Count the bytes of the code and of its forwarded copies. No other place counts bytes."""
        message.sent = message.joint
        sizes, copies = message.sizes, message.copies
        sizes = (sizes.unsqueeze(-1) if sizes.ndim < copies.ndim else sizes) * copies
        self.clients.cost.sent(sizes, up=message.sender != "server")
        if message.answers is not None:
            self.clients.cost.sent(message.answers.unsqueeze(-1) * self.clients.participation_mask, up=False)
        if message.pass_on is not None:
            onward = sizes.sum(-1, keepdim=True) - (sizes if message.pass_on == "others" else 0)
            self.clients.cost.sent(onward * self.clients.participation_mask, up=False)

    def book(self, message: Message) -> None:
        """Book the release."""
        if self.mechanism is not None:
            self.mechanism.book(message.samples)

    def average(self, message: Message) -> None:
        """Average over the cohort; if models differ, also compute the weight of each entry's holders."""
        sent, own = message.joint, masks.per_client_mask(self.clients, message.mask)
        if self.clients.pruned is not None and self.clients.pruned.recovered:
            own = None
        sums = [self._summed(message, rows) for rows in ([sent] if own is None else [sent, own.to(sent)])]
        if self.assembly is not None:
            sums = self.assembly.post(sums)
        message.joint, message.held = sums[0], None if own is None else sums[1]

    def add_noise_to_average(self, message: Message) -> None:
        """Add the server's noise, for the sensitivity of a message over the expected cohort size."""
        assert self.mechanism is not None
        mask = self._mask_of_average(message)
        cohort = self.mechanism.privacy.noise_cohort or self.clients.n
        sensitivity = self.mechanism.sensitivity(message.slot) / cohort
        noise = self.mechanism.noise(message.joint, message.slot, sensitivity, "server", mask)
        if self.mechanism.noisy and (noted := self._noted(message)) is not None:
            sizes = _coordinates(message.joint, mask).expand(message.joint.shape[:-1])
            deviation = self.mechanism.deviation(sensitivity) * self.mechanism.spread
            noted.noise_of_average(deviation, sizes, message.joint)
        message.joint = message.joint + noise

    def count_sum(self, message: Message) -> None:
        """Count the bytes of a secure sum, which depend only on the length of the message."""
        if masks.per_client_mask(self.clients, message.mask) is not None:
            raise Incompatible(
                "privacy.placement: distributed noise is for sums of equal entries, and the clients' models "
                "differ; use placement local or central, or one alpha for all"
            )
        message.sent, lead = message.joint, message.copies.shape[:-1]
        sizes = self._distributed().sizes(sent_entries(message).shape[-1])
        for up, each in ((True, [one.up for one in sizes]), (False, [one.down for one in sizes])):
            self.clients.cost.sent(torch.tensor(each).view(*lead, 1) * message.copies, up=up)

    def discretize(self, message: Message) -> None:
        """Make integers with noise from the clipped messages."""
        message.integers = self._distributed().integers(sent_entries(message), message.slot)

    def add_up(self, message: Message) -> None:
        """Add up the integers of the cohort, and turn the sum into an average."""
        mechanism, noted = self._distributed(), self._noted(message)
        inside = sent_entries(message)
        sums = [message.integers.sum(-2)]
        if noted is not None:
            sums.append(self._summed(message, inside))  # what the average would be without noise
        if self.assembly is not None:
            sums = self.assembly.post(sums)
        average = mechanism.average(sums[0], inside[..., 0, :], message.slot)
        if noted is not None and mechanism.noisy:
            sizes = torch.tensor(inside.shape[-1]).double().expand(average.shape[:-1])
            noted.noise_of_average(mechanism.deviation_of_average(inside.shape[-1]), sizes, sums[1])
            noted.integers(mechanism.bits(inside.shape[-1]))
        whole = message.joint[..., 0, :]
        message.joint = placed(average, of_server(message.mask, whole), whole)

    def _distributed(self) -> DistributedMechanism:
        assert isinstance(self.mechanism, DistributedMechanism)
        return self.mechanism

    def normalize(self, message: Message) -> None:
        """Divide each entry by the weight of the clients whose models contain it."""
        if message.held is None:
            return
        held = message.held
        if self.mechanism is not None and self.mechanism.averages:
            # The cohort is secret under central privacy, so the models of all clients count.
            held = masks.holders(self.clients, message.parts).to(held)
        message.joint = message.joint / torch.where(held > 0, held, 1.0)

    def clip_average(self, message: Message) -> None:
        """Bound the norm of the average."""
        if self.mechanism is not None:
            message.joint = self.mechanism.clip_average(message.joint)

    def restore(self, message: Message) -> None:
        """Split the row into its parts and multiply them by their scales."""
        pairs = zip(message.parts, split(message.joint, message.parts), strict=True)
        message.arrived = [part.restored(received) for part, received in pairs]

    def _mask_of_average(self, message: Message) -> Tensor | None:
        """Return the entries that some client of the federation may send, ``(..., n)``; None: all."""
        mask = message.mask
        if message.held is not None:
            mask = masks.holders(self.clients, message.parts) > 0
        return of_server(mask, message.joint)

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

    def _noted(self, message: Message) -> Diagnostics | None:
        """Return the diagnostics, if they describe this message."""
        return self.diagnostics if self.diagnostics and self.diagnostics.covers(message.slot) else None

    def _present(self, message: Message) -> Tensor:
        """Return which clipped rows count: messages ``(..., C)``, or flattened samples ``(..., C B)``."""
        mask = self.clients.participation_mask.bool()
        if self.mechanism is None or not self.mechanism.by_sample or message.samples is None:
            return mask
        weight = message.samples.weight
        return ((weight > 0.5) & mask.unsqueeze(-1).to(weight.device)).flatten(-2)


def _masked(row: Tensor, mask: Tensor | None) -> Tensor:
    """Return a row with zeros in entries that are not sent."""
    return row if mask is None else row * mask


def _coordinates(joint: Tensor, mask: Tensor | None) -> Tensor:
    """Return the number of coordinates sent, float64, broadcastable against the leading axes."""
    count = torch.tensor(joint.shape[-1]) if mask is None else mask.sum(-1)
    return count.double()
