"""What every problem offers: n clients, batched gradients, constants, a variable of d coordinates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from raybench.core.layout import Layout
from raybench.core.registry import Param
from raybench.core.streams import Sample

DTYPES = {"float64": torch.float64, "float32": torch.float32}


OF_LOSSES = frozenset({"loss", "suboptimality"})  # columns that follow from the losses
OF_GRADIENTS = frozenset({"grad_norm_sq", "mean_client_grad_norm_sq", "estimator_error_sq"})
EVALUATED = frozenset({"accuracy", "test_loss"})  # columns that ``Problem.evaluate`` fills


@dataclass(frozen=True)
class Measured:
    """What the record of a point needs; None where it is not known.

    grads: grad f_i(x) (B, n_here, d). losses: f_i(x) (B, n_here). values: by column, (B,) each.
    """

    grads: Tensor | None
    losses: Tensor | None
    values: Mapping[str, Tensor]


class Fact(StrEnum):
    """What a problem may state about itself beside its constants; theorems rely on what is stated only."""

    CONVEX_CLIENTS = "convex_clients"  # every f_i is convex
    CONVEX_SAMPLES = "convex_samples"  # every f_ij, the loss of one sample, is convex
    STRONGLY_CONVEX = "strongly_convex"  # f is mu-strongly convex, mu the constant of that name
    BOUNDED_CLIENTS = "bounded_clients"  # every f_i is bounded below
    SAME_CLIENTS = "same_clients"  # every f_i is f
    # the smooth part of every f_i is quadratic: its Hessian is the same everywhere
    QUADRATIC = "quadratic"
    CONVEX_PENALTY = "convex_penalty"  # the nonsmooth part is convex


@dataclass(frozen=True)
class Constants:
    """Smoothness and curvature of f and the f_i, over all clients; None (or empty) where unknown.

    L: of f. L_i: of each f_i. L_plus: mean ||grad f_i(x) - grad f_i(y)||^2 <= L_plus^2 ||x-y||^2.
    L_pm: mean ||.||^2 - ||mean .||^2 <= L_pm^2 ||x-y||^2 (Hessian variance). mu: PL or strong
    convexity constant, positive where known. mu_i: strong convexity of each f_i, given where all are
    positive. f_inf: a lower bound of f. f_star: its exact minimum.
    Of the samples f_ij of client i: L_samples, mean_ij ||grad f_ij(x) - grad f_ij(y)||^2 <=
    L_samples^2 ||x-y||^2; L_sample_i, each client's max_j of the smoothness of f_ij;
    sample_variance, a bound of mean_ij ||grad f_ij(x) - grad f_i(x)||^2 for all x. All concern the
    smooth part; each is valid, not always the smallest. facts: what else is known to hold.
    """

    L: float | None = None
    L_i: tuple[float, ...] = ()
    L_plus: float | None = None
    L_pm: float | None = None
    mu: float | None = None
    mu_i: tuple[float, ...] = ()
    f_inf: float | None = None
    f_star: float | None = None
    L_samples: float | None = None
    L_sample_i: tuple[float, ...] = ()
    sample_variance: float | None = None
    facts: frozenset[Fact] = frozenset()
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def L_max(self) -> float | None:
        """Return max_i L_i."""
        return max(self.L_i) if self.L_i else None

    @property
    def mu_min(self) -> float | None:
        """Return min_i mu_i: every f_i is so strongly convex."""
        return min(self.mu_i) if self.mu_i else None

    @property
    def L_tilde(self) -> float | None:
        """Return sqrt(mean_i L_i^2)."""
        return math.sqrt(sum(v * v for v in self.L_i) / len(self.L_i)) if self.L_i else None

    @property
    def L_AM(self) -> float | None:
        """Return mean_i L_i."""
        return sum(self.L_i) / len(self.L_i) if self.L_i else None

    @property
    def mu_AM(self) -> float | None:
        """Return mean_i mu_i."""
        return sum(self.mu_i) / len(self.mu_i) if self.mu_i else None

    @property
    def L_sample_max(self) -> float | None:
        """Return the largest smoothness constant of a single sample, max_ij L_ij."""
        return max(self.L_sample_i) if self.L_sample_i else None


class Problem:
    """f(x) = (1/n) sum_i f_i(x) [+ penalty(x)], evaluated for B variables at once.

    A problem holds the clients ``clients`` of n; ``host`` gives the same problem with fewer.
    Shapes: x is (B, d), or (B, n_here, d) with a point per client; gradients (B, n_here, d).

    Write your own by setting ``n`` and ``dim`` in ``__init__`` (call ``super().__init__``) and
    defining ``f_i(i, x)``: (B, d) -> (B,), and ``grad_i(i, x)``: (B, d) -> (B, d) (by automatic
    differentiation where it is missing); override ``oracle`` and ``grad`` to be fast.
    """

    __params__: ClassVar[Mapping[str, Param]] = {}
    # names of attributes whose first axis is the clients; a value may be None
    per_client: ClassVar[tuple[str, ...]] = ()
    _whole: Self | None
    has_prox: bool = False
    costly: bool = False  # whether a full gradient takes so long that few rows measure it
    batch: int | None = None  # samples of a gradient, unless a method says how many; None: all
    clip: float | None = None  # norm to which a client's gradient is scaled down for methods
    weight_decay: float = 0.0  # w of w/2 ||x||^2, which is a part of f and is not clipped

    def __init__(
        self,
        n: int,
        layout: Layout | int,
        *,
        dtype: torch.dtype | str = torch.float64,
        samples: tuple[int, ...] | None = None,
    ) -> None:
        self.n = n
        self.clients = range(n)
        self.layout = Layout.vector(layout) if isinstance(layout, int) else layout
        self.dtype = DTYPES[dtype] if isinstance(dtype, str) else dtype
        self.device = torch.device("cpu")
        self.samples = samples or (1,) * n
        self._whole = None
        # what computes with a torch module: every device, and every host of clients, has its own
        self.networks: list[Any] = []
        self._kept: dict[str, Any] = {}  # values that were computed once on demand

    def about(self) -> list[tuple[str, str]]:
        """Return what was read of a user's data, as (noun, words): nothing, unless a problem reads tables."""
        return []

    @property
    def dim(self) -> int:
        """Return d, the number of coordinates of the variable."""
        return self.layout.dim

    @property
    def message_dim(self) -> int:
        """Return the length of the vectors that clients send (d unless a problem says otherwise)."""
        return self.dim

    def message_layout(self, batch: object = None) -> Layout:
        """Return the layout of what clients send; where features are split over clients it depends on the
        minibatch, an integer, or None and ``full`` for all samples.
        """
        return self.layout if self.message_dim == self.dim else Layout.vector(self.message_dim)

    @property
    def whole(self) -> Self:
        """Return the problem with all its clients, on the CPU."""
        return self._whole or self

    @property
    def constants(self) -> Constants:
        """Return the constants over all clients, computed once in float64."""
        whole = self.whole
        return whole.once("constants", whole.find_constants)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a value that is made when it is first asked for, and kept."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def find_constants(self) -> Constants:
        """Compute the constants; called once, on the whole problem.

        By default those that the problem has set as attributes: ``self.L``, ``self.L_i``,
        ``self.facts``, ... A problem without samples has f_i for its only one.
        """
        values = {f.name: getattr(self, f.name) for f in fields(Constants) if hasattr(self, f.name)}
        if max(self.samples) == 1:
            values = {"L_sample_i": values.get("L_i", ()), "sample_variance": 0.0, **values}
        return Constants(**{**values, "facts": frozenset(map(Fact, values.get("facts", ())))})

    def host(self, clients: range) -> Self:
        """Return the same problem holding only these consecutive clients' data, for a rank of its own.

        Raises ValueError if they are not a stretch of this problem's n clients.
        """
        if clients.step != 1 or not 0 <= clients.start < clients.stop <= self.n:
            raise ValueError(f"clients {clients} are not a stretch of 0..{self.n - 1}")
        part = copy.copy(self.whole)
        part._whole, part._kept, part.clients = self.whole, {}, clients
        for name in self.per_client:
            if getattr(part, name) is not None:
                setattr(part, name, getattr(part, name)[clients.start : clients.stop])
        part = part.to(self.device)
        part.networks = [network.apart() for network in self.networks]
        return part

    def few(self) -> Self:
        """Return the problem with few samples, to try what runs on it; itself where a round is cheap."""
        return self

    def to(self, device: torch.device | str) -> Self:
        """Return the problem with its tensors on ``device`` (itself if they are there)."""
        device = torch.device(device)
        if device == self.device:
            return self
        moved = copy.copy(self)
        moved._whole, moved._kept, moved.device = self.whole, {}, device
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        moved.networks = [network.to(device) for network in self.networks]
        return moved

    def __getstate__(self) -> dict[str, object]:
        # of what was computed on demand only the constants are sent to other processes
        memory = {k: v for k, v in self._kept.items() if k == "constants"}
        return {**vars(self), "_kept": memory}

    def spread(self, x: Tensor) -> Tensor:
        """Return x as (B, n_here, d), whether it came as (B, d) or so already."""
        return x if x.ndim == 3 else x[:, None].expand(-1, len(self.clients), -1)

    def f_i(self, i: int, x: Tensor) -> Tensor:
        """Return f_i(x), (B,), of client i at x (B, d)."""
        raise NotImplementedError(f"{type(self).__name__} defines neither oracle nor f_i")

    def grad_i(self, i: int, x: Tensor) -> Tensor:
        """Return grad f_i(x), (B, d), by automatic differentiation of f_i."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.f_i(i, x).sum(), x)[0]

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return (grad f_i(x)) (B, n_here, d) and f_i(x) (B, n_here), None without ``loss``."""
        at = self.spread(x)
        pairs = [(i, at[:, j]) for j, i in enumerate(self.clients)]
        grads = torch.stack([self.grad_i(i, z) for i, z in pairs], dim=1)
        return grads, torch.stack([self.f_i(i, z) for i, z in pairs], dim=1) if loss else None

    def grad(self, x: Tensor, sample: Sample | None = None) -> Tensor:
        """Return grad f_i(x), (B, n_here, d), or the mean gradient of a sample of each client.

        A problem without samples has the full gradient only.
        """
        return self.oracle(x, loss=False)[0]

    def measure(
        self,
        x: Tensor,
        what: frozenset[str],
        full: Callable[[], tuple[Tensor, Tensor]],
    ) -> Measured:
        """Return what is known of f at x (B, d) for the record: of ``what``, all that is worth its price.

        what: names of columns. full: returns (grad f_i(x)) (B, n_here, d) and f_i(x) (B, n_here) over
        all samples, from memory where a method has just asked for them. They are taken where they are asked
        for, losses alone where only they are, and always where they are not costly; unknown columns stay null.
        """
        grads = losses = None
        if what & OF_GRADIENTS or not self.costly:
            grads, losses = full()
        elif what & OF_LOSSES:
            losses = self.losses(x)
        return Measured(grads, losses, self.evaluate(x) if what & EVALUATED else {})

    def losses(self, x: Tensor) -> Tensor | None:
        """Return f_i(x) (B, n_here) of x (B, d) for the record; a problem may do it without gradients."""
        return self.oracle(x)[1]

    def prox(self, v: Tensor, gamma: Tensor | float) -> Tensor:
        """Return argmin_x gamma penalty(x) + ||x - v||^2 / 2; gamma broadcasts against v."""
        return v

    def penalty(self, x: Tensor) -> Tensor:
        """Return the nonsmooth part of f at x (B, d) as (B,); no f_i contains it."""
        return x.new_zeros(x.shape[:-1])

    def decay(self, x: Tensor) -> Tensor | float:
        """Return w/2 ||x||^2 of points (.., d), w = ``weight_decay``."""
        w = self.weight_decay
        return w / 2 * x.square().sum(-1) if w else 0.0

    def start(self) -> Tensor:
        """Return the problem's own starting point (d,)."""
        return torch.zeros(self.dim, dtype=self.dtype, device=self.device)

    def minimizer(self) -> Tensor | None:
        """Return the minimiser x* (d,) where it is known or quickly found, else None."""
        return None

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Return metrics at x (B, d), each (B,): accuracy, test_loss; empty where there are none."""
        return {}


# How many rows are right: a tie between classes counts as what a guess among them would be --------


def right(scores: Tensor, labels: Tensor) -> Tensor:
    """Return how right each row is, 0 to 1 in float64, (.., N), of scores (.., N, c), labels (N,) or (.., N).

    A row whose class has the largest score is right, one whose class shares it with t - 1 others by 1/t. So x = 0,
    where all scores are equal, has accuracy 1/c, and not that of whichever class comes first. A score that is not a
    number makes its row wrong.
    """
    top = scores == scores.amax(-1, keepdim=True)
    chosen = top.gather(-1, labels.expand(scores.shape[:-1])[..., None])[..., 0]
    return chosen.double() / top.sum(-1).clamp(min=1)


def share_right(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the share of rows that are ``right``, (..), of scores (.., N, c), labels (N,) or (.., N)."""
    return right(scores, labels).mean(-1)


def share_signed(margins: Tensor) -> Tensor:
    """Return the share of rows with a positive margin y a'x, (..), of margins (.., N); a margin of 0 is half right."""
    return ((margins > 0).double() + 0.5 * (margins == 0)).mean(-1)
