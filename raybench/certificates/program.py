"""The semidefinite program of a worst case: over all functions of a class and all contractive compressors.

Every vector of a run is a combination of unknown ones, so squares and products are linear in their Gram matrix G >= 0,
and what is known of functions and compressors is linear in G and the values f_i at the points. Sources: Drori, Teboulle
2014; Taylor, Hendrickx, Glineur 2017, Smooth Strongly Convex Interpolation and Exact Worst-case Performance.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

from raybench.certificates.space import TOLERANCE, Subject, Trace
from raybench.core.errors import InputError

MEASURES = ("mean_grad", "last_grad", "gap", "distance", "lyapunov")
STARTS = ("gap", "distance", "lyapunov")
RANK = 1e-9  # of the vectors that a program is about, relative to the largest singular value
RELATIVE_GAP = 1e-6
CAP = 1e4  # of the clients' gradients at x^0, where a theorem has no condition on them


@dataclass
class Form:
    """sum of weights times squares, products of vectors, and values: linear in G and f.

    A: (r, r), of the vectors in their reduced coordinates. b: (N,), by the unknown vector that is the gradient there.
    """

    A: np.ndarray
    b: np.ndarray

    def __add__(self, other: Form) -> Form:
        return Form(self.A + other.A, self.b + other.b)

    def __sub__(self, other: Form) -> Form:
        return Form(self.A - other.A, self.b - other.b)

    def __rmul__(self, weight: float) -> Form:
        return Form(weight * self.A, weight * self.b)

    def value(self, G: np.ndarray, f: np.ndarray) -> float:
        """Return the number that it is for a Gram matrix and values."""
        return float((self.A * G).sum() + self.b @ f)

    def size(self, G: np.ndarray, f: np.ndarray) -> float:
        """Return how large its terms are, 1 at least."""
        return max(1.0, float(np.abs(self.A * G).sum() + np.abs(self.b) @ np.abs(f)))


@dataclass(frozen=True)
class Solution:
    """What the solver says: the largest value, its status, the relative duality gap, and where it is reached."""

    value: float
    status: str
    gap: float
    G: np.ndarray | None = None
    f: np.ndarray | None = None

    @property
    def bounded(self) -> bool:
        """Whether there is a largest value, exact or not."""
        return self.G is not None and "unbounded" not in self.status and self.value < 1e9


@dataclass
class Program:
    """What is known and measured of a run, as forms.

    extra: the condition without which it is unbounded for clients that differ, ``natural`` or ``cap``. projection:
    <C(v), v> = ||C(v)||^2, too, as of Top-K. rows: the unknown vectors (N, r) of a run in numbers; None of one in coordinates.
    """

    subject: Subject
    trace: Trace
    projection: bool = False
    extra: str = ""
    rows: np.ndarray | None = None
    most: list[tuple[Form, float]] = field(default_factory=list)
    equal: list[Form] = field(default_factory=list)

    def __post_init__(self) -> None:
        k, n = self.subject.constants, self.subject.n
        self.L = np.array(k.L_i)
        self.curvature = np.array(self.subject.mu) if self.subject.mu else -self.L
        gradients = [call for call in self.trace.calls if call.kind == "gradient"]
        self.stars = gradients[0].answers if self.subject.mu else ()
        self.differ = n > 1 and not self.subject.same
        near = TOLERANCE * max(np.abs(call.inputs).max() for call in gradients)
        self.common = {
            tuple(call.answers)
            for call in gradients
            if (np.abs(call.inputs - call.inputs[:1]) <= near).all()
        }
        self.places: list[dict[int, np.ndarray]] = [{} for _ in range(n if self.differ else 1)]
        for call in gradients:
            for i, (x, number) in enumerate(zip(call.inputs, call.answers, strict=True)):
                self.places[i % len(self.places)].setdefault(number, x)
        self.vectors = np.eye(self.trace.count) if self.rows is None else self.rows
        self.R = self._reduced() if self.rows is None else np.eye(self.rows.shape[1])
        self._functions()
        self._compressors()

    def _reduced(self) -> np.ndarray:
        """Return R (N, r): the vectors of the program are v @ R, in the units of those that there are."""
        N = self.trace.count
        relation = np.eye(N)
        if self.stars:  # the gradients at x* add up to 0
            *others, last = dict.fromkeys(self.stars)
            relation[last] = -relation[others].sum(0)
        units = np.full(N, np.sqrt(self.L.mean()))
        units[0] = 1 / units[0]
        for call in self.trace.calls:
            if call.kind in ("message", "free"):
                sizes = np.abs(call.inputs * units).max(1)
                units[list(call.answers)] = np.where(sizes > 0, sizes, units[0])
        rows = [call.inputs for call in self.trace.calls if call.kind != "gradient"]
        rows += [np.array([*p.values()]) - next(iter(p.values())) for p in self.places]
        rows += [self.unit(call.answers) for call in self.trace.calls if call.answers]
        rows += [v for v in (self.trace.start, self.trace.end) if v is not None]
        used = np.concatenate(rows) @ relation * units
        _, sizes, right = np.linalg.svd(used, full_matrices=False)
        return relation * units @ right[sizes > RANK * sizes[0]].T

    def unit(self, numbers: Sequence[int]) -> np.ndarray:
        """Return unknown vectors, (m, N) in coordinates."""
        return self.vectors[list(numbers)]

    # Forms ------------------------------------------------------------------------------------

    def product(self, u: np.ndarray, v: np.ndarray) -> Form:
        """Return <u, v> of vectors (N,), or the mean over rows (m, N)."""
        a, b = np.atleast_2d(u) @ self.R, np.atleast_2d(v) @ self.R
        A = a.T @ b / len(a)
        return Form((A + A.T) / 2, np.zeros(self.trace.count))

    def square(self, v: np.ndarray) -> Form:
        """Return ||v||^2 of a vector (N,), or the mean square of rows (m, N)."""
        return self.product(v, v)

    def f(self, numbers: Sequence[int]) -> Form:
        """Return the mean of the values at the points where these are the gradients, f_i* being 0."""
        b = np.zeros(self.trace.count)
        np.add.at(b, list(numbers), 1 / len(numbers))
        b[list(self.stars)] = 0.0
        return Form(np.zeros((self.R.shape[1],) * 2), b)

    def gradient(self, t: int) -> Form:
        """Return ||grad f(x^t)||^2."""
        return self.square(self.unit(self.trace.gradients[t]).mean(0))

    def potential(self, t: int, V: np.ndarray | None) -> Form:
        """Return the V of the theorem at x^t, whose vectors are V (m, N)."""
        says = self.subject.says
        assert says is not None
        whole = float(says.gap) * self.f(self.trace.gradients[t])
        if V is not None:
            return whole + self.square(V)
        x, step = self.trace.points, self.subject.step
        if says.weight and t == 0:  # the first step tells the first g
            g = says.scale * (x[0] - x[1]) / step
            whole += says.weight * self.square(g - self.unit(self.trace.gradients[0]).mean(0))
        return whole

    def measure(self, name: str) -> Form:
        """Return what is measured after T rounds, or of all of them."""
        T = self.subject.rounds
        if name == "mean_grad":
            forms = [self.gradient(t) for t in range(T)]
            return (1 / T) * sum(forms[1:], start=forms[0])
        if name == "last_grad":
            return self.gradient(T)
        if name == "gap":
            return self.f(self.trace.gradients[T])
        if name == "distance":
            return self.square(self.trace.points[T])
        return self.potential(T, self.trace.end)

    def begin(self, name: str) -> Form:
        """Return what is at most 1 at the start."""
        if name == "gap":
            return self.f(self.trace.gradients[0])
        if name == "distance":
            return self.square(self.trace.points[0])
        return self.potential(0, self.trace.start)

    # Conditions -------------------------------------------------------------------------------

    def _functions(self) -> None:
        for i, places in enumerate(self.places):
            for a, b in permutations(places, 2):
                self.most.append((self._between(i, a, b), 0.0))
        low = self.subject.says is not None and self.subject.says.low
        if self.subject.mu:
            if self.extra == "natural":
                self.most.append((self.square(self.unit(self.stars)), 1.0))
        elif low or self.extra == "natural":
            for i, places in enumerate(self.places):
                for a in places:
                    self.most.append((self._below([a], self.L[i]), 0.0))
        else:
            for numbers in sorted(self.common):
                self.most.append((self._below(numbers, self.L.mean()), 0.0))
            first = [[next(iter(places))] for places in self.places]
            # what one f_i gains and another loses changes nothing
            self.equal += [self.f(other) - self.f(first[0]) for other in first[1:]]
        if self.extra == "cap":
            self.most.append((self.square(self.unit(self.trace.gradients[0])), CAP))

    def _between(self, i: int, a: int, b: int) -> Form:
        """Return what interpolation of f_i demands to be <= 0 between the points of two gradients."""
        L, m = self.L[i], self.curvature[i]
        dx = self.places[i][a] - self.places[i][b]
        ga, gb = self.unit([a, b])
        dg = ga - gb
        curved = (
            (1 / L) * self.square(dg) + m * self.square(dx) - (2 * m / L) * self.product(dg, dx)
        )
        return self.f([b]) - self.f([a]) + self.product(gb, dx) + (0.5 / (1 - m / L)) * curved

    def _below(self, numbers: Sequence[int], L: float) -> Form:
        """Return inf f - f(x) + ||grad f(x)||^2/(2L), which is <= 0."""
        return (0.5 / L) * self.square(self.unit(numbers).mean(0)) - self.f(numbers)

    def _compressors(self) -> None:
        for call in self.trace.calls:
            if call.kind != "message":
                continue
            for v, c in zip(call.inputs, self.unit(call.answers), strict=True):
                left = self.square(c - v) - (1 - call.alpha) * self.square(v)
                self.most.append((left, 0.0))
                if self.projection:
                    self.equal.append(self.product(c, v) - self.square(c))

    # The solver -------------------------------------------------------------------------------

    def solve(self, measure: str, start: str) -> Solution:
        """Return the largest value of a measure where what ``start`` names is at most 1 at the start."""
        cp = solver()
        form, rows = self.measure(measure), [*self.most, (self.begin(start), 1.0)]
        r, N = self.R.shape[1], self.trace.count
        G, f = cp.Variable((r, r), PSD=True), cp.Variable(N)

        def flat(forms: Sequence[Form]) -> Any:
            """Return forms as one expression of the solver."""
            A = np.array([one.A.ravel() for one in forms])
            b = np.array([one.b for one in forms])
            A, b = (np.where(np.abs(M) > 1e-14, M, 0.0) for M in (A, b))
            return A @ cp.vec(G, order="C") + b @ f

        right = np.array([limit for _, limit in rows])
        limits = [flat([one for one, _ in rows]) <= right]
        if self.equal:
            limits.append(flat(self.equal) == 0)
        values = sorted({number for places in self.places for number in places} - {*self.stars})
        unused = sorted({*range(N)} - {*values})
        limits.append(f[unused] == 0)
        problem = cp.Problem(cp.Maximize(flat([form])[0]), limits)
        try:
            with warnings.catch_warnings():  # the status tells what they say
                warnings.simplefilter("ignore")
                problem.solve(solver=cp.CLARABEL, static_regularization_constant=1e-6)
        except cp.error.SolverError as error:
            return Solution(np.inf, f"failed: {error}".splitlines()[0], np.inf)
        if G.value is None:
            return Solution(np.inf, problem.status, np.inf)
        value, dual = float(problem.value), float(limits[0].dual_value @ right)
        gap = abs(value - dual) / max(abs(value), 1e-12)
        status = problem.status
        if status == "optimal" and gap > RELATIVE_GAP:
            status = "optimal_inaccurate"
        return Solution(value, status, gap, (G.value + G.value.T) / 2, f.value)

    def numbers(self, G: np.ndarray) -> np.ndarray:
        """Return the unknown vectors in numbers, (N, r), of a Gram matrix."""
        sizes, V = np.linalg.eigh(G)
        return self.R @ (V * np.sqrt(np.maximum(sizes, 0.0)))

    def broken(self, f: np.ndarray, start: str) -> float:
        """Return by how much a run in numbers breaks a condition, relative to its terms; f: the values (N,)."""
        G = np.eye(len(self.R))
        far = [(form, form.value(G, f) - limit) for form, limit in self.most]
        far += [(form, abs(form.value(G, f))) for form in self.equal]
        first = self.begin(start).value(G, f) - 1
        return max(first, *(amount / form.size(G, f) for form, amount in far))


def solver() -> Any:
    """Return cvxpy with its solver Clarabel. Raises InputError where they are not installed."""
    try:
        import clarabel  # noqa: F401
        import cvxpy
    except ImportError:
        what = "semidefinite programs need cvxpy and its solver Clarabel"
        raise InputError.of("certify", what, "pip install 'raybench[certify]'") from None
    return cvxpy


def conditions(program: Program, start: str) -> Iterator[str]:
    """Yield what is assumed, in words, beside the class of functions."""
    if program.extra == "cap":
        yield f"mean ||grad f_i(x^0)||^2 <= {CAP:g}"
    elif program.extra and program.subject.mu:
        yield "mean ||grad f_i(x*)||^2 <= 1"
    elif program.extra:
        yield "every f_i is bounded below, inf f the mean of their bounds"
    if program.projection:
        yield "compressors with <C(v), v> = ||C(v)||^2"
    names = {"gap": "f(x^0) - inf f", "distance": "||x^0 - x*||^2", "lyapunov": "V^0"}
    yield f"{names[start]} <= 1"
