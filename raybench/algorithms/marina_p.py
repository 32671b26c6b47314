"""MARINA-P: the server compresses the change of its model, for every client apart."""

from math import sqrt

from raybench.algorithms.base import Algorithm, Dense, Number, Unbiased, algorithm, theory, where


def sync_probability(k: theory.Setting) -> float:
    """Return p that makes dense rounds cost what compressed ones do: K/d for Rand-K, 1/n for PermK.

    Raises NoTheory where messages are empty: without dense rounds the clients would never hear of the model.
    """
    if k.down_share <= 0:
        raise theory.NoTheory("the compressor's messages are empty; give a number")
    return k.down_share


def recursion(k: theory.Setting) -> theory.Rate:
    """G bounds ||mean grad f_i(w_i) - grad f(x)||^2: rho = p, B = (1-p) omega L_tilde^2, or less for quadratics.

    The coin sets w_i = x; else mean||w_i - x||^2 gains omega R and ||mean w_i - x||^2 theta R, R = ||x+ - x||^2, theta
    that of the mean of all messages: omega/n if they are independent, A - B of (A, B), 0 for PermK. G is at most
    L_tilde^2 times the first. Of quadratic f_i, whose Hessians are L_pm from each other and L in the mean, it is
    (L_pm sqrt(first) + L sqrt(second))^2 at most: B = (1-p) (L_pm sqrt(omega) + L sqrt(theta))^2 where that is less.
    PermK: 1/(L + L_pm sqrt((1-p)(n-1)/p)), which for alike clients is the step of gradient descent.
    """
    p, omega = k.number("p"), k.need("down_omega")
    noise = omega * k.need("L_tilde") ** 2
    if k.states(theory.Fact.QUADRATIC) and k.constants.L_pm is not None:
        apart = k.constants.L_pm * sqrt(omega) + k.need("L") * sqrt(k.down_theta)
        noise = min(noise, apart**2)
    return theory.Rate(rho=p, B=(1 - p) * noise)


STEPS = theory.recursive(
    recursion,
    "derived here; method: Gruntkowska, Tyurin, Richtarik 2024",
    theory.DOWN_UNBIASED,
)


@algorithm(
    "marina_p",
    up=None,
    down=Unbiased,
    relay=False,
    proximal=True,
    theory=STEPS,
    auto={"p": sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class MarinaP(Algorithm):
    """x+ = x - gamma mean grad f_i(w_i); with probability p w_i <- x+ for all, else w_i <- w_i + Q_i(x+ - x).

    Client i holds w_i, which begins as x^0; the server has no need of them. Every client is sent a message of its
    own, with PermK its block of the coordinates; their mean is booked. f is recorded at the server's x. p = auto
    balances dense and compressed rounds. Up: d values. Down: d values or one message per client. Source:
    Gruntkowska, Tyurin, Richtarik 2024, Improving the Worst-Case Bidirectional Communication Complexity.
    """

    batch = "full"

    def start(a, net, s, c):
        c.w = s.x[:, None].expand(-1, net.n_here, -1).clone()
        s.g = net.up(Dense(net.grad(c.w))).mean()

    def round(a, net, s, c):
        x = net.prox(s.x - a.gamma * s.g, a.gamma)
        coin, q = net.coin("sync", a.p), net.stream("down")
        new, move = (v[:, None].expand_as(c.w) for v in (x, x - s.x))
        compress = a.D
        assert compress is not None, "the method declares a downlink compressor"
        m = net.cases(coin, lambda b: Dense(new[b]), lambda b: compress(move[b], q[b]))
        got = net.down_each(m)
        c.w = where(coin[:, None, None], got, c.w + got)
        s.x, s.g = x, net.up(Dense(net.grad(c.w))).mean()
