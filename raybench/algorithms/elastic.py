"""Clients with points of their own, pulled together: EASGD, Leader SGD, codistillation."""

import torch

from raybench.algorithms.base import (
    Choice,
    Dense,
    Integer,
    Number,
    Points,
    algorithm,
    theory,
    where,
    zeros_like,
)
from raybench.algorithms.decentralised import HALF


def spring(k: theory.Setting) -> float:
    """Return beta/n, at most beta/2: a single client and the centre would throw each other past."""
    return float(k.numbers["beta"]) / max(2, k.n)


@algorithm(
    "easgd",
    version="2",
    up=None,
    theory=HALF,
    auto={"alpha": spring},
    beta=Number(0.9, low=0, high=1, per_cell=True, help="pull of the centre to the mean client"),
    alpha=Number("auto", low=0, high=1, words=("auto",), per_cell=True),
    tau=Integer(1, low=1, help="local steps per round"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and local step"),
)
class EASGD(Points):
    """x_i <- x_i - gamma g_i(x_i) - alpha (x_i - z); z <- z + beta (mean x_i - z); tau - 1 more local steps.

    ``alpha`` = auto is beta/n: then the springs leave sum x_i + z alone. With a single client it is beta/2,
    as beta throws the two past each other. f is recorded at the centre z. At a fixed point z = mean x_i
    and mean g_i(x_i) = 0, but the x_i differ where the f_i do, so that z is x* up to O(gamma/alpha).
    alpha = 0: independent descent. Rule of thumb: 0.5/L_max. Up: d values. Down: d values.
    Source: Zhang, Choromanska, LeCun 2015.
    """

    def round(a, net, s, c):
        mean = net.up(Dense(c.X)).mean()
        force = a.alpha * (c.X - s.x[:, None])
        s.x = net.down(Dense(s.x + a.beta * (mean - s.x)))
        for j in range(a.tau):
            J = net.sample(f"batch {j}", a.batch) if isinstance(a.batch, int) else None
            c.X = c.X - a.gamma * net.grad(c.X, J) - (0.0 if j else force)

    def point(a, net, s, c):
        return s.x


@algorithm(
    "lsgd",
    up=None,
    theory=HALF,
    tau=Integer(1, low=1, help="local steps per round"),
    lam=Number(0.1, low=0, high=1, per_cell=True, help="pull towards the leader of the group"),
    groups=Integer(1, low=1, help="groups of consecutive clients, each with a leader"),
    far=Number(0.1, low=0, high=1, per_cell=True, help="pull towards the best leader of all"),
    batch=Integer("full", low=1, words=("full",), help="samples per client and local step"),
)
class LSGD(Points):
    """tau times x_i <- x_i - gamma g_i(x_i) - lam (x_i - z_group) - far (x_i - z_best), z fixed for a round.

    z_group is the point with the lowest f_i(x_i) of its group as the round begins, z_best the lowest of
    all; a leader feels no pull towards itself. ``far`` counts where there are several groups. Made for
    clients of alike data: elsewhere losses of different f_i are compared. lam = far = 0: independent descent.
    Losses are of all samples, and count as a gradient. Rule of thumb: 0.5/L_max. Up: a
    value, and d values from leaders only. Down: groups d values. Source: Teng et al. 2019, Leader SGD.
    """

    def round(a, net, s, c):
        G, losses = net.oracle.grad_and_loss(c.X)
        losses = net.up(Dense(losses[..., None])).decode()[..., 0]
        groups, d = min(a.groups, net.n), c.X.shape[-1]
        group = torch.arange(net.n, device=losses.device) * groups // net.n
        inside = group == torch.arange(groups, device=losses.device)[:, None]
        leads = where(inside, losses[:, None], torch.inf).argmin(-1)  # (B, groups)
        best = losses.argmin(-1, keepdim=True)
        leads = net.choices(leads, net.n)  # the server says which client leads each group
        first = group[best]
        if groups > 1:
            first = net.choices(first, groups)  # and in which group the best of all is
        leading = zeros_like(losses, dtype=torch.bool).scatter(1, leads, True)
        points = net.up(Dense(c.X).masked(net.here(leading))).decode()
        z = points.gather(1, leads[..., None].expand(-1, -1, d))
        z = net.down(Dense(z.flatten(1))).unflatten(-1, (groups, d))

        group_of = net.here(group.expand(len(losses), -1))[..., None].expand(-1, -1, d)
        near, top = z.gather(1, group_of), z.gather(1, first[..., None].expand(-1, -1, d))
        free = net.here(leading)[..., None]
        freest = net.here(zeros_like(leading).scatter(1, leads.gather(1, first), True))[..., None]
        for j in range(a.tau):
            if isinstance(a.batch, int):
                G = net.grad(c.X, net.sample(f"batch {j}", a.batch))
            elif j:
                G = net.grad(c.X)
            pull = where(free, 0.0, a.lam * (c.X - near))
            if groups > 1:
                pull = pull + where(freest, 0.0, a.far * (c.X - top))
            c.X = c.X - a.gamma * G - pull


@algorithm(
    "codistillation",
    title="codistillation",
    up=None,
    predicts=True,
    theory=HALF,
    w=Number(0.5, low=0, per_cell=True, help="weight of the distillation loss"),
    ramp=Integer(1, low=1, help="rounds until w is reached, linearly"),
    common=Integer(32, low=1, help="inputs per round that all clients predict"),
    batch=Integer("full", low=1, words=("full",), help="own samples per client and round"),
    exchange=Choice("predictions", "checkpoints", help="what clients send each other"),
    every=Integer(50, low=1, help="rounds between checkpoints"),
)
class Codistillation(Points):
    """x_i <- x_i - gamma (g_i(x_i) + w_t grad D_i), D_i = mean_j D(t_ij, p(x_i; a_j)), w_t = w min{1, t/ramp}.

    p(x_i; a_j): the client's prediction at ``common`` inputs a_j, drawn from all clients' rows and known to
    all; t_ij: the mean of the other clients' predictions, a constant. D is the cross-entropy of
    probabilities, and half the squared distance of regressed values. ``exchange``: clients send their
    predictions, or ``every`` so many rounds their points, and predict for the others from those.
    The problem must have predictions: ``logistic``, ``nonconvex_classification``, ``least_squares``.
    w = 0: independent training. f is recorded at the mean of the points. Rule of thumb:
    0.5/L_max. Up: ``common`` times outputs values, or d per checkpoint. Down: the same, or n d.
    Source: Anil et al. 2018.
    """

    def round(a, net, s, c):
        rows = net.oracle.common_rows("common", a.common)
        total, predictions = getattr(a, a.exchange)(net, s, c, rows)
        teacher = (total[:, None] - predictions) / max(1, net.n - 1)
        w = a.w * (min(1.0, net.t / a.ramp) if net.n > 1 else 0.0)
        c.X = c.X - a.gamma * (a.gradient(net, c.X) + w * net.oracle.distill(c.X, rows, teacher))

    def predictions(a, net, s, c, rows):
        """Return the sum of all clients' predictions (B, common, outputs), and each client's own."""
        local = net.oracle.predict(c.X, rows)
        total = net.down(Dense(net.up(Dense(local.flatten(2))).sum()))
        return total.view_as(local[:, 0]), local

    def checkpoints(a, net, s, c, rows):
        """Return the same for the points that were last sent."""
        if (net.t - 1) % a.every == 0:
            points = net.up(Dense(c.X)).decode()
            s.sent = net.down(Dense(points.flatten(1))).view_as(points)
        predictions = net.oracle.predict(s.sent, rows)
        return predictions.sum(1), net.here(predictions)
