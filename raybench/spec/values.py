"""One raw value of a sweep file, typed as its parameter asks for; values in words, for messages; files by their names."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from raybench.core.errors import Complaint, InputError, cut, nearest
from raybench.core.limits import digest_of
from raybench.core.registry import Param

Complaints = list[Complaint]
NUMERIC_KINDS = ("count", "number", "integer")


class Wrong(ValueError):
    """A value that is not allowed: what is wrong, and the fix where the parameter's own is not it."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def tidy(value: object) -> object:
    """Return an untyped number so that 1 and 1.0 are one value."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def scalar(param: Param, value: object) -> object:
    """Return ``value`` typed as ``param`` asks for.

    Numbers become floats, integral floats integers where integers are wanted, shares text such as
    ``10%``. Raises Wrong.
    """
    if value is None:
        if param.default is None:
            return None
        raise Wrong("no value is given")
    if isinstance(value, str) and value in param.words:
        return value
    if isinstance(value, (list, Mapping)):
        raise Wrong(f"expected one value, not {show(value)}")
    return _TYPES[param.kind](param, value)


def _number(param: Param, value: object) -> float:
    if isinstance(value, str) and param.low >= 0 and param.high <= 1:
        share = _percent(value)
        value = value if share is None else float(share)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _mistyped(param, value, "a number")
    try:
        number = float(value) + 0.0  # adding 0.0 makes -0.0 and 0.0 one value, with one id
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Wrong(f"{show(value)} is not a finite number")
    _bounds(param, number, value)
    return number


def _integer(param: Param, value: object) -> int:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _mistyped(param, value, "an integer")
    if abs(value) >= 2**63:
        raise Wrong(f"{show(value)} is out of range")
    _bounds(param, value, value)
    return value


def _count(param: Param, value: object) -> int | str:
    share = _percent(value) if isinstance(value, str) else None
    if isinstance(value, float) and 0 < value < 1:
        share = Decimal(repr(value))
    if share is None:
        return _integer(param, value)
    if not 0 < share <= 1:
        raise Wrong(f"{show(value)} is not a share above 0% and at most 100%")
    return f"{(share * 100).normalize():f}%"


def _percent(text: str) -> Decimal | None:
    """Return the share that ``text`` says (``10%`` is 0.1), None where it is none."""
    body = text.strip().removesuffix("%").strip()
    digits = body.removeprefix("-").replace(".", "", 1)
    if not text.strip().endswith("%") or not (digits.isascii() and digits.isdigit()):
        return None
    return Decimal(body) / 100 if len(body) <= 30 else None


def _choice(param: Param, value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and text in param.choices:
        return text
    if isinstance(text, str) and text in param.tags:
        raise Wrong(f"{text} needs a value", f"write {{{text}: {allowed(param.tags[text])}}}")
    names = [*param.choices, *param.words, *param.tags]
    raise Wrong(f"unknown value {show(value)}", nearest(str(value), names))


def _flag(param: Param, value: object) -> bool:
    if not isinstance(value, bool):
        raise _mistyped(param, value, "true or false")
    return value


def _text(param: Param, value: object) -> str:
    if not isinstance(value, str):
        raise _mistyped(param, value, "text")
    if not value.strip():
        raise Wrong("the text is empty")
    return value


_TYPES = {
    "count": _count,
    "number": _number,
    "integer": _integer,
    "choice": _choice,
    "flag": _flag,
    "text": _text,
}


def _mistyped(param: Param, value: object, wanted: str) -> Wrong:
    what = f"expected {wanted}, not {show(value)}"
    if isinstance(value, str) and param.kind in NUMERIC_KINDS:
        near = nearest(value, param.words) if param.words else ""
        if near.startswith("did you mean"):
            return Wrong(what, near)
        if ".." in value or "^" in value:
            return Wrong(what, RANGE_FORM)
    return Wrong(what)


def _bounds(param: Param, number: float, value: object) -> None:
    low = number <= param.low if param.open_low else number < param.low
    if low or number > param.high:
        raise Wrong(f"{show(value)} is out of range")


def allowed(param: Param) -> str:
    """Return what ``param`` allows, in words for a message."""
    ways = {
        "count": f"an integer >= {param.low:g}, or a share of {param.of} such as 10% (0% < share <= 100%)",
        "flag": "true or false",
        "text": "text",
        "list": "a list",
        "operator": "a compressor by name, as top_k:k=1%, or as a mapping {name: top_k, k: 1%}",
    }
    text = ways.get(param.kind, "")
    if param.kind in ("number", "integer"):
        text = "a number" if param.kind == "number" else "an integer"
        limits = []
        if param.low > -math.inf:
            limits.append(f"{'>' if param.open_low else '>='} {param.low:g}")
        if param.high < math.inf:
            limits.append(f"<= {param.high:g}")
        text = " ".join([text, " and ".join(limits)]).strip()
    alternatives = [text] if text else []
    alternatives += [*param.choices, *param.words]
    if param.tags:
        alternatives.append(tags_of(param))
    return " | ".join(alternatives)


def tags_of(param: Param) -> str:
    """Return the one-key mappings that ``param`` allows, in words."""
    return " | ".join(f"{{{tag}: {allowed(inner)}}}" for tag, inner in param.tags.items())


def show(value: object, *, bare: bool = False) -> str:
    """Return ``value`` as YAML would spell it, shortened."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif value is None:
        text = "null"
    elif isinstance(value, str):
        text = value if bare else repr(value)
    elif isinstance(value, list):
        text = "[" + ", ".join(show(item, bare=bare) for item in value[:12]) + "]"
    elif isinstance(value, Mapping):
        pairs = (f"{k}: {show(v, bare=bare)}" for k, v in list(value.items())[:6])
        text = "{" + ", ".join(pairs) + "}"
    elif isinstance(value, int) and abs(value) >= 10**20:
        text = f"an integer of {value.bit_length()} bits"
    else:
        text = str(value)
    return cut(text, 60)


