"""Messages of signs: signSGD with majority vote, Signum, 1-bit Adam and 0/1 Adam."""

import torch

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
    refused_in_loops = {"decay": "the weight_decay of your optimizer"}

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


BATCH = Integer("full", low=1, words=("full",), help="samples per client and round")
BETA1 = Number(0.9, low=0, high=0.9999, per_cell=True, help="of the momentum m")
BETA2 = Number(0.999, low=0, high=0.999999, per_cell=True, help="of the variance v")
EPSILON = Number(1e-8, low=0, per_cell=True, help="added to sqrt(v)")


@algorithm(
    "one_bit_adam",
    title="1-bit Adam",
    own="scaled_sign",
    up=None,
    theory=None,
    batch=BATCH,
    warmup_rounds=Integer(20, low=1, help="rounds of dense Adam, say a sixth of all"),
    beta1=BETA1,
    beta2=BETA2,
    epsilon=EPSILON,
)
class OneBitAdam(Estimator):
    """x <- x - gamma m/(sqrt(v) + epsilon): dense Adam at first, then v is frozen and m sent as signs.

    Warm-up: m <- beta1 m + (1-beta1) g, v <- beta2 v + (1-beta2) g^2, g = mean g_i, no bias
    correction. Then m_i = beta1 m + (1-beta1) g_i, c_i = C(m_i + e_i), e_i <- m_i + e_i - c_i;
    m <- C(mean c_i + E), E <- mean c_i + E - m, C being ``scaled_sign``. Coordinates with v = 0, which
    had no gradient in the warm-up, stay where they are: a sign would move them by gamma/epsilon. The
    scale of the signs is ||v||_1/d; DeepSpeed's code has ||v||_2/sqrt(d), of every tensor by itself. Up and down: d
    values in the warm-up, then d signs and a value. Source: Tang et al. 2021.
    """

    broadcasts_model = False
    unsent_state = ("e",)

    def setup(a, wire, s, c):
        s.m, s.v, s.E, c.e = wire.zero(), wire.zero(), wire.zero(), wire.zeros()

    def estimate(a, wire, s, c, grad):
        if wire.t <= a.warmup_rounds:
            mean = wire.mean(grad)
            s.m = a.beta1 * s.m + (1 - a.beta1) * mean
            s.v = a.beta2 * s.v + (1 - a.beta2) * mean.square()
        else:
            v = a.beta1 * s.m[:, None] + (1 - a.beta1) * grad + c.e
            m = a.C(v, wire.stream("up"))
            c.e = v.sub_(m.decode())  # messages share no memory with what they are made of
            u = wire.up(m).mean() + s.E
            s.m = wire.down(a.C(u, wire.server_stream("down")))
            s.E = u - s.m
        return where(s.v > 0, s.m / (s.v.sqrt() + a.epsilon), 0.0)


