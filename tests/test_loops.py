"""raybench's methods in training loops of one's own: what two real ranks find (``loop_ranks.py``)."""

from __future__ import annotations

import gc
import math
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import loop_kit
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import raybench
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
    return loop_kit.results("loop_ranks.py", 2, folder, "usual")[0]


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same of what takes seconds each: code that torch or numba compiles, and many pairs of runs."""
    return loop_kit.results("loop_ranks.py", 2, tmp_path_factory.mktemp("rare"), "rare")[0]


def test_uncompressed_messages_are_data_parallel_training(found):
    assert max(found["identity"].values()) < 1e-14


def test_ranks_take_over_the_start_of_rank_0(found):
    assert found["same_start"] == 0


@pytest.mark.thorough
def test_memory_belongs_to_parameters_whatever_the_buckets(rare):
    assert [v[:2] for v in rare["buckets"].values()] == [[0, 0]] * 3
    assert [v[2] for v in rare["buckets"].values()] == [6, 4, 1]


def test_one_message_of_all_gradients_is_what_the_optimizer_sends(found):
    assert found["whole_model"] == 0


def test_first_steps_are_dense_where_asked(found):
    dense, sizes = found["start_after"]
    assert dense == 3
    assert sizes[:3] == [1715 * 8] * 3
    assert max(sizes[3:]) < 1715 * 8 / 5


def test_a_hook_can_be_detached_and_another_attached(found):
    moved, apart, steps = found["detached"]
    assert moved < 1e-15
    assert apart == 0
    assert steps == 1


def test_accumulated_gradients_are_one_message(found):
    assert found["accumulated"] == [0, 4, 4]


def test_a_step_without_messages_is_an_error(found):
    said, moved, apart = found["never_silent"]
    assert "never exchanged" in said
    assert "no_sync" in said
    assert moved == 0
    assert apart == 0


def test_a_model_that_is_given_up_takes_its_hook_along(found):
    assert found["forgotten"] == [True, True]


def test_parameters_that_a_rank_does_not_use(found):
    assert found["unused"] == {"ef21": 0, "diana": 0, "hook": 0}


def test_a_rank_without_gradients_takes_part(found):
    apart, moved = found["nothing_to_send"]
    assert apart == 0
    assert moved > 0


def test_sparse_gradients_are_as_dense_ones(found):
    assert found["sparse"] < 1e-15


@pytest.mark.thorough
def test_messages_of_varying_length_arrive(rare):
    apart, least, most = rare["of_varying_length"]
    assert apart == 0
    assert least < most


def test_a_step_that_one_scaler_skips_is_skipped_by_all(found):
    moved, same, apart = found["scaled"]
    assert moved[4] == 0
    assert min(moved[:4] + moved[5:]) > 0
    assert same < 1e-6  # factors are powers of two, but gradients of 32 bits
    assert apart == 0


def test_a_hook_that_knows_the_scaler_keeps_infinities_out_of_memories(found):
    same, apart, steps = found["scaled_hook"]
    assert same < 1e-6
    assert apart == 0
    assert steps == [8, 1]  # one of eight was skipped


@pytest.mark.parametrize("way", ["optimizer", "delayed", "hook", "hook without overlap"])
def test_a_nan_on_one_rank_is_as_if_the_step_had_not_been(found, way):
    """Bit for bit, with an optimizer and a method that have memories; the hook has sent other parts by then."""
    moved, apart, counts, (first, second), quiet = found["not_finite"][way]
    assert moved == 0
    assert apart == 0
    assert counts == [9, 1, 8, 0]  # steps and skipped ones, with the NaN and without
    assert len(first) == len(second) == 1
    assert first[0].startswith("step 5: NaN or infinity in the gradients of 1 of 2 ranks (rank 1)")
    assert "set_detect_anomaly" in first[0]
    assert quiet == []


def test_a_scaler_that_the_hook_does_not_know_sees_what_is_skipped(found):
    factors, skipped, apart = found["unknown_scaler"]
    assert factors == [[8, 4, 4]] * 2
    assert skipped == 1
    assert apart == 0


def test_local_steps_that_are_not_finite(found):
    apart, alone, moved, counts = found["local_not_finite"]
    assert apart == 0
    assert alone == [0, 1]  # one rank leaves a local step out
    assert moved == 0  # and all leave an exchange out
    assert counts == [1, 2]


ALIKE = {
    "seed": "seed: rank 0 has 0, rank 1 1",
    "compressor": "compressor: rank 0 has top_k:k=10%, rank 1 top_k:k=20%",
    "a wrong compressor": "compressor: rank 0 has top_k:k=10%, rank 1 topk",
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


def test_gradients_that_were_averaged_already_are_noticed(found):
    (averaged, other), separate = found["averaged_twice"]
    assert len(averaged) == 1
    assert "attach" in averaged[0]
    assert [other, separate] == [[], [[], []]]


def test_a_closure_is_what_its_body_would_be(found):
    moved, same_losses, graded, local, hooked, search = found["closures"]
    assert moved == 0
    assert same_losses
    assert graded == [True] * 5
    assert local < 1e-14
    assert hooked == 0
    assert "LBFGS searches along a line, on each rank by its own loss" in search[0]


def test_a_line_search_decides_alike_on_all_ranks(found):
    """LBFGS over two ranks is LBFGS of the mean loss; compressed it is the same on both, and descends."""
    moved, apart, steps, exchanges, evaluations, compressed, before, after = found["line_searches"]
    assert moved < 1e-9
    assert apart == compressed == 0
    assert steps == 3
    assert exchanges == evaluations > 6
    assert after < before / 2


def test_a_line_search_that_meets_a_nan_goes_back(found):
    moved, skipped, calls, before, after, apart = found["lost_line_search"]
    assert moved == 0
    assert [skipped, calls] == [1, 2]
    assert after < before
    assert apart == 0


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
def test_gradients_of_16_bits_have_memories_of_32(rare, dtype):
    apart, kind, first, last = rare["narrow"][dtype]
    assert apart == 0
    assert kind == "torch.float32"
    assert last < first
    assert rare["narrow"]["hook"] == 0


@pytest.mark.thorough
def test_a_compiled_model_trains_as_one_that_is_not(rare):
    assert rare["compiled"] < 1e-12


def test_what_a_user_clips_is_what_is_compressed(found):
    assert found["clipping"] <= 1e-3


def test_groups_of_parameters_keep_their_step_sizes(found):
    moved, rates, apart = found["parameter_groups"]
    assert moved == 0
    assert rates == [0, 1e-2 / 8]
    assert apart == 0


def test_small_tensors_are_sent_as_they_are(found):
    # sizes 600, 30, 900, 30, 150, 5; a message of 3 entries is not half as long as one of 5 values
    assert found["small_tensors"] == {
        "auto": [False] * 5 + [True],
        "200": [False, True, False, True, True, True],
        "0": [False] * 6,
    }


def test_tensors_have_operators_by_name(found):
    assert found["by_groups"] == ["0.weight", "0.bias"]
    sent, said = found["by_groups_in_parts"]
    assert sent == ["0.weight", "0.bias"]
    assert "'x' names no tensor" in said


def test_local_steps_part_the_ranks_and_exchanges_join_them(found):
    apart, exchanges, plain = found["diloco"]
    assert [a == 0 for a in apart] == [False, False, False, True] * 2
    assert exchanges == 2
    assert plain < 1e-14


def test_sending_while_the_backward_pass_goes_on_changes_nothing(found):
    assert found["overlap"] == 0


@pytest.mark.thorough
def test_messages_are_added_up_on_the_way(rare):
    halves, parts, apart = rare["collectives"]
    assert 0 < halves < 1e-2
    assert parts < 1e-14
    assert apart == 0


@pytest.mark.parametrize("name", ["ef21", "ef14", "power_sgd", "dgc", "hook"])
def test_ranks_go_on_from_what_they_saved(found, name):
    moved, shapes = found["saved"][name]
    assert moved == 0
    assert all(shape == [1, 1, 1715] for shape in shapes)  # the same on every rank


@pytest.mark.thorough
def test_presets_go_on_as_if_they_had_not_stopped(rare):
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
    assert set(rare["presets"]) == accepted
    for name, (same, fewer, more) in rare["presets"].items():
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


@pytest.mark.thorough
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
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the parameters at which loops ended."""
    return tmp_path_factory.mktemp("cells")


