"""What a compressor claims (unbiased, omega, alpha, B1, B2), judged by draws of it: the only place that does.

``judge`` compares sample moments with the claims. The conformance kit draws often (``testing.compressors``),
``raybench show`` some few times (``check_claims``), on the same families of vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from raybench.compressors import Compressor, Role
from raybench.testing.vectors import cells_and_clients, families

SIGMAS = 5.0
SEED = 11


def draws(op: Compressor, x: Tensor, count: int, seed: int = SEED) -> Tensor:
    """Return ``count`` independent draws of C(x), (count, d), for x (d,)."""
    return op.compress(x.expand(count, 1, -1), cells_and_clients(count, 1, seed)).decode()[:, 0]


def relative_error(value: Tensor, x: Tensor) -> Tensor:
    """Return ||value - x||^2 / ||x||^2 over the last axis."""
    return (value - x).square().sum(-1) / x.square().sum(-1)


@dataclass(frozen=True)
class Moments:
    """Sample moments of C(x) at one x (d,), each a mean with its standard error.

    mean: of C(x), (d,); along: of <C(x), x>/||x||; error, shrunk: of ||c C(x) - x||^2 / ||x||^2 for
    c = 1 and for the factor of the contractive role. size: of ||C(x)||^2 / ||x||^2, and ``most`` the largest one.
    excess: of (||C(x)||^2 - b <C(x), x>) / ||x||^2 by b. largest: the largest value seen.
    """

    x: Tensor
    count: int
    mean: tuple[Tensor, Tensor]
    along: tuple[Tensor, Tensor]
    error: tuple[float, float]
    shrunk: tuple[float, float]
    size: tuple[float, float]
    most: float
    excess: dict[float, tuple[float, float]]
    largest: float


def moments(op: Compressor, x: Tensor, count: int, seed: int = SEED) -> Moments:
    """Return the moments of ``count`` draws of C(x), x of shape (d,), that ``judge`` needs."""
    d, size = x.shape[-1], x.square().sum()
    factor = 1.0 if op.b3(d) is None else op.bind(d, role=Role.CONTRACTIVE).factor
    sample = draws(op, x, count, seed)
    squares, along = sample.square().sum(-1) / size, sample @ x / size
    return Moments(
        x,
        count,
        _mean(sample),
        _mean((sample @ x / x.norm())[:, None]),
        _number(relative_error(sample, x)),
        _number(relative_error(factor * sample, x)),
        _number(squares),
        float(squares.max()),
        {b: _number(squares - b * along) for _, b in filter(None, (op.b1(d), op.b2(d)))},
        float(torch.maximum(sample.abs().max(), x.abs().max())),
    )


def _number(values: Tensor) -> tuple[float, float]:
    mean, error = _mean(values)
    return float(mean), float(error)


def _mean(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over axis 0 and its standard error."""
    mean = values.mean(0)
    spread = values.std(0) if len(values) > 1 else torch.zeros_like(mean)
    return mean, spread / math.sqrt(len(values))


# Claims --------------------------------------------------------------------------------------------

COORDINATES = 1 << 19  # drawn per family
FEWEST_DRAWS, MOST_DRAWS = 2, 2000
PATIENCE = 0.1  # seconds for a family; slower compressors are drawn less often
DRAWS_TO_GUESS_TIME = 4
DRAWS_THAT_SHOW_RARE = 8.0  # times omega + 1: an event as rare as 1/(omega + 1) is missed with e^-8
UNSEEN_EVENTS = 14.0  # expected: so many are all missed with probability e^-14 < 1e-6
ROUNDING = 1e-12  # relative, of sums in float64
TELLS = 0.05  # a claim that is too good by such a share is to be found
POWER = 2.5  # standard errors more than ``SIGMAS``: it is then found with a probability above 99%

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
    compressor, and its size to expect from so many draws, else None. faults: claims that do not hold,
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
    """Return (bound, factor): E||factor C(x) - x||^2 <= bound ||x||^2 is what the compressor claims.

    omega of an unbiased compressor, 1 - alpha of a contractive one (the smaller of both), else
    1 - 1/delta with the factor that its class B1 or B2 gives; (None, 1) without any claim.
    """
    omega, alpha = op.omega(d), op.alpha(d)
    bounds = [] if omega is None else [omega]
    bounds += [] if alpha is None else [1 - alpha]
    if bounds:
        return min(bounds), 1.0
    wider = op.b3(d)
    return (None, 1.0) if wider is None else (1 - 1 / wider[0], wider[1])


