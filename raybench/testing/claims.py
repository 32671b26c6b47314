"""An operator's claims beside what a few draws show: its classes' constants on the families of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from raybench.compressors import Compressor
from raybench.testing.moments import (
    SIGMAS,
    Moments,
    assert_at_most,
    assert_unbiased,
    draws,
    moments,
)
from raybench.testing.vectors import families

COORDINATES = 1 << 19  # drawn per family
FEWEST, MOST = 2, 2000  # draws
PATIENCE = 0.1  # seconds for a family; slower operators are drawn less often
PROBE = 4  # draws by which the time is guessed
SEEN = 8.0  # times omega + 1: so many draws show what is rare (a gate is missed with e^-8)


@dataclass(frozen=True)
class Found:
    """What draws of C(x) show for one family of vectors x.

    error: mean of ||c C(x) - x||^2 / ||x||^2 and its standard error, c the factor of the claim; bound:
    what is claimed for it, None without a claim. bias: ||mean C(x) - x|| / ||x|| of an unbiased
    operator, and its size to expect from so many draws, else None. faults: claims that do not hold.
    """

    family: str
    draws: int
    error: tuple[float, float]
    bound: float | None
    bias: tuple[float, float] | None
    faults: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Return ``holds``, ``no claim``, or what does not hold."""
        if self.faults:
            return "; ".join(self.faults)
        return "no claim" if self.bound is None else "holds"


def claim(op: Compressor, d: int) -> tuple[float | None, float]:
    """Return (bound, factor): E||factor C(x) - x||^2 <= bound ||x||^2 is what the operator claims.

    omega of an unbiased operator, 1 - alpha of a contractive one (the smaller of both), else
    1 - 1/delta with the factor that its class B1 or B2 gives; (None, 1) without any claim.
    """
    omega, alpha = op.omega(d), op.alpha(d)
    bounds = [] if omega is None else [omega]
    bounds += [] if alpha is None else [1 - alpha]
    if bounds:
        return min(bounds), 1.0
    wider = op.b3(d)
    return (None, 1.0) if wider is None else (1 - 1 / wider[0], wider[1])


def check(op: Compressor, d: int) -> list[Found]:
    """Return what draws show about an operator bound to d, for every family of vectors (float64).

    A deterministic operator is drawn once. Others as often as 2^19 coordinates take, fewer times
    where that is slow; the draws are seeded. Judged are unbiasedness, the bound of ``claim``, B1 and
    B2, with 3% slack and 5 standard errors, as in the conformance kit.
    """
    vectors = families(d)
    count = 1 if op.deterministic else _count(op, vectors["gaussian"])
    bound, factor = claim(op, d)
    found = []
    for name, x in vectors.items():
        m = moments(op, x, count, factor)
        bias = _bias(m) if op.omega(d) is not None else None
        error = m.error if factor == 1.0 else m.shrunk
        found.append(Found(name, count, error, bound, bias, tuple(_faults(op, m, error, bound))))
    return found


def _count(op: Compressor, x: torch.Tensor) -> int:
    wanted = min(max(COORDINATES // x.numel(), FEWEST), MOST)
    if wanted <= PROBE:
        return wanted
    draws(op, x, PROBE)  # the first call may compile
    begin = perf_counter()
    draws(op, x, PROBE)
    affordable = int(PROBE * PATIENCE / (perf_counter() - begin))
    return min(wanted, max(affordable, FEWEST))


def _bias(m: Moments) -> tuple[float, float]:
    (mean, error), size = m.mean, m.x.norm()
    return float((mean - m.x).norm() / size), float(error.norm() / size)


def _faults(
    op: Compressor, m: Moments, error: tuple[float, float], bound: float | None
) -> list[str]:
    """Return what does not hold of the claims."""
    d, faults = m.x.numel(), []
    size = float(m.x.norm())
    along, slack = (float(part[0]) / size for part in m.along)
    omega, few = op.omega(d), _rare(op, m, bound)
    if omega is not None:
        off = float((m.mean[0] - m.x).norm()) / size
        if op.deterministic:
            biased = off > 1e-9
        else:  # E||mean - x||^2 <= omega ||x||^2 / draws, also where what is rare was not drawn
            biased = off > SIGMAS * math.sqrt(omega / m.count) + 1e-9
            if few:
                biased |= abs(along - 1) > SIGMAS * slack + few
            else:
                biased |= _raises(assert_unbiased, m, "")
        if biased:
            faults.append("biased")
    if bound is not None and _raises(assert_at_most, error, bound, ""):
        faults.append("error above the bound")
    # in units of ||x||: <C(x), x> and ||C(x)||^2 = ||C(x) - x||^2 + 2 <C(x), x> - 1
    square, room = m.error[0] + 2 * along - 1, SIGMAS * (m.error[1] + 2 * slack) + few + 1e-9
    for name, low, beta in _wide(op, d):
        held = square if name == "B1" else along
        if held < 0.97 * low - room or square > (1.03 * along + room) * beta:
            faults.append(f"not in {name}")
    return faults


def _rare(op: Compressor, m: Moments, bound: float | None) -> float:
    """Return how much of <C(x), x>/||x||^2 values too rare to have been drawn may make up.

    An event of probability p moves it by at most sqrt(p b), b a bound on E||C(x) - x||^2 / ||x||^2;
    in N draws p <= 5/N may go unseen (e^-5). Nothing is allowed a deterministic operator, nor an
    unbiased one after 8 (omega + 1) draws: what it keeps rarely it enlarges.
    """
    d = m.x.numel()
    if op.deterministic:
        return 0.0
    most = op.omega(d)
    if most is not None and m.count >= SEEN * (most + 1):
        return 0.0
    if most is None:
        wide = op.b1(d) or op.b2(d)
        most = bound if op.alpha(d) is not None else (wide[1] + 1) ** 2 if wide else None
    if most is None:
        return 0.0
    return math.sqrt(5 * most / m.count)


def _wide(op: Compressor, d: int) -> list[tuple[str, float, float]]:
    both = (("B1", op.b1(d)), ("B2", op.b2(d)))
    return [(name, *constants) for name, constants in both if constants is not None]


def _raises(judge: Callable[..., None], *args: object) -> bool:
    try:
        judge(*args)
    except AssertionError:
        return True
    return False
