"""Checks of an operator's law: its moments, hard vectors, and what its randomness depends on."""

from __future__ import annotations

import math

import torch

from raybench.compressors import Compressor, Role
from raybench.core.errors import InputError
from raybench.core.streams import Stream, stream
from raybench.testing.checks import Checks, NotClaimed
from raybench.testing.claims import judge, measured
from raybench.testing.moments import SIGMAS
from raybench.testing.subject import DTYPES, Subject
from raybench.testing.vectors import cells_and_clients, families, gaussian

LAW = Checks()


@LAW
def constants_make_sense(s: Subject) -> None:
    """omega is None or in [0, inf), alpha None or in (0, 1], and roles bind accordingly."""
    for op, d in s.everywhere():
        assert isinstance(op, Compressor), f"{type(op).__name__} is no raybench Compressor"
        omega, alpha = op.omega(d), op.alpha(d)
        assert omega is None or 0 <= omega < math.inf, f"omega({d}) = {omega}"
        assert alpha is None or 0 < alpha <= 1, f"alpha({d}) = {alpha}"
        if omega is not None:
            assert op.bind(d, role=Role.UNBIASED).omega == omega
        if omega is not None or alpha is not None:
            bound = op.bind(d, role=Role.CONTRACTIVE)
            assert bound.alpha is not None, "no alpha in the contractive role"


@LAW
def unbiased(s: Subject) -> None:
    """E C(x) = x within 5 standard errors where omega is claimed, by coordinate and along x."""
    _holds(s, "unbiased", s.op.omega(s.d))


@LAW
def second_moment_within_omega(s: Subject) -> None:
    """E||C(x) - x||^2 <= omega ||x||^2, within 5 standard errors."""
    _holds(s, "omega", s.op.omega(s.d))


@LAW
def contraction_at_least_alpha(s: Subject) -> None:
    """E||C(x) - x||^2 <= (1 - alpha) ||x||^2 for the operator in the contractive role, within 5 standard errors.

    Exactly where it is deterministic, in every dimension.
    """
    _holds(s, "alpha", s.op.b3(s.d))


@LAW
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
    if all(one is None for one in constants):
        raise NotClaimed


def _holds(s: Subject, claim: str, constant: object) -> None:
    """Assert that the draws for every family of vectors agree with a claim; raises NotClaimed without a constant."""
    _claimed(constant)
    for family, m in s.moments.items():
        wrong = judge(s.op, s.d, m).get(claim)
        assert wrong is None, f"{wrong} ({family})"
    if not s.op.deterministic:
        return
    for op, d in s.everywhere():
        for family, x in families(d).items():
            wrong = judge(op, d, measured(op, x, 1)).get(claim)
            assert wrong is None, f"{wrong} ({family}, d = {d})"


@LAW
def output_is_made_of_the_input(s: Subject) -> None:
    """What decodes points along x: E<C(x), x> > 0. Random or constant output does not."""
    if not bool((s.op.compress(s.batch()[0]).bits > 0).any()):
        return  # it sends nothing, and says so
    m = s.moments["gaussian"]
    along, error = (float(v) for v in m.along)
    assert along > SIGMAS * error, f"<C(x), x>/||x|| is {along:.3g} +- {error:.2g} on a Gaussian x"


@LAW
def output_fits_its_bits(s: Subject) -> None:
    """b bits have 2^b values: few-bit messages decode to few different vectors, never to x itself."""
    for op, d in s.everywhere():
        count = 20_000
        x = gaussian(count, d, seed=3)
        x = x / x.abs().amax(-1, keepdim=True)  # of one scale, so that only directions differ
        one = Stream(stream(0).keys.expand(count))  # a seed's share of the output costs no bits
        m = op.compress(x, one)
        different, most = len(m.decode().unique(dim=0)), float(m.bits.max())
        assert most > 40 or different <= 2**most, (
            f"{different} different outputs of {most:.0f} bits, d = {d}"
        )
        if d >= 24 and most < 0.9 * 64 * d:
            assert not torch.equal(m.decode(), x), f"returns its input, for {most:.0f} bits"


@LAW
def zero_goes_to_zero(s: Subject) -> None:
    """C(0) = 0, exactly, unless the operator says that it cannot (``zero_to_zero``: a bare sign)."""
    if not s.op.zero_to_zero:
        return
    for op, d in s.everywhere():
        value = op.compress(torch.zeros(2, d, dtype=torch.float64)).decode()
        assert (value == 0).all(), f"C(0) = {value[0].tolist()[:8]} at d = {d}"


@LAW
def finite_on_hard_vectors(s: Subject) -> None:
    """No NaN or infinity on zero, one-hot, flat, denormal, tiny and large vectors."""
    for dtype in DTYPES:
        tiny, step = torch.finfo(dtype).tiny, 2.0 ** (-1074 if dtype == torch.float64 else -149)
        for op, d in s.everywhere():
            hard = {**families(d), "zero": torch.zeros(d), "large": families(d)["gaussian"] * 1e15}
            hard["denormal"] = torch.full((d,), step).double()
            hard["around the smallest normal"] = families(d)["gaussian"] * tiny
            for name, x in hard.items():
                value = op.compress(x.to(dtype).expand(16, d)).decode()
                assert value.isfinite().all(), f"{name}, {dtype}, d = {d}: {value[0].tolist()[:8]}"


@LAW
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
                got = s.op.compress(broken, q).decode()
            except (InputError, ValueError):
                continue
            row = got[1, 2]
            shown = ~row.isfinite()
            if where == slice(None):
                assert silent or shown.any(), f"a row of {bad} became {row.tolist()[:8]}"
            assert shown[1] or row[1] == 0, f"{bad} became {row[1].item()}"
            got[1, 2] = clean[1, 2]
            assert torch.equal(got, clean), f"{bad} in one row changed another"


# The randomness --------------------------------------------------------------------------------


@LAW
def determined_by_the_stream(s: Subject) -> None:
    """The same x and stream give the same bytes, whatever the global generators; so does any
    stream, for an operator that says it is deterministic."""
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


@LAW
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


@LAW
def batched_equals_row_by_row(s: Subject) -> None:
    """Row (b, i) of a batch is the message of that row alone."""
    for dtype in DTYPES:
        x, q = s.batch(dtype=dtype)
        value = s.op.compress(x, q).decode()
        for b in range(x.shape[0]):
            for i in range(x.shape[1]):
                own = q[b : b + 1].at(torch.tensor([i]))
                alone = s.op.compress(x[b : b + 1, i : i + 1], own).decode()[0, 0]
                assert torch.equal(alone, value[b, i]), f"row {(b, i)} differs alone, {dtype}"