@pytest.fixture(scope="module")
def cells(trained: Path) -> dict[str, float]:
    """How far they are from those of the same cells of sweeps, in one process."""
    return loop_kit.results("loop_cells.py", 2, trained, "float64", "float32")[0]


@pytest.mark.thorough
@pytest.mark.parametrize("batch", ["full", "8"])
@pytest.mark.parametrize(
    "name",
    ["ef21", "ef14", "diana", "marina", "dgc", "power_sgd", "sign_sgd", "ef_sign_sgd"]
    + ["dion", "demo", "diloco"],
)
def test_a_loop_ends_where_the_same_cell_of_a_sweep_does(cells, name, batch):
    assert cells[f"{name} {batch} float64"] < 1e-9


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_loop_ends_where_a_sweep_on_ray_train_does(cells, trained, tmp_path, dtype, capsys):
    """The same cells as a real sweep: two workers of Ray Train, their weights kept at the end.

    In float32 sums of another order may choose other coordinates or signs: the differences are printed.
    """
    from loop_cells import CELLS, config

    names = ["ef21", "ef14", "diana", "dgc", "power_sgd", "sign_sgd", "diloco"]
    base = config("gd", None, 8, dtype)
    sweep = {
        **{key: base[key] for key in ("problem", "rounds", "seed")},
        "name": "cells",
        "step_size": {"value": 0.05},
        "cases": [
            {"algorithm": CELLS[n][0], **({"compressor": CELLS[n][1]} if CELLS[n][1] else {})}
            for n in names
        ],
        "train": {"save": "weights"},
        "resources": {"mode": "train", "workers": 2},
    }
    outcome = raybench.sweep(sweep, out=tmp_path / "out")
    assert outcome.counts["ok"] == len(names)
    done = raybench.load(tmp_path / "out").groupby("algorithm").cell.first()
    found = {}
    for name in names:
        kept = torch.load(tmp_path / "out" / "weights" / f"{done[name]}.pt", weights_only=True)
        swept = torch.cat([value.flatten() for value in kept.values()])
        looped = torch.load(trained / f"{name}.8.{dtype}.pt", weights_only=True)
        found[name] = float((swept - looped).abs().max())
    with capsys.disabled():
        said = ", ".join(f"{name} {far:.1e}" for name, far in found.items())
        print(f"\nlargest difference of a parameter after 20 steps in {dtype}: {said}")
    assert max(found.values()) < {"float64": 1e-9, "float32": 1e-2}[dtype], found
