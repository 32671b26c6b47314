"""Text as sequences of tokens, each with its next token as target."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.errors import nearest
from raybench.core.limits import check_fits
from raybench.data.catalogue import TEXTS, find, folder, there_in
from raybench.data.examples import Examples, Pair
from raybench.data.files import DATASET_KEY, cached, content, data_error, input_errors, path_of

LEVELS = ("byte", "character")
EXTRA = "pip install 'raybench[text]'"
Level = str | Mapping[str, int]
CODES = 0x110000  # of Unicode


def text(
    name_or_path: str | os.PathLike[str],
    length: int,
    level: Level = "character",
    test_share: float = 0.1,
    tokenizer: str | None = None,
) -> Pair:
    """Return the sequences of a text: inputs (N, length) and, one place later, targets (N, length).

    A name is a file ``<data folder>/text/<name>.txt[.bz2|.gz|.xz]``; a path a text file, plain or with one of those
    endings. level ``character``: UTF-8, the vocabulary is the characters that occur; ``byte``: any file, 256 tokens;
    ``{"bpe": n}``: n pairs of bytes that are frequent in all but the test share, joined by the library tokenizers.
    tokenizer: a ``tokenizer.json`` of that library, in place of level. Sequences are consecutive and share no input:
    sequence i starts at token i * length, and the tokens left over at the end are dropped. The last ``test_share`` of
    them is the test part (None for 0), so the model is tested on text after all that it has learned from.

    Raises InputError for an unknown name, a file that is missing, damaged, too large or, by characters,
    not UTF-8, a text too short for the length or for two parts, and an unknown level.
    """
    file, name = _file_of(name_or_path)
    if tokenizer is not None:
        tokens, distinct = _tokens((file, Path(tokenizer).expanduser()), "file", 0, 0.0)
    elif isinstance(level, Mapping):
        ((word, size),) = level.items()
        tokens, distinct = _tokens((file,), word, size, test_share)
    else:
        tokens, distinct = _tokens((file,), level, 0, 0.0)
    count = max(len(tokens) - 1, 0) // length
    if count == 0:
        what = (
            f"{name} has {len(tokens):,} tokens, and a sequence of length {length:,} needs one more"
        )
        raise data_error(what, f"the length may be at most {len(tokens) - 1:,}")
    tests = round(count * test_share)
    if test_share > 0 and not 0 < tests < count:
        what = f"a test_share of {test_share:g} of {count:,} sequences leaves a part empty"
        raise data_error(what, "use a smaller length, or test_share 0")
    end = count * length
    check_fits(DATASET_KEY, f"{file}: targets", 8 * end, "take a shorter text")
    inputs, targets = (tokens[at : at + end].reshape(count, length) for at in (0, 1))
    train, test = (
        Examples.of(
            name, inputs[rows], targets[rows], classes=distinct, source=str(file), kind="text"
        )
        for rows in (slice(count - tests), slice(count - tests, count))
    )
    return Pair(train, test if tests else None)


def _file_of(name_or_path: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the file that is meant and the name of the data."""
    text, path = os.fspath(name_or_path), path_of(name_or_path)
    if path is not None:
        if not path.is_file():
            what = f"{text} is a folder" if path.is_dir() else f"no file {text}"
            raise data_error(what, "give a known name, or the path of a text file")
        return path.absolute(), path.name
    if (file := find("text", text)) is not None:
        return file, text
    remedy = f"put {text}.txt (or with .bz2, .gz or .xz behind it) into {folder() / 'text'}"
    if text in TEXTS:
        raise data_error(f"no file of the text {text}", remedy)
    names = {name.split(".txt")[0] for name in there_in("text") if ".txt" in name}
    fix = f"{nearest(text, names.union(TEXTS))}; or give a path, or {remedy}"
    raise data_error(f"unknown text {text!r}", fix)


@cached(4)
def _tokens(files: tuple[Path, ...], level: str, size: int, share: float) -> tuple[np.ndarray, int]:
    """Return all tokens of a file, (T,), uint8 where the vocabulary allows and else int64; and its size."""
    if level not in (*LEVELS, "file") and not (level == "bpe" and size):
        fix = f"{nearest(str(level), LEVELS)}; or {{bpe: 2048}}"
        raise data_error(f"unknown level {level!r}", fix)
    file, raw = files[0], content(files[0])
    if level == "byte":
        return np.frombuffer(raw, np.uint8), 256
    check_fits(DATASET_KEY, f"{file} as characters", 8 * len(raw), "use level byte")
    try:
        whole = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"{file} is not UTF-8 text: byte {error.start:,} is {raw[error.start]:#04x}"
        raise data_error(what, "save it as UTF-8, or use level byte") from error
    if level in ("bpe", "file"):
        return _pieces(whole, size, share, files[1:])
    codes = np.frombuffer(whole.encode("utf-32-le"), "<u4")
    # A table of all of Unicode makes this linear: sorting the text would take longer than reading it.
    occurs = np.zeros(CODES, bool)
    occurs[codes] = True
    distinct, place = int(occurs.sum()), np.cumsum(occurs) - 1
    return place.astype(np.uint8 if distinct <= 256 else np.int64)[codes], distinct


def _pieces(whole: str, size: int, share: float, files: tuple[Path, ...]) -> tuple[np.ndarray, int]:
    """Return the tokens of a text by the library tokenizers, and the size of the vocabulary, line after line.

    files: a tokenizer.json; without one, a byte-level BPE of so many tokens is learnt from all but the last share.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise data_error("bpe needs the package tokenizers", f"{EXTRA}, or level byte") from error
    lines = whole.splitlines(keepends=True)
    if files:
        with input_errors("problem.tokenizer", f"cannot read {files[0]}", "a tokenizer.json"):
            coder = Tokenizer.from_file(str(files[0]))
    else:
        coder = Tokenizer(models.BPE())
        coder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=alphabet, show_progress=False
        )
        coder.train_from_iterator(
            whole[: round(len(whole) * (1 - share))].splitlines(True), trainer
        )
    encoded = coder.encode_batch(lines, add_special_tokens=False)
    ids = np.concatenate([np.asarray(line.ids, np.int64) for line in encoded])
    return ids, coder.get_vocab_size()
