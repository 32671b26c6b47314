"""What an operator claims (unbiased, omega, alpha, B1, B2), judged by draws of it: the only place that does.

``judge`` compares sample moments with the claims. The conformance kit draws often (``testing.law``),
``raybench show`` some few times (``check``), on the same families of vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

import torch

from raybench.compressors import Compressor, Role
from raybench.testing.moments import SIGMAS, Moments, draws, moments
from raybench.testing.vectors import families

COORDINATES = 1 << 19  # drawn per family
FEWEST_DRAWS, MOST_DRAWS = 2, 2000
PATIENCE = 0.1  # seconds for a family; slower operators are drawn less often
DRAWS_TO_GUESS_TIME = 4
DRAWS_THAT_SHOW_RARE = 8.0  # times omega + 1: an event as rare as 1/(omega + 1) is missed with e^-8
SLACK = 0.03  # relative, beside the standard errors
ROUNDING = 1e-12  # relative, of sums in float64

SHORT = {
    "unbiased": "biased",
    "omega": "error above the bound",
    "alpha": "error above the bound",
    "B1": "not in B1",
    "B2": "not in B2",
}
"""What ``raybench show`` says of a claim that does not hold."""


@dataclass(frozen=True)
class Found:
    """What draws of C(x) show for one family of vectors x.

    error: mean of ||c C(x) - x||^2 / ||x||^2 and its standard error, c the factor of the claim; bound:
    what is claimed for it, None without a claim. bias: ||mean C(x) - x|| / ||x|| of an unbiased
    operator, and its size to expect from so many draws, else None. faults: claims that do not hold,
    with what was found instead, by name.
    """

    family: str
    draws: int
    error: tuple[float, float]
    bound: float | None
    bias: tuple[float, float] | None
    faults: dict[str, str]

    @property
    def verdict(self) -> str:
        """Return ``holds``, ``no claim``, or what does not hold."""
        if self.faults:
            return "; ".join(dict.fromkeys(SHORT[name] for name in self.faults))
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
    where that is slow; the draws are seeded.
    """
    vectors = families(d)
    count = 1 if op.deterministic else _count(op, vectors["gaussian"])
    bound, factor = claim(op, d)
    found = []
    for name, x in vectors.items():
        m = measured(op, x, count)
        bias = _bias(m) if op.omega(d) is not None else None
        error = m.error if factor == 1.0 else m.shrunk
        faults = judge(op, d, m, _unseen(op, d, count, bound))
        found.append(Found(name, count, error, bound, bias, faults))
    return found


def measured(op: Compressor, x: torch.Tensor, count: int) -> Moments:
    """Return the moments of ``count`` draws at x (d,) that ``judge`` needs."""
    d = x.shape[-1]
    factor = 1.0 if op.b3(d) is None else op.bind(d, role=Role.CONTRACTIVE).factor
    betas = {beta for _, beta in filter(None, (op.b1(d), op.b2(d)))}
    return moments(op, x, count, factor, betas)


def judge(op: Compressor, d: int, m: Moments, unseen: float = 0.0) -> dict[str, str]:
    """Return the claims of an operator that its moments contradict, with what was found, by name.

    m: of ``measured``. Allowed are 3% and 5 standard errors. unseen: how much of <C(x), x>/||x||^2
    and ||C(x)||^2/||x||^2 values may make up that are too rare to have been drawn.
    """
    found = {}
    omega = op.omega(d)
    if omega is not None:
        found["unbiased"] = _off_the_mean(op, m, omega, unseen)
        found["omega"] = _above(m.error, omega, "omega")
    if op.b3(d) is not None:
        alpha = op.bind(d, role=Role.CONTRACTIVE).alpha
        if alpha is not None:
            found["alpha"] = _above(m.shrunk, 1 - alpha, "1 - alpha")
    along, slack = (float(part[0]) / float(m.x.norm()) for part in m.along)
    for name, constants, least in (("B1", op.b1(d), m.size), ("B2", op.b2(d), (along, slack))):
        if constants is not None:
            found[name] = _outside(name, constants, least, m, unseen)
    return {name: wrong for name, wrong in found.items() if wrong}


