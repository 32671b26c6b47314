"""Quadratics with known constants: heterogeneous random ones, and tridiagonal ones with a tunable Hessian variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.linalg import solveh_banded
from torch import Tensor

from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.limits import need_memory
from raybench.core.registry import Choice, Integer, List, Number, problem
from raybench.core.streams import Sample
from raybench.problems.base import DTYPES, Constants, Fact, Problem


class Quadratic(Problem):
    """f_i(x) = x'A_i x / 2 - b_i'x, from symmetric A (n, d, d) and b (n, d) in float64."""

    per_client = ("A", "b")

    def __init__(
        self,
        A: Tensor,
        b: Tensor,
        *,
        layout: Layout | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(len(b), layout or b.shape[1], dtype=dtype)
        self.exact = A.double(), b.double()
        self.A, self.b = A.to(dtype), b.to(dtype)

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        n, d = self.b.shape
        if x.ndim == 2:
            # (d, n d), so that one product serves all clients
            wide = self.once("wide", lambda: self.A.permute(2, 0, 1).reshape(d, n * d).contiguous())
            pulled = (x @ wide).view(-1, n, d)
        else:
            pulled = (self.A @ x.permute(1, 2, 0)).permute(2, 0, 1).contiguous()
        grads = pulled - self.b
        if not loss:
            return grads, None
        at = x if x.ndim == 3 else x[:, None]
        return grads, (at * (0.5 * pulled - self.b)).sum(-1)

    def find_constants(self) -> Constants:
        """All in closed form: eigenvalues of A_i, of their mean, of the mean of their squares."""
        A, b = (t.numpy() for t in self.exact)
        f_star, mu = minimum(A.mean(0), b.mean(0))
        spectra = [np.linalg.eigvalsh(a) for a in A]
        facts = _facts(A, b, spectra)
        result = quadratic_constants(A, spectra)
        return replace(result, mu=mu, f_inf=f_star, f_star=f_star, facts=facts, sample_variance=0.0)

    def minimizer(self) -> Tensor | None:
        """Return the minimiser of smallest norm, None where f is unbounded below."""
        if self.constants.f_star is None:
            return None
        A, b = (t.mean(0).numpy() for t in self.exact)
        best = np.linalg.lstsq(A, b, rcond=None)[0]
        return torch.from_numpy(best).to(self.dtype).to(self.device)


def quadratic_constants(A: np.ndarray, spectra: Sequence[np.ndarray] | None = None) -> Constants:
    """Return L, L_i, mu_i, L_plus, L_pm (and L_samples = L_plus) of quadratics with Hessians A (n, d, d).

    spectra: the eigenvalues of each, where they are known already.
    """
    mean = A.mean(0)
    centred = A - mean
    L_plus = math.sqrt(_lmax(np.einsum("nij,njk->ik", A, A, optimize=True) / len(A)))
    spread = np.einsum("nij,njk->ik", centred, centred, optimize=True) / len(A)
    eigenvalues = [np.linalg.eigvalsh(a) for a in A] if spectra is None else spectra
    each = tuple(float(np.abs(values).max()) for values in eigenvalues)
    convex = all(values[0] > _rounding(values) for values in eigenvalues)
    return Constants(
        L=float(np.abs(np.linalg.eigvalsh(mean)).max()),
        L_i=each,
        mu_i=tuple(float(values[0]) for values in eigenvalues) if convex else (),
        L_plus=L_plus,
        L_pm=math.sqrt(_lmax(spread)),
        L_samples=L_plus,
        L_sample_i=each,
    )


def _facts(A: np.ndarray, b: np.ndarray, spectra: Sequence[np.ndarray]) -> frozenset[Fact]:
    """Return what holds of x'A_i x/2 - b_i'x, A (n, d, d) and b (n, d)."""
    result = {Fact.QUADRATIC}
    if all(values[0] >= -_rounding(values) for values in spectra):
        result |= {Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES}
        flat = [i for i, values in enumerate(spectra) if values[0] <= _rounding(values)]
        if all(minimum(A[i], b[i])[0] is not None for i in flat):
            result.add(Fact.BOUNDED_CLIENTS)
    values = np.linalg.eigvalsh(A.mean(0))
    if values[0] > _rounding(values):
        result.add(Fact.STRONGLY_CONVEX)
    if all(np.array_equal(A[0], a) for a in A) and (b == b[0]).all():
        result.add(Fact.SAME_CLIENTS)
    return frozenset(result)


def _rounding(values: np.ndarray) -> float:
    """Return the size up to which eigenvalues of a matrix are zero but for rounding."""
    return len(values) * float(np.finfo(float).eps) * float(np.abs(values).max())


def _lmax(square: np.ndarray) -> float:
    return max(float(np.linalg.eigvalsh(square)[-1]), 0.0)


def minimum(A: np.ndarray, b: np.ndarray) -> tuple[float | None, float | None]:
    """Return (min of x'Ax/2 - b'x, smallest nonzero eigenvalue of A); None where unbounded below."""
    values, vectors = np.linalg.eigh(A)
    tiny = _rounding(values)
    along = vectors.T @ b
    flat = np.abs(values) <= tiny
    if (values < -tiny).any() or (np.abs(along[flat]) > 1e-9 * float(np.linalg.norm(b))).any():
        return None, None
    if flat.all():
        return 0.0, None
    steep = ~flat
    return float(-0.5 * (along[steep] ** 2 / values[steep]).sum()), float(values[steep].min())


@problem("quadratic")
def quadratic(
    dim: int | None = Integer(None, low=1, help="d; default the product of shape, else 100"),
    clients: int = Integer(10, low=1, help="number of clients n"),
    mu: float = Number(0.01, low=0, help="smallest eigenvalue of the mean matrix"),
    heterogeneity: float = Number(0.5, low=0, help="h: client i is scaled by exp(h N(0, 1))"),
    shape: Sequence[int] | None = List(None, help="[a, b]: the variable is an a x b matrix"),
    dtype: str = Choice("float64", "float32", help="floating-point type"),
    seed: int = Integer(0, low=0, help="drives the matrices"),
) -> Quadratic:
    """Heterogeneous random quadratics: f_i(x) = x'A_i x / 2 - b_i'x.

    A_i = exp(h N(0,1)) Q_i diag(0, exp(U(-3, 0)), ...) Q_i' with Q_i random orthogonal, then all
    A_i are shifted by the same multiple of I that makes mu the smallest eigenvalue of their mean;
    single f_i may be nonconvex. b_i ~ N(0, I). Raises InputError where shape and dim disagree.
    """
    layout = None
    if shape is not None:
        if not shape or not all(type(s) is int and s >= 1 for s in shape):
            raise InputError.of("problem.shape", f"{shape!r}", "a list of sizes, such as [14, 8]")
        if dim is not None and math.prod(shape) != dim:
            what = f"{list(shape)} has {math.prod(shape)} entries, dim is {dim}"
            raise InputError.of("problem.shape", what, "leave dim out")
        dim = math.prod(shape)
        layout = Layout((("x", tuple(shape)),))
    d = 100 if dim is None else dim
    # Their constants are computed from a second set, of differences to the mean.
    need_memory(
        2 * 8 * clients * d**2,
        f"{clients:,} matrices of {d:,} x {d:,}, twice,",
        "a smaller problem.dim, or fewer problem.clients; tridiagonal needs no matrices",
    )
    random = np.random.default_rng([seed, *b"quadratic"])
    A = np.empty((clients, d, d))
    for a in A:
        Q, R = np.linalg.qr(random.standard_normal((d, d)))
        Q *= np.sign(np.diag(R))  # without it Q would not be uniform over the orthogonal group
        values = np.exp(random.uniform(-3, 0, d))
        values[0] = 0
        a[:] = (Q * (values * math.exp(heterogeneity * random.standard_normal()))) @ Q.T
        a[:] = (a + a.T) / 2
    A += (mu - np.linalg.eigvalsh(A.mean(0))[0]) * np.eye(d)
    b = random.standard_normal((clients, d))
    return Quadratic(torch.from_numpy(A), torch.from_numpy(b), layout=layout, dtype=DTYPES[dtype])


NOISY_SAMPLES = 1000  # of a client with noisy gradients, which has no samples that could be counted


@problem("tridiagonal", x0="problem")
class Tridiagonal(Problem):
    """Tridiagonal quadratics: f_i(x) = x'A_i x / 2 - b_i'x, matrix-free, constants in closed form.

    A_i = (nu_i / 4) tridiag(-1, 2, -1) + c I and b_i = (nu_i / 4) (eta_i - 1) e_1 with
    nu_i = 1 + s N(0,1), eta_i = s N(0,1) and c such that lambda is the smallest eigenvalue of the
    mean. Minibatches of b samples have noise N(0, s^2/b) on every coordinate, s = ``gradient_noise``. Starts at
    sqrt(d) e_1. Szlendak, Tyurin, Richtarik 2021, generator of Richtarik et al.
    2022 (3PC).
    """

    per_client = ("scale", "first")

    def __init__(
        self,
        dim: int = Integer(1000, low=1, help="number of coordinates d"),
        clients: int = Integer(10, low=1, help="number of clients n"),
        noise: float = Number(0.05, low=0, help="s: spread of the clients' scales"),
        lambda_: float = Number(1e-6, low=0, open_low=True, help="smallest eigenvalue of the mean"),
        dtype: str = Choice("float64", "float32", help="floating-point type"),
        seed: int = Integer(0, low=0, help="drives scales and right-hand sides"),
        gradient_noise: float = Number(
            0.0, low=0, help="s: standard deviation of a sample's noise on each coordinate"
        ),
    ) -> None:
        need_memory(
            8 * (4 * dim + 2 * clients),
            f"the spectrum of {dim:,} coordinates and the scales of {clients:,} clients",
            "a smaller problem.dim, or fewer problem.clients",
        )
        samples = (NOISY_SAMPLES,) * clients if gradient_noise else None
        super().__init__(clients, dim, dtype=DTYPES[dtype], samples=samples)
        self.gradient_noise = gradient_noise
        random = np.random.default_rng([seed, *b"tridiagonal"])
        self.nu = 1 + noise * random.standard_normal(clients)
        self.b_first = self.nu / 4 * (noise * random.standard_normal(clients) - 1)
        angle = math.pi / (2 * (dim + 1))
        self.ends = math.sin(angle) ** 2, math.cos(angle) ** 2  # extreme eigenvalues at nu = 1
        mean = float(self.nu.mean())
        self.lam = lambda_
        self.shift = lambda_ - min(mean * e for e in self.ends)
        self.scale = torch.from_numpy(self.nu / 4).to(self.dtype)
        self.first = torch.from_numpy(self.b_first).to(self.dtype)

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        at = x if x.ndim == 3 else x[:, None]
        pulled = 2 * at
        pulled[..., 1:] -= at[..., :-1]
        pulled[..., :-1] -= at[..., 1:]
        Ax = self.scale[:, None] * pulled + self.shift * at
        losses = 0.5 * (at * Ax).sum(-1) - self.first * at[..., 0] if loss else None
        Ax[..., 0] -= self.first
        return Ax, losses

    def grad(self, x: Tensor, sample: Sample | None = None) -> Tensor:
        grads = self.oracle(x, loss=False)[0]
        if sample is None or not self.gradient_noise:
            return grads
        noise = sample.stream.fold("noise").normal(self.dim)
        return grads + self.gradient_noise / math.sqrt(sample.size) * noise.to(grads)

    def find_constants(self) -> Constants:
        """Closed forms: all A_i share eigenvectors, with eigenvalues nu_i sin^2(theta_k) + c.

        theta_k = k pi / (2 (d + 1)). Each constant is a convex function of sin^2(theta_k), so it is
        reached at k = 1 or k = d.
        """
        d, c, (low, high) = self.dim, self.shift, self.ends
        mean = float(self.nu.mean())
        L_plus = math.sqrt(max(float(((self.nu * e + c) ** 2).mean()) for e in self.ends))
        k = np.arange(1, d + 1)
        # lambda_k = nubar (sin^2 theta_k - sin^2 theta_1 or _d) + lambda, without cancellation
        theta = k * math.pi / (2 * (d + 1))
        base = theta[0] if mean >= 0 else theta[-1]
        values = mean * np.sin(theta - base) * np.sin(theta + base) + self.lam
        weights = 2 / (d + 1) * np.sin(2 * theta) ** 2  # squared first entries of eigenvectors
        f_star = -0.5 * float(self.b_first.mean()) ** 2 * float((weights / values).sum())
        ends = np.outer(self.nu, self.ends) + c  # the extreme eigenvalues of each A_i
        each = tuple(np.abs(ends).max(1).tolist())
        facts = {Fact.QUADRATIC, Fact.STRONGLY_CONVEX}
        if ends.min() >= 0:
            facts |= {Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES}
        if ends.min() > 0:
            facts.add(Fact.BOUNDED_CLIENTS)
        if all(bool((part == part[0]).all()) for part in (self.nu, self.b_first)):
            facts.add(Fact.SAME_CLIENTS)
        return Constants(
            L=abs(mean) * (high - low) + self.lam,
            L_i=each,
            L_plus=L_plus,
            L_pm=float(self.nu.std()) * high,
            mu=self.lam,
            mu_i=tuple(ends.min(1).tolist()) if ends.min() > 0 else (),
            f_inf=f_star,
            f_star=f_star,
            L_samples=L_plus,
            L_sample_i=each,
            sample_variance=self.dim * self.gradient_noise**2,
            facts=frozenset(facts),
        )

    def minimizer(self) -> Tensor | None:
        """Return the solution of the mean of the systems; None where that mean is not positive."""
        mean = float(self.nu.mean())
        if mean <= 0:
            return None
        band = np.zeros((2, self.dim))
        band[0, 1:], band[1] = -mean / 4, mean / 2 + self.shift
        right = np.zeros(self.dim)
        right[0] = float(self.b_first.mean())
        return torch.from_numpy(solveh_banded(band, right)).to(self.dtype).to(self.device)

    def start(self) -> Tensor:
        """Return sqrt(d) e_1."""
        x = super().start()
        x[0] = math.sqrt(self.dim)
        return x
