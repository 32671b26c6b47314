"""Texts as words: a vocabulary of the most frequent, tokens for a network, and shares of words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

PAD, UNKNOWN, START, END = range(4)  # what the first four tokens stand for
_WORD = re.compile(r"\w+", re.UNICODE)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; what is neither letter nor digit separates them."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Words:
    """The most frequent words of some texts, the most frequent first (of equal ones by the alphabet)."""

    known: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], most: int) -> Words:
        """Return at most so many words of texts."""
        counts = Counter(word for text in texts for word in words_of(text))
        order = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(order[:most]))

    def __len__(self) -> int:
        """Return the number of tokens: the words, and four that mark."""
        return len(self.known) + 4

    def tokens(self, texts: Iterable[str], length: int) -> np.ndarray:
        """Return int64 (N, length): a start, the first length - 2 words, an end, and padding."""
        places = {word: j + 4 for j, word in enumerate(self.known)}
        texts = list(texts)
        out = np.full((len(texts), length), PAD, np.int64)
        for row, text in zip(out, texts, strict=True):
            own = [places.get(word, UNKNOWN) for word in words_of(text)[: max(0, length - 2)]]
            marked = [START, *own, END][:length]
            row[: len(marked)] = marked
        return out

    def shares(self, texts: Iterable[str]) -> np.ndarray:
        """Return float32 (N, words): how often each known word occurs, over all words of its text."""
        places = {word: j for j, word in enumerate(self.known)}
        texts = list(texts)
        out = np.zeros((len(texts), len(self.known)), np.float32)
        for row, text in zip(out, texts, strict=True):
            own = words_of(text)
            for word in own:
                if word in places:
                    row[places[word]] += 1 / len(own)
        return out
