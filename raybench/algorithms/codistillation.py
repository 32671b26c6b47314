"""Codistillation: clients learn from each other's predictions."""

from raybench.algorithms.base import Choice, Dense, Integer, Number, Points, algorithm
from raybench.algorithms.diffusion import HALF


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
        total, own = getattr(a, a.exchange)(net, s, c, rows)
        teacher = (total[:, None] - own) / max(1, net.n - 1)
        w = a.w * (min(1.0, net.t / a.ramp) if net.n > 1 else 0.0)
        c.X = c.X - a.gamma * (a.gradient(net, c.X) + w * net.oracle.distill(c.X, rows, teacher))

    def predictions(a, net, s, c, rows):
        """Return the sum of all clients' predictions (B, common, outputs), and each client's own."""
        own = net.oracle.predict(c.X, rows)
        total = net.down(Dense(net.up(Dense(own.flatten(2))).sum()))
        return total.view_as(own[:, 0]), own

    def checkpoints(a, net, s, c, rows):
        """Return the same for the points that were last sent."""
        if (net.t - 1) % a.every == 0:
            points = net.up(Dense(c.X)).decode()
            s.sent = net.down(Dense(points.flatten(1))).view_as(points)
        known = net.oracle.predict(s.sent, rows)
        return known.sum(1), net.here(known)
