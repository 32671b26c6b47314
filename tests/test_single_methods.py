"""Single methods: three point compressors, MARINA-P, Clip21-SGD2M, normalised EF21, local steps that are compressed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.linalg
import torch
from toys import FAR, RAND, TOP, each_round, title

from raybench import spec, theory
from raybench.algorithms.base import Algorithm, Estimator
from raybench.core import registry
from raybench.core.cells import State
from raybench.core.counts import Clock
from raybench.core.registry import lookup
from raybench.execution.build import method_of
from raybench.execution.net import vectors_of
from raybench.execution.resolve import Resolver, Skip
from raybench.problems.base import Constants, Fact
from raybench.testing.algorithms import conformance, methods
from raybench.testing.trial import DATA, PLAIN, Method, finished, started
from raybench.theory import Setting
from raybench.wire import CasesMessage
from raybench.wire.dense import DenseMessage
from raybench.wire.ledger import COLUMNS
from raybench.wire.wire import Wire

pytestmark = pytest.mark.thorough

# MARINA-P -----------------------------------------------------------------------------------------


P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "heterogeneity": 0.5, "seed": 3}


def on_p1(name, compressor=None, downlink=None, rounds=60, problem=P1, **rest) -> Method:
    params = rest.pop("params", {})
    return Method(name, params, compressor, problem, downlink, rounds=rounds, more=FAR, **rest)


# What is booked --------------------------------------------------------------------------------


def test_messages_of_ones_own_are_booked_cell_by_cell():
    """A ledger adds what the server sends each client, as a mean, to the cells it is sent in."""
    run = started(on_p1("marina_p", None, RAND, 1).batch((1.0, 1.0, 1.0), (0, 1, 2)))
    rows = torch.ones(2, 7, 12, dtype=torch.float64)
    who = torch.zeros(2, 7, dtype=torch.bool)
    who[0, :3] = True
    some = DenseMessage(12, rows.dtype, rows).masked(who)
    whole = DenseMessage(12, rows.dtype, rows[:1])
    cells = [torch.tensor([2, 0]), torch.tensor([1])]
    got = run.net.down_each(CasesMessage(12, rows.dtype, cells, [some, whole]))
    ledger = run.net.ledger.down
    assert ledger[COLUMNS.index("values")].tolist() == pytest.approx([0.0, 12.0, 12 * 3 / 7])
    assert ledger[COLUMNS.index("messages")].tolist() == pytest.approx([0.0, 1.0, 3 / 7])
    assert got.sum((1, 2)).tolist() == [0.0, 84.0, 36.0]
    assert (run.net.ledger.up == 0).all()


# What does not go together ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("downlink", "says"), [(TOP, "unbiased"), ("aggregate", "would relay, is not its step")]
)
def test_marina_p_needs_an_unbiased_downlink(downlink, says):
    method = on_p1("marina_p", None, downlink, step=0.1)
    (cell,) = spec.load({**method.config({"value": 0.1}, 0), "allow_unproven": False}).cells
    with pytest.raises(Skip, match=says):
        Resolver().resolve(cell)


# Clip21-SGD2M and normalised EF21 -----------------------------------------------------------------


SAMPLES = {"name": "least_squares", **DATA, "regularizer": "l2", "lambda": 0.3}
SADDLES = {
    "name": "quadratic",
    "dim": 10,
    "clients": 6,
    "heterogeneity": 0.7,
    "mu": 0.05,
    "seed": 2,
}
NEAR = {"x0": {"normal": 1.0}}
TOP2 = {"name": "top_k", "k": 2}


def clip(rounds=40, step=0.1, problem=SAMPLES, **params) -> Method:
    return Method("clip21_sgd2m", params, None, problem, step=step, rounds=rounds, more=NEAR)


# Clip21-SGD2M -------------------------------------------------------------------------------------


def test_it_reaches_the_minimum_although_gradients_there_are_longer_than_tau():
    run = finished(clip(3000, tau=0.05, beta=0.5, step=0.03).batch())
    grads = run.problem.grad(run.s.x)
    assert grads.norm(dim=-1).max() > 0.1
    assert grads.mean(1).norm() <= 1e-10


def test_noise_has_its_deviation_and_stays_in_the_server():
    sigma, share, rounds = 0.5, 0.4, 60
    m = clip(rounds, tau=0.1, sigma=sigma, beta_server=share, step=1e-3)
    run = started(m.batch((1.0,), range(8)))
    drift = torch.stack(list(each_round(run, lambda r: (r.s.g - r.c.g.mean(1)).clone())))
    change = drift.diff(dim=0) / (share * sigma / run.problem.n**0.5)
    count = change.numel()
    assert abs(float(change.mean())) <= 4 / count**0.5
    assert abs(float(change.square().mean()) - 1) <= 4 * (2 / count) ** 0.5
    apart = torch.corrcoef(change[:, :2].flatten(2).transpose(0, 1).flatten(1))
    assert abs(float(apart[0, 1])) <= 4 / (count / 8) ** 0.5  # of two seeds
    assert float(drift[-1].square().mean()) > 20 * float(drift[0].square().mean())


# Normalised EF21 ----------------------------------------------------------------------------------


def test_at_a_zero_estimate_it_stays():
    run = started(Method("ef21_normalized", {}, TOP2, SAMPLES, step=0.05, rounds=1).batch())
    zero = torch.zeros(2, 5)
    assert torch.equal(run.a.outer_step(None, zero), zero)


@pytest.mark.parametrize("multiple", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("operator", [TOP2, {"name": "identity"}])
def test_the_bound_of_normalised_steps_path_by_path(multiple, operator):
    """For any multiple of 1/sqrt(T), with nonconvex f_i: Top-k and the identity know no chance."""
    T = 200
    m = Method("ef21_normalized", {}, operator, SADDLES, rule="paper", rounds=T, more=NEAR)
    run = started(m.batch((multiple,)))
    k = run.problem.constants

    def look(r):
        grads = r.problem.grad(r.s.x)
        return float(grads.mean(1).norm()), float((grads - r.c.g).norm(dim=-1).mean())

    seen = list(each_round(run, look))[:T]
    x0 = started(m.batch((multiple,)))
    x0.advance(0)
    losses = x0.problem.oracle(x0.s.x)[1]
    gamma, alpha = multiple / T**0.5, operator.get("k", 10) / 10
    assert float(run.a.gamma.values[0]) == pytest.approx(gamma)
    rest = (1 - alpha) ** 0.5
    theta = 1 - rest
    bound = (
        (float(losses.mean()) - k.f_star) / (gamma * T)
        + 2 * seen[0][1] / (theta * T)
        + gamma * (k.L / 2 + 2 * k.L_AM * rest / theta)
    )
    assert np.mean([norm for norm, _ in seen]) <= bound * (1 + 1e-9)


# Local steps with compressed exchanges ------------------------------------------------------------


RIDGE = {"name": "least_squares", **DATA, "regularizer": "l2", "lambda": 0.3}
THIRD, NATURAL = {"name": "rand_k", "k": "30%"}, {"name": "natural"}
KINDS = {  # method, compressor, downlink
    "compressed_scaffnew": ("compressed_scaffnew", None, None),
    "locodl natural": ("locodl", NATURAL, None),
    "locodl rand_k": ("locodl", THIRD, None),
    "locodl perm_k": ("locodl", {"name": "perm_k"}, None),
    "bicolor": ("bicolor", NATURAL, NATURAL),
    "bicolor rand_k": ("bicolor", THIRD, {"name": "rand_k", "k": "50%"}),
}


def method(kind: str, rounds: int = 60, step=None, **params) -> Method:
    name, up, down = KINDS[kind]
    return Method(name, params, up, RIDGE, down, step, "pl", rounds, NEAR)


# Without compression ----------------------------------------------------------------------------


def test_one_sender_is_refused():
    with pytest.raises(Exception, match="senders"):
        Method("compressed_scaffnew", {"senders": 1}, None, RIDGE, step=0.1).cell()


# Where it can be run ------------------------------------------------------------------------------


OTHERWISE = [  # with automatic numbers, and with downlinks that send clients messages of their own
    *(method(kind, 20, p="auto") for kind in ("compressed_scaffnew", "locodl rand_k", "bicolor")),
    *(
        on_p1("marina_p", None, d, 40, params={"p": 0.3})
        for d in ("perm_k", {"name": "lazy", "p": 0.4})
    ),
]


@pytest.mark.parametrize("method", OTHERWISE, ids=title)
def test_conforms_otherwise_too(method):
    assert not [str(f) for f in conformance(method) if not f.ok]


# Theorems -----------------------------------------------------------------------------------------


def square(*rows):
    """Return sum r r' of rows (N,): the form that adds up the squares of linear functions of the state."""
    return sum(np.outer(r, r) for r in np.atleast_2d(np.array(rows)))


