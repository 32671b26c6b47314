"""The examples of loops train, each by the command in its head: two real processes."""

import os
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from cli_kit import call

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parent.parent / "examples"
ALONE = ("ray_train",)  # start their processes themselves
FRAMEWORKS = {  # the checkpoint of each after half of its epochs
    "accelerate": "accelerate/epoch-2",
    "lightning": "lightning/epoch=1.ckpt",
    "transformers": "transformers/checkpoint-58",
}


def run(name: str, folder: Path, *arguments: str) -> list[float]:
    """Run an example from another folder; return the losses that it prints."""
    file = EXAMPLES / f"loop_{name}.py"
    start = [sys.executable]
    if name not in ALONE:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    paths = [str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    done = call(*start, file, *arguments, cwd=folder, env=env, timeout=280, check=True)
    said = re.findall(r"loss ([0-9.]+) · ", done.stdout + done.stderr)
    return [float(value) for value in said]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["torchrun", "ddp", "diloco"])
def test_an_example_trains(name, tmp_path):
    losses = run(name, tmp_path)
    assert len(losses) == 4
    assert losses[-1] < min(0.9, losses[0])
    if name == "torchrun":
        table = pd.read_parquet(tmp_path / "loop_torchrun.parquet")
        assert len(table) == 200
        assert table.bytes_up.max() < 4810 * 4 / 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_trains_and_goes_on_from_its_checkpoint(name, tmp_path):
    """The losses of a run that is resumed are those of the one that was not, digit for digit."""
    pytest.importorskip(name, reason="it comes with raybench[train]")
    losses = run(name, tmp_path)
    assert losses[-1] < 0.7 * losses[0]
    resumed = run(name, tmp_path, FRAMEWORKS[name])
    half = len(losses) // 2
    assert resumed[-half:] == losses[half:]


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_the_example_of_ray_train_trains(tmp_path):
    losses = run("ray_train", tmp_path)
    assert losses
    assert losses[-1] < 0.9


def test_examples_of_frameworks_are_short():
    for name in FRAMEWORKS:
        assert len((EXAMPLES / f"loop_{name}.py").read_text().splitlines()) <= 40


def test_heads_say_the_command():
    for file in EXAMPLES.glob("loop_*.py"):
        head = file.read_text().split('"""')[1]
        name = file.stem.removeprefix("loop_")
        launched = "python" if name in ALONE else "torchrun --nproc_per_node 2"
        assert f"{launched} examples/{file.name}" in head
        assert len(head.strip().splitlines()) == 3