@algorithm(
    "zero_one_adam",
    title="0/1 Adam",
    own="scaled_sign",
    up=None,
    theory=None,
    batch=BATCH,
    freeze=Integer(200, low=1, help="rounds after which the variance stays"),
    updates=Integer(16, low=1, help="updates of the variance before they become half as frequent"),
    steps_each=Integer(200, low=1, help="frozen rounds before exchanges become half as frequent"),
    steps_most=Integer(16, low=1, help="local steps between exchanges, at most"),
    beta1=BETA1,
    beta2=BETA2,
    epsilon=EPSILON,
)
class ZeroOneAdam(Estimator):
    """x <- x - gamma m/(sqrt(v) + epsilon): v from ever fewer dense rounds, then ever fewer exchanges of m.

    Up to round ``freeze``: m <- beta1 m + (1-beta1) g. In rounds of an interval that doubles after ``updates`` of
    them, g is the mean gradient, sent dense, and v <- beta2 v + (1-beta2) g^2; in the others g is compressed to
    signs both ways, with memories of the errors. Afterwards every client steps on its own, m_i <- beta1 m_i +
    (1-beta1) g_i, y_i <- y_i - gamma m_i/(sqrt(v) + epsilon), and keeps u_i = sum gamma m_i; after an interval that
    doubles every ``steps_each`` rounds, u = mean of the compressed u_i, all begin again at x <- x - u/(sqrt(v) +
    epsilon) with m = u/sum gamma. No bias correction. Coordinates with v = 0 stay where they are. Signs are sent with
    the scale ||v||_1/d of ``scaled_sign``, over all d. DeepSpeed's schedule is this one, but its scale is the root mean square
    ||v||_2/sqrt(d), of every tensor by itself and at the server of every rank's part. Up and down: d values, d signs and a
    value, or nothing. Source: Lu, Li, Zhang, De Sa, He 2022, 0/1 Adam.
    """

    broadcasts_model = False
    in_steps = True

    def setup(a, wire, s, c):
        s.m, s.v, s.E, s.time = wire.zero(), wire.zero(), wire.zero(), wire.zero()[:, :1]
        c.m, c.u, c.e = wire.zeros(), wire.zeros(), wire.zeros()

    def source(a, net, s, c):
        if net.t <= a.freeze + 1:
            return a.gradient(net, s.x)
        # at y_i = x - u_i/(sqrt(v) + epsilon), where the client's own steps have taken it
        return a.gradient(net, s.x[:, None] - a.scaled(s.v[:, None], c.u))

    def estimate(a, wire, s, c, grad):
        t = wire.t
        if t <= a.freeze:
            if t % variance_interval(t, a.updates) == 0:
                g = wire.mean(grad)
                # v <- beta2 v + (1 - beta2) g^2
                s.v = a.beta2 * s.v + (1 - a.beta2) * g.square()
            else:
                g = a.in_one_bit(wire, s, c, grad)
            s.m = a.beta1 * s.m + (1 - a.beta1) * g  # m <- beta1 m + (1 - beta1) g
            return a.gamma * a.scaled(s.v, s.m)
        if t == a.freeze + 1:
            # the memories were of gradients, and are of sums of momenta from now on
            c.m, c.e, s.E = c.m + s.m[:, None], wire.zeros(), wire.zero()
        # m_i <- beta1 m_i + (1 - beta1) g_i; u_i <- u_i + gamma m_i; time: the sum of gamma
        c.m = a.beta1 * c.m + (1 - a.beta1) * grad
        c.u, s.time = c.u + a.gamma * c.m, s.time + a.gamma * torch.ones_like(s.time)
        if t % min(a.steps_most, 2 ** ((t - a.freeze - 1) // a.steps_each)) != 0:
            return wire.zero()
        u = a.in_one_bit(wire, s, c, c.u)
        s.m = u / s.time  # the mean momentum since the last exchange, from which all go on
        c.m, c.u, s.time = (
            torch.zeros_like(c.m) + s.m[:, None],
            wire.zeros(),
            torch.zeros_like(s.time),
        )
        return a.scaled(s.v, u)

    def in_one_bit(a, wire, s, c, v):
        """Return the mean of v (B, n_here, d), compressed up and down, and remember both errors."""
        sent = a.C(v + c.e, wire.stream("up"))
        c.e = v + c.e - sent.decode()
        mean = wire.up(sent).mean() + s.E
        received = wire.down(a.C(mean, wire.server_stream("down")))
        s.E = mean - received
        return received

    def scaled(a, v, m):
        return where(v > 0, m / (v.sqrt() + a.epsilon), 0.0)

    def point(a, net, s, c):
        return net.oracle_mean(s.x[:, None] - a.scaled(s.v[:, None], c.u))


def variance_interval(t, updates):
    """Return the rounds between updates of the variance at round t: they double after so many updates."""
    interval, last = 1, updates
    while t > last:
        interval *= 2
        last = last // interval * interval + updates * interval
    return interval
