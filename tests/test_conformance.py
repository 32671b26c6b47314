"""The conformance kit: sound problems, metrics and compressors pass, and what is broken in one is found."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tiers import first_of_each

from raybench.compressors import Compressor, Dense
from raybench.compressors.selection import TopK
from raybench.core.registry import lookup, names
from raybench.core.streams import stream
from raybench.problems import Constants, Layout, Problem, build
from raybench.problems.base import Fact
from raybench.problems.quadratic import Quadratic
from raybench.testing import Checks, findings, metrics, problems
from raybench.testing import compressors as compressor_kit
from raybench.testing.compressors import CHECKS, Subject, examples
from raybench.testing.problems import Objective, check_entry, conformance
from raybench.testing.vectors import gaussian
from raybench.wire import DenseMessage, SparseMessage


def finding(checks, check, subject):
    """Return what one check of a kit finds."""
    (found,) = findings(Checks({check: checks[check]}), subject, "this")
    return found


OURS = [  # beside those of test_problems.py
    ("logistic", {"regularizer": "l2", "dtype": "float32", "scale": "rows"}),
    ("least_squares", {"regularizer": "l1"}),
    ("quadratic", {"dim": 7, "dtype": "float32"}),
    ("quadratic", {"dim": 1, "clients": 1}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "params"), OURS, ids=lambda v: str(v))
def test_our_problems_conform(name, params):
    result = check_entry(lookup("problem", name), params)
    assert not [str(f) for f in result if not f.ok]
    assert [f.check for f in result] == list(problems.CHECKS)


@pytest.mark.parametrize("name", names("metric"))
@pytest.mark.parametrize("dtype", first_of_each(["float64", "float32"]))
def test_our_metrics_conform(name, dtype):
    problem = build("quadratic", {"dim": 6, "clients": 3, "dtype": dtype})
    result = metrics.conformance(lookup("metric", name).target, problem, name)
    assert not [str(f) for f in result if not f.ok]


def test_metrics_by_entry():
    result = metrics.check_entry(lookup("metric", "sparsity"))
    assert [f.check for f in result] == list(metrics.CHECKS)
    assert all(f.ok for f in result)


# A sound problem by the two methods a user writes, and one fault each -------------------------------


class Bowls(Problem):
    """f_i(x) = a_i ||x - c_i||^2 / 2."""

    def __init__(self, n=3, d=5):
        super().__init__(n, d)
        self.a = torch.arange(1.0, n + 1, dtype=torch.float64)
        self.c = gaussian(n, d, seed=8)

    def f_i(self, i, x):
        return self.a[i] * (x - self.c[i]).square().sum(-1) / 2

    def grad_i(self, i, x):
        return self.a[i] * (x - self.c[i])

    def find_constants(self):
        d, n = self.dim, self.n
        A = self.a[:, None, None] * torch.eye(d, dtype=torch.float64)
        return Quadratic(A, self.a[:, None] * self.c).constants if n else Constants()


class Shift(Bowls):
    """The true lower bounds, as Quadratic drops the constant term."""

    def find_constants(self):
        c = super().find_constants()
        base = float((self.a * self.c.square().sum(-1)).mean() / 2)
        return replace(c, f_inf=c.f_inf + base, f_star=c.f_star + base)


def but(base=Shift, **changes):
    """Return a problem, made anew, that differs from a sound one in these methods and attributes."""
    return lambda: type("Changed", (base,), changes)()


def with_constants(**changes):
    return but(find_constants=lambda self: replace(Shift.find_constants(self), **changes))


def flat(self, x, loss=True):
    grads, losses = Shift.oracle(self, x, loss)
    return grads, None if losses is None else losses.mean(1)


def by_a_thousandth(self, i, x):
    return Shift.grad_i(self, i, x) * (1.001 if i == 1 else 1.0)


def at_the_first_point(self, x):
    return Shift.spread(self, x if x.ndim == 2 else x[:, 0])


def of_other_clients(self, clients):
    part = Shift.host(self, clients)
    part.c = self.whole.c.roll(clients.start, 0)
    return part


def of_weighted_samples(self, x, sample=None):
    full = Shift.grad(self, x)
    return full if sample is None else full * (1 + sample.indices.double().mean(-1, keepdim=True))


def moves_x(self, i, x):
    x += 1e-9
    return Shift.grad_i(self, i, x)


class Penalised(Shift):
    """A penalty, and the step of half its size."""

    has_prox = True

    def penalty(self, x):
        return 0.1 * x.abs().sum(-1)

    def prox(self, v, gamma):
        return v.sign() * (v.abs() - 0.05 * gamma).clamp(min=0)


class WrongLayout(Shift):
    dim = 5

    def __init__(self):
        super().__init__()
        self.layout = Layout((("x", (2, 2)),))


class NotConvex(Bowls):
    """f_1 is concave, and the constants say that every f_i is convex."""

    def __init__(self):
        super().__init__()
        self.a[0] = -1.0

    def find_constants(self):
        return replace(super().find_constants(), facts=frozenset({Fact.CONVEX_CLIENTS}))


class Sampled(Shift):
    def __init__(self):
        super().__init__()
        self.samples = (4, 4, 4)


STRONG = frozenset({Fact.STRONGLY_CONVEX})
BROKEN = [
    (WrongLayout, "shapes are as documented", "layout"),
    (but(oracle=flat), "shapes are as documented", "losses have shape (3,)"),
    (but(grad_i=by_a_thousandth), "gradients match finite differences", "client 1"),
    (
        but(grad_i=lambda self, i, x: Shift.grad_i(self, i, x) + 0 * x.sum()),
        "cells do not depend on each other",
        "changed another",
    ),
    (but(spread=at_the_first_point), "clients may be at different points", "at its own point"),
    (but(host=of_other_clients), "hosted parts make the whole", "of parts"),
    (but(Sampled, grad=of_weighted_samples), "samples average to the gradient", "all samples"),
    (but(grad_i=moves_x), "x is left alone", "changed x"),
    (with_constants(L=1.9), "smoothness constants hold", "L = 1.9, but"),
    (with_constants(L_i=(1.0, 2.0, 2.9)), "smoothness constants hold", "L_2 = 2.9"),
    (with_constants(L_i=(1.0,)), "smoothness constants hold", "1 constants L_i"),
    (with_constants(L_plus=2.1), "smoothness constants hold", "L_plus"),
    (with_constants(L_pm=0.8), "smoothness constants hold", "L_pm"),
    (NotConvex, "facts hold", "some f_i is not convex"),
    (with_constants(mu=2.5, facts=STRONG), "facts hold", "f is not 2.5-convex"),
    (with_constants(mu=None, facts=STRONG), "facts hold", "mu is unknown"),
    (with_constants(facts=frozenset({"convex"})), "facts hold", "must be of Fact"),
    (with_constants(mu=2.5), "lower bounds hold", "too large"),
    (with_constants(f_star=100.0, f_inf=0.0), "lower bounds hold", "f ="),
    (with_constants(f_inf=1e6), "lower bounds hold", "f_inf"),
    (Penalised, "prox minimises", "another point"),
    (but(penalty=lambda self, x: x.abs().sum(-1)), "prox minimises", "has_prox is False"),
]


def test_a_sound_problem_conforms():
    result = conformance(Shift())
    assert not [str(f) for f in result if not f.ok]


@pytest.mark.parametrize(("make", "check", "says"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_problem_is_found(make, check, says):
    assert says in finding(problems.CHECKS, check, Objective(make())).detail


def test_every_problem_check_is_shown_to_fail():
    assert {check for _, check, _ in BROKEN} == set(problems.CHECKS)


def test_directions_of_high_curvature_are_found():
    # one steep direction of 200: random pairs alone would miss it
    diagonal = torch.full((200,), 0.01, dtype=torch.float64)
    diagonal[17] = 1.0
    problem = Quadratic(torch.diag(diagonal)[None], torch.zeros(1, 200, dtype=torch.float64))
    steepest = max(
        float(((problem.grad(x) - problem.grad(y)).norm(dim=-1)[:, 0] / (x - y).norm(dim=-1)).max())
        for x, y in Objective(problem).pairs()
    )
    assert steepest > 0.999


METRICS = [
    (lambda p, x: x.norm(), "gives a number per cell", "shape ()"),
    (lambda p, x: 1.0, "gives a number per cell", "not a tensor"),
    (lambda p, x: x.norm(dim=-1) - x.mean(), "cells do not depend on each other", "a cell alone"),
    (lambda p, x: x.mul_(2).norm(dim=-1), "x is left alone", "changed x"),
    (lambda p, x: torch.rand(len(x)), "x is left alone", "two calls differ"),
]


@pytest.mark.parametrize(("metric", "check", "says"), METRICS, ids=range(len(METRICS)))
def test_a_broken_metric_is_found(metric, check, says):
    measured = metrics.MetricTrial(metric, build("quadratic", {"dim": 6, "clients": 3}))
    assert says in finding(metrics.CHECKS, check, measured).detail


# What is broken in a compressor -------------------------------------------------------------------


@pytest.mark.thorough
def test_check_entry_covers_every_example():
    entry = lookup("compressor", "rand_k")
    result = list(compressor_kit.check_entry(entry, samples=500, big=0))
    assert {f.about for f in result} == set(examples(entry))
    assert len(result) == len(CHECKS) * len(examples(entry))
    assert all(f.ok and str(f).startswith("ok") for f in result)


# The kit finds what is broken ------------------------------------------------------------------


class Claims(Compressor):
    """Rand-1/4 by hand; many of the broken compressors below differ from it in one thing."""

    def omega(self, d):
        return 3.0

    def encode(self, x, stream):
        return Dense(x * (stream.uniform(x.shape[-1]) < 0.25) * 4)


def C(encode, base=Compressor, **facts):
    """Return the compressor x -> ``encode(x, stream)``."""
    facts |= {"encode": lambda self, x, stream: encode(x, stream)}
    return type("Made", (base,), facts)()


def sends(kind):
    return C(lambda x, _: kind(x.shape[-1], x.dtype, x.clone()))


def claiming(base=Claims, **constants):
    """Return a sound compressor of which other constants are said: name=value."""
    told = {name: lambda self, d, value=value: value for name, value in constants.items()}
    return type("Claiming", (base,), told)


def one_mask_for_all(x, stream):
    keep = stream.shared().uniform(x.shape[-1]) < 0.25
    return Dense(x * (keep if stream.ids is None else keep.unsqueeze(-2)) * 4)


def same_every_round(x, _):
    own = stream(0).each(range(math.prod(x.shape[:-1]))).uniform(x.shape[-1])
    return Dense(x * (own.view(x.shape) < 0.25) * 4)


def by_its_norm(x, _):
    return Dense(x / x.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True))


def noise_of_the_right_size(x, stream):
    return Dense(stream.normal(x.shape[-1]).to(x.dtype) * x.norm(dim=-1, keepdim=True))


class Threebits(DenseMessage):
    kind = "test-three-bits"

    def _cost(self):
        return super()._cost()._replace(values=0, raw=self.d * 3)


class Strided(Compressor):
    def compress(self, x, stream=None):  # encode is always given a contiguous x
        return Dense(x * x.stride()[-1])

    encode = compress


class FreeDense(DenseMessage):
    """All values, a tenth of them charged."""

    kind = "test-free"

    def _cost(self):
        return super()._cost()._replace(values=self.d // 10)

    def _size(self):
        return self.d * self.dtype.itemsize


class FreeBytes(FreeDense):
    kind = "test-free-bytes"

    def _size(self):
        return self.d // 10 * self.dtype.itemsize

    @classmethod
    def demand(cls, known, width):
        return 16 * known["d"]


class Smuggles(FreeBytes):
    """The values travel in the header."""

    kind = "test-smuggles"

    def known(self):
        return {**super().known(), "gift": self.values.tolist()}


class Remembers(FreeBytes):
    """The receiver looks into the sender's memory."""

    kind = "test-remembers"
    last: DenseMessage

    def _payload(self):
        type(self).last = self
        return super()._payload()[..., : self._size()]

    @classmethod
    def read(cls, known, payload, stream):
        return cls.last