def settled(name, curvature, n, rho=1.0, **given):
    """Return the step, and the numbers that ``auto`` gives; rho times the automatic one."""
    facts = lookup("algorithm", name).facts
    ends = {"L_i": tuple(curvature), "mu_i": tuple(curvature), "facts": frozenset(Fact)}
    numbers = {k: given.pop(k) for k in ("p", "senders") if k in given}

    def setting():
        return Setting(Constants(**ends), n, 1, numbers=numbers, **given)

    for key, rule in facts.auto.items():
        if key != "p":
            numbers[key] = rule(setting()) * (rho if key == "rho" else 1.0)
    return theory.step_size(facts.theory, setting(), "pl"), numbers


def scaffnew(a, n, p, gamma, senders, chi, **_):
    """Return (E Psi+, Psi) in the state (x_1..x_n, h_1..h_(n-1)): one more local step, then maybe an exchange."""
    s = min(senders, n)
    I = np.eye(2 * n - 1)
    X, h = I[:n], np.vstack([I[n:], -I[n:].sum(0)]) if n > 1 else np.zeros((1, 1))
    rate = p**2 * chi * ((s - 1) / (n - 1) if n > 1 else 1.0)

    def psi(X, h):
        return square(*X) + gamma**2 / rate * square(*h)

    near = X - gamma * (a[:, None] * X - h)
    masks = list(combinations(range(n), s))
    after = (1 - p) * psi(near, h)
    for who in masks:
        mean, moved = near[list(who)].mean(0), h.copy()
        moved[list(who)] += p * chi / gamma * (mean - near[list(who)])
        after = after + p / len(masks) * psi(np.tile(mean, (n, 1)), moved)
    return after, psi(X, h), rate


