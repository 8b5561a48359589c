"""The order in which a message passes the stages of `harness.core.wire.stages.Stages`.

The order depends only on where noise is added. Without privacy messages pass the stages of `local`, whose privacy
stages then do nothing. docs/design.md has the orders side by side.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from harness.core.wire.message import Arrived, Message
from harness.core.wire.stages import Stages


def local(at: Stages, message: Message) -> Arrived:
    """Return the average of messages that clients protect themselves."""
    sent = _sent(at, message, _protected(at, message))
    at.book(message)  # the release
    average = at.average(message, sent)
    average = at.normalize(message, average)  # if models differ: divide by the weight of an entry's holders
    average = at.clip_average(message, average)  # server clip: post-processing
    return Arrived(at.restore(message, average.row), sent)


def central(at: Stages, message: Message) -> Arrived:
    """Return the average of messages, to which the server adds noise."""
    sent = _sent(at, message, at.mask(message, at.join(message)))
    row = at.subtract_known(message, sent)  # the trusted server remembers what clients have sent
    row = at.clip(message, row)  # after decoding, so that no code exceeds the bound
    at.book(message)
    average = at.average(message, row)  # with a fixed denominator
    average = at.add_noise_to_average(message, average)
    average = at.normalize(message, average)
    average = at.clip_average(message, average)
    average = at.add_known_mean(message, average)  # as far as released
    return Arrived(at.restore(message, average.row), sent)


def distributed(at: Stages, message: Message) -> Arrived:
    """Return the average of messages as integers, to which clients add noise; the server learns their sum."""
    sent = at.mask(message, at.join(message))
    at.count_sum(message, sent)  # the bytes of the integers, and of the secure sum
    row = at.subtract_known(message, sent)
    row = at.clip(message, row)
    at.book(message)
    integers = at.discretize(message, row)  # rotate, round, add noise
    average = at.add_up(message, row, integers)  # modulo a power of two, then back to an average
    average = at.clip_average(message, average)
    average = at.add_known_mean(message, average)
    return Arrived(at.restore(message, average.row), sent)


def separate(at: Stages, message: Message) -> list[Tensor]:
    """Return messages that receivers see individually, under local placement only."""
    sent = _sent(at, message, _protected(at, message))
    at.book(message)
    return at.restore(message, sent)


def uncoded(at: Stages, message: Message) -> list[Tensor]:
    """Return messages that are encoded as a part of another one."""
    row = _protected(at, message)
    at.book(message)
    return at.restore(message, row)


def public(at: Stages, message: Message) -> list[Tensor]:
    """Return messages that release nothing: the server's, and repetitions of earlier releases."""
    code = at.encode(message, at.mask(message, at.join(message)))
    at.count(message, code)
    return at.restore(message, code.row)


def differences(at: Stages, message: Message) -> list[Tensor]:
    """Return protected rows of which neighbors learn the differences."""
    code = at.approach(message, at.mask(message, at.join(message)))
    at.count(message, code)
    return at.restore(message, code.row)


def _protected(at: Stages, message: Message) -> Tensor:
    """Return the rows of clients that protect themselves; from here on all is post-processing."""
    row = at.join(message)  # subtract the base, divide by the public scales, concatenate the parts
    row = at.mask(message, row)  # public mask: random-k, pruned model
    row = at.subtract_known(message, row)  # terms that follow from earlier releases
    row = at.clip(message, row)  # the joint norm of the parts
    row = at.add_noise(message, row)  # on the entries of the mask
    return at.add_known(message, row)


def _sent(at: Stages, message: Message, row: Tensor) -> Tensor:
    """Send the rows of clients, and return them as received."""
    row = at.recall(message, row)  # add the residual of earlier messages, or subtract the shift
    code = at.encode(message, row)  # select entries, encode, decode
    received = at.remember(message, row, code)  # keep the new residual, or add and move the shift
    at.count(message, code)  # the bytes of the code
    return received


Order = Callable[[Stages, Message], Arrived]
ORDERS: dict[str, Order] = {"local": local, "central": central, "distributed": distributed}
