"""Features split over clients: gradient descent, MARINA, and error feedback on products as long as the data."""

from raybench.algorithms.base import (
    Algorithm,
    Any_,
    Choice,
    Contractive,
    Dense,
    Integer,
    Number,
    Unbiased,
    algorithm,
    theory,
    where,
    zeros_like,
)
from raybench.algorithms.gd import STEPS
from raybench.algorithms.marina import sync_probability


@algorithm("vertical_gd", title="Vertical GD", up=None, theory=STEPS, vertical=True)
class VerticalGD(Algorithm):
    """Client j holds features and a block x_j and contributes u_j(x_j): x_j <- x_j - gamma J_j' r, r = l'(sum_j u_j).

    f(x) = l(sum_j u_j(x_j)), J_j the Jacobian of u_j. Least squares: u_j = A_j x_j for columns A_j, r = 2 (v - b)
    for v = sum_j A_j x_j. The uncompressed baseline, 1/L. Up: N values, a product. Down: N values, r (times
    the classes, where scores are summed).
    """

    def start(a, net, s, c):
        c.x = net.oracle.split(s.x)
        a.begin(net, s, c)
        a.ask(net, s, c)

    def begin(a, net, s, c):
        """Make what else is remembered."""

    def round(a, net, s, c):
        r = net.down(Dense(net.oracle.residual(s.v, s.rows)))
        c.x = c.x - a.gamma * net.oracle.block_grad(c.x, r, s.rows)
        a.ask(net, s, c)

    def ask(a, net, s, c):
        """Set s.v to the sum of the clients' products at s.rows, all samples or a minibatch of them."""
        s.rows = net.oracle.rows("batch", a.batch)
        s.v = a.products(net, s, c)

    def products(a, net, s, c):
        return net.up(Dense(net.oracle.products(c.x, s.rows))).sum()

    def point(a, net, s, c):
        return net.oracle.assemble(c.x)


@algorithm(
    "vertical_sgd",
    title="Vertical SGD",
    up=None,
    theory=None,
    vertical=True,
    batch=Integer(32, low=1, words=("full",), help="samples of a round, the same for all clients"),
)
class VerticalSGD(VerticalGD):
    """Gradient descent on ``batch`` samples a round, drawn without replacement, the same for all clients.

    The uncompressed baseline of methods with minibatches. No step is proved. Up, down: ``batch`` values
    (times the classes, where scores are summed).
    """


@algorithm(
    "vertical_naive",
    title="Vertical naive",
    up=Any_,
    theory=None,
    vertical=True,
    batch=Integer("full", low=1, words=("full",), help="samples of a round, or all of them"),
)
class VerticalNaive(VerticalGD):
    """Forward compression: v = sum_j C_j(u_j), each product compressed anew and no memory: a control that stalls.

    The products do not vanish at x*, so neither does the error of v: with an unbiased C f of least squares stays
    at a floor that grows with gamma and omega, with one mask for all clients too. Where the loss is not
    quadratic the gradient is biased even with an unbiased C. No step is proved; step_size.of: vertical_gd gives
    1/L. Up: one message. Down: N values, or ``batch``. Source: with minibatches Castiglia et al. 2022, C-VFL
    with one local step.
    """

    def products(a, net, s, c):
        return net.up(a.C(net.oracle.products(c.x, s.rows), net.stream("up"))).sum()


def table_recursion(k: theory.Setting) -> theory.Rate:
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
    theory=theory.recursive(
        table_recursion, "derived here, after EF21", theory.CONTRACTIVE, theory.FULL
    ),
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


def marina_recursion(k: theory.Setting) -> theory.Rate:
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
    theory=theory.recursive(marina_recursion, "derived here, after MARINA", theory.UNBIASED),
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
        total = net.up(m).sum()
        s.v = where(coin[:, None], total, s.v + total)

    def point(a, net, s, c):
        return net.oracle.assemble(c.x)
