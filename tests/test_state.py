"""What a run remembers: saved after any round, and continued as if nothing had happened."""

import io

import numpy as np
import pytest
import torch
from torch import Tensor
from toys import RAND, TOP, handed_over, on_p1, registered

from raybench.core.cells import State
from raybench.core.draws import Sample
from raybench.execution.batch import Batch
from raybench.execution.run import Options, Run, share
from raybench.problems.abilities import Buffered
from raybench.problems.base import Measured
from raybench.problems.quadratic import Quadratic
from raybench.spec.model import Record
from raybench.store.accounting import Accounting
from raybench.testing.trial import Method, finished, recorded, started
from raybench.wire.transport import on_virtual_ranks, share_of


def written(state: dict) -> dict:
    """Return a state as it comes back from a file that is read without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(run: Run, other: Run) -> None:
    """Assert that two runs ended with the same curves, bit for bit, but for the times."""
    ours, theirs = recorded(run), recorded(other)
    assert ours.keys() == theirs.keys()
    for name, want in ours.items():
        assert torch.equal(theirs[name].nan_to_num(), want.nan_to_num()), name
    assert list(run.status) == list(other.status)
    assert run.t == other.t
    assert np.array_equal(run.index, other.index)


def continued(batch: Batch, before: int) -> Run:
    """Return a run that took over after so many rounds, once it has ended as an undisturbed one."""
    once, first, second = finished(batch), started(batch), started(batch)
    first.advance(before)
    second.load(written(first.state()))
    second.advance(first.rounds)
    same(once, second)
    return second


@pytest.mark.parametrize("before", [0, 1, 7, 39, 40])
def test_after_any_round(before):
    continued(Method("pp_marina", {"p": 0.3}, RAND).batch((1.0, 0.5), (0, 1)), before)


def test_a_state_is_a_copy():
    """The run that was saved goes on and changes nothing of what was saved."""
    run = started(Method("ef21", {}, TOP).batch())
    run.advance(3)
    saved = run.state()
    before = written(saved)
    run.advance(10)
    for part, name in (("s", "x"), ("c", "g"), ("ledger", "up"), ("recorder", "data")):
        assert torch.equal(saved[part][name].nan_to_num(), before[part][name].nan_to_num())


@pytest.mark.parametrize(
    "more",
    [
        {"iterate": "average"},
        {"iterate": "weighted"},
        {"step_size": {"value": 0.02, "schedule": "cosine", "warmup": 7}},
        {"stop": {"bits_up": 3000}},
        {"x0": {"normal": 2.0}},
    ],
    ids=lambda more: next(iter(more)),
)
def test_schedules_averages_and_stops_go_on(more):
    continued(Method("diana", {}, RAND, step=0.02, more=more).batch((1.0, 0.5), (0, 1)), 5)


def test_cells_that_left_stay_away():
    """Cells diverge and leave, the rest are gathered, and then the run is interrupted."""
    batch = on_p1("ef21", TOP, 300).batch((1.0, 1e6, 0.5, 1e6, 1e6), range(5))
    run = continued(batch, 100)
    assert len(run.index) == 2
    assert list(run.status) == ["ok", "diverged", "ok", "diverged", "diverged"]


def test_first_messages_are_still_known():
    """A stop on bits that leaves the first messages out needs their counts after the interruption."""
    method = Method("ef21", {"init": "full"}, TOP, step=0.02, more={"stop": {"bits_up": 2000}})
    options = Options(Record(every=1), Accounting(count_init=False))
    batch = method.batch()
    once, first, second = (Run(batch, started(batch).problem, options) for _ in range(3))
    once.advance(40)
    first.advance(3)
    second.load(written(first.state()))
    second.advance(40)
    same(once, second)
    assert 0 < second.t < 40


def test_another_number_of_ranks_takes_over():
    """Two ranks are interrupted, and three go on: the same curve to rounding."""
    batch = Method("marina", {"p": 0.3}, RAND).batch((1.0, 0.5), (0, 1))
    once = finished(batch)

    for columns in handed_over(batch, 5, recorded):
        for name, want in recorded(once).items():
            torch.testing.assert_close(columns[name], want, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_only_what_can_be_read_back_safely_is_state():
    state = State.of({"g": torch.ones(2), "parts": [torch.zeros(2), None], "t": 3})
    assert written(state.state())["t"] == 3
    state.odd = {1, 2}
    with pytest.raises(TypeError, match="state odd is a set"):
        state.state()


# Memory that gradients carry along, and a problem that says what a record is worth -----------------


class Running(Quadratic):
    """Quadratics whose minibatch gradients are shifted by a running mean of the points, per client."""

    declared = {}

    def __init__(self) -> None:
        A = torch.eye(4, dtype=torch.float64).expand(3, 4, 4).clone()
        super().__init__(A, torch.arange(12, dtype=torch.float64).view(3, 4))

    def buffers(self, cells: int) -> dict[str, Tensor]:
        return {"mean": torch.zeros(cells, len(self.clients), self.dim, dtype=self.dtype)}

    def grad_buffered(self, x, sample: Sample, buffers):
        mean = 0.9 * buffers["mean"] + 0.1 * self.spread(x)
        return self.grad(x) + 0.5 * mean, {"mean": mean}

    shares_buffers = False

    def oracle_buffered(self, x, buffers):
        return *self.oracle(x), dict(buffers)

    def losses(self, x, buffers=None):
        return self.oracle(x)[1]

    def evaluate(self, x, buffers=None):
        return {}


class Frugal(Quadratic):
    """Quadratics that measure their gradient only where rows are recorded in full."""

    declared = {}

    def __init__(self) -> None:
        A = torch.eye(4, dtype=torch.float64).expand(3, 4, 4).clone()
        super().__init__(A, torch.arange(12, dtype=torch.float64).view(3, 4))

    def measure(self, x, what, full):
        grads, losses = full() if "mean_client_grad_norm_sq" in what else (None, None)
        return Measured(grads, losses, {"test_loss": x.square().sum(-1)})


def on(problem: str, **rest) -> Method:
    return Method("sgd", {"batch": 1}, None, {"name": problem}, step=0.05, **rest)


def test_buffers_belong_to_the_run():
    """Running means are kept per cell and client, saved, dealt out to ranks; the problem has no state."""
    with registered("problem", running=Running):
        batch = on("running").batch((1.0, 0.5), (0, 1))
        once, first, second = finished(batch), started(batch), started(batch)
        assert isinstance(once.problem, Buffered)
        first.advance(5)
        mean = first.net.oracle.buffers["mean"]
        assert mean.shape == (2, 3, 4)
        assert not torch.equal(mean[0], mean[1])  # the cells' own
        second.load(written(first.state()))
        second.advance(40)
        same(once, second)
        assert torch.equal(once.net.oracle.buffers["mean"], second.net.oracle.buffers["mean"])
        saved = written(first.state())

        def go_on(transport):
            run = started(batch, transport=transport)
            run.load(share(saved, share_of(transport.rank, transport.size, 3)))
            run.advance(40)
            return recorded(run)["loss"]

        for losses in on_virtual_ranks(2, go_on):
            torch.testing.assert_close(losses, recorded(once)["loss"], rtol=1e-9, atol=0)


def test_clients_that_sit_out_keep_their_buffers():
    with registered("problem", running=Running):
        run = started(on("running").batch((1.0, 0.5), (0, 1)))
        net = run.net
        present = torch.tensor([[True, False, True], [False, False, True]])
        net.grad(run.s.x + 1, net.sample("batch", 1), clients=present)
        moved = (net.oracle.buffers["mean"] != 0).any(-1)
        assert torch.equal(moved, present)


def test_a_problem_decides_what_a_row_costs():
    """Rows in which the gradient was not measured have null there, and the run neither stops nor diverges."""
    with registered("problem", frugal=Frugal):
        method = on("frugal", rounds=120, more={"stop": {"grad_norm_sq": 1e-30}})
        run = finished(method.batch())
        curves = run.tables({})[0].to_pandas()
    known = curves["grad_norm_sq"].notna()
    assert 0 < known.sum() < 0.6 * len(curves)
    assert curves["loss"].notna().equals(known)
    assert curves["test_loss"].notna().all()
    assert run.status[0] == "ok"
