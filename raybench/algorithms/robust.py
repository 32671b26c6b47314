"""A robust server: what it makes of its estimates of the clients, of which some may be Byzantine.

A server that keeps clients apart holds an estimate of each one's vector, (B, n, d): of the messages that client
i has sent it makes what it would otherwise make of their mean. In place of the mean of these estimates it
takes a rule that a few of them cannot pull far away. A rule applied to the messages would be another thing: the
median of differences is not the difference of medians, and its errors add up from round to round.

A rule F is (f, kappa)-robust if for every n - f of its n vectors, z their mean,
||F - z||^2 <= kappa mean ||x_i - z||^2 over these n - f. Source of the notion: Allouah, Farhadkhani, Guerraoui,
Gupta, Pinot, Stephan 2023, Fixing by Mixing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import NormalDist

import torch
from torch import Tensor

from raybench.algorithms.protocols import Draws
from raybench.core.parts import Robust

WEISZFELD_STEPS = 200
WEISZFELD_CLOSE = 1e-12  # a step so short, relative to the vectors' spread, is the last one


def pooled(robust: Robust, draws: Draws, each: Tensor) -> Tensor:
    """Return what the server steps along, (B, d), of its estimates of the clients, each (B, n, d).

    First Byzantine clients replace theirs, then buckets are averaged, then the rule is applied.
    """
    n = each.shape[1]
    seen = forged(robust, each) if robust.forges(n) else each
    if robust.bucket > 1:
        source = draws.server_stream("buckets")
        seen = bucketed(seen, robust.bucket, source.uniform(n).argsort(-1))
    return RULES[robust.rule](seen, robust.tolerated(n))


# What Byzantine clients do ---------------------------------------------------------------------------


def forged(robust: Robust, each: Tensor) -> Tensor:
    """Return the estimates once the last f of n clients have replaced theirs, (B, n, d).

    sign_flip: -scale times what it would be. a_little_is_enough: m - z s, with m and s the mean and the
    standard deviation of the honest ones, coordinate by coordinate (Baruch, Baruch, Goldberg 2019).
    inner_product: -epsilon m (Xie, Koyejo, Gupta 2020). They know what the honest clients have sent, and
    are not bound to the compressor: what they send costs as much as an honest client's messages.
    """
    n = each.shape[1]
    good, bad = each.split([n - robust.attackers(n), robust.attackers(n)], 1)
    if robust.attack == "sign_flip":
        return torch.cat((good, -robust.scale * bad), 1)
    mean = good.mean(1, keepdim=True)
    if robust.attack == "inner_product":
        sent = -robust.epsilon * mean
    else:
        sent = mean - deviations(robust, n) * good.std(1, keepdim=True, correction=0)
    return torch.cat((good, sent.expand_as(bad)), 1)


def deviations(robust: Robust, n: int) -> float:
    """Return z; auto: the largest one with which s honest clients are expected to be farther out than the attackers.

    Phi(z) = (n - f - s)/(n - f), s = floor(n/2 + 1) - f the honest clients that a majority lacks; 0 where that
    is less than a half.
    """
    if isinstance(robust.z, int | float):
        return float(robust.z)
    f = robust.attackers(n)
    good, lacking = n - f, max(1, n // 2 + 1 - f)
    return max(0.0, NormalDist().inv_cdf((good - lacking) / good)) if good > lacking else 0.0


# What the server does about it -----------------------------------------------------------------------


def bucketed(each: Tensor, size: int, order: Tensor) -> Tensor:
    """Return the means (B, m, d) of buckets of ``size`` vectors each, taken in an order (B, n); the last may be smaller.

    Source: Karimireddy, He, Jaggi 2022, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing.
    """
    mixed = each.gather(1, order[..., None].expand_as(each))
    return torch.stack([bucket.mean(1) for bucket in mixed.split(size, 1)], 1)


def mean(x: Tensor, f: int) -> Tensor:
    """Return the mean of x (B, m, d) over axis 1: one vector takes it anywhere."""
    return x.mean(1)


def median(x: Tensor, f: int) -> Tensor:
    """Return the median of x (B, m, d) over axis 1, coordinate by coordinate; of two middle ones their mean."""
    m, ranked = x.shape[1], x.sort(1).values
    return (ranked[:, (m - 1) // 2] + ranked[:, m // 2]) / 2


def trimmed_mean(x: Tensor, f: int) -> Tensor:
    """Return the mean of x (B, m, d) without the f smallest and the f largest values of every coordinate."""
    return x.sort(1).values[:, f : x.shape[1] - f].mean(1) if f else x.mean(1)


def krum(x: Tensor, f: int) -> Tensor:
    """Return the one of x (B, m, d) with the least sum of squared distances to its m - f - 2 nearest others.

    Of equals the first. Source: Blanchard, El Mhamdi, Guerraoui, Stainer 2017.
    """
    m = x.shape[1]
    far = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    nearest = far.sort(-1).values[..., 1 : m - f - 1]  # the first one is itself
    best = nearest.sum(-1).argmin(-1)
    return x.gather(1, best[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0]


def geometric_median(x: Tensor, f: int) -> Tensor:
    """Return the point with the least sum of distances to x (B, m, d), by Weiszfeld's steps from the median.

    At one of the points the step is that of Vardi and Zhang (2000); the nearest point is taken in the end if it is as
    good. Each cell stops by itself, so that it does not matter beside which others it runs.
    """
    y = median(x, f)
    spread = (x - y[:, None]).norm(dim=-1).amax(1, keepdim=True)
    moving = spread > 0
    for _ in range(WEISZFELD_STEPS):
        if not bool(moving.any()):
            break
        closer = where_pulled(x, y)
        short = (closer - y).norm(dim=-1, keepdim=True) <= WEISZFELD_CLOSE * spread
        y = torch.where(moving, closer, y)
        moving = moving & ~short
    nearest = (x - y[:, None]).norm(dim=-1).argmin(1)
    nearest_point = x.gather(1, nearest[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0]
    better = _distances(x, nearest_point) <= _distances(x, y)
    return torch.where(better[:, None], nearest_point, y)


def where_pulled(x: Tensor, y: Tensor) -> Tensor:
    """Return the next point (B, d) of y: the mean of x weighted by 1/distance, held back by points at y itself.

    With R the sum of unit vectors from y to the others, y stays where ||R|| is at most the number of points at y.
    """
    toward = x - y[:, None]
    far = toward.norm(dim=-1)
    here = (far == 0).sum(1, keepdim=True)
    weights = torch.where(far > 0, 1 / far, 0.0)
    whole = weights.sum(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    pull = (weights[..., None] * toward).sum(1)
    size = pull.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return y + (1 - here / size).clamp(min=0) * pull / whole


def _distances(x: Tensor, y: Tensor) -> Tensor:
    return (x - y[:, None]).norm(dim=-1).sum(1)


RULES: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "mean": mean,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "krum": krum,
    "geometric_median": geometric_median,
}


def kappa(robust: Robust, n: int) -> float | None:
    """Return kappa of a rule that n clients are judged by, None where none is proved here.

    trimmed_mean: f/(n - 2f), the least there can be. With z = 0 and h the n - f values of a coordinate in
    ascending order, the j-th value that is kept lies between h_j and h_(f+j), so the sum of those kept lies between
    minus the sum of the f largest h and minus that of the f smallest. If A is either of these, ||h||^2 >=
    A^2/f + A^2/(n - 2f), as the other n - 2f values sum up to -A. geometric_median: 4 (1 + f/(n - 2f))^2, as the
    sum of distances is not larger than at z: (n - 2f) ||F - z|| <= 2 sum ||x_i - z|| over the n - f; median: the
    same, coordinate by coordinate. mean: 0 if f = 0. Of buckets and krum nothing is proved here.
    """
    f = robust.tolerated(n)
    if robust.bucket > 1 or robust.rule == "krum" or not robust.attackers(n) <= f < n / 2:
        return None
    if robust.rule == "mean":
        return None if f else 0.0
    if robust.rule == "trimmed_mean":
        return f / (n - 2 * f)
    return 4 * (1 + f / (n - 2 * f)) ** 2
