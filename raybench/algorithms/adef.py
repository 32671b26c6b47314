"""ADEF: Nesterov's acceleration with contractive compressors, error feedback and compressed differences."""

import torch

from raybench.algorithms.base import Algorithm, Contractive, PerCell, algorithm, theory


def uncompressed(k: theory.Setting) -> float:
    """1/L, without compression: then the method is accelerated gradient descent.

    Phi = A (f(x) - f*) + ||v - x*||^2/2 does not grow. With y = (A x + a v)/(A + a), f convex,
    (A + a) f(y) <= A f(x) + a f* + a <grad f(y), v - x*>, and x+ - y = (a/(A + a))(v+ - v) gives (A + a) f(x+) <=
    (A + a) f(y) + a <grad f(y), v+ - v> + L a^2/(2 (A + a)) ||v+ - v||^2. With v+ - v = -a grad f(y) the growth is at
    most (L a^2/(A + a) - 1) ||v+ - v||^2/2, which is 0 at a^2 = gamma (A + a), gamma = 1/L.
    """
    if k.need("alpha") < 1:
        raise theory.NoTheory("with compression the paper's step is not known here")
    return 1 / k.need("L")


def stable(k: theory.Setting) -> float:
    """alpha^2/L: what is left over grows with a, and larger steps have diverged in runs with Top-K, if late."""
    return k.need("alpha") ** 2 / k.need("L")


STEPS = theory.StepSizes(
    nonconvex=theory.Convention(stable, "observed here", "rule of thumb"),
    convex=theory.Theorem(
        uncompressed,
        "f(x^T) - f* <= ||x^0 - x*||^2/(2 A_T) <= 2 ||x^0 - x*||^2/(gamma T^2)",
        (theory.SMOOTH, theory.CONVEX_CLIENTS, theory.CONTRACTIVE, theory.CONSTANT_STEP),
        "Nesterov 1983, without compression; derived here",
    ),
)


@algorithm("adef", title="ADEF", up=Contractive, theory=STEPS)
class ADEF(Algorithm):
    """y = (A x + a v)/(A + a), g_i = grad f_i(y); h_i <- h_i + C(g_i - h_i); m_i = C(g_i - h_i - e_i/a).

    e_i <- e_i + a (h_i + m_i - g_i); v <- v - a mean(h_i + m_i); x <- (A x + a v)/(A + a); A <- A + a, with a^2 = gamma
    (A + a), A = 0 at first. v + mean e_i is where exact gradients would have led. Without compression this is accelerated
    gradient descent, gamma = 1/L for convex f; with it gamma = alpha^2/L is a rule of thumb. Up: two messages. Down: d
    values, from which all keep x and v. Source: Gao, Rodomanov, Rack, Stich 2025, Accelerated Distributed Optimization
    with Compression and Error Feedback.
    """

    def setup(a, wire, s, c):
        c.h, c.e, s.h = wire.zeros(), wire.zeros(), wire.zero()

    def start(a, net, s, c):
        super().start(net, s, c)
        s.v, s.A = s.x, torch.zeros_like(a.gamma.values)

    def ahead(a, s):
        """Return where the next gradients are, y, and a and a/(A + a)."""
        gamma = a.gamma.values
        weight = (gamma + (gamma * (gamma + 4 * s.A)).sqrt()) / 2
        share = PerCell(weight / (s.A + weight))
        return (1 - share) * s.x + share * s.v, PerCell(weight), share

    def round(a, net, s, c):
        y, weight, share = a.ahead(s)
        g = net.grad(y)

        change = a.C(g - c.h, net.stream("change"))
        c.h += change.decode()
        s.h += net.up(change).mean()
        m = a.C(g - c.h - c.e / weight, net.stream("up"))
        c.e += weight * (c.h + m.decode() - g)

        s.v = s.v - weight * net.model(s.h + net.up(m).mean())
        s.x = (1 - share) * s.x + share * s.v
        s.A = s.A + weight.values
