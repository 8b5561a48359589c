"""Compression of messages and models: pure tensors and bytes, without federated learning.

`compression.select` chooses entries; `compression.codec` turns messages into bytes, made of
`compression.sparse_index` and the values of `compression.quantize`; `compression.own_codec` registers codecs of
users; `compression.low_rank` replaces matrices by factors; `compression.graph` and `compression.structured` remove
units of a model, `compression.importance` single parameters.
"""
