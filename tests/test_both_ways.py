"""MARINA-P: messages of their own to every client are booked, with any downlink, and what it does not go with."""

import pytest
import torch
from toys import FAR, RAND, TOP

from raybench import spec
from raybench.execution.resolve import Resolver, Skip
from raybench.testing.algorithms import conformance
from raybench.testing.trial import Method, started
from raybench.wire import CasesMessage
from raybench.wire.dense import DenseMessage
from raybench.wire.ledger import COLUMNS

pytestmark = pytest.mark.thorough

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
