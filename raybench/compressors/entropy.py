"""Entropy coding: the symbols of another compressor's messages by a range coder, with the frequencies sent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Composed, Compressor, Delegated, Made
from raybench.core.compiled import compiled
from raybench.core.counts import Counts
from raybench.core.errors import InputError
from raybench.core.registry import Operator, compressor
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import KINDS, Message
from raybench.wire.fields import DTYPES, Header, natural

PLAIN, BYTES, WORDS = 0, 1, 2  # the first byte of a row: not coded, frequencies of 1 or 2 bytes
WIDEST = 1 << 17  # symbols further apart are not coded
WORTH_A_GUESS = 4096  # symbols from which it pays to guess whether coding them does
TEMPLATES = 8


def library() -> ModuleType:
    """Return the module ``constriction``, the range coder. Raises InputError where it is missing."""
    try:
        import constriction
    except ImportError as error:
        what = "needs the package constriction"
        raise InputError.of("entropy_coded", what, "pip install raybench[entropy]") from error
    return constriction


@dataclass(eq=False)
class CodedMessage(Message):
    """A leaf with symbols (``codes``) whose rows travel entropy-coded; all else of it as it was.

    codes (*lead, d): the leaf's; side (*lead, S) uint8: the bytes of its other arrays (scales). of:
    the leaf's kind and header, and ``size``, the bytes of its own row. A row is coded with its own
    static model: [mode][side][first symbol, number][frequency of each][range-coded symbols], numbers
    as LEB128; or [0][the leaf's own row] where that is not longer. So a row is never more than one
    byte longer than the leaf's. Rows are coded when their size is first asked for, and once.
    """

    codes: Tensor
    side: Tensor
    of: Header
    _rows: list[bytes] | None = field(default=None, init=False, repr=False)
    kind = "coded"
    tensors = ("codes", "side")
    static = ("of",)

    @property
    def lead(self) -> torch.Size:
        return self.codes.shape[:-1]

    @property
    def inner(self) -> Message:
        """The message that is coded, scale included."""
        template, cut, changed = template_of(self.of), 0, {"codes": self.codes}
        for name in _others(template):
            like = getattr(template, name)
            data = self.side[..., cut : cut + like.numel() * like.itemsize]
            changed[name] = bitpack.from_bytes(data, like.dtype)
            cut += data.shape[-1]
        return replace(template, **changed, scale=self.scale)  # type: ignore[arg-type]

    def to(self, dtype: torch.dtype) -> Message:
        message = coded(self.inner.to(dtype))
        assert message is not None
        return message if self.present is None else message.masked(self.present)

    def _write(self, out: Tensor) -> None:
        self.inner.decode(out=out)

    def _cost(self) -> Counts:
        values = template_of(self.of)._cost().values
        return Counts(values=values, raw=8 * (self._size() - values * self.dtype.itemsize))

    def _size(self) -> Tensor:
        sizes = torch.tensor([len(row) for row in self._coded()], dtype=torch.int64)
        return sizes.view(self.lead).to(self.device)

    def _payload(self) -> Tensor:
        rows = self._coded()
        out = np.zeros((len(rows), max(map(len, rows), default=0)), np.uint8)
        for to, row in zip(out, rows, strict=True):
            to[: len(row)] = np.frombuffer(row, np.uint8)
        return torch.from_numpy(out).view(*self.lead, out.shape[1]).to(self.device)

    def _coded(self) -> list[bytes]:
        if self._rows is None:
            inner = replace(self.inner, scale=1.0)
            plain = inner._payload().reshape(-1, self.of["size"]).cpu().numpy()
            side = self.side.reshape(len(plain), self.side.shape[-1]).cpu().numpy()
            codes = _symbols(self.codes).reshape(len(plain), self.codes.shape[-1])
            ends = codes.min(1).tolist(), codes.max(1).tolist()
            rows = zip(codes, *ends, side, plain, strict=True)
            self._rows = [_row(c, a, b, s.tobytes(), p.tobytes()) for c, a, b, s, p in rows]
        return self._rows

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> CodedMessage:
        of, lead = known["of"], payload.shape[:-1]
        d, size, template = known["d"], natural(of, "size"), template_of(of)
        alike = (of["d"], of["dtype"], template._size()) == (d, known["dtype"], size)
        if not alike or coded(template) is None:
            raise ValueError("not the header of a message that can be coded")
        codes = torch.empty(*lead, d, dtype=template.__dict__["codes"].dtype)
        side = torch.empty(*lead, len(side_of(template)), dtype=torch.uint8)
        data = payload.reshape(lead.numel(), payload.shape[-1]).cpu().numpy()
        flat, beside = codes.view(-1, d), side.view(len(data), side.shape[-1]).numpy()
        into = _symbols(flat)  # over the same memory
        plain = np.flatnonzero(data[:, 0] == PLAIN) if data.shape[1] else np.arange(len(data))
        if len(plain):
            room = np.zeros((len(plain), size), np.uint8)  # an absent row may have been cut
            held = data[plain, 1 : 1 + size]
            room[:, : held.shape[1]] = held
            leaf = KINDS[of["kind"]].read(of, torch.from_numpy(room), None)
            flat[plain], beside[plain] = leaf.__dict__["codes"], side_of(leaf).numpy()
        cut, most = 1 + beside.shape[1], np.iinfo(into.dtype).max
        for r in np.setdiff1d(np.arange(len(data)), plain):
            row = data[r]
            beside[r] = row[1:cut]
            symbols = _decoded(row[cut:].tobytes(), int(row[0]), d)
            if d and int(symbols.max()) > most:
                raise ValueError("a symbol that is none")
            into[r] = symbols
        at = payload.device
        dtype = DTYPES[known["dtype"]]
        return cls(d, dtype, codes.to(at), side.to(at), of, scale=known["scale"])

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        # a row of equal symbols takes a few bytes however long it is; symbols are decoded as int32,
        # then looked up as int64
        return 10 * width + 16 * known["d"] + 2 * natural(known["of"], "size")

    def takes(self, sizes: Tensor, width: int) -> bool:
        # every row was decoded; to compare its size all would have to be coded again
        return True


def coded(leaf: Message) -> CodedMessage | None:
    """Return a leaf's message entropy-coded; None where it has no integer symbols per coordinate."""
    codes = getattr(leaf, "codes", None)
    size = leaf._size() if isinstance(codes, Tensor) else None
    if codes is None or codes.dtype.is_floating_point or codes.shape[-1] != leaf.d:
        return None
    if not isinstance(size, int) or leaf.stream is not None:
        return None
    of = {"kind": leaf.kind, **leaf.known(), "scale": 1.0, "size": size}
    return CodedMessage(
        leaf.d, leaf.dtype, codes, side_of(leaf), of, scale=leaf.scale, present=leaf.present
    )


def side_of(leaf: Message) -> Tensor:
    """Return the bytes (*lead, S) of all arrays of a leaf but its symbols."""
    parts = [bitpack.to_bytes(getattr(leaf, name)) for name in _others(leaf)]
    parts = [part for part in parts if part.shape[-1]]
    if not parts:
        return torch.empty(*leaf.lead, 0, dtype=torch.uint8, device=leaf.device)
    return torch.cat(parts, -1)


def _others(leaf: Message) -> list[str]:
    return [name for name in leaf.tensors if name != "codes"]


def template_of(of: Header) -> Message:
    """Return a leaf of that header with all bytes 0, without leading axes: its arrays' shapes and types."""
    return _template(json.dumps(of, sort_keys=True))


@lru_cache(maxsize=TEMPLATES)
def _template(text: str) -> Message:
    of = json.loads(text)
    return KINDS[of["kind"]].read(of, torch.zeros(of["size"], dtype=torch.uint8), None)


def _symbols(codes: Tensor) -> np.ndarray:
    """Return codes as unsigned integers of the same width."""
    raw = codes.detach().cpu().contiguous().numpy()
    return raw.view(f"u{raw.itemsize}")


# One row -----------------------------------------------------------------------------------------


@compiled
def _survey(symbols, first, counts, ranks):
    """Count the symbols and write the place of each among those used; return how many, and the most."""
    for j in range(symbols.shape[0]):
        counts[symbols[j] - first] += 1
    used, most, rank = 0, 0, np.empty(counts.shape[0], np.int32)
    for i in range(counts.shape[0]):
        rank[i] = used
        used += counts[i] > 0
        most = max(most, counts[i])
    for j in range(symbols.shape[0]):
        ranks[j] = rank[symbols[j] - first]
    return used, most


def _row(symbols: np.ndarray, first: int, last: int, side: bytes, plain: bytes) -> bytes:
    """Return the bytes of a row of symbols from first to last: coded, or as it is where that is shorter."""
    best = bytes([PLAIN]) + plain
    if last - first >= WIDEST:
        return best
    counts, ranks = np.zeros(last - first + 1, np.int64), np.empty(len(symbols), np.int32)
    used, most = _survey(symbols, np.uint64(first), counts, ranks)
    mode, table = _cheapest(counts) if most >= 256 else (BYTES, counts)
    head = bytes([mode]) + side + _leb(first) + _leb(len(counts))
    if used == 1:
        return min(head, best, key=len)
    data = table.astype("<u1" if mode == BYTES else "<u2").tobytes()
    frequencies = table[table > 0]
    if len(symbols) >= WORTH_A_GUESS:
        bits = _bits(counts[table > 0], frequencies)
        if len(head) + len(data) + bits / 8 > len(best) + 16:
            return best
    coder = library().stream.queue.RangeEncoder()
    coder.encode(ranks, _model(frequencies))
    return min(head + data + coder.get_compressed().astype("<u4").tobytes(), best, key=len)


def _cheapest(counts: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the mode in which frequencies and symbols take the fewest bits, and the frequencies."""
    used = np.flatnonzero(counts)
    return min(
        ((mode, _table(counts, mode)) for mode in (BYTES, WORDS)),
        key=lambda one: _bits(counts[used], one[1][used]) + 8 * one[0] * len(counts),
    )


def _decoded(data: bytes, mode: int, d: int) -> np.ndarray:
    """Return the d symbols of a coded row, given what follows its side; zeros may follow them."""
    if mode not in (BYTES, WORDS):
        raise ValueError(f"rows of mode {mode} are not known")
    first, at = _unleb(data, 0)
    count, at = _unleb(data, at)
    if not 1 <= count <= WIDEST:
        raise ValueError(f"{count} symbols")
    if count == 1:
        return np.full(d, first, np.int64)
    table = np.frombuffer(data, "<u1" if mode == BYTES else "<u2", count, at).astype(np.int64)
    rest = data[at + count * mode :]
    words = np.frombuffer(rest, "<u4", len(rest) // 4).astype(np.uint32)
    used = table.nonzero()[0]
    coder = library().stream.queue.RangeDecoder(words)
    return (used + first)[coder.decode(_model(table[table > 0]), d)]


def _table(counts: np.ndarray, size: int) -> np.ndarray:
    """Return counts as integers of ``size`` bytes, at least 1 where a symbol occurs."""
    most, room = int(counts.max()), 256**size - 1
    if most <= room:
        return counts
    return np.maximum(np.rint(counts * (room / most)).astype(np.int64), counts > 0)


def _bits(counts: np.ndarray, table: np.ndarray) -> float:
    """Return the bits that symbols of those counts take under a model of those frequencies."""
    return float((counts * (np.log2(table.sum()) - np.log2(table))).sum())


def _model(frequencies: np.ndarray) -> object:
    shares = frequencies / frequencies.sum()
    return library().stream.model.Categorical(shares, perfect=False)


def _leb(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _unleb(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] > 127 and shift < 63:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return number | data[at] << shift, at + 1


@compressor("entropy_coded")
class EntropyCoded(Composed, Delegated):
    """C(x) of another compressor, its symbols entropy-coded by a range coder: same values, fewer bits.

    Each row has a static model: the frequencies of its symbols, rounded to 8 or 16 bits, are sent in
    front and counted; then about d H bits, H the entropy of the row's symbols (x of shape (*lead, d)).
    A row that would be longer is sent as it was, with a byte that says so. The size depends on the
    data; it is that of the bytes, coded when first asked for. Class and constants are those of ``of``.
    Needs the package constriction (``pip install raybench[entropy]``). Raises InputError without it,
    or where ``of`` sends no symbols. Source: Martin 1979 (range coding); Bamler 2022 (constriction).
    """

    of: Made = Operator("dithering", help="a quantiser: it sends levels, exponents or other codes")
    made_of = ("of",)

    def __post_init__(self) -> None:
        library()
        super().__post_init__()

    def encode(self, x: Tensor, stream: Stream) -> Message:
        message = self.part("of").encode(x, stream)
        leaves = message.leaves()
        codes = [coded(leaf) for leaf in leaves]
        if not any(codes):
            fix = "such as dithering, natural, int8 or nf4"
            raise InputError.of("entropy_coded.of", "sends no symbols to code", fix)
        return message.rebuild(
            iter([leaf if new is None else new for leaf, new in zip(leaves, codes, strict=True)])
        )

    def _other(self, d: int) -> tuple[Compressor, int]:
        return self.part("of"), d