def _off_the_mean(op: Compressor, m: Moments, omega: float, unseen: float) -> str:
    """Return how the mean of C(x) differs from x; nothing if it does not.

    By coordinate and along x: allowed are 5 standard errors and 50/count of the largest value drawn, so
    that levels too rare to have been drawn are no fault (empirical Bernstein inequality). As a whole:
    E||mean - x||^2 <= omega ||x||^2 / count, also where what is rare was not drawn.
    """
    size, ends = float(m.x.norm()), m.largest * ROUNDING
    rare = (50 / m.count if m.count > 1 else 0.0) * m.largest + ends
    wanted = {"C(x)": (m.mean, m.x, rare)} if not unseen else {}  # else some were never drawn
    wanted["<C(x), x>/||x||"] = (m.along, m.x.norm()[None], rare + unseen * size)
    for what, ((mean, error), want, allowed) in wanted.items():
        beyond = (mean - want).abs() - SIGMAS * error - allowed
        worst = int(beyond.argmax())
        if not beyond[worst] <= 0:
            return (
                f"mean of {what} is {float(mean[worst]):.6g}, not {float(want[worst]):.6g} "
                f"(standard error {float(error[worst]):.2g})"
            )
    off = float((m.mean[0] - m.x).norm()) / size
    chance = 0.0 if op.deterministic else SIGMAS * math.sqrt(omega / m.count)
    if not off <= chance + 1e-9:
        return f"mean of C(x) is {off:.4g} ||x|| from x, by chance {chance:.4g}"
    return ""


def _above(found: tuple[float, float], bound: float, name: str) -> str:
    """Return how a relative error exceeds its bound; nothing if it does not."""
    mean, error = found
    if mean <= (1 + SLACK) * bound + SIGMAS * error + ROUNDING:
        return ""
    what = f"E||C(x) - x||^2 / ||x||^2 against {name}"
    return f"{mean:.4g} > {bound:.4g} (standard error {error:.2g}): {what}"


def _outside(
    name: str,
    constants: tuple[float, float],
    least: tuple[float, float],
    m: Moments,
    unseen: float,
) -> str:
    """Return how the moments leave B1 or B2; nothing if they do not. least: what is at least low."""
    low, beta = constants
    mean, error = least
    if not (1 + SLACK) * mean + SIGMAS * error + unseen + ROUNDING >= low:
        return f"{name}: {mean:.4g} < {low:.4g} (standard error {error:.2g})"
    mean, error = m.excess[beta]
    if not mean <= SLACK * m.size[0] + SIGMAS * error + beta * unseen + ROUNDING:
        return f"{name}: E||C(x)||^2 exceeds {beta:.4g} <E C(x), x> by {mean:.3g} ||x||^2"
    return ""


def _count(op: Compressor, x: torch.Tensor) -> int:
    wanted = min(max(COORDINATES // x.numel(), FEWEST_DRAWS), MOST_DRAWS)
    if wanted <= DRAWS_TO_GUESS_TIME:
        return wanted
    draws(op, x, DRAWS_TO_GUESS_TIME)  # the first call may compile
    begin = perf_counter()
    draws(op, x, DRAWS_TO_GUESS_TIME)
    affordable = int(DRAWS_TO_GUESS_TIME * PATIENCE / (perf_counter() - begin))
    return min(wanted, max(affordable, FEWEST_DRAWS))


def _bias(m: Moments) -> tuple[float, float]:
    (mean, error), size = m.mean, m.x.norm()
    return float((mean - m.x).norm() / size), float(error.norm() / size)


def _unseen(op: Compressor, d: int, count: int, bound: float | None) -> float:
    """Return how much of <C(x), x>/||x||^2 values too rare to have been drawn may make up.

    An event of probability p moves it by at most sqrt(p b), b a bound on E||C(x) - x||^2 / ||x||^2;
    in N draws p <= 5/N may go unseen (e^-5). Nothing is allowed a deterministic operator, nor an
    unbiased one after 8 (omega + 1) draws: what it keeps rarely it enlarges.
    """
    if op.deterministic:
        return 0.0
    most = op.omega(d)
    if most is not None and count >= DRAWS_THAT_SHOW_RARE * (most + 1):
        return 0.0
    if most is None:
        wide = op.b1(d) or op.b2(d)
        most = bound if op.alpha(d) is not None else (wide[1] + 1) ** 2 if wide else None
    if most is None:
        return 0.0
    return math.sqrt(5 * most / count)
