"""What every compressor must hold: its law, its messages, its manners.

``CHECKS`` are functions of a ``Subject`` that raise AssertionError; ``conformance`` runs them all.
A compressor without omega and alpha claims nothing about its error; all else is asked of it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from raybench.compressors import Compressor, Message, Role, unpack
from raybench.core.errors import InputError
from raybench.core.registry import REQUIRED, Entry
from raybench.core.streams import Stream, stream
from raybench.testing import Checks, Finding, NotClaimed, findings, made, subprocess
from raybench.testing.claims import SEED, SIGMAS, Moments, draws_wanted, judge, moments
from raybench.testing.vectors import cells_and_clients, families, gaussian
from raybench.wire.base import PREFIX, packed_bytes

CHECKS = Checks()
DTYPES = (torch.float64, torch.float32)
MOST_SAMPLES = 1 << 18  # of one vector, where a claim is in doubt
MORE_SAMPLES = 1 << 19  # of all such vectors together
FEW, MANY = 64, 20_000  # vectors whose outputs are counted
CLIENTS = 4  # compressors that split their work over the clients are fitted for so many


@dataclass(frozen=True)
class Subject:
    """A compressor and the sizes it is tried at.

    make(d) returns the compressor for dimension d, then fitted for 4 clients; sizes at which its
    parameters do not fit (InputError) are left out, but it must fit the main dimension d. big = 0
    leaves out the large one. samples: draws of each vector, and more where a claim could be 5% too good. seed: of
    these draws.
    """

    make: Callable[[int], Compressor]
    d: int = 24
    dims: tuple[int, ...] = (1, 2, 7, 8, 33)
    samples: int = 60_000
    big: int = 1_000_000
    seed: int = SEED

    def at(self, d: int) -> Compressor | None:
        """Return the compressor for dimension d, None where its parameters do not fit."""
        try:
            op = self.op if d == self.d else self._fitted(d)
            op.compress(gaussian(d))
        except InputError:
            if d == self.d:
                raise
            return None
        return op

    @cached_property
    def op(self) -> Compressor:
        """The compressor for the main dimension."""
        return self._fitted(self.d)

    def _fitted(self, d: int) -> Compressor:
        op = self.make(d)
        return op.bind(d, CLIENTS).compressor if isinstance(op, Compressor) else op

    @cached_property
    def moments(self) -> dict[str, Moments]:
        """The sample moments of the compressor on every family of vectors."""
        op, vectors = self.op, families(self.d)
        count = 1 if op.deterministic else self.samples
        estimates = {name: moments(op, x, count, self.seed) for name, x in vectors.items()}
        draws = {name: draws_wanted(op, self.d, m) for name, m in estimates.items()}
        left = MORE_SAMPLES
        for name in sorted((n for n in draws if draws[n] > count), key=draws.__getitem__):
            more = min(draws[name], MOST_SAMPLES)
            if more <= left:
                left -= more
                estimates[name] = moments(op, vectors[name], more, self.seed)
        return estimates

    @cached_property
    def faults(self) -> dict[str, dict[str, str]]:
        """The claims that do not hold, by where: a family of vectors, and its dimension where nothing is drawn."""
        faults = {name: judge(self.op, self.d, m) for name, m in self.moments.items()}
        if self.op.deterministic:
            for op, d in self.everywhere:
                for name, x in families(d).items():
                    faults[f"{name}, d = {d}"] = judge(op, d, moments(op, x, 1))
        return faults

    @cached_property
    def everywhere(self) -> list[tuple[Compressor, int]]:
        """The compressor and the dimension, for all dimensions that fit."""
        return [(op, d) for d in (self.d, *self.dims) if (op := self.at(d)) is not None]

    @cached_property
    def messages(self) -> list[tuple[Compressor, Tensor, Stream, Message]]:
        """Compressor, x (3, 4, d), stream and message, for all dimensions that fit, in both precisions."""
        result = []
        for op, d in self.everywhere:
            for dtype in DTYPES:
                x, q = gaussian(3, 4, d, dtype=dtype), cells_and_clients(3, 4)
                result.append((op, x, q, op.compress(x, q)))
        return result

    def batch(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Stream]:
        """Return x of 3 cells and 4 clients and streams for it."""
        return gaussian(3, 4, self.d, seed=seed, dtype=dtype), cells_and_clients(3, 4, seed)


# Its law -------------------------------------------------------------------------------------------


@CHECKS
def constants_make_sense(s: Subject) -> None:
    """omega is None or in [0, inf), alpha None or in (0, 1], and roles bind accordingly."""
    for op, d in s.everywhere:
        assert isinstance(op, Compressor), f"{type(op).__name__} is no raybench Compressor"
        omega, alpha = op.omega(d), op.alpha(d)
        assert omega is None or 0 <= omega < math.inf, f"omega({d}) = {omega}"
        assert alpha is None or 0 < alpha <= 1, f"alpha({d}) = {alpha}"
        if omega is not None:
            assert op.bind(d, role=Role.UNBIASED).omega == omega
        if omega is not None or alpha is not None:
            bound = op.bind(d, role=Role.CONTRACTIVE)
            assert bound.alpha is not None, "no alpha in the contractive role"


@CHECKS
def unbiased(s: Subject) -> None:
    """E C(x) = x within 5 standard errors where omega is claimed, by coordinate and along x."""
    _holds(s, "unbiased", s.op.omega(s.d))


@CHECKS
def second_moment_within_omega(s: Subject) -> None:
    """E||C(x) - x||^2 <= omega ||x||^2, within 5 standard errors."""
    _holds(s, "omega", s.op.omega(s.d))


@CHECKS
def contraction_at_least_alpha(s: Subject) -> None:
    """E||C(x) - x||^2 <= (1 - alpha) ||x||^2 for the compressor in the contractive role, within 5 standard errors.

    Exactly where it is deterministic, in every dimension.
    """
    _holds(s, "alpha", s.op.b3(s.d))


@CHECKS
def biased_classes_hold(s: Subject) -> None:
    """B1: alpha ||x||^2 <= E||C(x)||^2 <= beta <E C(x), x>; B2: gamma ||x||^2 <= <E C(x), x> and the same
    of its beta; within 5 standard errors."""
    constants = {"B1": s.op.b1(s.d), "B2": s.op.b2(s.d)}
    _claimed(*constants.values())
    for name, claimed in constants.items():
        if claimed is not None:
            assert claimed[0] >= 0, f"{name} is {claimed}"
            assert claimed[1] > 0, f"{name} is {claimed}"
            _holds(s, name, claimed)


def _claimed(*constants: object) -> None:
    """Raise NotClaimed where none of the constants is claimed."""
    if all(constant is None for constant in constants):
        raise NotClaimed


def _holds(s: Subject, claim: str, constant: object) -> None:
    """Assert that the draws for every family of vectors agree with a claim; raises NotClaimed without a constant."""
    _claimed(constant)
    for where, faults in s.faults.items():
        wrong = faults.get(claim)
        assert wrong is None, f"{wrong} ({where})"


@CHECKS
def output_is_made_of_the_input(s: Subject) -> None:
    """What decodes points along x: E<C(x), x> > 0. Random or constant output does not."""
    if not bool((s.op.compress(s.batch()[0]).bits > 0).any()):
        return  # it sends nothing, and says so
    m = s.moments["gaussian"]
    along, error = (float(v) for v in m.along)
    assert along > SIGMAS * error, f"<C(x), x>/||x|| is {along:.3g} +- {error:.2g} on a Gaussian x"


@CHECKS
def output_fits_its_bits(s: Subject) -> None:
    """b bits have 2^b values: few-bit messages decode to few different vectors, never to x itself."""
    for op, d in s.everywhere:
        for count in (FEW, MANY):
            x = gaussian(count, d, seed=3)
            x = x / x.abs().amax(-1, keepdim=True)  # of one scale, so that only directions differ
            # a seed's share of the output costs no bits
            m = op.compress(x, Stream(stream(0).keys.expand(count)))
            most = float(m.bits.max())
            if d >= 24 and most < 0.9 * 64 * d:
                assert not torch.equal(m.decode(), x), f"returns its input, for {most:.0f} bits"
            if most > math.log2(MANY):  # no more outputs than that can be seen
                break
            different = len(m.decode().unique(dim=0))
            assert different <= 2**most, (
                f"{different} different outputs of {most:.0f} bits, d = {d}"
            )


@CHECKS
def zero_goes_to_zero(s: Subject) -> None:
    """C(0) = 0, exactly, unless the compressor says that it cannot (``zero_to_zero``: a bare sign)."""
    if not s.op.zero_to_zero:
        return
    for op, d in s.everywhere:
        value = op.compress(torch.zeros(2, d, dtype=torch.float64)).decode()
        assert (value == 0).all(), f"C(0) = {value[0].tolist()[:8]} at d = {d}"


@CHECKS
def finite_on_hard_vectors(s: Subject) -> None:
    """No NaN or infinity on zero, one-hot, flat, denormal, tiny and large vectors."""
    for dtype in DTYPES:
        tiny, step = torch.finfo(dtype).tiny, 2.0 ** (-1074 if dtype == torch.float64 else -149)
        for op, d in s.everywhere:
            hard = {**families(d), "zero": torch.zeros(d), "large": families(d)["gaussian"] * 1e15}
            hard["denormal"] = torch.full((d,), step).double()
            hard["around the smallest normal"] = families(d)["gaussian"] * tiny
            x = torch.stack([x.to(dtype) for x in hard.values()])[:, None].expand(-1, 16, d)
            for name, value in zip(hard, op.compress(x).decode(), strict=True):
                assert value.isfinite().all(), f"{name}, {dtype}, d = {d}: {value[0].tolist()[:8]}"


@CHECKS
def non_finite_input_shows(s: Subject) -> None:
    """NaN or infinity is sent as a non-finite number, or not at all, or refused, and no other
    row changes."""
    x, q = s.batch()
    clean = s.op.compress(x, q).decode()
    silent = not bool((s.op.compress(x, q).bits > 0).any())
    for bad in (math.nan, math.inf, -math.inf):
        for where in (slice(None), slice(1, 2)):
            broken = x.clone()
            broken[1, 2, where] = bad
            try:
                decoded = s.op.compress(broken, q).decode()
            except (InputError, ValueError):
                continue
            row = decoded[1, 2]
            shown = ~row.isfinite()
            if where == slice(None):
                assert silent or shown.any(), f"a row of {bad} became {row.tolist()[:8]}"
            assert shown[1] or row[1] == 0, f"{bad} became {row[1].item()}"
            decoded[1, 2] = clean[1, 2]
            assert torch.equal(decoded, clean), f"{bad} in one row changed another"


# The randomness --------------------------------------------------------------------------------


@CHECKS
def determined_by_the_stream(s: Subject) -> None:
    """The same x and stream give the same bytes, whatever the global generators; so does any
    stream, for a compressor that says it is deterministic."""
    x, q = s.batch()
    packed = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            packed.append(s.op.compress(x, q).pack())
    assert packed[0] == packed[1], "two calls with one stream differ"
    if s.op.deterministic:
        values = [s.op.compress(x, q.fold(t)).decode() for t in (1, 2)]
        assert torch.equal(*values), "says deterministic, but depends on the stream"


@CHECKS
def clients_and_rounds_independent(s: Subject) -> None:
    """Errors of two clients (unless ``correlated``) and of two rounds have zero inner product."""
    if s.op.deterministic:
        return
    count = min(s.samples, 20_000)
    x = families(s.d)["gaussian"].expand(count, 2, s.d)
    q = cells_and_clients(count, 2, seed=5)
    rounds = [s.op.compress(x, q.fold(t)).decode() for t in (1, 2)]
    noise = [value - value.mean(0) for value in rounds]
    pairs = {"rounds": noise[0][:, 0] * noise[1][:, 0]}
    if not s.op.correlated:
        pairs["clients"] = noise[0][:, 0] * noise[0][:, 1]
    for name, product in pairs.items():
        inner = product.sum(-1)
        error = inner.std(correction=0) / math.sqrt(count)
        assert inner.mean().abs() <= 5 * error + 1e-12 * x[0, 0].square().sum(), (
            f"errors of two {name} have mean inner product {inner.mean():.3g} +- {error:.2g}"
        )


@CHECKS
def batched_equals_row_by_row(s: Subject) -> None:
    """Row (b, i) of a batch is the message of that row alone."""
    for dtype in DTYPES:
        x, q = s.batch(dtype=dtype)
        value = s.op.compress(x, q).decode()
        for b in range(x.shape[0]):
            for i in range(x.shape[1]):
                row_stream = q[b : b + 1].at(torch.tensor([i]))
                alone = s.op.compress(x[b : b + 1, i : i + 1], row_stream).decode()[0, 0]
                assert torch.equal(alone, value[b, i]), f"row {(b, i)} differs alone, {dtype}"


# Its messages --------------------------------------------------------------------------------------


@CHECKS
def decodes_to_the_shape_of_x(s: Subject) -> None:
    """decode() has x's shape, dtype and device, at any leading shape."""
    for op, d in s.everywhere:
        for dtype in DTYPES:
            for lead in ((), (3,), (2, 3), (2, 3, 2)):
                x = gaussian(*lead, d, dtype=dtype)
                m = op.compress(x)
                assert isinstance(m, Message), f"encode returned {type(m).__name__}"
                value = m.decode()
                assert (value.shape, value.dtype, value.device) == (x.shape, x.dtype, x.device), (
                    f"x is {tuple(x.shape)} {x.dtype}, decoded {tuple(value.shape)} {value.dtype}"
                )
                assert m.lead == x.shape[:-1], f"the message's lead is {tuple(m.lead)}"
                assert m.bits.shape == x.shape[:-1], f"bits have shape {tuple(m.bits.shape)}"


