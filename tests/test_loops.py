"""raybench's methods in training loops of one's own: what two real ranks find (``loop_ranks.py``)."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import loop_kit
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt
from raybench.algorithms.build import check_loop
from raybench.core import registry
from raybench.core.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What rank 0 has found; what it says of differences between ranks holds for both."""
    return loop_kit.results("loop_ranks.py", 2, folder)[0]


# What each check of ``loop_ranks`` is to find; what it does stands there.
EXPECTED: dict[str, Callable[[Any], bool]] = {
    "identity": lambda f: max(f.values()) < 1e-14,
    "same_start": lambda f: f == 0,
    "buckets": lambda f: list(f.values()) == [[0, 0, 6], [0, 0, 4], [0, 0, 1]],
    "whole_model": lambda f: f == 0,
    "start_after": lambda f: (
        f[0] == 3 and f[1][:3] == [1715 * 8] * 3 and max(f[1][3:]) < 1715 * 8 / 5
    ),
    "detached": lambda f: f[0] < 1e-15 and f[1:] == [0, 1],
    "accumulated": lambda f: f == [0, 4, 4],
    "never_silent": lambda f: "never exchanged" in f[0] and "no_sync" in f[0] and f[1:] == [0, 0],
    "forgotten": lambda f: f == [True, True],
    "unused": lambda f: f == {"ef21": 0, "diana": 0, "hook": 0},
    "nothing_to_send": lambda f: f[0] == 0 < f[1],
    "sparse": lambda f: f < 1e-15,
    "of_varying_length": lambda f: f[0] == 0 and f[1] < f[2],
    # factors are powers of two, but gradients of 32 bits
    "scaled": lambda f: (
        [m > 0 for m in f[0]] == [t != 4 for t in range(8)] and f[1] < 1e-6 and f[2] == 0
    ),
    "scaled_hook": lambda f: f[0] < 1e-6 and f[1:] == [0, [8, 1]],  # one of eight was skipped
    "unknown_scaler": lambda f: f == [[[8, 4, 4]] * 2, 1, 0],
    # one rank leaves a local step out, and all leave an exchange out
    "local_not_finite": lambda f: f == [0, [0, 1], 0, [1, 2]],
    "averaged_twice": lambda f: (
        len(f[0][0]) == 1 and "attach" in f[0][0][0] and [f[0][1], f[1]] == [[], [[], []]]
    ),
    "closures": lambda f: (
        f[:3] == [0, True, [True] * 5]
        and f[3] < 1e-14
        and f[4] == 0
        and "LBFGS searches along a line, on each rank by its own loss" in f[5][0]
    ),
    # LBFGS over two ranks is LBFGS of the mean loss; compressed it is the same on both, and descends
    "line_searches": lambda f: (
        f[0] < 1e-9 and f[1] == f[5] == 0 and f[2] == 3 and f[3] == f[4] > 6 and f[7] < f[6] / 2
    ),
    "lost_line_search": lambda f: f[:3] == [0, 1, 2] and f[4] < f[3] and f[5] == 0,
    "narrow": lambda f: (
        f.pop("hook") == 0
        and all(a == 0 and k == "torch.float32" and z < y for a, k, y, z in f.values())
    ),
    "compiled": lambda f: f < 1e-12,
    "clipping": lambda f: f <= 1e-3,
    "parameter_groups": lambda f: f == [0, [0, 1e-2 / 8], 0],
    # sizes 600, 30, 900, 30, 150, 5; a message of 3 entries is not half as long as one of 5 values
    "small_tensors": lambda f: (
        f
        == {
            "auto": [False] * 5 + [True],
            "200": [False, True, False, True, True, True],
            "0": [False] * 6,
        }
    ),
    "by_groups": lambda f: f == ["0.weight", "0.bias"],
    "by_groups_in_parts": lambda f: (
        f[0] == ["0.weight", "0.bias"] and "'x' names no tensor" in f[1]
    ),
    "diloco": lambda f: (
        [a == 0 for a in f[0]] == [False, False, False, True] * 2 and f[1] == 2 and f[2] < 1e-14
    ),
    "overlap": lambda f: f == 0,
    "collectives": lambda f: 0 < f[0] < 1e-2 and f[1] < 1e-14 and f[2] == 0,
    # bit for bit, and of the same shapes on every rank
    "saved": lambda f: all(m == 0 and all(s == [1, 1, 1715] for s in n) for m, n in f.values()),
}


