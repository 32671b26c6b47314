"""What every problem must hold: exact gradients, valid constants, clients that can be dealt out.

``CHECKS`` are functions of an ``Objective`` that raise AssertionError; ``conformance`` runs them all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybench.core.registry import REQUIRED, Entry
from raybench.core.streams import Sample
from raybench.problems import Fact, Problem, build
from raybench.testing import Checks, Finding, NotClaimed, findings
from raybench.testing.compressors import label_of
from raybench.testing.vectors import gaussian

CHECKS = Checks()
SMALL = {"clients": 4, "dataset": "breast_cancer"}  # for parameters without a number of their own
SAMPLES = 200_000  # beyond so many gradient entries a check looks at fewer samples


@dataclass(frozen=True)
class Objective:
    """A problem with all its clients, and how far from its start it is looked at."""

    problem: Problem
    scale: float = 1.0
    cells: int = 3

    def points(self, cells: int = 0, seed: int = 0, scale: float = 1.0) -> Tensor:
        """Return points (B, d) around the problem's start."""
        p = self.problem
        away = gaussian(cells or self.cells, p.dim, seed=seed, dtype=p.dtype)
        return p.start() + self.scale * scale * away

    @property
    def digits(self) -> float:
        """The relative rounding error that is allowed."""
        return 1e-9 if self.problem.dtype == torch.float64 else 1e-3

    def close(self, a: Tensor, b: Tensor, what: str) -> None:
        """Assert that two results agree to rounding, relative to the larger's norm."""
        assert a.shape == b.shape, f"{what}: shapes {tuple(a.shape)} and {tuple(b.shape)}"
        off, size = float((a - b).abs().max()), float(b.abs().max())
        assert off <= self.digits * (size + 1e-12), f"{what}: off by {off:.3g} of {size:.3g}"

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs x, y (B, d): at random near and far, then along directions of high curvature."""
        for j, away in enumerate((1e-2, 1.0, 30.0)):
            x = self.points(seed=20 + j, scale=max(away, 1.0))
            yield x, x + away * self.scale * gaussian(*x.shape, seed=30 + j).to(x)
        x, v = self.points(seed=40), gaussian(self.cells, self.problem.dim, seed=41).to(x)
        step = 1e-2 * self.scale
        for turn in range(20):
            size = v.norm(dim=-1, keepdim=True)
            noise = gaussian(*x.shape, seed=42 + turn).to(x)  # where the gradient is constant
            v = torch.nn.functional.normalize(torch.where(size > 0, v / size, noise), dim=-1)
            y = x + step * v
            if turn % 5 == 4:
                yield x, y
            v = (self.problem.grad(y) - self.problem.grad(x)).mean(1)


def conformance(problem: Problem, about: str = "problem", **sizes: Any) -> list[Finding]:
    """Return the findings of all checks on a problem; ``sizes`` are those of ``Objective``."""
    return findings(CHECKS, Objective(problem, **sizes), about)


def check_entry(entry: Entry, given: Mapping[str, Any] | None = None) -> list[Finding]:
    """Return the findings of all checks on a registered problem, built from ``given``.

    Others take their defaults; ``dataset`` and ``clients`` without one are small ones.
    """
    full = {
        k: SMALL.get(k)
        if p.default is REQUIRED or (k, p.default) == ("clients", None)
        else p.default
        for k, p in entry.params.items()
    }
    full |= given or {}
    return conformance(build(entry.name, full), label_of(entry.name, dict(given or {})))


# Values and gradients ------------------------------------------------------------------------------


@CHECKS
def shapes_are_as_documented(s: Objective) -> None:
    """oracle gives (B, n, d) and (B, n) in the problem's dtype; start (d,); the layout sums to d."""
    p, x = s.problem, s.points()
    assert isinstance(p, Problem), f"{type(p).__name__} is no raybench Problem"
    assert len(p.clients) == p.n, f"holds {len(p.clients)} of {p.n} clients"
    assert sum(p.layout.sizes) == p.dim, "the layout does not sum to d"
    assert len(p.samples) == p.n, f"{len(p.samples)} sample counts for {p.n} clients"
    start = p.start()
    assert (start.shape, start.dtype) == ((p.dim,), p.dtype), f"start() is {tuple(start.shape)}"
    grads, losses = p.oracle(x)
    assert losses is not None, "oracle gave no losses"
    assert grads.shape == (len(x), p.n, p.dim), f"gradients have shape {tuple(grads.shape)}"
    assert losses.shape == (len(x), p.n), f"losses have shape {tuple(losses.shape)}"
    assert grads.dtype == losses.dtype == p.dtype, f"results are {grads.dtype}, {losses.dtype}"
    assert bool(grads.isfinite().all() and losses.isfinite().all()), "not finite near the start"
    assert p.oracle(x, loss=False)[1] is None, "oracle gave losses nobody asked for"
    s.close(p.grad(x), grads, "grad and oracle differ")
    for name, value in p.evaluate(x).items():
        assert value.shape == (len(x),), f"evaluate gave {name} of shape {tuple(value.shape)}"