@CHECKS
def packs_and_unpacks_bit_exactly(s: Subject) -> None:
    """unpack(pack()) decodes to the same bits, and so does every row on its own."""
    for op, x, q, m in s.messages:
        data, value, where = m.pack(), m.decode(), f"d = {m.d}, {x.dtype}"
        op.compress(x + 1, q).pack()  # nothing may be remembered beside the bytes
        assert same_bits(unpack(data).decode(), value), f"changed by packing, {where}"
        alone = unpack(m.row(2, 1).pack()).decode()
        assert same_bits(alone, value[2, 1]), f"a row changed by packing, {where}"


@CHECKS
def holds_no_more_than_its_bytes(s: Subject) -> None:
    """A process that has only the packed bytes decodes the same: nothing is sent beside what is booked.

    For messages of a kind of one's own. Those of raybench decode what they unpacked, and nothing else.
    """
    assert_bytes_suffice(m for *_, m in s.messages)


def assert_bytes_suffice(messages: Iterable[Message]) -> None:
    """Assert that another process decodes messages of own kinds, from plug-in files, to the same bits."""
    sent: list[tuple[bytes, Tensor, str]] = []
    files: set[str] = set()
    for m in messages:
        sources = subprocess.files_of(m)
        if sources:
            files.update(sources)
            booked = f"{float(m.bits.double().mean()):.0f} bits, d = {m.d}, {m.dtype}"
            sent.append((m.pack(), m.decode(), booked))
    if not sent:
        return
    outputs = subprocess.decoded([data for data, _, _ in sent], sorted(files))
    for output, (_, want, booked) in zip(outputs, sent, strict=True):
        assert same_bits(output, want), (
            f"the bytes alone decode to something else, by {float((output - want).abs().max()):.3g}: "
            f"a message holds more than is booked for it, {booked}"
        )


