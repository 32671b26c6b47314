"""The examples of loops train, each by the command in its head: two real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parent.parent / "examples"
ALONE = ("ray_train",)  # start their processes themselves
FRAMEWORKS = {  # the checkpoint of each after half of its epochs
    "accelerate": "accelerate/epoch-2",
    "lightning": "lightning/epoch=1.ckpt",
    "transformers": "transformers/checkpoint-58",
}


# What a fit leaves, saved after it, is what the next one goes on from; a checkpoint without it is refused.
AFTER_THE_FIT = """
import sys, lightning, torch
from digits import Network, dataset
from torch.utils.data import DataLoader
import raybench.torch
from raybench.core.errors import InputError

class Digits(Network, lightning.LightningModule):
    def training_step(self, batch, number):
        return self(*batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def fitted(epochs, compressed, checkpoint=None):
    lightning.seed_everything(0)
    callbacks = [raybench.torch.LightningCallback(compressor="top_k:k=5%")] if compressed else []
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=epochs, callbacks=callbacks,
                                logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(Digits(), DataLoader(dataset(), batch_size=64), ckpt_path=checkpoint)
    return trainer

fitted(1, True).save_checkpoint("after.ckpt")
fitted(1, False).save_checkpoint("plain.ckpt")
whole = fitted(2, True).model.layers[0].weight
resumed = fitted(2, True, "after.ckpt").model.layers[0].weight
print(f"loss {float((whole - resumed).abs().max()):.1f} · apart")
try:
    fitted(2, True, "plain.ckpt")
except InputError as error:
    print("loss 1.0 · refused" if "holds nothing of raybench" in str(error) else error)
"""


def run(name: str | Path, folder: Path, *arguments: str) -> list[float]:
    """Run an example, or a file of one's own, from another folder; return the losses that it prints."""
    file = EXAMPLES / f"loop_{name}.py" if isinstance(name, str) else name
    start = [sys.executable]
    if name not in ALONE:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        start += launch
    paths = [str(EXAMPLES.parent), str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    done = subprocess.run(
        [*start, str(file), *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lightning_saves_after_the_fit_and_refuses_a_checkpoint_without_memories(tmp_path):
    pytest.importorskip("lightning", reason="it comes with raybench[train]")
    script = tmp_path / "after.py"
    script.write_text(AFTER_THE_FIT)
    assert set(run(script, tmp_path)) == {0.0, 1.0}


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
