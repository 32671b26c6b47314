"""1-bit Adam: Adam whose variance is frozen, its momentum compressed both ways."""

from raybench.algorithms.base import Estimator, Integer, Number, algorithm, where

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
    stochastic=True,
    batch=BATCH,
    warmup_rounds=Integer(20, low=1, help="rounds of dense Adam"),
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

    told = False
    errors = ("e",)

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
