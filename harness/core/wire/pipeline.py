"""The order in which a message passes the stages of `harness.core.wire.stages.Stages`.

The order depends only on where noise is added. Without privacy messages pass the stages of `local`, whose privacy
stages then do nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import cast

from harness.core.wire.stages import Order, Stage, Stages


def local(at: Stages) -> list[Stage]:
    """Return the stages where each client protects itself."""
    return [
        at.join,  # subtract the base, divide by the public scales, concatenate the parts
        at.mask,  # public mask: random-k, pruned model
        at.subtract_known,  # terms that follow from earlier releases
        at.clip,  # the joint norm of the parts
        at.add_noise,  # on the entries of the mask
        at.add_known,  # from here on all is post-processing of the protected message
        at.recall,  # add the residual of earlier messages, or subtract the shift
        at.encode,  # select entries, encode, decode
        at.remember,  # keep the new residual, or add and move the shift
        at.count,  # the bytes of the code
        at.book,  # the release
        at.average,
        at.normalize,  # if models differ: divide by the weight of the clients that hold an entry
        at.clip_average,  # server clip: post-processing
        at.restore,  # split into parts, multiply by the scales
    ]


def central(at: Stages) -> list[Stage]:
    """Return the stages where the server adds noise to the average."""
    return [
        at.join,
        at.mask,
        at.recall,
        at.encode,
        at.remember,
        at.count,
        at.subtract_known,  # the trusted server remembers what clients have sent
        at.clip,  # after decoding, so that no code exceeds the bound
        at.book,
        at.average,  # with a fixed denominator
        at.add_noise_to_average,
        at.normalize,
        at.clip_average,
        at.add_known_mean,  # as far as released
        at.restore,
    ]


def distributed(at: Stages) -> list[Stage]:
    """Return the stages where clients add noise to integers, of which the server learns the sum."""
    return [
        at.join,
        at.mask,
        at.count_sum,  # the bytes of the integers, and of the secure sum
        at.subtract_known,
        at.clip,
        at.book,
        at.discretize,  # rotate, round, add noise
        at.add_up,  # modulo a power of two, then back to an average with a fixed denominator
        at.clip_average,
        at.add_known_mean,
        at.restore,
    ]


def separate(at: Stages) -> list[Stage]:
    """Return those of messages that receivers see individually, under local placement only."""
    return _without(local(at), [at.average, at.normalize, at.clip_average])


def uncoded(at: Stages) -> list[Stage]:
    """Return those of messages that are encoded as a part of another one."""
    return _without(separate(at), [at.recall, at.encode, at.remember, at.count])


def public(at: Stages) -> list[Stage]:
    """Return those of messages that release nothing: the server's, and repetitions of earlier releases."""
    return [at.join, at.mask, at.encode, at.count, at.restore]


def differences(at: Stages) -> list[Stage]:
    """Return those of protected rows of which neighbors learn the differences."""
    return [at.join, at.mask, at.approach, at.count, at.restore]


ORDERS: dict[str, Order] = {"local": local, "central": central, "distributed": distributed}


def names(order: Order) -> list[str]:
    """Return the names of an order's stages."""
    return [stage.__name__ for stage in order(cast(Stages, Stages))]  # functions of the class have the names


def table() -> str:
    """Return the orders as a Markdown table."""
    rows = list(zip_longest(*map(names, ORDERS.values()), fillvalue=""))
    titles = (
        "local: each client protects itself",
        "central: the server adds noise to the average",
        "distributed: clients add noise to a secure sum",
    )
    lines = [f"| step | {' | '.join(titles)} |", f"| ---: |{' :--- |' * len(titles)}"]
    lines += [f"| {number} | {' | '.join(row)} |" for number, row in enumerate(rows, 1)]
    return "\n".join(line.replace("_", " ") for line in lines)


def _without(stages: Sequence[Stage], left_out: Sequence[Stage]) -> list[Stage]:
    return [stage for stage in stages if stage not in left_out]
