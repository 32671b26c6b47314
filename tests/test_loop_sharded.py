"""Methods across the replicas of a model that FSDP2 shards: four real ranks, a mesh of 2 x 2."""

from __future__ import annotations

from typing import Any

import loop_kit
import pytest

pytestmark = pytest.mark.thorough

D = 1715  # parameters


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return loop_kit.results("loop_sharded.py", 4, tmp_path_factory.mktemp("sharded"))[0]


def test_uncompressed_messages_are_data_parallel_training_of_all_ranks(found):
    away, apart, sent = found["gd"]
    assert away < 1e-6  # float32, added up in another order
    assert apart == 0
    assert 4 * D / 2 <= sent <= 4 * D / 2 * 1.1  # a shard, padded


def test_a_method_remembers_a_vector_for_every_shard(found):
    away, apart, sent, exchanges = found["ef21"]
    assert away > 1e-4
    assert apart == 0
    assert sent < 4 * D / 2 / 4
    assert exchanges == 3  # two layers, and what is left
    assert len(found["state"]) == 3
    assert sum(shape[-1] for shape in found["state"]) >= D / 2


def test_after_detaching_gradients_are_averaged(found):
    away, apart = found["detached"]
    assert away < 1e-6
    assert apart == 0


def test_a_nan_in_one_shard_skips_the_step_of_all(found):
    """Bit for bit: what other modules had exchanged is undone, on ranks whose own shards are finite too."""
    moved, apart, skipped, steps, without = found["spoilt"]
    assert moved == 0
    assert apart == 0
    assert skipped == [1] * 4
    assert [steps, without] == [10, 0]


def test_what_differs_is_said_on_all_ranks(found):
    seeds, starts = found["said"]
    assert seeds[0].startswith("seed: rank 0 has 0, rank 1 2")
    assert seeds[1].startswith("seed: rank 0 has 1, rank 1 3")
    assert starts[0].startswith("group: ranks that hold other shards differ")
    assert starts[1].startswith("start_after: rank 0 has 0, rank 1 1")


def test_the_ranks_with_the_same_shard_have_to_be_said(found):
    assert "mesh['replicate'].get_group()" in found["without a group"]


def test_one_method_at_a_time(found):
    assert "detach() that one first" in found["a second method"]
