"""Three point compressors: the inequality that their theory rests on."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from toys import FAR, RAND, TOP, largest, title

from raybench import spec
from raybench.algorithms.base import PerCell
from raybench.compressors import Role
from raybench.compressors.base import build
from raybench.core.registry import lookup
from raybench.core.streams import stream
from raybench.execution.resolve import Resolver, Skip
from raybench.testing.algorithms import conformance
from raybench.testing.trial import Method, started
from raybench.theory import Setting
from raybench.wire import CasesMessage
from raybench.wire import wire as wires
from raybench.wire.dense import DenseMessage
from raybench.wire.ledger import COLUMNS

pytestmark = pytest.mark.thorough

SEEDS = 48
FAMILY = [  # method, its parameters, its compressor, seeds (1: all of it is deterministic)
    ("lag", {"z": 0.3}, None, 1),
    ("lag", {"z": 8.0}, None, 1),
    ("clag", {"z": 1.0}, TOP, 1),
    ("clag", {"z": 20.0, "init": "zero"}, TOP, 1),
    ("clag", {"z": 2.0}, RAND, SEEDS),
    ("three_pc_v1", {}, TOP, 1),
    ("three_pc_v1", {}, RAND, SEEDS),
    ("three_pc_v2", {"first": "rand_k:k=2"}, TOP, SEEDS),
    ("three_pc_v2", {"first": "natural"}, RAND, SEEDS),
    ("three_pc_v4", {"first": "top_k:k=1"}, TOP, 1),
    ("three_pc_v4", {"first": "rand_k:k=2"}, "scaled_sign", SEEDS),
    ("three_pc_v5", {"p": 0.2}, TOP, SEEDS),
    ("three_pc_v5", {"p": 0.6}, RAND, SEEDS),
]


def pair(name, params, compressor, d) -> tuple[float, float]:
    """(A, B) of a method by its theory, with L_plus = 1."""
    entry = lookup("algorithm", name)
    alpha = build("identity" if compressor is None else short(compressor)).bind(
        d, role=Role.CONTRACTIVE
    )
    roles = entry.facts.operators
    own = {n: build(params[n]).bind(d, role=role) for n, role in roles.items()}
    constants = SimpleNamespace(L_plus=1.0)
    rate = entry.facts.theory.nonconvex.formula(
        Setting(constants, n=1, d=d, alpha=alpha.alpha, numbers=params, operators=own)
    )
    return rate.rho, rate.B


def short(compressor) -> str:
    if isinstance(compressor, str):
        return compressor
    return f"{compressor['name']}:k={compressor['k']}"


# The inequality -------------------------------------------------------------------------------


class Wire:
    """A net of N cells and one client that carries messages and books nothing."""

    def __init__(self, count: int, seed: int) -> None:
        self.root = stream(seed).fold("try")
        self.ids = torch.arange(count)

    def stream(self, purpose):
        return self.root.fold(purpose).spread((len(self.ids), 1))

    def coin(self, purpose, p):
        return self.stream(purpose).uniform(1)[:, 0, 0] < p.values

    def cases(self, coin, yes, no):
        return wires.Wire.cases(self, coin, yes, no)

    def charge(self, bits):
        pass

    def up(self, message):
        return SimpleNamespace(mean=lambda: message.decode().mean(1))


def three_points(name, params, compressor, d, h, y, x, seed=0):
    """C_{h,y}(x) of rows (N, d), by the method's own code."""
    entry = lookup("algorithm", name)
    a = entry.target()
    count = len(x)
    for key, value in params.items():
        if entry.params[key].per_cell:
            value = PerCell(torch.full((count,), float(value), dtype=torch.float64))
        setattr(a, key, value)
    for key, role in entry.facts.operators.items():
        setattr(a, key, build(params[key]).bind(d, role=role))
    a.C = build("identity" if compressor is None else short(compressor)).bind(
        d, role=Role.CONTRACTIVE
    )
    s, c = SimpleNamespace(g=torch.zeros(count, d).double()), SimpleNamespace()
    c.g, c.y = h[:, None].clone(), y[:, None].clone()
    mean = a.update(Wire(count, seed), s, c, x[:, None].clone())
    assert largest(mean, (c.g - h[:, None])[:, 0]) < 1e-9
    return c.g[:, 0]


@pytest.mark.parametrize(("name", "params", "compressor", "seeds"), FAMILY, ids=title)
def test_the_three_point_inequality(name, params, compressor, seeds):
    """E||C_{h,y}(x) - x||^2 <= (1-A)||h-y||^2 + B||x-y||^2, over points of all proportions."""
    d, points, tries = (8, 600, 1) if seeds == 1 else (8, 45, 1500)
    A, B = pair(name, params, compressor, d)
    g = torch.Generator().manual_seed(7)
    y = torch.zeros(points, d, dtype=torch.float64)
    h, x = (torch.randn(points, d, generator=g, dtype=torch.float64) for _ in range(2))
    x = x * torch.logspace(-3, 3, points).double()[:, None]
    factors = torch.rand(points, 1, generator=g, dtype=torch.float64)
    h[::3] = -x[::3] * factors[::3]  # opposite
    h[1::3] = x[1::3] + factors[1::3] * x[1::3].norm(dim=1, keepdim=True) * h[1::3] / d  # near x
    promised = (1 - A) * h.square().sum(-1) + B * x.square().sum(-1)
    many = [t.repeat_interleave(tries, 0) for t in (h, y, x)]
    error = (three_points(name, params, compressor, d, *many) - many[2]).square().sum(-1)
    error = error.view(points, tries)
    spread = error.std(1) / math.sqrt(tries) if tries > 1 else torch.zeros(points)
    assert (error.mean(1) <= promised * (1 + 1e-9) + 4 * spread).all()
    assert (error.mean(1) > 0.05 * promised).any()  # the bound is of the right order


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


@pytest.mark.parametrize("downlink", ["perm_k", {"name": "lazy", "p": 0.4}])
def test_marina_p_conforms_with_any_downlink(downlink):
    result = conformance(on_p1("marina_p", None, downlink, 40, params={"p": 0.3}))
    assert not [str(f) for f in result if not f.ok]


# What does not go together ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("downlink", "says"), [(TOP, "unbiased"), ("aggregate", "would relay, is not its step")]
)
def test_marina_p_needs_an_unbiased_downlink(downlink, says):
    method = on_p1("marina_p", None, downlink, step=0.1)
    (cell,) = spec.load({**method.config({"value": 0.1}, 0), "allow_unproven": False}).cells
    with pytest.raises(Skip, match=says):
        Resolver().resolve(cell)