def check_claims(op: Compressor, d: int) -> list[Found]:
    """Return what draws show about a compressor bound to d, for every family of vectors (float64).

    A deterministic compressor is drawn once. Others as often as 2^19 coordinates take, fewer times
    where that is slow; the draws are seeded.
    """
    vectors = families(d)
    count = 1 if op.deterministic else _count(op, vectors["gaussian"])
    bound, factor = claim(op, d)
    results = []
    for name, x in vectors.items():
        m = moments(op, x, count)
        bias = _bias(m) if op.omega(d) is not None else None
        error = m.error if factor == 1.0 else m.shrunk
        faults = judge(op, d, m, _unseen(op, d, count, bound))
        results.append(Found(name, count, error, bound, bias, faults))
    return results


def judge(op: Compressor, d: int, m: Moments, unseen: float = 0.0) -> dict[str, str]:
    """Return the claims of a compressor that its moments contradict, with what was found, by name.

    m: of ``moments``. Allowed are 5 standard errors and what values may make up that are too rare to have been
    drawn; nothing but rounding where the compressor is deterministic. unseen: how much of <C(x), x>/||x||^2 and
    ||C(x)||^2/||x||^2 these may make up.
    """
    faults = {}
    omega = op.omega(d)
    if omega is not None:
        faults["unbiased"] = _off_the_mean(op, m, omega, unseen)
    for error in _errors(op, d, m):
        faults[error.name] = _above(error, 0.0 if op.deterministic else _allowed(error, m.count))
    faults |= {name: _outside(op, d, name, m, unseen) for name in ("B1", "B2")}
    return {name: wrong for name, wrong in faults.items() if wrong}


def _off_the_mean(op: Compressor, m: Moments, omega: float, unseen: float) -> str:
    """Return how the mean of C(x) differs from x; nothing if it does not.

    By coordinate and along x: allowed are 5 standard errors and 50/count of the largest value drawn, so
    that levels too rare to have been drawn are no fault (empirical Bernstein inequality). As a whole:
    E||mean - x||^2 <= omega ||x||^2 / count, also where what is rare was not drawn.
    """
    size, ends = float(m.x.norm()), m.largest * ROUNDING
    rare = (50 / m.count if m.count > 1 else 0.0) * m.largest + ends
    means = {"C(x)": (m.mean, m.x, rare)} if not unseen else {}  # else some were never drawn
    means["<C(x), x>/||x||"] = (m.along, m.x.norm()[None], rare + unseen * size)
    for what, ((mean, error), want, allowed) in means.items():
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


@dataclass(frozen=True)
class _Error:
    """E||c C(x) - x||^2 / ||x||^2 as drawn, with its standard error, beside its bound.

    bound: omega, or 1 - alpha. size: omega, or alpha, of which a share is to be told apart.
    """

    name: str
    mean: float
    error: float
    bound: float
    size: float


def _errors(op: Compressor, d: int, m: Moments) -> list[_Error]:
    """Return the errors for which a compressor claims a bound: omega, and alpha in the contractive role."""
    omega, errors = op.omega(d), []
    if omega is not None:
        errors.append(_Error("omega", *m.error, omega, omega))
    if op.b3(d) is not None:
        alpha = op.bind(d, role=Role.CONTRACTIVE).alpha
        assert alpha is not None, "the role gives one"
        errors.append(_Error("alpha", *m.shrunk, 1 - alpha, alpha))
    return errors


