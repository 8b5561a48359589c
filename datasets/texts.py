"""Texts as samples: signs that a model reads in their order, and counts of words.

Both use fixed tables, so nothing about the texts of one client is in the features of another.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from datasets.shakespeare import SHOWN

SYMBOLS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))  # the printable ones of ASCII
#: Names of the signs, which are the classes where the next sign is predicted.
SYMBOL_NAMES = (*(SHOWN.get(symbol, symbol) for symbol in SYMBOLS), "any other sign")
WORDS = 1024  # features of a text whose words are counted
WORD = re.compile(r"[\w']+")


def symbol_numbers(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the numbers of the signs of texts of one length L, ``(n, L)``, in the order of `SYMBOL_NAMES`."""
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    points = points.reshape(len(texts), -1)
    numbers = np.where(points == ord("\n"), 0, points.astype(np.int64) - ord(" ") + 1)
    numbers[(points != ord("\n")) & ((points < ord(" ")) | (points > ord("~")))] = len(SYMBOLS)
    return numbers


def word_counts(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return how often words occur in each text, ``(n, WORDS)``; case does not count.

    A word has the place that its checksum says (feature hashing, Weinberger et al. 2009), so some share one.
    """
    counts = np.zeros((len(texts), WORDS), np.float32)
    for row, text in zip(counts, texts, strict=True):
        for word in WORD.findall(text.lower()):
            row[zlib.crc32(word.encode("utf-8", "surrogatepass")) % WORDS] += 1
    return counts
