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
from raybench.data.files import DATASET_KEY, cached, content, data_error, file_of, input_errors

LEVELS = ("byte", "character")
EXTRA = "pip install 'raybench[text]'"
Level = str | Mapping[str, int]


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
    tokenizer: a ``tokenizer.json`` of that library, in place of level. Sequence i starts at token i * length, and the
    tokens left over at the end are dropped. The last ``test_share`` of the sequences is the test part (None for 0).

    Raises InputError for an unknown name, a file that is missing, damaged, too large or, by characters,
    not UTF-8, a text too short for the length or for two parts, and an unknown level.
    """
    file, name = _file_of(name_or_path)
    if tokenizer is not None:
        tokens, distinct = _tokens((file, Path(tokenizer).expanduser()), "file", 0, 0.0)
    else:
        ((word, size),) = level.items() if isinstance(level, Mapping) else [(level, 0)]
        tokens, distinct = _tokens((file,), word, size, test_share if size else 0.0)
    count = max(len(tokens) - 1, 0) // length
    if count == 0:
        what = f"{name} has {len(tokens):,} tokens, and a sequence needs one more than its length"
        raise data_error(what, f"the length may be at most {len(tokens) - 1:,}")
    tests = round(count * test_share)
    if test_share > 0 and not 0 < tests < count:
        what = f"a test_share of {test_share:g} of {count:,} sequences leaves a part empty"
        raise data_error(what, "use a smaller length, or test_share 0")
    end = count * length
    check_fits(DATASET_KEY, f"{file}: targets", 8 * end, "take a shorter text")
    inputs, targets = (tokens[at : at + end].reshape(count, length) for at in (0, 1))
    rest = {"classes": distinct, "source": str(file), "kind": "text"}
    parts = (slice(count - tests), slice(count - tests, count))
    train, test = (Examples.of(name, inputs[rows], targets[rows], **rest) for rows in parts)
    return Pair(train, test if tests else None)


def _file_of(name_or_path: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the file that is meant and the name of the data."""
    text = os.fspath(name_or_path)
    if path := file_of(text, "give a known name, or the path of a text file"):
        return path, path.name
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
    import pandas as pd

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
    # a hash table is linear: to sort the text would take longer than to read it
    tokens, distinct = pd.factorize(np.frombuffer(whole.encode("utf-32-le"), "<u4"), sort=True)
    return tokens.astype(np.uint8 if len(distinct) <= 256 else np.int64), len(distinct)


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
        options: Any = {"initial_alphabet": alphabet, "show_progress": False}
        learnt = whole[: round(len(whole) * (1 - share))].splitlines(keepends=True)
        coder.train_from_iterator(learnt, trainers.BpeTrainer(vocab_size=size, **options))
    encoded = coder.encode_batch(lines, add_special_tokens=False)
    ids = np.concatenate([np.asarray(line.ids, np.int64) for line in encoded])
    return ids, coder.get_vocab_size()
