"""Text as sequences of tokens, each with its next token as target; and texts as words or shares of words."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raybench.core.errors import nearest
from raybench.core.limits import check_fits, decompressed
from raybench.data.catalogue import TEXTS, find_text, folder, texts_there
from raybench.data.examples import Examples, Pair
from raybench.data.files import DATASET_KEY, cached, data_error, path_of

LEVELS = ("byte", "character")
CODES = 0x110000  # of Unicode


@dataclass(frozen=True)
class Vocabulary:
    """What tokens stand for: bytes, or the place of a character in ``characters`` (sorted, distinct)."""

    level: str
    characters: str = ""

    def __len__(self) -> int:
        return 256 if self.level == "byte" else len(self.characters)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens (T,); bytes that are no UTF-8 become replacement characters."""
        if self.level == "byte":
            return bytes(int(t) for t in tokens).decode("utf-8", "replace")
        return "".join(self.characters[int(t)] for t in tokens)


def text(
    name_or_path: str | os.PathLike[str],
    length: int,
    level: str = "character",
    test_share: float = 0.1,
) -> Pair:
    """Return the sequences of a text: inputs (N, length) and, one place later, targets (N, length).

    A name is a file ``<data folder>/text/<name>.txt[.bz2|.gz|.xz]``; a path a text file, plain or with
    one of those endings. level ``character``: UTF-8, the vocabulary is the characters that occur;
    ``byte``: any file, 256 tokens. Sequences are consecutive and share no input: sequence i starts at
    token i * length, and the tokens left over at the end are dropped. The last ``test_share`` of them
    is the test part (None for 0), so the model is tested on text after all that it has learned from.

    Raises InputError for an unknown name, a file that is missing, damaged, too large or, by characters,
    not UTF-8, a text too short for the length or for two parts, and an unknown level.
    """
    if not (isinstance(length, int) and not isinstance(length, bool) and length >= 1):
        what = f"length is {length!r}, not a number of tokens"
        raise data_error(what, "allowed: 1 and more")
    if not (isinstance(test_share, int | float) and 0 <= test_share < 1):
        what = f"test_share is {test_share!r}"
        raise data_error(what, "allowed: a share in [0, 1), such as 0.1")
    file, name = _found(name_or_path)
    tokens, words = _read(file, level)
    count = max(len(tokens) - 1, 0) // length
    if count == 0:
        what = (
            f"{name} has {len(tokens):,} tokens, and a sequence of length {length:,} needs one more"
        )
        raise data_error(what, f"the length may be at most {len(tokens) - 1:,}")
    held = round(count * test_share)
    if test_share > 0 and not 0 < held < count:
        what = f"a test_share of {test_share:g} of {count:,} sequences leaves a part empty"
        raise data_error(what, "use a smaller length, or test_share 0")
    end = count * length
    check_fits(DATASET_KEY, f"{file}: targets", 8 * end, "take a shorter text")
    inputs, targets = (tokens[at : at + end].reshape(count, length) for at in (0, 1))
    train, test = (
        Examples.of(
            name, inputs[rows], targets[rows], classes=len(words), source=str(file), kind="text"
        )
        for rows in (slice(count - held), slice(count - held, count))
    )
    return Pair(train, test if held else None)


def vocabulary(name_or_path: str | os.PathLike[str], level: str = "character") -> Vocabulary:
    """Return what the tokens of ``text`` of the same name and level stand for; the same errors."""
    return _read(_found(name_or_path)[0], level)[1]


def _found(name_or_path: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the file that is meant and the name of the data."""
    given, path = os.fspath(name_or_path), path_of(name_or_path)
    if path is not None:
        if not path.is_file():
            what = f"{given} is a folder" if path.is_dir() else f"no file {given}"
            raise data_error(what, "give a known name, or the path of a text file")
        return path.absolute(), path.name
    if (file := find_text(given)) is not None:
        return file, given
    put = f"put {given}.txt (or with .bz2, .gz or .xz behind it) into {folder() / 'text'}"
    if given in TEXTS:
        raise data_error(f"no file of the text {given}", put)
    names = {name.split(".txt")[0] for name in texts_there() if ".txt" in name}
    fix = f"{nearest(given, names.union(TEXTS))}; or give a path, or {put}"
    raise data_error(f"unknown text {given!r}", fix)


def _read(file: Path, level: str) -> tuple[np.ndarray, Vocabulary]:
    if level not in LEVELS:
        raise data_error(f"unknown level {level!r}", nearest(str(level), LEVELS))
    return _tokens((file,), level)


@cached(4)
def _tokens(files: tuple[Path], level: str) -> tuple[np.ndarray, Vocabulary]:
    """Return all tokens of a file, (T,), uint8 where the vocabulary allows and else int64."""
    (file,) = files
    raw = bytearray()
    for chunk in decompressed(file, DATASET_KEY):
        raw += chunk
    if level == "byte":
        return np.frombuffer(raw, np.uint8), Vocabulary(level)
    check_fits(DATASET_KEY, f"{file} as characters", 8 * len(raw), "use level byte")
    try:
        whole = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"{file} is not UTF-8 text: byte {error.start:,} is {raw[error.start]:#04x}"
        raise data_error(what, "save it as UTF-8, or use level byte") from error
    codes = np.frombuffer(whole.encode("utf-32-le"), "<u4")
    # A table of all of Unicode makes this linear: sorting the text would take longer than reading it.
    occurs = np.zeros(CODES, bool)
    occurs[codes] = True
    characters = "".join(chr(code) for code in np.flatnonzero(occurs))
    place = np.cumsum(occurs) - 1
    tokens = place.astype(np.uint8 if len(characters) <= 256 else np.int64)[codes]
    return tokens, Vocabulary(level, characters)


# Words ----------------------------------------------------------------------------------------------

PAD, UNKNOWN, START, END = range(4)  # what the first four tokens stand for
_WORD = re.compile(r"\w+", re.UNICODE)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; what is neither letter nor digit separates them."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Words:
    """The most frequent words of some texts, the most frequent first (of equal ones by the alphabet)."""

    listed: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], most: int) -> Words:
        """Return at most so many words of texts."""
        counts = Counter(word for text in texts for word in words_of(text))
        order = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(order[:most]))

    def __len__(self) -> int:
        """Return the number of tokens: the words, and four that mark."""
        return len(self.listed) + 4

    def tokens(self, texts: Iterable[str], length: int) -> np.ndarray:
        """Return int64 (N, length): a start, the first length - 2 words, an end, and padding."""
        places = {word: j + 4 for j, word in enumerate(self.listed)}
        texts = list(texts)
        out = np.full((len(texts), length), PAD, np.int64)
        for row, text in zip(out, texts, strict=True):
            own = [places.get(word, UNKNOWN) for word in words_of(text)[: max(0, length - 2)]]
            marked = [START, *own, END][:length]
            row[: len(marked)] = marked
        return out

    def shares(self, texts: Iterable[str]) -> np.ndarray:
        """Return float32 (N, words): how often each known word occurs, over all words of its text."""
        places = {word: j for j, word in enumerate(self.listed)}
        texts = list(texts)
        out = np.zeros((len(texts), len(self.listed)), np.float32)
        for row, text in zip(out, texts, strict=True):
            own = words_of(text)
            for word in own:
                if word in places:
                    row[places[word]] += 1 / len(own)
        return out
