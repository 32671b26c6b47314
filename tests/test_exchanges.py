"""Local steps with compressed exchanges: what they become without compression, invariants, and their theorem's rate."""

import numpy as np
import pytest
import torch
from toys import each_round

from raybench.testing.algorithms import conformance
from raybench.testing.trial import DATA, Method, started

pytestmark = pytest.mark.thorough

RIDGE = {"name": "least_squares", **DATA, "regularizer": "l2", "lambda": 0.3}
RAND, NATURAL = {"name": "rand_k", "k": "30%"}, {"name": "natural"}
FAR = {"x0": {"normal": 1.0}}
KINDS = {  # method, compressor, downlink
    "compressed_scaffnew": ("compressed_scaffnew", None, None),
    "locodl natural": ("locodl", NATURAL, None),
    "locodl rand_k": ("locodl", RAND, None),
    "locodl perm_k": ("locodl", {"name": "perm_k"}, None),
    "bicolor": ("bicolor", NATURAL, NATURAL),
    "bicolor rand_k": ("bicolor", RAND, {"name": "rand_k", "k": "50%"}),
}


def method(kind: str, rounds: int = 60, step=None, **params) -> Method:
    name, up, down = KINDS[kind]
    return Method(name, params, up, RIDGE, down, step, "pl", rounds, FAR)


def begun(m: Method, seeds=(0,)):
    """Return a run after its start, x* and the clients' gradients there."""
    run = started(m.batch((1.0,), seeds))
    run.advance(0)
    best = run.problem.minimizer()
    return run, best, run.problem.grad(best[None])


# Without compression ----------------------------------------------------------------------------


def test_one_sender_is_refused():
    with pytest.raises(Exception, match="senders"):
        Method("compressed_scaffnew", {"senders": 1}, None, RIDGE, step=0.1).cell()


# What the control variates keep -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_control_variates_add_up_to_zero(kind):
    def left(r):
        if kind == "compressed_scaffnew":
            return r.c.h.mean(1), r.c.h
        mean = r.c.u.mean(1) + r.s.v
        return (mean + r.s.w if "bicolor" in kind else mean), r.c.u

    run = started(method(kind, p=0.5).batch((1.0, 0.3), (0, 1)))
    for mean, each in each_round(run, lambda r: tuple(x.clone() for x in left(r))):
        assert mean.abs().max() <= 1e-12 * (1 + each.abs().max())
    assert each.abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_the_minimiser_is_a_fixed_point(kind):
    """From x* with the control variates grad f_i(x*), and those of the functions lent, nothing moves."""
    run, best, at = begun(method(kind, p=0.4))
    settle(run, best, at)
    run.advance(5)
    torch.testing.assert_close(run.s.x[0], best, rtol=0, atol=1e-11)


def settle(run, x, at):
    """Put a run of any of the three at x with the control variates that belong to gradients ``at`` there."""
    s, c = run.s, run.c
    s.x = x[None].clone()
    if run.a.__class__.__name__ == "CompressedScaffnew":
        c.h = at - at.mean(1, keepdim=True)
        return
    lam = float(run.a.lam.values[0])
    c.X, s.v = c.X * 0 + x, lam * s.x
    c.u = at - lam * x
    if run.a.__class__.__name__ == "BiCoLoR":
        c.u, s.z, s.w = at - 2 * lam * x, s.x, lam * s.x


# The rate -----------------------------------------------------------------------------------------


def measured(run, best, at):
    """Return (Psi, tau) of the cells: the weighted square distance to x*, and the theorem's factor."""
    s, c, k = run.s, run.c, run.problem.constants
    gamma, p = run.a.gamma.values, run.a.p.values
    name = run.a.__class__.__name__
    low = k.mu_min
    if name == "CompressedScaffnew":
        n, senders = run.problem.n, run.a.senders
        rate = run.a.chi.values * (senders - 1) / (n - 1)
        points = n * (s.x - best).square().sum(-1)
        duals = (c.h - at + at.mean(1, keepdim=True)).square().sum((1, 2))
    else:
        lam, rate = float(run.a.lam.values[0]), run.a.eta.values
        lent = 2 if name == "BiCoLoR" else 1
        low = min(low - lent * lam, lam)
        points = (c.X - best).square().sum(-1).mean(1) + (s.x - best).square().sum(-1)
        if name == "BiCoLoR":
            points = points + (s.z - best).square().sum(-1)
        # <h, M^+ h> of BiCoLoR as well: u_i and v are the flows from z to x_i and y that make h
        u, v = c.u - (at - lent * lam * best), s.v - lam * best
        duals = u.square().sum(-1).mean(1) + v.square().sum(-1)
    rate = p**2 * rate
    tau = torch.maximum((1 - gamma * low) ** 2, 1 - rate)
    return points + gamma**2 / rate * duals, tau


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", ["auto", 0.3, 1.0])
def test_linear_convergence_at_the_rate_of_the_theorem(kind, p):
    """tau^-T Psi^T is a supermartingale in the local steps T: it exceeds 1000 times its start with chance 0.001."""
    run, best, at = begun(method(kind, 150, p=p), range(4))
    first, tau = measured(run, best, at)
    before = run.net.oracle.evals.copy()
    run.advance(150)
    last, _ = measured(run, best, at)
    steps = torch.from_numpy((run.net.oracle.evals - before) / np.mean(run.problem.samples))
    bound = np.log(1000) + steps * tau.log()
    floor = np.log(1e-24)  # rounding
    assert bool(((last / first).log() <= torch.maximum(bound, torch.tensor(floor))).all())
    assert bool((last < 0.5 * first).all())


# Where it can be run ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compressed_scaffnew", "locodl rand_k", "bicolor"])
def test_conforms_with_automatic_numbers(kind):
    wrong = [str(f) for f in conformance(method(kind, 20, p="auto")) if not f.ok]
    assert not wrong, "\n".join(wrong)