def locodl(a, n, p, gamma, lam, rho, eta, omega):
    I = np.eye(2 * n + 1)
    X, y, U = I[:n], I[n], I[n + 1 :]
    v, weight, t = -U.mean(0), gamma**2 / (p**2 * eta), p * eta / gamma

    def psi(X, y, U, v):
        return square(*X) + n * square(y) + weight * (square(*U) + n * square(v))

    near, ny = X - gamma * ((a - lam)[:, None] * X - U), y - gamma * (lam * y - v)
    d = near - ny
    m = d.mean(0) / 2
    exchanged = psi(near + rho * (ny + m - near), ny + rho * m, U + t * (m - d), v + t * m)
    k = 1 / (2 * n)  # the share of one d_i in m, which moves all points and control variates
    noise = 2 * n * (rho * k) ** 2 + weight * t**2 * ((2 * n - 1) * k**2 + (1 - k) ** 2)
    exchanged = exchanged + noise * omega * square(*d)
    return p * exchanged + (1 - p) * psi(near, ny, U, v), psi(X, y, U, v), p**2 * eta


def bicolor(a, n, p, gamma, lam, rho, eta, omega, down_omega):
    I = np.eye(2 * n + 3)
    X, z, y, U, v = I[:n], I[n], I[n + 1], I[n + 2 : 2 * n + 2], I[2 * n + 2]
    w, weight, t = -U.mean(0) - v, gamma**2 / (p**2 * eta), p * eta / gamma

    def psi(X, z, y, U, v):  # U and v are flows from z: <h, M^+ h> is their energy
        return square(*X) / n + square(z, y) + weight * (square(*U) / n + square(v))

    near = X - gamma * ((a - 2 * lam)[:, None] * X - U)
    nz, ny = z - gamma * (lam * z - w), y - gamma * (lam * y - v)
    d, e = near - ny, nz - ny
    exchanged = psi(
        near + rho * (ny + e - near),
        nz + rho * (d.mean(0) - 2 * e),
        ny + rho * e,
        U + t * (e - d),
        v + t * e,
    )
    exchanged = exchanged + down_omega * 2 * (rho**2 + weight * t**2) * square(e)
    exchanged = exchanged + omega * ((rho / n) ** 2 + weight * t**2 / n) * square(*d)
    return p * exchanged + (1 - p) * psi(near, nz, ny, U, v), psi(X, z, y, U, v), p**2 * eta


FORMS = {"compressed_scaffnew": scaffnew, "locodl": locodl, "bicolor": bicolor}
LENT = {"compressed_scaffnew": 0, "locodl": 1, "bicolor": 2}