@CHECKS
def bytes_are_counted_exactly(s: Subject) -> None:
    """nbytes is the length of every row's payload, and all that pack adds to its header."""
    for *_, m in s.messages:
        for leaf in m.leaves():
            sizes = torch.as_tensor(leaf.nbytes).expand(leaf.lead)
            payload, widest = leaf.payload(), int(sizes.max())
            assert payload.dtype == torch.uint8
            same = payload.shape == (*leaf.lead, widest)
            assert same, f"nbytes is {widest}, the payload {tuple(payload.shape)}"
            beyond = torch.arange(widest) >= sizes[..., None]
            assert (payload[beyond] == 0).all(), "a payload goes on beyond nbytes"
        booked = int(torch.as_tensor(m.nbytes).expand(m.lead).sum())
        total = sum(sent(leaf) for leaf in m.leaves())
        assert total == booked, f"nbytes sums to {booked}, sent {total}"


@CHECKS
def modelled_bits_fit_the_bytes(s: Subject) -> None:
    """Every leaf's bytes are its modelled bits, indices and raw bits each padded to whole bytes.

    So 8 nbytes of the whole exceed its bits by at most 7 for each index or raw field of a leaf. No
    index code is shorter than the entropy of the support.
    """
    here = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])
    for *_, m in s.messages:
        for part in (m, m.masked(here), m.select(torch.tensor([2, 0])), m.row(2, 1)):
            assert_bits_fit_bytes(part)


