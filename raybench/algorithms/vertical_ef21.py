"""Error feedback on products: features split over clients, and a table of what was last received."""

from raybench.algorithms.base import (
    Choice,
    Contractive,
    Dense,
    Integer,
    Number,
    algorithm,
    theory,
    zeros_like,
)
from raybench.algorithms.vertical_gd import VerticalGD


def recursion(k: theory.Setting) -> theory.Rate:
    """G = n 4||A||^2 sum_j ||s_j - A_j x_j||^2: rho = 1 - (1-p)(1-theta), B = (1-p) beta n L L_blk.

    ||sum_j (s_j - A_j x_j)||^2 is at most n times the sum of squares. The compressor shrinks ||A_j x_j+ - s_j||^2 as
    in EF21, and sum_j ||A_j (x_j+ - x_j)||^2 <= max_j ||A_j||^2 ||x+ - x||^2; with probability p nothing is left.
    """
    block = k.constants.extra.get("L_blk")
    if block is None:
        raise theory.NoTheory("the problem has no feature blocks")
    (theta, beta), p = theory.contraction(k.need("alpha")), k.number("p")
    return theory.Rate(rho=1 - (1 - p) * (1 - theta), B=(1 - p) * beta * k.n * k.need("L") * block)


@algorithm(
    "vertical_ef21",
    title="Vertical EF21",
    up=Contractive,
    theory=theory.recursive(recursion, "derived here, after EF21", theory.CONTRACTIVE, theory.FULL),
    vertical=True,
    batch=Integer("full", low=1, words=("full",), help="samples of a round, or all of them"),
    p=Number(0.0, low=0, high=1, per_cell=True, help="probability of a round of dense messages"),
    init=Choice("zero", "full", help="the table at the start: zeros, or the products at x^0"),
)
class VerticalEF21(VerticalGD):
    """v = sum_j s_j; s_j <- s_j + C_j(u_j - s_j), s_j a table of client j's product of every sample.

    Of a minibatch only its rows of the table are used and change: the difference is to what the server last
    received of the same sample, never to another minibatch. With probability p, one coin for all clients, the
    differences are sent dense, so that s_j = u_j there. The server keeps sum_j s_j. Without minibatches
    gamma = 1/(L + sqrt((1-p) beta n L L_blk/rho)), rho = 1 - (1-p)(1-theta). The identity gives
    ``vertical_sgd``. Up: one message, of N or ``batch`` entries. Down: as many values. Source: Valdeira,
    Xavier, Soares, Chi 2025, EF-VFL; p as in MARINA.
    """

    def begin(a, net, s, c):
        first = net.oracle.products(c.x)
        c.sent = first if a.init == "full" else zeros_like(first)
        s.sum = net.up(Dense(first)).sum() if a.init == "full" else zeros_like(first[:, 0])

    def products(a, net, s, c):
        sent, total = taken(net, c.sent, s.rows), taken(net, s.sum, s.rows)
        change = net.oracle.products(c.x, s.rows) - sent
        coin, q = net.coin("refresh", a.p), net.stream("up")
        m = net.cases(coin, lambda b: Dense(change[b]), lambda b: a.C(change[b], q[b]))
        c.sent = put(net, c.sent, s.rows, sent + m.decode())
        total = total + net.up(m).sum()
        s.sum = put(net, s.sum, s.rows, total)
        return total


def taken(net, table, rows):
    """Return the entries of rows (B, b) in a table (B, .., N), (B, .., b); all of them where None."""
    return table if rows is None else table.gather(-1, spread(net, table, rows))


def put(net, table, rows, values):
    """Return the table with these values in the place of the entries of rows."""
    return values if rows is None else table.scatter(-1, spread(net, table, rows), values)


def spread(net, table, rows):
    """Return the places of rows in a table (B, N), or (B, n_here, N), for every client."""
    at = net.oracle.places(rows)
    return at if table.ndim == 2 else at[:, None].expand(-1, table.shape[1], -1)