def above(name, random, pace=1.0):
    """Return how far E Psi+ is above tau Psi at worst, in a setting drawn at random; pace times its eta or chi."""
    n, p = int(random.integers(1, 7)), random.choice([0.02, 0.3, 1.0])
    a = np.append(random.uniform(1, 10, n - 1), 1.0) * random.choice([1e-3, 1.0])
    given = {"omega": random.choice([0.0, 0.1, 3.0, 100.0])}
    if name == "bicolor":
        given["down_omega"] = random.choice([0.0, 1.0, 100.0])
    if name == "compressed_scaffnew":
        given = {"senders": int(random.integers(2, 8))}
    rho = random.choice([1.0, 0.3, 1.7])
    gamma, numbers = settled(name, a, n, rho if LENT[name] else 1.0, p=p, **given)
    key = "eta" if LENT[name] else "chi"
    numbers[key] *= pace
    after, before, rate = FORMS[name](a, n, gamma=gamma, **{**given, **numbers})
    lam, lent = numbers.get("lam", 0.0), LENT[name]
    low = min(a.min() - lent * lam, lam) if lent else a.min()
    tau = max((1 - gamma * low) ** 2, 1 - rate)
    return scipy.linalg.eigh(after, before, eigvals_only=True)[-1] - tau


@pytest.mark.parametrize("name", FORMS)
def test_no_state_shrinks_more_slowly_than_the_theorem_says(name):
    random = np.random.default_rng(4)
    assert max(above(name, random) for _ in range(150)) <= 1e-12


@pytest.mark.parametrize("name", FORMS)
def test_with_half_as_much_again_it_may_be_wrong(name):
    random = np.random.default_rng(4)
    result = [above(name, random, 1.5) for _ in range(150)]
    assert np.mean(np.array(result) > 1e-9) > 0.1


# Methods are estimators: with the wire alone, given gradients by anyone's loop, they do what they do in a sweep


def plain(kind: type[Algorithm]) -> bool:
    """Return whether a training loop of one's own could hold the method: it replaces both ends of a round."""
    own = ("source", "outer_step", "start", "round", "apply", "step")
    if not issubclass(kind, Estimator) or kind.presets:
        return False
    return all(getattr(kind, name) is getattr(Estimator, name) for name in own)


HELD = [
    m
    for name in registry.names("algorithm")
    if plain(registry.lookup("algorithm", name).target)
    for m in methods(registry.lookup("algorithm", name))
    if m.downlink is None
    or not m.entry.target.broadcasts_model  # a loop of one's own has no compressed broadcast
]


class Buffers:
    """Tensors that nobody may write to, with copies of what they held."""

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append((x, x.clone()))
        return x

    def untouched(self) -> bool:
        return all(torch.equal(now, then) for now, then in self.seen)


@pytest.mark.parametrize("method", HELD, ids=title)
def test_a_loop_of_ones_own_takes_the_same_steps(method):
    """x <- x - gamma g with gradients that the loop computes, on a wire that knows no problem.

    A loop may reuse its buffers: what it gave and what it got stays as it was.
    """
    problem = {**PLAIN, "shape": [[4, 3]]}
    batch = Method(
        method.name, method.params, method.compressor, problem, method.downlink, step=0.02
    ).batch((1.0, 0.5), (0, 1))
    run = started(batch)
    f, held = run.problem, Buffers()
    wire = Wire(vectors_of(f), run.net.roots)
    a, s, c = method_of(batch.cells, f, Clock()), State(), State()
    assert isinstance(a, Estimator)
    x = run.s.x.clone()
    a.setup(wire, s, c)
    if a.opens:
        s.g = held(a.open(wire, s, c, held(f.grad(x))))
    run.advance(0)
    for t in range(1, 21):
        wire.begin(t)
        g = s.g if a.opens else held(a.estimate(wire, s, c, held(f.grad(x))))
        x = x - g if a.in_steps else x - a.gamma * g
        if a.opens:
            s.g = held(a.estimate(wire, s, c, held(f.grad(x))))
        run.advance(1)
        torch.testing.assert_close(x, run.a.point(run.net, run.s, run.c), rtol=1e-12, atol=1e-14)
    assert held.untouched()
    assert (wire.ledger.up == run.net.ledger.up).all()
    if not a.broadcasts_model:  # the model is broadcast by the loop, where it is told
        assert (wire.ledger.down == run.net.ledger.down).all()
