"""Compression of messages and models: pure tensors and bytes, without federated learning.

`compression.select` chooses entries; `compression.codec` turns messages into bytes, made of
`compression.sparse_index` and the values of `compression.quantize`; `compression.own_codec` registers codecs of
users; `compression.low_rank` replaces matrices by factors; `compression.graph` and `compression.structured` remove
units of a model, `compression.importance` single parameters.
"""

from compression.codec import CODECS, Codec, Coded, find_codec
from compression.errors import CompressionError
from compression.graph import units
from compression.importance import Layer, largest_weights, reconfigured
from compression.low_rank import Factors
from compression.quantize import ValueFormat
from compression.select import Ratio, Schedule, kept_count, random_k, ratio_at, threshold, top_k
from compression.sparse_index import position_bytes
from compression.structured import Part, UnitGroup, alive, prune, scores, shrink

__all__ = [
    "CODECS",
    "Codec",
    "Coded",
    "CompressionError",
    "Factors",
    "Layer",
    "Part",
    "Ratio",
    "Schedule",
    "UnitGroup",
    "ValueFormat",
    "alive",
    "find_codec",
    "kept_count",
    "largest_weights",
    "position_bytes",
    "prune",
    "random_k",
    "ratio_at",
    "reconfigured",
    "scores",
    "shrink",
    "threshold",
    "top_k",
    "units",
]
