"""signSGD with majority vote, and Signum: signs both ways."""

from raybench.algorithms.base import Choice, Estimator, Integer, Number, algorithm, where


@algorithm(
    "sign_sgd",
    title="signSGD",
    own="sign",
    up=None,
    theory=None,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
    decay=Number(0.0, low=0, per_cell=True, help="weight decay, beside the vote"),
    ties=Choice("plus", "random", help="the vote of as many + as -: +1, or a coin of the server"),
)
class SignSGD(Estimator):
    """s_i = sign(g_i); s = sign(sum_i s_i), the majority; x <- x - gamma (s + decay x).

    sign(0) = +1. The model is never sent: every client steps itself. No guarantee beyond noise that
    is symmetric and unimodal: on heterogeneous data it stalls or moves away from x*, whatever the
    step. Up: d signs. Down: d signs. Source: Bernstein et al. 2018, 2019, signSGD with Majority Vote.
    """

    broadcasts_model = False
    left_to_loops = {"decay": "the weight_decay of your optimizer"}

    def estimate(a, wire, s, c, grad):
        votes = wire.up(a.ballot(grad, wire.stream("up"))).sum()
        if a.ties == "random":
            coin = 0.5 - wire.server_stream("ties").uniform(votes.shape[-1])
            votes = where(votes == 0, coin.to(votes.dtype), votes)
        return wire.down(a.ballot(votes, wire.server_stream("down")))

    def outer_step(a, s, g):
        return g + a.decay * s.x

    def ballot(a, v, stream):
        # a sign bit cannot carry a NaN; a cell that diverges sends signs all the same, so that it does not
        # stop the other cells of its batch
        return a.C(v.nan_to_num(), stream)


@algorithm(
    "signum",
    title="Signum",
    own="sign",
    up=None,
    theory=None,
    momentum=Number(0.9, low=0, high=0.999, per_cell=True, help="weight of past gradients"),
)
class Signum(SignSGD):
    """m_i <- beta m_i + (1-beta) g_i; x <- x - gamma (sign(sum_i sign(m_i)) + decay x): signSGD on averages.

    beta = ``momentum``; 0 is signSGD. Up: d signs. Down: d signs. Source: Bernstein et al. 2018.
    """

    def setup(a, wire, s, c):
        c.m = wire.zeros()

    def estimate(a, wire, s, c, grad):
        c.m = a.momentum * c.m + (1 - a.momentum) * grad
        return super().estimate(wire, s, c, c.m)