# Ranges of numbers: ``a..b`` (integers, both ends), ``2^a..2^b`` (powers) and ``2^a`` -------------


MAX_VALUES = 100_000
MAX_EXPONENT = 1000
RANGE_FORM = "ranges are written a..b or 2^a..2^b"

_RANGE = re.compile(
    r"(?:(\d{1,6})\^)?([-+]?\d{1,18})(?:\s*\.\.\s*(?:(\d{1,6})\^)?([-+]?\d{1,18}))?", re.ASCII
)


def parse_range(text: str) -> list[int | float] | None:
    """Return the numbers ``text`` stands for, or None where it is no range.

    Powers with a negative exponent are floats, correctly rounded; all others integers. Raises
    Wrong for a range that is empty or too long, and for powers of two different bases.
    """
    text = text.strip()
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    base, first, base_of_last, last = match.groups()
    plain, single = base is None, last is None
    if (plain and single) or (not single and plain != (base_of_last is None)):
        return None
    if not single and base != base_of_last:
        raise Wrong(f"{text!r} mixes powers of {base} and {base_of_last}", RANGE_FORM)
    numbers = range(int(first), int(first if single else last) + 1)
    if not numbers:
        raise Wrong(f"the range {text!r} is empty: {first} is above {last}", RANGE_FORM)
    if len(numbers) > MAX_VALUES:
        raise Wrong(f"the range {text!r} has more than {MAX_VALUES:,} values", RANGE_FORM)
    return list(numbers) if plain else [_power(int(base), e, text) for e in numbers]


def _power(base: int, exponent: int, text: str) -> int | float:
    if abs(exponent) > MAX_EXPONENT or base < 2:
        what = f"{text!r}: the base is at least 2, exponents at most {MAX_EXPONENT}"
        raise Wrong(what, RANGE_FORM)
    return base**exponent if exponent >= 0 else float(Fraction(base) ** exponent)


# Files that a sweep names: where they are, and what they hold -------------------------------------


FILES = ("dataset", "test_set", "init_from", "model", "loss", "metrics", "tokenizer")
"""Parameters of a problem that may name a file, whose content then takes its name's place in ids."""


def parted(text: str) -> tuple[str, str]:
    """Return the file that a text names and what follows: ``own.py`` and ``:function``."""
    file, colon, rest = text.rpartition(".py:")
    return (f"{file}.py", f":{rest}") if colon else (text, "")


def is_path(text: str) -> bool:
    """Tell whether a data set is given by its path: a separator in it, or an existing file."""
    if "/" in text or os.sep in text:
        return True
    file = locate(text)
    return file is not None and file.is_file()


def locate(text: str, *folders: Path) -> Path | None:
    """Return the file or folder ``text`` names in the first of ``folders`` that has it, else None.

    Without folders the working directory is meant.
    """
    for folder in folders or (Path(),):
        try:
            path = folder / Path(text).expanduser()
            if path.exists():
                return path
        except (OSError, ValueError, RuntimeError):  # the text cannot be the name of a file
            continue
    return None


def content_hash(path: str, where: str) -> str:
    """Return the SHA-256 (hex) of a file's decompressed content, or of all files of a folder.

    Raises InputError, naming the key ``where``, if it cannot be read.
    """
    file = Path(path).expanduser()
    try:
        if file.is_dir():
            whole = hashlib.sha256()
            for part in sorted(p for p in file.rglob("*") if p.is_file()):
                name = part.relative_to(file).as_posix()
                whole.update(f"{name}\0{digest_of(part, where)}\n".encode(errors="surrogateescape"))
            return whole.hexdigest()
        return digest_of(file, where)
    except OSError as error:
        raise InputError.of(where, f"cannot read {path}: {error}", "is the file whole?") from error
