"""Gradient descent where features are split over clients, and what comes of compressing products."""

from raybench.algorithms.base import Algorithm, Any_, Dense, Integer, algorithm
from raybench.algorithms.gd import STEPS


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