def assert_bits_fit_bytes(m: Message) -> None:
    """Assert that the bytes of a message are its modelled bits and their padding, field by field."""
    for leaf in m.leaves():
        wrong = 8 * (_of_rows(leaf.nbytes, leaf) - _of_rows(packed_bytes(leaf.cost, m.dtype), leaf))
        about = f"{type(leaf).__name__}, d = {leaf.d}, {leaf.dtype}"
        assert (wrong <= 0).all(), f"{int(wrong.max())} sent bits are not modelled: {about}"
        assert (wrong >= 0).all(), f"{-int(wrong.min())} modelled bits too many: {about}"
    cost, padding = m.cost, _of_rows(8 * torch.as_tensor(m.nbytes), m) - m.bits
    counts = [_of_rows(count, m) for count in cost]
    most = 7 * sum(padded_fields(leaf) for leaf in m.leaves())
    assert ((padding >= 0) & (padding <= most)).all(), f"of {most} bits of padding at most: {cost}"
    assert all((count.isfinite() & (count >= 0)).all() for count in counts), f"cost is {cost}"
    shorter = _of_rows(cost.index_auto, m) < _of_rows(cost.index_entropy, m)
    assert not shorter.any(), f"indices in fewer bits than their entropy: {cost}"


def padded_fields(leaf: Message) -> int:
    """Return how many fields of a leaf may end within a byte: its indices, its raw bits, or both."""
    cost = leaf.cost
    return sum(bool((torch.as_tensor(bits) > 0).any()) for bits in (cost.index_auto, cost.raw))


