"""Elastic averaging SGD."""

from raybench.algorithms.base import Dense, Integer, Number, Points, algorithm, theory
from raybench.algorithms.diffusion import HALF


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
