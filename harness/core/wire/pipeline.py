"""The order in which a message passes the stages of `harness.core.wire.stages.Stages`.

The order depends only on where noise is added. Without privacy messages pass the stages of `LOCAL`, whose privacy
stages then do nothing.
"""

from __future__ import annotations

from itertools import zip_longest

Order = tuple[str, ...]

LOCAL: Order = (  # each client protects itself
    "join",  # subtract the base, divide by the public scales, concatenate the parts
    "mask",  # public mask: random-k, pruned model
    "subtract_known",  # terms that follow from earlier releases
    "clip",  # the joint norm of the parts
    "add_noise",  # on the entries of the mask
    "add_known",  # from here on all is post-processing of the protected message
    "recall",  # add the residual of earlier messages, or subtract the shift
    "encode",  # select entries, encode, decode
    "remember",  # keep the new residual, or add and move the shift
    "count",  # the bytes of the code
    "book",  # the release
    "average",
    "normalize",  # if models differ: divide by the weight of the clients that hold an entry
    "clip_average",  # server clip: post-processing
    "restore",  # split into parts, multiply by the scales
)

CENTRAL: Order = (  # the server adds noise to the average
    "join",
    "mask",
    "recall",
    "encode",
    "remember",
    "count",
    "subtract_known",  # the trusted server remembers what clients have sent
    "clip",  # after decoding, so that no code exceeds the bound
    "book",
    "average",  # with a fixed denominator
    "add_noise_to_average",
    "normalize",
    "clip_average",
    "add_known_mean",  # as far as released
    "restore",
)

DISTRIBUTED: Order = (  # clients add noise to integers, of which the server learns the sum
    "join",
    "mask",
    "count_sum",  # the bytes of the integers, and of the secure sum
    "subtract_known",
    "clip",
    "book",
    "discretize",  # rotate, round, add noise
    "add_up",  # modulo a power of two, then back to an average with a fixed denominator
    "clip_average",
    "add_known_mean",
    "restore",
)

ORDERS: dict[str, Order] = {"local": LOCAL, "central": CENTRAL, "distributed": DISTRIBUTED}

_AVERAGING = ("average", "normalize", "clip_average")
_CODING = ("recall", "encode", "remember", "count")

#: Messages that receivers see individually; available under local placement only.
SEPARATE: Order = tuple(stage for stage in LOCAL if stage not in _AVERAGING)
#: Messages that are encoded as a part of another one.
UNCODED: Order = tuple(stage for stage in SEPARATE if stage not in _CODING)
#: Messages that release nothing: the server's, and repetitions of earlier releases.
PUBLIC: Order = ("join", "mask", "encode", "count", "restore")
#: Protected rows of which neighbors learn the differences.
DIFFERENCES: Order = ("join", "mask", "approach", "count", "restore")


def table() -> str:
    """Return the orders as a Markdown table."""
    rows = list(zip_longest(LOCAL, CENTRAL, DISTRIBUTED, fillvalue=""))
    titles = (
        "local: each client protects itself",
        "central: the server adds noise to the average",
        "distributed: clients add noise to a secure sum",
    )
    lines = [f"| step | {' | '.join(titles)} |", f"| ---: |{' :--- |' * len(titles)}"]
    lines += [f"| {number} | {' | '.join(row)} |" for number, row in enumerate(rows, 1)]
    return "\n".join(line.replace("_", " ") for line in lines)
