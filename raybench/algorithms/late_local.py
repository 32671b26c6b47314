"""Local steps whose results reach the server whenever clients are done: FedBuff, and DiLoCo that does not wait."""

import torch

from raybench.algorithms.asynchronous import BATCH
from raybench.algorithms.base import Flag, Integer, Number, Unbiased, algorithm
from raybench.algorithms.events import Asynchronous

LOCAL = Number(
    None, low=0, open_low=True, help="eta of the local steps; without it gamma is their step"
)


class LateLocal(Asynchronous):
    """y <- y - eta grad f_i(y), ``steps`` times from the client's x; it sends v = x - y.

    Without an eta of its own a client steps by gamma, and v = (x - y)/gamma is the sum of its gradients.
    """

    def begin(a, net, s, c):
        s.count = 0
        s.total = net.zero()

    def setup(a, net, s, c):
        a.calls = a.steps
        super().setup(net, s, c)

    def direction(a, net, s, c, i):
        x = s.at[i]
        v, y = torch.zeros_like(x), x
        for back in reversed(range(a.steps)):
            v = v + net.grad_of(i, y, a.batch, back)
            y = x - a.gamma * v if a.local_step_size is None else x - a.local_step_size * v
        return v if a.local_step_size is None else a.local_step_size * v


@algorithm(
    "fedbuff",
    title="FedBuff",
    up=Unbiased,
    dense=True,
    clock=True,
    theory=None,
    batch=BATCH,
    steps=Integer(1, low=1, help="local steps of a client"),
    local_step_size=LOCAL,
    collect=Integer(10, low=1, help="K_b: results in the buffer that make a step"),
    damped=Flag(help="weights 1/sqrt(1 + delay)"),
)
class FedBuff(LateLocal):
    """x <- x - gamma (1/K_b) sum of the next K_b results v_i of local steps, however old, by weights w(delay).

    Up: one message of each client that is done. Source: Nguyen et al. 2021, Federated learning with buffered
    asynchronous aggregation, arXiv 2106.06639.
    """

    def arrive(a, net, s, c, i, grad, delay):
        s.total = s.total + (grad / (1 + delay) ** 0.5 if a.damped else grad)
        s.count += 1
        if s.count < a.collect:
            return False
        mean = s.total / s.count
        s.total, s.count = torch.zeros_like(mean), 0
        return a.descend(net, s, mean)


@algorithm(
    "async_local_sgd",
    title="asynchronous local SGD",
    up=Unbiased,
    dense=True,
    clock=True,
    theory=None,
    batch=BATCH,
    steps=Integer(10, low=1, help="local steps of a client"),
    local_step_size=LOCAL,
    momentum=Number(
        0.9, low=0, high=0.999, per_cell=True, help="beta of the delayed Nesterov momentum"
    ),
    every=Integer(4, low=1, help="N: arrivals after which the momentum moves"),
)
class AsyncLocalSGD(LateLocal):
    """x <- x - gamma v/N at each arrival; at each N-th m <- beta m + mean of the last N, x <- x - gamma beta m as well.

    DiLoCo whose outer step does not wait, with delayed Nesterov momentum. Up: one message of one client. Source: Liu
    et al. 2024, Asynchronous local-SGD training for language modeling, arXiv 2401.09135, algorithm 3 with c = 0.
    """

    def begin(a, net, s, c):
        super().begin(net, s, c)
        s.m = net.zero()

    def arrive(a, net, s, c, i, grad, delay):
        s.total, s.count = s.total + grad, s.count + 1
        u = grad / a.every
        if s.count == a.every:
            s.m = a.momentum * s.m + s.total / a.every
            s.total, s.count = torch.zeros_like(s.total), 0
            u = u + a.momentum * s.m
        return a.descend(net, s, u)
