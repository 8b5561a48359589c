"""The order in which a message passes the stages of `harness.core.wire.stages.Stages`.

The order is a property of where the noise is added, and it is decided here and nowhere else. Without privacy
messages take the stages of `LOCAL`, in which the mechanism then does nothing.
"""

from __future__ import annotations

from itertools import zip_longest

Order = tuple[str, ...]

LOCAL: Order = (  # each client protects itself
    "join",  # increments against the base, divided by the public scales, as one row
    "mask",  # public mask: random-k, pruned model
    "clip",  # the joint norm of the parts
    "add_noise",  # on the kept positions
    "add_residual",  # error feedback; from here on everything is post-processing of what is protected
    "encode",  # choose entries, encode, decode
    "keep_residual",  # what entered the encoder minus what came out of it
    "count",  # the bytes of the code
    "book",  # the release
    "average",
    "normalize",  # where clients' models differ: by the weight of those who hold an entry
    "clip_average",  # server clip: post-processing
    "restore",  # the parts, their scales multiplied back
)

CENTRAL: Order = (  # the server adds noise to the average
    "join",
    "mask",
    "add_residual",
    "encode",
    "keep_residual",
    "count",
    "clip",  # what was decoded, so that no code exceeds the bound
    "book",
    "average",  # with a fixed denominator
    "add_noise_to_average",
    "normalize",
    "clip_average",
    "restore",
)

_AVERAGING = ("average", "add_noise_to_average", "normalize", "clip_average")
_CODING = ("add_residual", "encode", "keep_residual", "count")

#: Messages that their receivers see one by one, and never under central privacy.
SEPARATE: Order = tuple(stage for stage in LOCAL if stage not in _AVERAGING)
#: The same for messages that are encoded as a part of another one.
UNCODED: Order = tuple(stage for stage in SEPARATE if stage not in _CODING)
#: Messages that release nothing: the server's, and what is repeated of earlier releases.
PUBLIC: Order = ("join", "mask", "encode", "count", "restore")


def table() -> str:
    """Return both orders side by side, as a table in Markdown."""
    rows = list(zip_longest(LOCAL, CENTRAL, fillvalue=""))
    lines = ["| step | local: each client protects itself | central: the server adds noise to the average |"]
    lines += ["| ---: | :--- | :--- |"]
    lines += [f"| {number} | {one} | {two} |" for number, (one, two) in enumerate(rows, 1)]
    return "\n".join(line.replace("_", " ") for line in lines)