@pytest.mark.parametrize("check", EXPECTED)
def test_two_ranks(found, check):
    assert EXPECTED[check](found[check]), found[check]


@pytest.mark.parametrize("way", ["optimizer", "delayed", "hook", "hook without overlap"])
def test_a_nan_on_one_rank_is_as_if_the_step_had_not_been(found, way):
    """Bit for bit, with an optimizer and a method that have memories; the hook has sent other parts by then."""
    moved, apart, counts, (first, second), quiet = found["not_finite"][way]
    assert [moved, apart] == [0, 0]
    assert counts == [9, 1, 8, 0]  # steps and skipped ones, with the NaN and without
    assert len(first) == len(second) == 1
    assert first[0].startswith("step 5: NaN or infinity in the gradients of 1 of 2 ranks (rank 1)")
    assert "set_detect_anomaly" in first[0]
    assert quiet == []


ALIKE = {
    "seed": "seed: rank 0 has 0, rank 1 1",
    "compressor": "compressor: rank 0 has top_k:k=10%, rank 1 top_k:k=20%",
    "a wrong operator": "compressor: rank 0 has top_k:k=10%, rank 1 topk",
    "algorithm": "algorithm: rank 0 has ef21, rank 1 ef21_sgdm",
    "shapes": "parameter 0: rank 0 has 0.0 (2, 3) torch.float32, rank 1 0.0 (3, 3) torch.float32",
    "types": "parameter 0: rank 0 has 0.0 (30, 20) torch.float64, rank 1 0.0 (30, 20) torch.float32",
    "requires_grad": "rank 1 0.2 (30, 30) torch.float64, requires_grad=False",
    "number": "parameter 4: rank 0 has nothing, rank 1 0.4 (5, 30) torch.float64",
    "lr": "param_groups[0].lr: rank 0 has 0.1, rank 1 1.1",
    "hook, seed": "seed: rank 0 has 0, rank 1 1",
    "hook, compressor": "compressor: rank 0 has top_k:k=10%, rank 1 top_k:k=20%",
}


@pytest.mark.parametrize("what", ALIKE)
def test_what_differs_between_ranks_ends_with_one_message_on_all(found, what):
    first, second = found["not_alike"][what]
    assert first == second
    assert first.startswith("InputError: ")
    assert ALIKE[what] in first
    assert len(first.splitlines()) == 2


def test_ranks_may_take_local_steps_in_their_own_ways(found):
    assert found["not_alike"]["local steps may differ"] == ["", ""]


@pytest.mark.parametrize("way", ["optimizer", "hook"])
@pytest.mark.parametrize("who", [[1], [0, 1]])
def test_parameters_that_are_unfrozen_later_are_refused_on_all_ranks(found, way, who):
    first, second = found["changed"][f"{way} {who}"]
    assert first == second
    said = f"InputError: requires_grad: that of 2.weight has become True on rank {who[0]}\n"
    assert first.startswith(said)


def test_ranks_go_on_from_the_same_step(found):
    first, second = found["changed"]["one rank goes on from a checkpoint"]
    assert first == second
    assert "different numbers of exchanges: rank 0 2, rank 1 0" in first


@pytest.mark.parametrize(
    ("way", "step", "name"),
    [("optimizer", 6, "2.bias"), ("hook", 6, "2.bias"), ("local", 9, "0.0")],
)
def test_parameters_that_drift_apart_are_named_at_the_next_comparison(found, way, step, name):
    *before, (first, second) = found["drifted"][way]
    assert before == [["", ""]] * len(before)
    assert first == second
    assert first.startswith(
        f"RuntimeError: step {step}: the replicas have drifted apart: {name} of rank 1 "
    )


def test_presets_go_on_as_if_they_had_not_stopped(found):
    """On as many ranks bit for bit; from two ranks to one and from one to two to rounding."""
    accepted = set()
    for name in registry.names("algorithm"):
        entry = registry.lookup("algorithm", name)
        if getattr(entry.target, "presets", ()):
            try:
                check_loop(entry, {k: p.default for k, p in entry.params.items()}, local=True)
            except InputError:
                continue
            accepted.add(name)
    assert set(found["presets"]) == accepted
    for name, (same, fewer, more) in found["presets"].items():
        assert same == 0, name
        assert max(fewer, more) < 1e-12, name