def _of_rows(count: float | Tensor, m: Message) -> Tensor:
    return torch.as_tensor(count).double().expand(m.lead)


@CHECKS
def header_does_not_depend_on_x(s: Subject) -> None:
    """What both ends are said to know beforehand is the same for two inputs: nothing is smuggled."""
    x, q = s.batch()
    other = x.flip(-1) * 2 - 1
    heads = [
        [_shared_part(leaf.describe()) for leaf in s.op.compress(y, q).leaves()] for y in (x, other)
    ]
    assert heads[0] == heads[1], f"the header depends on x: {_difference(*heads)}"
    a, b = s.op.compress(x, q), s.op.compress(other, q)
    if not torch.equal(a.decode(), b.decode()):
        assert a.pack() != b.pack(), "two values, one message"


def _shared_part(head: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in head.items() if k not in ("size", "width")}  # framing of ragged rows


def _difference(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> str:
    for first, second in zip(a, b):
        for key in first:
            if first[key] != second.get(key):
                return f"{key} is {str(first[key])[:60]}, then {str(second.get(key))[:60]}"
    return "another number of parts"


# The manners -----------------------------------------------------------------------------------


@CHECKS
def never_aliases_its_input(s: Subject) -> None:
    """x is left as it was; changing x, or a decoded value, leaves the message as it was."""
    for dtype in DTYPES:
        x, q = s.batch(dtype=dtype)
        before = x.clone()
        m = s.op.compress(x, q)
        assert torch.equal(x, before), "compress changed its input"
        value, data = m.decode().clone(), m.pack()
        x.fill_(7.0)
        assert torch.equal(m.decode(), value), "changing x changed the message"
        m.decode().fill_(7.0)
        m.add_to(torch.zeros_like(x)).fill_(7.0)
        assert torch.equal(m.decode(), value), "changing a decoded value changed the message"
        assert m.pack() == data, "the packed message changed"


@CHECKS
def strides_do_not_matter(s: Subject) -> None:
    """A transposed, strided or expanded x gives the message of its contiguous copy."""
    x, q = s.batch()
    wide = torch.stack((x, -x), -1)
    views = {
        "transposed": x.transpose(0, 1).contiguous().transpose(0, 1),
        "strided": wide[..., 0],
        "coordinates first": x.movedim(-1, 0).contiguous().movedim(0, -1),
        "expanded": x[:1, :1].expand(3, 4, s.d),
    }
    for name, view in views.items():
        want = s.op.compress(view.contiguous(), q).decode()
        assert torch.equal(s.op.compress(view, q).decode(), want), f"a {name} x differs"


@CHECKS
def sums_agree_with_decode(s: Subject) -> None:
    """add_to, sum_clients and decode(out=) agree with decode(), to rounding."""
    for dtype in DTYPES:
        x, q = s.batch(dtype=dtype)
        for m in (s.op.compress(x, q), s.op.compress(x, q).scaled(0.3)):
            value, target = m.decode(), gaussian(3, 4, s.d, seed=9, dtype=dtype)
            want, total = target + value, m.add_to(target)
            assert total is target, "add_to returned another tensor"
            torch.testing.assert_close(target, want, msg=lambda text: f"add_to: {text}")
            torch.testing.assert_close(
                m.sum_clients(), value.sum(-2), msg=lambda text: f"sum_clients: {text}"
            )
            out = torch.full_like(x, math.nan)
            assert m.decode(out=out) is out, "decode(out=) returned another tensor"
            assert torch.equal(out, value), "decode(out=) differs from decode()"


@CHECKS
def parts_agree_with_the_whole(s: Subject) -> None:
    """select, row, masked and scaled agree with decode(), cost and nbytes of the whole."""
    x, q = s.batch()
    m = s.op.compress(x, q)
    value, bits = m.decode(), m.bits
    cells = torch.tensor([2, 0])
    chosen = m.select(cells)
    assert torch.equal(chosen.decode(), value[cells]), "select changed the values"
    assert torch.equal(chosen.bits, bits[cells]), "select changed the bits"
    for b, i in ((0, 0), (2, 3)):
        row = m.row(b, i)
        assert torch.equal(row.decode(), value[b, i]), f"row {(b, i)} differs"
        assert int(row.bits) == int(bits[b, i]), f"row {(b, i)} costs {int(row.bits)} bits"
    here = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]]).bool()
    part = m.masked(here)
    want = value * here[..., None]
    assert torch.equal(part.decode(), want), "masked differs from zeroed rows"
    assert torch.equal(part.bits, bits * here), "absent rows cost bits"
    sizes = torch.as_tensor(m.nbytes).expand(m.lead) * here
    assert torch.equal(torch.as_tensor(part.nbytes).expand(m.lead), sizes), "absent rows have bytes"
    assert same_bits(unpack(part.pack()).decode(), want), "masked changed by packing"
    torch.testing.assert_close(part.sum_clients(), want.sum(-2))
    torch.testing.assert_close(m.scaled(0.25).decode(), value * 0.25, rtol=1e-15, atol=0)