def _allowed(error: _Error, count: int) -> float:
    """Return how far the mean of so many draws exceeds a bound that holds, but with probability 1e-6.

    The error is at least 0, so that an event of probability p lowers its mean by at most p times the bound; one
    that was never drawn has p <= 14/count.
    """
    return SIGMAS * error.error + UNSEEN_EVENTS * error.bound / count


def draws_wanted(op: Compressor, d: int, m: Moments) -> int:
    """Return from how many draws at this x a claim that is 5% too good would be found with probability 99%.

    No more than there are where the claims are not in doubt: the error is far enough below its bound.
    """
    draws = m.count
    for error in [] if op.deterministic else _errors(op, d, m):
        gap = TELLS / (1 + TELLS) * error.size
        if (
            gap > 0
            and error.mean + 2 * POWER * error.error + UNSEEN_EVENTS * error.bound / m.count
            > error.bound + gap
        ):
            # gap = a / sqrt(N) + b / N
            a = (SIGMAS + POWER) * error.error * math.sqrt(m.count)
            b = UNSEEN_EVENTS * error.bound
            root = (a + math.sqrt(a * a + 4 * gap * b)) / (2 * gap)
            draws = max(draws, math.ceil(root**2))
    return draws


def _above(error: _Error, allowed: float) -> str:
    """Return how a relative error exceeds its bound; nothing if it does not."""
    if error.mean <= error.bound + allowed + ROUNDING:
        return ""
    name = "1 - alpha" if error.name == "alpha" else error.name
    what = f"E||C(x) - x||^2 / ||x||^2 against {name}"
    return f"{error.mean:.6g} > {error.bound:.6g} (standard error {error.error:.2g}): {what}"


def _outside(op: Compressor, d: int, name: str, m: Moments, unseen: float) -> str:
    """Return how the moments leave B1 or B2; nothing if they do not, or no such class is claimed.

    As for an error, values that are too rare to have been drawn may make up 14/count of the largest one drawn.
    """
    constants = op.b1(d) if name == "B1" else op.b2(d)
    if constants is None:
        return ""
    low, beta = constants
    rare = 0.0 if op.deterministic else UNSEEN_EVENTS / m.count
    along = float(m.along[0]) / float(m.x.norm()), float(m.along[1]) / float(m.x.norm())
    (mean, error), most = (m.size, m.most) if name == "B1" else (along, math.sqrt(m.most))
    if not mean + SIGMAS * error + rare * most + unseen + ROUNDING >= low:
        return f"{name}: {mean:.4g} < {low:.4g} (standard error {error:.2g})"
    mean, error = m.excess[beta]
    if not mean <= SIGMAS * error + beta * (rare * math.sqrt(m.most) + unseen) + ROUNDING:
        return f"{name}: E||C(x)||^2 exceeds {beta:.4g} <E C(x), x> by {mean:.3g} ||x||^2"
    return ""


def _count(op: Compressor, x: torch.Tensor) -> int:
    amount = min(max(COORDINATES // x.numel(), FEWEST_DRAWS), MOST_DRAWS)
    if amount <= DRAWS_TO_GUESS_TIME:
        return amount
    draws(op, x, DRAWS_TO_GUESS_TIME)  # the first call may compile
    begin = perf_counter()
    draws(op, x, DRAWS_TO_GUESS_TIME)
    affordable = int(DRAWS_TO_GUESS_TIME * PATIENCE / (perf_counter() - begin))
    return min(amount, max(affordable, FEWEST_DRAWS))


def _bias(m: Moments) -> tuple[float, float]:
    (mean, error), size = m.mean, m.x.norm()
    return float((mean - m.x).norm() / size), float(error.norm() / size)


def _unseen(op: Compressor, d: int, count: int, bound: float | None) -> float:
    """Return how much of <C(x), x>/||x||^2 values too rare to have been drawn may make up.

    An event of probability p moves it by at most sqrt(p b), b a bound on E||C(x) - x||^2 / ||x||^2;
    in N draws p <= 5/N may go unseen (e^-5). Nothing is allowed a deterministic compressor, nor an
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