def test_nothing_here_keeps_a_process_group_alive(tmp_path):
    """A group that is held beyond its end goes on running threads, which abort a process that ends."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/a", rank=0, world_size=1)
    own = dist.new_group([0], timeout=timedelta(seconds=77))
    opts = [
        rt.CompressedOptimizer(loop_kit.sgd(loop_kit.network()), "top_k:k=10%", group=group)
        for group in (None, own)
    ]
    model = DistributedDataParallel(loop_kit.network(), process_group=own)
    count = len(dist.distributed_c10d._world.pg_map)
    with rt.attach(model, "ef21", "top_k:k=10%"):
        groups = [weakref.ref(g) for g in dist.distributed_c10d._world.pg_map]
        timeouts = [g()._get_backend(torch.device("cpu")).options._timeout for g in groups]
        assert [t.total_seconds() for t in timeouts] == [1800, 77, 77]
    assert len(dist.distributed_c10d._world.pg_map) == count == 2
    second = rt.attach(model, "ef21", "top_k:k=10%")
    assert len(dist.distributed_c10d._world.pg_map) == 3
    del model, own
    dist.destroy_process_group()
    gc.collect()
    assert [g() for g in groups] == [None] * 3
    second.detach()
    with pytest.raises(RuntimeError, match="was destroyed"):
        opts[1].step()


@pytest.mark.parametrize(
    ("name", "memory", "error"), [("ef21", "g", False), ("ef14", "e", True), ("dgc", "v", True)]
)
def test_one_rank_goes_on_from_two(found, folder, name, memory, error):
    """Of n' ranks after n: the means of all memories are kept, and so is x - mean e."""
    parts = [torch.load(folder / f"{name}.{r}.pt", weights_only=True) for r in range(2)]
    model = loop_kit.network()
    operator = "dgc:k=10%" if name == "dgc" else "top_k:k=10%"
    opt = rt.CompressedOptimizer(loop_kit.sgd(model), operator, name)
    whole = rt.whole([part["opt"] for part in parts])
    with pytest.raises(InputError, match="saved by 2 ranks, loaded by 1"):
        opt.load_state_dict(parts[0]["opt"])
    with pytest.raises(InputError, match=r"parts of ranks \[1, 0\] of 2"):
        rt.whole([parts[1]["opt"], parts[0]["opt"]])
    opt.load_state_dict(whole)
    model.load_state_dict(parts[0]["model"])
    before = [p["opt"]["raybench"]["parts"][0]["exchanges"][0]["c"][memory] for p in parts]
    after = opt.state_dict()["raybench"]["parts"][0]["exchanges"][0]["c"][memory]
    torch.testing.assert_close(after, torch.stack(before).mean(0), rtol=1e-14, atol=1e-16)
    losses = loop_kit.steps(model, opt, 0, range(5, 60))
    assert all(math.isfinite(f) for f in losses)


def test_a_killed_loop_goes_on_with_the_same_losses(folder):
    """Both ranks are killed after step 12, and started again: losses as undisturbed, bit for bit."""
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    want = loop_kit.results("loop_killed.py", 2, folder / "a", "lives")
    for process in loop_kit.start("loop_killed.py", 2, folder / "b", "dies"):
        assert process.wait(timeout=120) == -9
    got = loop_kit.results("loop_killed.py", 2, folder / "b", "lives")
    assert got == want
    assert len(got[0]["losses"]) == 30


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """How far loops end from the same cells of sweeps."""
    return loop_kit.results("loop_cells.py", 2, tmp_path_factory.mktemp("cells"))[0]


@pytest.mark.parametrize("batch", ["full", "8"])
@pytest.mark.parametrize(
    "name",
    ["ef21", "ef14", "diana", "marina", "dgc", "power_sgd", "sign_sgd", "ef_sign_sgd"]
    + ["dion", "demo", "diloco"],
)
def test_a_loop_ends_where_the_same_cell_of_a_sweep_does(cells, name, batch):
    assert cells[f"{name} {batch}"] < 1e-9
