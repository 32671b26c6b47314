"""The examples of loops train on real processes: one by the command in its head, others on ranks that are forked."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import gloo_kit
import pandas as pd
import pytest
import torch.distributed as dist
from cluster_kit import free_port

pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).parent.parent / "examples"
ALONE = ("ray_train",)  # start their processes themselves
FRAMEWORKS = {  # the epochs of each, and its checkpoint after half of them
    "accelerate": (6, "accelerate/epoch-2"),
    "lightning": (4, "lightning/epoch=1.ckpt"),
    "transformers": (4, "transformers/checkpoint-58"),
}

# An example from its start, and again from one of its checkpoints: to import a framework takes longer than either.
TWICE = """
import runpy, sys
for sys.argv in ([{file!r}], [{file!r}, {checkpoint!r}]):
    runpy.run_path({file!r}, run_name="__main__")
"""
# The same without raybench, and with messages that hold everything: the processes send what they would have sent anyway.
PLAIN = """
import raybench.torch.frameworks as frameworks

class Nothing:
    on, digests = False, list
    replica = property(lambda self: self)
    def report(self): return ""
    def state_dict(self): return {{}}
    def detach(self): pass

attach, whole, sys.argv = frameworks.attach, frameworks.whole, [{file!r}]
without = lambda model, *a, **k: Nothing(), lambda parts: {{}}
dense = lambda model, *a, **k: attach(model, "gd"), whole
for frameworks.attach, frameworks.whole in (without, dense):
    runpy.run_path({file!r}, run_name="__main__")
"""
# Process 1 is killed while it writes its part of the third checkpoint.
KILLED = """
import os, runpy, signal, sys
from pathlib import Path
import raybench.torch.frameworks as frameworks

write, count = frameworks.write_checkpoint, []
def cut(hook, folder, *name):
    count.append(folder)
    if os.environ["RANK"] == "1" and len(count) == 3:
        Path(folder, f"{{(*name, 'raybench')[0]}}.1.new").write_bytes(b"PK")
        os.kill(os.getpid(), signal.SIGKILL)
    write(hook, folder, *name)

frameworks.write_checkpoint, sys.argv = cut, [{file!r}]
runpy.run_path({file!r}, run_name="__main__")
"""
# What a fit leaves, saved after it, is what the next one goes on from; a checkpoint without it is refused.
AFTER_THE_FIT = """
import lightning, torch
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
print(f"apart {float((whole - resumed).abs().max()):.1f}")
try:
    fitted(2, True, "plain.ckpt")
except InputError as error:
    print("refused" if "holds nothing of raybench" in str(error) else error)
"""


def run(name: str | Path, folder: Path, *args: str, fails: bool = False) -> str:
    """Run an example, or a file of one's own, from another folder; return what it says. fails: whether it is to."""
    file = EXAMPLES / f"loop_{name}.py" if isinstance(name, str) else name
    start = [sys.executable]
    if name not in ALONE:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
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
        [*start, str(file), *args],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    return done.stdout + done.stderr


def losses_of(said: str) -> list[float]:
    """Return the losses that an example has printed."""
    return [float(value) for value in re.findall(r"loss ([0-9.]+) · ", said)]


@pytest.mark.timeout(900)
def test_an_example_trains_by_torchrun(tmp_path):
    losses = losses_of(run("torchrun", tmp_path))
    assert len(losses) == 4
    assert losses[-1] < min(0.9, losses[0])
    table = pd.read_parquet(tmp_path / "loop_torchrun.parquet")
    assert len(table) == 200
    assert table.bytes_up.max() < 4810 * 4 / 10


def played(name: str, folder: Path, port: int) -> str:
    """Run an example on this rank, with what torchrun would tell it; return what it prints."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = {"RANK": str(dist.get_rank()), "WORLD_SIZE": str(dist.get_world_size())}
    os.environ.update(meeting | ranks)
    dist.destroy_process_group()
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(EXAMPLES / f"loop_{name}.py"), run_name="__main__")
    return said.getvalue()


@pytest.mark.parametrize(("name", "ranks"), [("ddp", 2), ("diloco", 2), ("nodes", 4)])
def test_an_example_trains(name, ranks, tmp_path):
    first, *_ = gloo_kit.run(ranks, played, name=name, folder=tmp_path, port=free_port())
    losses = losses_of(first)
    assert len(losses) == 4
    assert losses[-1] < min(0.9, losses[0])
    assert (tmp_path / "loop_nodes.png").exists() == (name == "nodes")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_trains_and_goes_on_from_its_checkpoint(name, tmp_path):
    """The losses of a run that is resumed are those of the one that was not, and without compression plain DDP's, to the digit.

    What Lightning saves after the fit is as good, and a checkpoint without memories is refused.
    """
    pytest.importorskip(name, reason="it comes with raybench[train]")
    file, script = str(EXAMPLES / f"loop_{name}.py"), tmp_path / "twice.py"
    more = AFTER_THE_FIT if name == "lightning" else ""
    epochs, checkpoint = FRAMEWORKS[name]
    both = (TWICE + PLAIN).format(file=file, checkpoint=checkpoint)
    script.write_text(both + more)
    said = run(script, tmp_path)
    losses = losses_of(said)
    plain, dense = losses[-2 * epochs : -epochs], losses[-epochs:]
    assert plain == dense
    losses = losses[: -2 * epochs]
    whole, resumed = losses[:epochs], losses[epochs:][-epochs // 2 :]
    assert whole != plain
    assert whole[-1] < 0.7 * whole[0]
    assert resumed == whole[epochs // 2 :]
    if more:
        assert [said.count("apart 0.0"), said.count("refused")] == [2, 2], said  # on both ranks


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_killed_while_it_saves_costs_the_checkpoint_it_was_at(tmp_path):
    name, broken = "accelerate", "accelerate/epoch-2"
    pytest.importorskip(name, reason="it comes with raybench[train]")
    file = tmp_path / "killed.py"
    (tmp_path / "whole").mkdir()
    whole = losses_of(run(name, tmp_path / "whole"))
    file.write_text(KILLED.format(file=str(EXAMPLES / f"loop_{name}.py")))
    run(file, tmp_path, fails=True)
    assert (tmp_path / broken).exists()
    assert "InputError" in run(name, tmp_path, broken, fails=True)
    resumed = losses_of(run(name, tmp_path, "accelerate/epoch-1"))
    assert resumed
    assert resumed == whole[-len(resumed) :]


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_the_example_of_ray_train_trains(tmp_path):
    losses = losses_of(run("ray_train", tmp_path))
    assert losses
    assert losses[-1] < 0.9


def test_examples_of_frameworks_are_short():
    for name in FRAMEWORKS:
        assert len((EXAMPLES / f"loop_{name}.py").read_text().splitlines()) <= 40


def test_heads_say_the_command():
    for file in EXAMPLES.glob("loop_*.py"):
        head = file.read_text().split('"""')[1]
        name = file.stem.removeprefix("loop_")
        ranks = 4 if name == "nodes" else 2
        launched = "python" if name in ALONE else f"torchrun --nproc_per_node {ranks}"
        assert f"{launched} examples/{file.name}" in head
        assert len(head.strip().splitlines()) == 3
