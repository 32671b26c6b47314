"""The parts of a round that a sweep may exchange: local work, outer optimizer, delay, the server's rule; and training.

Here stand their settings, with defaults and limits; what they do stands in ``raybench.algorithms``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from raybench.core.params import Choice, Count, Flag, Integer, List, Number, record

MOMENTA = {"momentum": 0.9, "adamw": 0.9, "muon": 0.95}


@record
class Local:
    """H = ``steps`` steps of an inner optimizer between messages; by default one gradient and none."""

    steps: int = Integer(1, low=1, help="H, steps between messages")
    optimizer: str = Choice("sgd", "momentum", "adamw", "muon", help="the inner optimizer")
    step_size: float | None = Number(
        None, low=0, open_low=True, help="eta of the inner optimizer; sgd's is `step_size` itself"
    )
    momentum: float | None = Number(None, low=0, high=0.9999, help="mu, or beta_1 of adamw")
    beta2: float = Number(0.999, low=0, high=0.99999, help="of adamw")
    epsilon: float = Number(1e-8, low=0, open_low=True, help="of adamw")
    weight_decay: float = Number(0.0, low=0, help="decoupled: y <- (1 - eta w) y")
    nesterov: bool = Flag(help="momentum and muon step along g + mu m in place of m")
    rest: tuple[str, ...] = List(
        ("*embedding*", "*position*", "*head*"), help="tensors that muon leaves to adamw"
    )
    rest_step_size: float | None = Number(
        None, low=0, open_low=True, help="eta of adamw beside muon; by default the same"
    )

    @property
    def mu(self) -> float:
        """The momentum, by default that which is usual for the optimizer."""
        return MOMENTA.get(self.optimizer, 0.0) if self.momentum is None else self.momentum


@record
class Outer:
    """How x moves along the estimate g: x <- x - gamma (u + w x), w the decoupled weight decay.

    momentum_of: ``gradients``, or ``steps``: v <- mu v + gamma g and x <- x - v, which differs where gamma
    follows a schedule.
    """

    optimizer: str = Choice("sgd", "momentum", "nesterov", "adam", help="the outer optimizer")
    momentum: Any = Number(0.9, low=0, high=0.9999, help="mu, or beta_1 of adam")
    beta2: float = Number(0.99, low=0, high=0.99999, help="of adam")
    epsilon: float = Number(1e-8, low=0, open_low=True, help="of adam")
    weight_decay: float = Number(0.0, low=0, help="decoupled: x <- (1 - gamma w) x")
    momentum_of: str = Choice("gradients", "steps", help="what momentum sums up")

    @property
    def in_steps(self) -> bool:
        """Whether what x moves along holds gamma already."""
        return self.momentum_of == "steps" and self.optimizer in ("momentum", "nesterov")


@record
class Delay:
    """How many rounds late x moves along an estimate: what is sent overlaps with the work after it."""

    rounds: int = Integer(1, low=0, help="rounds between an estimate and the step along it")


@record
class Robust:
    """How a server resists clients that send anything, and what such clients do.

    The last ``byzantine`` of the n clients are Byzantine: a number, or a share such as ``20%``, rounded down.
    tolerate: how many the rule is prepared for. What the rules and attacks do stands in
    ``raybench.algorithms.robust``.
    """

    rule: str = Choice(
        "geometric_median",
        "median",
        "trimmed_mean",
        "krum",
        "mean",
        help="what the server makes of its estimates of the clients",
    )
    byzantine: int | str = Count(
        0, low=0, of="the clients", help="Byzantine clients, the last ones: a number or a share"
    )
    tolerate: int | str | None = Count(
        None,
        low=0,
        of="the clients",
        help="how many the rule is prepared for; by default `byzantine`",
    )
    bucket: int = Integer(1, low=1, help="estimates that are averaged at random before the rule")
    attack: str = Choice(
        "none",
        "sign_flip",
        "label_flip",
        "a_little_is_enough",
        "inner_product",
        help="what Byzantine clients do",
    )
    scale: float = Number(1.0, low=0, open_low=True, help="factor of sign_flip")
    z: float | str = Number(
        1.06, words=("auto",), help="standard deviations of a_little_is_enough; auto: by n"
    )
    epsilon: float = Number(0.1, low=0, open_low=True, help="factor of inner_product")

    def attackers(self, n: int) -> int:
        """Return how many of n clients are Byzantine."""
        return _clients(self.byzantine, n)

    def tolerated(self, n: int) -> int:
        """Return how many of n clients the rule is prepared for."""
        return self.attackers(n) if self.tolerate is None else _clients(self.tolerate, n)

    def forges(self, n: int) -> bool:
        """Return whether some of n clients replace what the server holds of them."""
        return self.attack not in ("none", "label_flip") and self.attackers(n) > 0

    def poisons(self, n: int) -> bool:
        """Return whether some of n clients take gradients on wrong labels."""
        return self.attack == "label_flip" and self.attackers(n) > 0

    def idle(self, n: int) -> bool:
        """Return whether the mean of messages is all that is needed."""
        return self.rule == "mean" and not self.forges(n)


def _clients(number: int | str, n: int) -> int:
    """Return how many of n clients a number, or a share such as ``20%``, is; shares are rounded down."""
    if isinstance(number, str):
        return math.floor(Fraction(number.removesuffix("%")) / 100 * n)
    return number


@record
class Train:
    """How a network's gradients are taken: f_i gains w/2 ||x||^2, w = ``weight_decay``."""

    weight_decay: float = Number(0.0, low=0, help="w of w/2 ||x||^2, a part of f")
    clip: float | None = Number(
        None,
        low=0,
        open_low=True,
        help="norm to which every client's gradient, without weight decay, is scaled down",
    )
    accumulate: int = Integer(1, low=1, help="minibatches that make one gradient")
    autocast: str = Choice("none", "bfloat16", help="what layers compute in, as torch.autocast")
    save: str = Choice("none", "weights", help="weights: kept at the end, as torch saves them")


PARTS: dict[str, type[Local] | type[Outer] | type[Delay] | type[Robust]] = {
    "local": Local,
    "outer": Outer,
    "delay": Delay,
    "robust": Robust,
}
"""The parts by the key of a sweep file."""

# Coordinates of tensors that share a message by ``granularity: bucket``. A sweep takes as many float32 as a bucket of
# DistributedDataParallel holds. A training loop takes fewer: to change that would change the bytes of its messages.
BUCKET_OF_SWEEPS = 25 * 2**20 // 4
BUCKET_OF_LOOPS = 1 << 22
