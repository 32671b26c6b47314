"""MARINA on products: features split over clients, messages as long as the data set."""

from raybench.algorithms.base import Algorithm, Dense, Number, Unbiased, algorithm, theory, where


@algorithm(
    "vertical_marina",
    up=Unbiased,
    theory=theory.vertical_marina,
    vertical=True,
    auto={"p": theory.sync_probability},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
)
class VerticalMarina(Algorithm):
    """Client j holds columns A_j and block x_j; v estimates Ax = sum_j A_j x_j, all of length N.

    x_j <- x_j - gamma 2 A_j'(v - b); with probability p v <- sum_j A_j x_j, else
    v <- v + sum_j Q_j(A_j (x_j - x_j^old)). gamma = 1/(L + sqrt((1-p)/p omega L L_blk)).
    Up: N values or one message. Down: N values. Source: the vertical extension of MARINA's code.
    """

    def start(a, net, s, c):
        c.x = net.oracle.split(s.x)
        s.v = net.up(Dense(net.oracle.products(c.x))).sum()

    def round(a, net, s, c):
        old, c.x = c.x, c.x - a.gamma * net.oracle.block_grad(net.down(Dense(s.v)))
        full, change = net.oracle.products(c.x), net.oracle.products(c.x - old)
        coin, q = net.coin("sync", a.p), net.stream("up")
        m = net.cases(coin, lambda b: Dense(full[b]), lambda b: a.Q(change[b], q[b]))
        got = net.up(m).sum()
        s.v = where(coin[:, None], got, s.v + got)

    def point(a, net, s, c):
        return net.oracle.assemble(c.x)
