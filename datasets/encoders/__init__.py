"""Encoders: networks trained on public data that make features of images or texts, once, before any training.

Features are kept in the cache and are then a table of numbers.
"""

from datasets.encoders import efficientnet as efficientnet  # registers an encoder, as does the next
from datasets.encoders import minilm as minilm
from datasets.encoders.features import EncoderSettings, blank, encode
from datasets.encoders.registry import ENCODERS, Encoder, encoder
from datasets.encoders.weights import Wheel, read_weights

__all__ = ["ENCODERS", "Encoder", "EncoderSettings", "Wheel", "blank", "encode", "encoder", "read_weights"]