@CHECKS
def fits_a_million_coordinates(s: Subject) -> None:
    """At d = 10^6, float32: finite, round trip exact, bytes counted."""
    op = s.at(s.big) if s.big else None
    if op is None:
        return
    m = op.compress(gaussian(2, 1, s.big, dtype=torch.float32), cells_and_clients(2, 1))
    value = m.decode()
    assert value.shape == (2, 1, s.big), f"decoded to {tuple(value.shape)}"
    assert value.isfinite().all(), f"not finite at d = {s.big}"
    assert same_bits(unpack(m.pack()).decode(), value), "changed by packing"
    booked = int(torch.as_tensor(m.nbytes).expand(m.lead).sum())
    assert sum(map(sent, m.leaves())) == booked, "bytes miscounted"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two float tensors are equal bit by bit, but for the sign of zero."""
    alike = (a.shape, a.dtype) == (b.shape, b.dtype)
    return alike and bool(((a == b) | (a.isnan() & b.isnan())).all())


def sent(leaf: Message) -> int:
    """Return how many bytes follow the header of the packed message."""
    data = leaf.pack()
    return len(data) - PREFIX.size - PREFIX.unpack_from(data)[2]


# All of it -----------------------------------------------------------------------------------------


def conformance(
    make: Callable[[int], Compressor], about: str = "compressor", **sizes: Any
) -> list[Finding]:
    """Return the findings of all checks on the compressor; ``sizes`` are those of ``Subject``."""
    return findings(CHECKS, Subject(make, **sizes), about)


def examples(entry: Entry, given: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Return parameter sets to try a registered compressor with, by label: its defaults, then each
    parameter's other choices, words and (integers) lowest value. given: parameters that all sets have."""
    base: dict[str, Any] = {}
    other: list[tuple[str, Any]] = []
    for name, param in entry.params.items():
        if param.kind == "count":
            base[name] = "25%" if param.default is REQUIRED else param.default
            other += [(name, 1), (name, "100%")]
        elif param.default is not REQUIRED:
            base[name] = param.default
        elif param.choices or param.words:
            base[name] = (*param.choices, *param.words)[0]
        else:
            base[name] = param.low if math.isfinite(param.low) and not param.open_low else 1
        if param.kind == "integer" and math.isfinite(param.low):
            other.append((name, int(param.low)))
        other += [(name, value) for value in (*param.choices, *param.words)]
    fixed = given or {}
    base |= fixed
    others = [(name, value) for name, value in other if name not in fixed]
    sets = [base, *({**base, name: value} for name, value in others if base[name] != value)]
    return {label_of(entry.name, params): params for params in sets}


def label_of(name: str, params: dict[str, Any]) -> str:
    """Return ``name:key=value,..``."""
    text = ",".join(f"{k}={v}" for k, v in params.items())
    return f"{name}:{text}" if text else name


def check_entry(
    entry: Entry, given: Mapping[str, Any] | None = None, **sizes: Any
) -> Iterator[Finding]:
    """Yield the findings of all checks on a registered compressor, over ``examples``."""
    for label, params in examples(entry, given).items():
        yield from _checked(entry, params, label, sizes)


def _checked(
    entry: Entry, params: Mapping[str, Any], label: str, sizes: Mapping[str, Any]
) -> list[Finding]:
    def make(d: int) -> Compressor:
        return entry.target(**params)

    wrong = made(lambda: Subject(make, **sizes).op, label)
    return wrong or conformance(make, label, **sizes)
