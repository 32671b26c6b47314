"""What compressors cost in time and bytes, beside a copy of the same vector in the same run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from raybench import api
from raybench.compressors import Compressor, unpack
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.streams import stream
from raybench.spec import sections
from raybench.testing import claims
from raybench.testing.compressors import examples, label_of

if TYPE_CHECKING:
    import pandas as pd

ACTIONS = ("compress", "decode", "pack", "unpack")
COLUMNS = (
    *("operator", "rows", "d", "dtype", "copy_s", *ACTIONS, "error", "bytes", "packed", "bits"),
    *("repeats", "left_out", "bits_each", "of_dense"),
)
USUAL = (
    *("identity", "top_k:k=1%", "top_k:k=0.1%", "dgc:k=0.1%", "rand_k:k=1%", "sign", "scaled_sign"),
    *("one_bit", "natural", "dithering", "qsgd", "terngrad", "natural_dithering"),
    *("fp16", "bf16", "int8", "nf4", "mxfp8", "mxfp4", "power_step:rank=4"),
    *("top_k_natural:k=1%", "chain"),
)
SHARE = "1%"  # of a count that is required and not given
PROBES = (1 << 14, 1 << 17, 1 << 20)  # coordinates from which a long vector's time is guessed
PROBE_ROWS = (2, 16, 128)
TRIES = 3  # of a probe, of which the best counts
BUSY = 0.5  # load per core from which times are in doubt
STEEPEST = 1.5  # time grows like d^1.5 at most: the SVD of a square matrix


@dataclass
class ActionClock:
    """The best seconds of every action; on a GPU an action ends when the device has done it."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    best: dict[Any, float] = field(default_factory=dict)

    def __call__(self, key: Any, action: Callable[[], Any]) -> Any:
        self._wait()
        begin = perf_counter()
        result = action()
        self._wait()
        self.best[key] = min(self.best.get(key, math.inf), perf_counter() - begin)
        return result

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def named(text: str) -> tuple[str, Compressor]:
    """Return the label and compressor of ``top_k:k=1%``; what it requires and lacks is filled in.

    A missing count is 1%, any other required parameter its simplest value. Raises InputError for a
    wrong name or value.
    """
    stated = sections.parse_short_form(text, "compressor")
    entry = registry.lookup("compressor", stated.pop("name"))
    simple = next(iter(examples(entry).values()))
    missing = {
        name: SHARE if param.kind == "count" else simple[name]
        for name, param in entry.params.items()
        if param.default is registry.REQUIRED and name not in stated
    }
    label = label_of(entry.name, stated | missing) if missing else text
    return label, api.compressor(text, **missing)


