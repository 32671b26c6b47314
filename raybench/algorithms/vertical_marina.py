"""MARINA on products: features split over clients, messages as long as the data set."""

from raybench.algorithms.base import Algorithm, Dense, Number, Unbiased, algorithm, theory, where
from raybench.algorithms.marina import sync_probability


def recursion(k: theory.Setting) -> theory.Rate:
    """G = 4||A||^2 ||v - Ax||^2: rho = p, B = (1-p) omega L L_blk, L_blk = 2 max_j||A_j||^2; a common mask: L^2.

    Of any loss with a Lipschitz gradient in v, its constant stands in the place of 2.
    The error of v gains sum_j omega ||A_j (x_j+ - x_j)||^2, or with one linear mask omega ||A (x+ - x)||^2. With
    (A, B), as PermK's, n A takes the place of omega.
    """
    p, L = k.number("p"), k.need("L")
    block = k.constants.extra.get("L_blk")
    if block is None:
        raise theory.NoTheory("the problem has no feature blocks")
    if k.ab is None and k.common_mask:
        return theory.Rate(rho=p, B=(1 - p) * k.need("omega") * L * L)
    return theory.Rate(rho=p, B=(1 - p) * k.n * k.mean_omega * L * block)


@algorithm(
    "vertical_marina",
    title="Vertical MARINA",
    up=Unbiased,
    theory=theory.recursive(recursion, "derived here, after MARINA", theory.UNBIASED),
    vertical=True,
    auto={"p": sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class VerticalMarina(Algorithm):
    """Client j contributes u_j(x_j), A_j x_j for columns A_j; v estimates sum_j u_j, of length N.

    x_j <- x_j - gamma J_j' l'(v), least squares: 2 A_j'(v - b); with probability p v <- sum_j u_j(x_j), else
    v <- v + sum_j Q_j(u_j(x_j) - u_j(x_j^old)). gamma = 1/(L + sqrt((1-p)/p omega L L_blk)) where u_j is linear.
    All samples in every round: differences of two minibatches are not MARINA's. Up: N values or one
    message. Down: N values. Source: the vertical extension of MARINA's code.
    """

    def start(a, net, s, c):
        c.x = net.oracle.split(s.x)
        s.v = net.up(Dense(net.oracle.products(c.x))).sum()

    def round(a, net, s, c):
        r = net.down(Dense(net.oracle.residual(s.v)))
        old, c.x = c.x, c.x - a.gamma * net.oracle.block_grad(c.x, r)
        full, change = net.oracle.products(c.x), net.oracle.change(c.x, old)
        coin, q = net.coin("sync", a.p), net.stream("up")
        m = net.cases(coin, lambda b: Dense(full[b]), lambda b: a.Q(change[b], q[b]))
        got = net.up(m).sum()
        s.v = where(coin[:, None], got, s.v + got)

    def point(a, net, s, c):
        return net.oracle.assemble(c.x)