class BelowEntropy(SparseMessage):
    kind = "test-below-entropy"

    def _cost(self):
        return super()._cost()._replace(index_auto=0)


def first_six(x, _):
    k = min(6, x.shape[-1])
    where = torch.arange(k).expand(*x.shape[:-1], k).clone()
    return BelowEntropy(x.shape[-1], x.dtype, where, x[..., :k].clone())


class WrongSum(DenseMessage):
    kind = "test-wrong-sum"

    def sum_clients(self):
        return self.values.mean(-2)


class WrongSelect(DenseMessage):
    kind = "test-wrong-select"

    def select(self, cells):
        return super().select(cells.sort().values)


BROKEN_OPERATORS = [
    (claiming(omega=-1.0)(), "constants make sense", "omega(24) = -1.0"),
    (C(lambda x, q: Claims().encode(x * 0.9, q), Claims), "unbiased", "mean of C(x) is"),
    (claiming(omega=2.0)(), "second moment within omega", "against omega"),
    (claiming(TopK, alpha=0.5)(3), "contraction at least alpha", "0.875 > 0.5"),
    (claiming(TopK, b1=(0.9, 1.0))(3), "biased classes hold", "B1: "),
    (claiming(b2=(1.0, 2.0))(), "biased classes hold", "B2: E||C(x)||^2 exceeds 2"),
    (C(noise_of_the_right_size), "output is made of the input", "on a Gaussian x"),
    (sends(FreeDense), "output fits its bits", "returns its input"),
    (
        C(lambda x, _: Threebits(x.shape[-1], x.dtype, x / 2)),
        "output fits its bits",
        "different outputs of 6 bits",
    ),
    (C(lambda x, _: Dense(x + 1e-30)), "zero goes to zero", "C(0) = [1e-30"),
    (C(by_its_norm), "finite on hard vectors", "zero, torch.float64"),
    (
        C(lambda x, _: Dense(x.nan_to_num(1.0, 1.0, -1.0))),
        "non finite input shows",
        "a row of nan became [1.0",
    ),
    (
        C(lambda x, _: Dense(x * (torch.rand_like(x) < 0.25) * 4), Claims),
        "determined by the stream",
        "with one stream differ",
    ),
    (
        C(Claims().encode, Claims, deterministic=True),
        "determined by the stream",
        "says deterministic",
    ),
    (C(one_mask_for_all, Claims), "clients and rounds independent", "two clients"),
    (C(same_every_round, Claims), "clients and rounds independent", "two rounds"),
    (
        C(lambda x, _: Dense(x / x.abs().max().clamp(min=1e-300))),
        "batched equals row by row",
        "row (0, 0) differs alone",
    ),
    (
        C(lambda x, _: Dense(x.reshape(-1, x.shape[-1]))),
        "decodes to the shape of x",
        "decoded (1, 24)",
    ),
    (sends(Remembers), "packs and unpacks bit exactly", "changed by packing"),
    (sends(FreeBytes), "bytes are counted exactly", "nbytes is 16, the payload (3, 4, 192)"),
    (sends(FreeDense), "modelled bits fit the bytes", "1408 sent bits are not modelled"),
    (C(first_six), "modelled bits fit the bytes", "fewer bits than their entropy"),
    (sends(Smuggles), "header does not depend on x", "gift"),
    (
        C(lambda x, _: DenseMessage(x.shape[-1], x.dtype, x)),
        "never aliases its input",
        "changing x changed the message",
    ),
    (Strided(), "strides do not matter", "strided x differs"),
    (
        C(lambda x, _: Dense(x.mul_(1.0000001))),
        "never aliases its input",
        "compress changed its input",
    ),
    (sends(WrongSum), "sums agree with decode", "sum_clients"),
    (sends(WrongSelect), "parts agree with the whole", "select changed the values"),
    (
        C(lambda x, _: Dense(x if x.shape[-1] < 1000 else x / 0.0)),
        "fits a million coordinates",
        "not finite at d = 1000000",
    ),
]


@pytest.mark.parametrize(
    ("op", "check", "says"), BROKEN_OPERATORS, ids=range(len(BROKEN_OPERATORS))
)
def test_the_kit_finds_a_broken_operator(op, check, says):
    found = finding(CHECKS, check, Subject(lambda d: op, samples=20_000, dims=(1, 2, 8)))
    assert not found.ok
    assert says in found.detail
    assert str(found).startswith(f"FAIL  this: {check}: ")
    assert "\n" not in str(found)


def test_a_plugin_that_raises_is_a_finding():
    def broken(d):
        raise RuntimeError("boom")

    result = compressor_kit.conformance(broken)
    assert len(result) == len(CHECKS)
    assert all("RuntimeError: boom" in f.detail for f in result)


def test_every_check_is_shown_to_fail():
    elsewhere = {"holds no more than its bytes"}  # takes a plug-in file: tests/test_cheaters.py
    assert set(CHECKS) - {check for _, check, _ in BROKEN_OPERATORS} == elsewhere


def test_the_sound_one_passes():
    result = compressor_kit.conformance(lambda d: Claims(), samples=20_000, dims=(1, 8), big=0)
    assert not [str(f) for f in result if not f.ok]