def measure(
    operators: Iterable[str] | Mapping[str, Compressor],
    x: Tensor,
    repeats: int = 10,
    limit: float = 5.0,
) -> pd.DataFrame:
    """Return the figures of every compressor on x (*lead, d), float32 or float64: a row each, in order.

    All compressors and the copy take turns, ``repeats`` times, and the best time of each counts; what
    compiles is not counted. Messages are decoded into one buffer, by the stream that made them (a
    seeded support is drawn once). limit: seconds spent on a compressor; one whose single call would
    take longer is left out, with the reason, as is one whose parameters do not fit. Raises InputError for
    a wrong name, TypeError and ValueError where ``compress`` would.

    ``COLUMNS``: copy_s: seconds of ``buffer.copy_(x)``. compress, decode, pack, unpack: best times over copy_s.
    error: ||C(x) - x||^2 / ||x||^2 of one draw, the mean over rows. bytes: payload of all rows; packed: with the
    header; bits: modelled, bits_each per coordinate; of_dense: bytes over those of x. left_out: why nothing was
    measured; the figures are then missing.
    """
    import pandas as pd

    chosen = operators if isinstance(operators, Mapping) else dict(map(named, operators))
    x, repeats = x.detach().contiguous(), max(1, repeats)
    clock, buffer, shape = ActionClock(x.device), torch.empty_like(x), tuple(x.shape)
    head = {"rows": math.prod(shape[:-1]), "d": shape[-1], "repeats": 0, "left_out": ""}
    head["dtype"] = str(x.dtype).removeprefix("torch.")
    rows: dict[str, dict[str, Any]] = {name: {"operator": name, **head} for name in chosen}
    fitted: dict[str, Compressor] = {}

    def lap(name: str, op: Compressor, turn: int) -> tuple[Any, bytes]:
        source = stream(turn, x.device).spread(shape[:-1])
        message = clock((name, "compress"), lambda: op.compress(x, source))
        clock((name, "decode"), lambda: message.decode(out=buffer))
        data = clock((name, "pack"), message.pack)
        clock((name, "unpack"), lambda: unpack(data, shape))
        return message, data

    for name, op in chosen.items():
        try:
            op = op.bind(shape[-1], n=shape[-2] if x.ndim > 1 else 1).compressor
            affordable(op, x, limit, "a call", "raise the limit")
        except InputError as error:
            rows[name]["left_out"] = in_a_line(error)
            continue
        message, data = lap(name, op, 0)
        size = int(torch.as_tensor(message.nbytes).expand(message.lead).sum())
        bits = int(message.bits.sum())
        rows[name] |= {
            "error": relative_error(buffer, x),
            "bytes": size,
            "packed": len(data),
            "bits": bits,
            "bits_each": bits / x.numel(),
            "of_dense": size / x.nbytes,
        }
        fitted[name] = op
    clock.best.clear()  # the first turn compiled, and met memory that was not there yet
    spent = dict.fromkeys(fitted, 0.0)
    for turn in range(1, repeats + 1):
        for name, op in fitted.items():
            clock("copy", lambda: buffer.copy_(x))
            if spent[name] <= limit:
                began = perf_counter()
                lap(name, op, turn)
                spent[name] += perf_counter() - began
                rows[name]["repeats"] = turn
        clock("copy", lambda: buffer.copy_(x))
    for name in fitted:
        copy = rows[name]["copy_s"] = clock.best["copy"]
        rows[name] |= {action: clock.best[name, action] / copy for action in ACTIONS}
    return pd.DataFrame(rows.values(), columns=list(COLUMNS))


def in_a_line(error: InputError) -> str:
    """Return what an error says, in one line."""
    return "; ".join(line.strip(" :") for line in str(error).splitlines())


def relative_error(value: Tensor, x: Tensor) -> float:
    """Return the mean over rows of ||value - x||^2 / ||x||^2, in float64; 0 of a zero row that stays zero."""
    return float(claims.relative_error(value.double(), x.double()).nan_to_num(nan=0.0).mean())


def affordable(op: Compressor, x: Tensor, limit: float, what: str, fix: str = "") -> None:
    """Raise InputError if a message of x would take longer than ``limit`` seconds, as far as pieces of x tell.

    Longer pieces are tried only while a time proportional to the length keeps to the limit; a small x is not tried.
    """
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) > PROBE_ROWS[0]:
        pieces = [rows[:m] for m in PROBE_ROWS if 2 * m < len(rows)]
    else:
        pieces = [rows[:1, :m] for m in PROBES if 2 * m < rows.shape[1]]

    def decoded(piece: Tensor) -> Tensor:
        return op.compress(piece, source).decode()

    source, guess, last, length = stream(0, x.device), 0.0, 0.0, 0
    for piece in pieces if rows.numel() >= PROBES[0] else ():
        clock, compress = ActionClock(x.device), partial(decoded, piece.contiguous())
        try:
            for _ in range(TRIES):
                clock("", compress)
        except InputError:  # fixed to its own dimension
            break
        took, rest = clock.best[""], rows.numel() / piece.numel()
        power = math.log(took / last) / math.log(piece.numel() / length) if last else 1.0
        guess, last, length = took * rest ** min(max(power, 1.0), STEEPEST), took, piece.numel()
        if took * rest > limit:
            break
    if guess > limit:
        raise InputError.of("", f"{what} takes about {guess:.0f} s", fix)


def busy() -> str:
    """Return a warning where others use this machine's cores, else nothing; ask before measuring."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= BUSY * cores:
        return ""
    return f"the machine is busy (load {load:.1f} on {cores} cores): the times are in doubt"