@CHECKS
def gradients_match_finite_differences(s: Objective) -> None:
    """<grad f_i(x), v> is the central difference of f_i along v, for every client."""
    p, x = s.problem, s.points()
    double = p.dtype == torch.float64
    step = (1e-5 if double else 2e-2) * s.scale
    grads, losses = p.oracle(x)
    assert losses is not None
    v = gaussian(6, 1, p.dim, seed=7, dtype=p.dtype)
    axes = torch.zeros_like(v[:3])
    axes[range(3), 0, [0, p.dim // 2, p.dim - 1]] = 1.0
    for way in torch.cat((v / v.norm(dim=-1, keepdim=True), axes)):
        ahead, behind = (p.oracle(x + sign * step * way)[1] for sign in (1, -1))
        assert ahead is not None
        assert behind is not None
        slopes, want = (ahead - behind) / (2 * step), (grads * way).sum(-1)
        rounding = 30 * torch.finfo(p.dtype).eps * losses.abs() / step
        room = (1e-5 if double else 2e-2) * grads.norm(dim=-1) + rounding + 1e-12
        worst = int(((slopes - want).abs() - room).argmax())
        assert bool(((slopes - want).abs() <= room).all()), (
            f"client {worst % p.n}: the gradient says {float(want.flatten()[worst]):.8g}, "
            f"differences of the loss {float(slopes.flatten()[worst]):.8g}"
        )


@CHECKS
def cells_do_not_depend_on_each_other(s: Objective) -> None:
    """A cell alone gives what it gives in a batch, also beside a cell that is not finite."""
    p, x = s.problem, s.points()
    grads, losses = p.oracle(x)
    assert losses is not None
    for b in range(len(x)):
        alone = p.oracle(x[b : b + 1])
        s.close(alone[0][0], grads[b], f"gradient of cell {b} alone and in a batch")
        assert alone[1] is not None
        s.close(alone[1][0], losses[b], f"losses of cell {b} alone and in a batch")
    for bad in (math.nan, math.inf):
        broken = x.clone()
        broken[1] = bad
        others = p.oracle(broken)[0]
        s.close(others[[0, 2]], grads[[0, 2]], f"a cell at {bad} changed another")


@CHECKS
def clients_may_be_at_different_points(s: Objective) -> None:
    """x of shape (B, n, d) gives each client's gradient and loss at its own point."""
    p, x = s.problem, s.points()
    points = x[:, None] + gaussian(len(x), p.n, p.dim, seed=3, dtype=p.dtype)
    grads, losses = p.oracle(points)
    assert losses is not None
    for i in {0, p.n // 2, p.n - 1}:
        single = p.oracle(points[:, i].contiguous())
        s.close(grads[:, i], single[0][:, i], f"gradient of client {i} at its own point")
        assert single[1] is not None
        s.close(losses[:, i], single[1][:, i], f"loss of client {i} at its own point")


@CHECKS
def hosted_parts_make_the_whole(s: Objective) -> None:
    """host() of consecutive clients gives these clients' gradients, losses and all constants."""
    p, x = s.problem, s.points()
    grads, losses = p.oracle(x)
    assert losses is not None
    for cuts in ([0, p.n], [0, p.n // 2, p.n], [0, 1, p.n]):
        ends = sorted(set(cuts))
        parts = [p.host(range(a, b)) for a, b in itertools.pairwise(ends)]
        values = [part.oracle(x) for part in parts]
        s.close(torch.cat([g for g, _ in values], 1), grads, f"gradients of parts {ends}")
        s.close(torch.cat([f for _, f in values if f is not None], 1), losses, f"losses of {ends}")
        for part in parts:
            assert part.n == p.n, f"a part with n = {part.n} of {p.n}"
            assert part.constants == p.constants, "a part has constants of its own"


@CHECKS
def samples_average_to_the_gradient(s: Objective) -> None:
    """grad(x, sample) is the mean over the samples; all of a client's give its full gradient."""
    p, x = s.problem, s.points()
    if max(p.samples) == 1:
        return
    for i in {0, p.n - 1}:
        part, count = p.host(range(i, i + 1)), p.samples[i]
        every = torch.arange(count).expand(len(x), 1, count)
        s.close(part.grad(x, Sample.at(every)), part.grad(x), f"all samples of client {i}")
        some = torch.tensor([0, count - 1, count // 2, 0]).expand(len(x), 1, 4)
        per_sample = torch.stack(
            [part.grad(x, part_sample) for part_sample in Sample.at(some).split(1)]
        ).mean(0)
        s.close(
            part.grad(x, Sample.at(some)),
            per_sample,
            f"a minibatch of client {i} and its single samples",
        )


@CHECKS
def x_is_left_alone(s: Objective) -> None:
    """x is not changed, and a changed gradient does not change the next."""
    p, x = s.problem, s.points()
    before = x.clone()
    first = p.grad(x)
    want = first.clone()
    first.fill_(7.0)
    assert torch.equal(x, before), "the gradient changed x"
    s.close(p.grad(x), want, "a second gradient at the same x")
    assert torch.equal(p.start(), p.start()), "start() differs from call to call"


# The constants ---------------------------------------------------------------------------------------


@CHECKS
def smoothness_constants_hold(s: Objective) -> None:
    """No pair of points violates L, L_i, L_plus, L_pm or (where affordable) L_samples."""
    p, c = s.problem, s.problem.constants
    if not c.L_i and all(value is None for value in (c.L, c.L_plus, c.L_pm, c.L_samples)):
        raise NotClaimed
    assert len(c.L_i) in (0, p.n), f"{len(c.L_i)} constants L_i for {p.n} clients"
    L_i = torch.tensor(c.L_i, dtype=torch.float64)
    for x, y in s.pairs():
        rise = (p.grad(x) - p.grad(y)).double()
        far = (x - y).double().square().sum(-1)
        mean, each = rise.mean(1).square().sum(-1), rise.square().sum(-1)
        changes = {"L": mean, "L_plus": each.mean(1), "L_pm": each.mean(1) - mean}
        if p.samples and max(p.samples) > 1 and sum(p.samples) * p.dim <= SAMPLES:
            changes["L_samples"] = _over_samples(p, x, y)
        for name, moved in changes.items():
            bound = getattr(c, name)
            if bound is not None:
                _at_most(s, moved, bound, far, each.mean(1), name)
        for i, bound in enumerate(L_i):
            _at_most(s, each[:, i], float(bound), far, each[:, i], f"L_{i}")


def _at_most(
    s: Objective, moved: Tensor, bound: float, far: Tensor, size: Tensor, name: str
) -> None:
    ratio = float((moved / far).max())
    room = s.digits * float((size / far).max())
    assert math.sqrt(max(ratio - room, 0.0)) <= bound * (1 + s.digits), (
        f"{name} = {bound:.6g}, but a pair of points has {math.sqrt(max(ratio, 0.0)):.6g}"
    )


def _over_samples(p: Problem, x: Tensor, y: Tensor) -> Tensor:
    """Return mean_ij ||grad f_ij(x) - grad f_ij(y)||^2, (B,)."""
    total = torch.zeros(len(x), dtype=torch.float64)
    for i, count in enumerate(p.samples):
        part = p.host(range(i, i + 1))
        of_client = torch.zeros_like(total)
        for j in range(count):
            sample = Sample.at(torch.full((len(x), 1, 1), j))
            of_client += (part.grad(x, sample) - part.grad(y, sample)).double().square().sum((1, 2))
        total += of_client / count
    return total / p.n


@CHECKS
def facts_hold(s: Objective) -> None:
    """No pair of points contradicts what is stated of f, the f_i and the samples: convex, strongly convex, quadratic."""
    p, c = s.problem, s.problem.constants
    if not (c.facts or c.mu_i or c.L_sample_i):
        raise NotClaimed
    assert all(isinstance(fact, Fact) for fact in c.facts), f"facts must be of Fact: {c.facts}"
    for x, y in s.pairs():
        rise, moved = (p.grad(x) - p.grad(y)).double(), (x - y).double()
        far, size = moved.square().sum(-1), rise.norm(dim=-1) * moved.norm(dim=-1)[:, None]
        along = (rise * moved[:, None]).sum(-1)  # (B, n)
        if Fact.CONVEX_CLIENTS in c.facts:
            assert bool((along >= -s.digits * size).all()), "some f_i is not convex"
        if Fact.QUADRATIC in c.facts:
            ends = (p.grad(x) + p.grad(y)).double() / 2
            off = (p.grad((x + y) / 2).double() - ends).norm(dim=-1)
            room = p.grad(x).double().norm(dim=-1) + p.grad(y).double().norm(dim=-1)
            assert bool((off <= s.digits * room).all()), "some f_i is not quadratic"
        if Fact.STRONGLY_CONVEX in c.facts:
            assert c.mu is not None, "strongly convex, but mu is unknown"
            short = c.mu * far - along.mean(1)
            assert bool((short <= s.digits * size.mean(1)).all()), f"f is not {c.mu:.6g}-convex"
        for i, bound in enumerate(c.mu_i):
            short = bound * far - along[:, i]
            assert bool((short <= s.digits * size[:, i]).all()), f"f_{i} is not {bound:.6g}-convex"
        if max(p.samples) > 1:
            first = Sample.at(torch.zeros(len(x), p.n, 1, dtype=torch.long))
            at_x, at_y = p.grad(x, first), p.grad(y, first)
            apart = (at_x - at_y).double()
            rounding = 4 * torch.finfo(p.dtype).eps * (at_x.norm(dim=-1) + at_y.norm(dim=-1))
            room = (s.digits * apart.norm(dim=-1) + rounding) * moved.norm(dim=-1)[:, None]
            if Fact.CONVEX_SAMPLES in c.facts:
                along = (apart * moved[:, None]).sum(-1)
                assert bool((along >= -room).all()), "some sample's loss is not convex"
            for i, bound in enumerate(c.L_sample_i):
                _at_most(s, apart[:, i].square().sum(-1), bound, far, far, f"L_sample_{i}")


@CHECKS
def lower_bounds_hold(s: Objective) -> None:
    """f >= f_star >= f_inf everywhere tried, and ||grad f||^2 >= 2 mu (f - f_star)."""
    p, c = s.problem, s.problem.constants
    if c.f_inf is None and c.f_star is None and c.mu is None:
        raise NotClaimed
    low = -math.inf if c.f_inf is None else c.f_inf
    if c.f_star is not None:
        assert c.f_star >= low - s.digits * abs(low), f"f_star = {c.f_star} < f_inf = {low}"
        low = c.f_star
    assert c.mu is None or c.mu > 0, f"mu = {c.mu}"
    x = torch.cat([s.points(seed=50 + j, scale=t) for j, t in enumerate((0.0, 0.1, 1.0, 10.0))])
    for _ in range(30):
        grads, losses = p.oracle(x)
        assert losses is not None
        f, g = losses.double().mean(1) + p.penalty(x).double(), grads.double().mean(1)
        room = s.digits * (f.abs() + abs(low if math.isfinite(low) else 0.0) + 1e-12)
        assert bool((f >= low - room).all()), f"f = {float(f.min()):.8g} < {low:.8g}"
        if c.mu is not None and c.f_star is not None and not p.has_prox:
            short = 2 * c.mu * (f - c.f_star - room) - g.square().sum(-1)
            assert bool((short <= s.digits * g.square().sum(-1)).all()), (
                f"mu = {c.mu:.6g} is too large: ||grad f||^2 < 2 mu (f - f_star)"
            )
        if c.L is None:
            return
        x = p.prox(x - (g / c.L).to(x), 1 / c.L)


@CHECKS
def prox_minimises(s: Objective) -> None:
    """prox(v, gamma) minimises gamma penalty(x) + ||x - v||^2 / 2; gamma may differ by cell."""
    p, v = s.problem, s.points()
    assert p.penalty(v).shape == (len(v),), f"penalty has shape {tuple(p.penalty(v).shape)}"
    if not p.has_prox:
        assert bool((p.penalty(v) == 0).all()), "a penalty, but has_prox is False"
        assert torch.equal(p.prox(v, 0.5), v), "prox moves v, but has_prox is False"
        return
    gammas = torch.tensor([1e-3, 0.5, 20.0], dtype=p.dtype)[: len(v), None]
    nearest = p.prox(v, gammas)
    for b, gamma in enumerate(gammas[:, 0].tolist()):
        s.close(p.prox(v[b : b + 1], gamma), nearest[b : b + 1], f"prox with gamma = {gamma}")

    def value(x: Tensor) -> Tensor:
        return gammas[:, 0] * p.penalty(x) + 0.5 * (x - v).square().sum(-1)

    best = value(nearest)
    for j, size in enumerate((1e-3, 1e-1, 1.0)):
        for other in (
            nearest + size * gaussian(*v.shape, seed=60 + j, dtype=p.dtype),
            (1 - size) * nearest,
        ):
            assert bool((best <= value(other) * (1 + s.digits) + 1e-12).all()), (
                "another point has a lower gamma penalty(x) + ||x - v||^2 / 2 than prox(v, gamma)"
            )
