"""BERT's tokenizer of lower-case text (Devlin et al. 2019): words, then the longest known pieces of each."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HIDDEN = ("Cc", "Cf", "Co")  # categories of characters that do not show
LONGEST = 100  # characters of a word that is cut into pieces; longer ones are unknown
IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class WordPiece:
    """A vocabulary, and how texts become its numbers.

    Parameters
    ----------
    vocabulary : Path
        One piece a line, numbered from 0; pieces inside a word begin with ``##``.
    """

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").rstrip("\n").split("\n")
        self.numbers = {piece: number for number, piece in enumerate(lines)}
        self.unknown, self.start, self.end = (self.numbers[mark] for mark in ("[UNK]", "[CLS]", "[SEP]"))
        self._pieces = cache(self._cut)

    def __call__(self, text: str, most: int) -> list[int]:
        """Return the numbers of at most so many pieces, with the marks of start and end."""
        pieces: list[int] = []
        for word in _words(text):
            pieces += self._pieces(word)
            if len(pieces) >= most - 2:
                break
        return [self.start, *pieces[: most - 2], self.end]

    def _cut(self, word: str) -> tuple[int, ...]:
        """Return the longest pieces of a word from its start; unknown if a rest has none."""
        if len(word) > LONGEST:
            return (self.unknown,)
        pieces, begin = [], 0
        while begin < len(word):
            prefix = "##" if begin else ""
            for end in range(len(word), begin, -1):
                if (number := self.numbers.get(prefix + word[begin:end])) is not None:
                    break
            else:
                return (self.unknown,)
            pieces.append(number)
            begin = end
        return tuple(pieces)


def _words(text: str) -> Iterator[str]:
    """Yield words and signs of a text, in lower case and without accents."""
    for part in "".join(map(_cleaned, text)).split():
        plain = unicodedata.normalize("NFD", part).lower()
        word = ""
        for char in plain:
            if unicodedata.category(char) == "Mn":
                continue
            if _is_sign(char):
                yield from filter(None, (word, char))
                word = ""
            else:
                word += char
        if word:
            yield word


@cache
def _cleaned(char: str) -> str:
    """Return a character, a space for any white space, nothing for what does not show; ideographs stand alone."""
    if char in "\t\n\r" or unicodedata.category(char) == "Zs":
        return " "
    if char == "\ufffd" or unicodedata.category(char) in HIDDEN:
        return ""
    return f" {char} " if any(low <= ord(char) <= high for low, high in IDEOGRAPHS) else char


@cache
def _is_sign(char: str) -> bool:
    """Whether a character is punctuation, as which all signs of ASCII count."""
    return (char.isascii() and char.isprintable() and not char.isalnum() and char != " ") or (
        unicodedata.category(char).startswith("P")
    )
