"""Whether exchanges go on beside the computing, and what ``report()`` says of the seconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gloo_kit import on_ranks
from loop_kit import TOP, far, loss, network, sgd, steps, vector
from matplotlib.image import imread
from torch.distributed import get_rank as rank
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt
from raybench.core.errors import InputError
from raybench.torch.report import report, row

STEPS = 12
H = {"steps": 3}
OUTER: dict[str, Any] = {"optimizer": "nesterov", "momentum": 0.9, "step_size": 0.7}


def held_back(exchange: Any) -> tuple[Semaphore, Semaphore]:
    """Let each message of an exchange wait until the loop lets it through; return who waits, and what lets one."""
    transport, waits, let = exchange.wire.transport, Semaphore(0), Semaphore(0)
    send = transport.gather

    def late(*arguments: Any) -> Any:
        waits.release()
        assert let.acquire(timeout=100), "the loop waits for the exchange"
        return send(*arguments)

    transport.gather = late
    return waits, let


def begin(waits: Semaphore, let: Semaphore, count: int, *_: Any) -> None:
    """Let ``count`` messages through once one of them waits."""
    assert waits.acquire(timeout=100), "no exchange begins"
    let.release(count)


@on_ranks(2)
def test_a_late_exchange_goes_on_beside_the_next_local_steps():
    """Messages that arrive after the local steps that follow are hidden as long, and change nothing."""
    ends, reports = [], []
    for slow in (False, True):
        model = network()
        more: dict[str, Any] = {"local": H, "outer": OUTER, "delay": {"rounds": 1}}
        opt = rt.CompressedOptimizer(sgd(model), TOP, "ef14", **more)
        waits, let = held_back(opt._exchange) if slow else (Semaphore(STEPS), Semaphore())
        for t in range(STEPS):
            steps(model, opt, rank(), [t])
            if t > 3 and t % 3 == 1:
                assert waits.acquire(timeout=100), "the exchange does not begin"
                let.release()
        ends.append(vector(model))
        let.release()
        opt.state_dict()  # which waits for the last
        reports.append(opt.report())
    assert far(*ends) == 0
    late = reports[1]
    assert late.exchanges == STEPS / H["steps"]
    assert late.exchanged == pytest.approx(late.hidden + late.exposed)
    assert late.hidden > 0
    assert late.computed > 0


@on_ranks(2)
def test_late_steps_are_those_of_streaming_diloco():
    """Against a few lines that do the same by hand: y is not put back, and mixed with x when that has moved."""
    gamma, tau, mix, H = 0.1, 2, 0.25, 3
    model, other = network(), network()
    more: dict[str, Any] = {"local": {"steps": H, "late": tau, "mix": mix}}
    opt = rt.CompressedOptimizer(sgd(model, gamma), None, "gd", outer=OUTER, **more)
    x, momentum, v, inner = vector(other), torch.zeros(()), None, sgd(other, gamma)
    for t in range(STEPS):
        steps(model, opt, rank(), [t])
        steps(other, inner, rank(), [t])
        y = vector(other)
        if v is not None and t % H == tau - 1:
            u = v.clone()
            dist.all_reduce(u)
            momentum = OUTER["momentum"] * momentum + u / 2
            x = x - OUTER["step_size"] * (u / 2 + OUTER["momentum"] * momentum)
            y = mix * y + (1 - mix) * x
            torch.nn.utils.vector_to_parameters(y, other.parameters())
        if t % H == H - 1:
            v = x - y
        assert far(vector(model), vector(other)) < 1e-13
    with opt.shared_point():
        assert far(vector(model), x) < 1e-13


@on_ranks(2)
def test_a_preset_moves_the_shared_point_once():
    """DiLoCo is plain averages with the outer optimizer that it names."""
    preset, other = network(), network()
    one = rt.CompressedOptimizer(sgd(preset), None, "diloco", local=H)
    outer = {"optimizer": "nesterov", "momentum": 0.9, "step_size": 1.0}
    two = rt.CompressedOptimizer(sgd(other), None, "gd", local=H, outer=outer)
    for model, opt in ((preset, one), (other, two)):
        steps(model, opt, rank(), range(STEPS))
    assert far(vector(preset), vector(other)) < 1e-13


@pytest.mark.thorough
@on_ranks(2)
def test_buckets_go_out_while_the_backward_pass_goes_on():
    """The last layers' gradients are exchanged while the first layers' are computed, if the hook may overlap."""
    for overlap in (True, False):
        model = network()
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.004)
        hook = rt.attach(parallel, "ef21", TOP, size=1, overlap=overlap)
        for t in range(3):
            if t == 2 and overlap:  # DistributedDataParallel has made its buckets anew by now
                waits, let = held_back(hook.exchanges[0])
                go = partial(begin, waits, let, len(hook.exchanges))
                model[0].register_full_backward_hook(go)
            parallel.zero_grad()
            loss(parallel, t, rank()).backward()
            sgd(model).step()
        seconds = hook.report()
        assert (seconds.hidden > 0) == overlap
        assert seconds.exposed == pytest.approx(seconds.exchanged - seconds.hidden)


def test_without_local_steps_the_loop_waits_for_every_exchange(tmp_path):
    model = network(torch.float32)
    opt = rt.CompressedOptimizer(sgd(model), TOP)
    with pytest.raises(InputError, match="nothing was exchanged"):
        opt.report().timeline(tmp_path / "empty.png")
    steps(model, opt, 0, range(3), torch.float32)
    waits = opt.report()
    assert waits.hidden == 0 < waits.exposed == waits.exchanged
    assert "hidden" not in str(waits)
    assert len(waits.spans) == 3


def test_seconds_of_parts_add_up_and_are_drawn(tmp_path: Path):
    """Two parts of each of two steps: 1 s of computing, then exchanges of 1 s of which the second is waited for."""

    def part(*spans: tuple[float, float, float]) -> list[dict[str, float]]:
        names = ("began", "seconds_exchanged", "seconds_exposed")
        return [row(i, **dict(zip(names, span, strict=True))) for i, span in enumerate(spans)]

    logs = [part((10, 1, 0), (14, 1, 0)), part((11, 1, 0.5), (15, 1, 0.5)) + [row(2, skipped=1.0)]]
    two = report(logs, 2, ("ef21", "top_k"), 2, 0, 8.0)
    assert (two.exchanged, two.exposed, two.hidden) == (4.0, 1.0, 3.0)
    assert two.computed == 6.0 - 1.0
    np.testing.assert_array_equal(two.spans[:, 0], [0, 1, 4, 5])
    assert "75% hidden" in str(two)
    bare = report([part((10, 1, 0.999))], 2, ("ef21", "top_k"), 1, 0, 8.0)
    assert "hidden" not in str(bare), "a thousandth is none"
    two.timeline(tmp_path / "two.png")
    image = imread(tmp_path / "two.png")[..., :3]
    colors = {tuple(color) for color in np.unique(image.reshape(-1, 3), axis=0).tolist()}
    red = np.array([0xD6, 0x27, 0x28]) / 255
    assert any(np.allclose(color, red, atol=1e-3) for color in colors)
