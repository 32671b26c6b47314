"""Two ranks train and save after every step; started again they go on. Writes their losses, and undisturbed ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from loop_kit import join, leave, loss, network, save, sgd

import raybench.torch as rt

STEPS = 30


def train(rank: int, file: Path, dies: bool) -> list[float]:
    """Train from where a file is, saving after every step; return all losses."""
    model = network()
    optimizer = sgd(model)
    optimizer.param_groups[0]["momentum"] = 0.9
    opt = rt.CompressedOptimizer(optimizer, "rand_k:k=10%", "diana")
    losses: list[float] = []
    if file.exists():
        kept = torch.load(file, weights_only=True)
        model.load_state_dict(kept["model"])
        opt.load_state_dict(kept["opt"])
        losses = kept["losses"]
    for t in range(len(losses), STEPS):
        opt.zero_grad()
        f = loss(model, t, rank)
        f.backward()
        opt.step()
        losses.append(float(f.detach()))
        kept = {"model": model.state_dict(), "opt": opt.state_dict(), "losses": losses}
        torch.save(kept, file.with_suffix(".new"))
        dist.barrier()  # a step is saved by all ranks or by none
        os.replace(file.with_suffix(".new"), file)
        dist.barrier()
        if dies and t == 12:
            os.kill(os.getpid(), 9)
    return losses


if __name__ == "__main__":
    rank, folder = join(), Path(sys.argv[1])
    resumed = train(rank, folder / f"checkpoint.{rank}.pt", sys.argv[2] == "dies")
    save({"losses": resumed, "undisturbed": train(rank, folder / f"other.{rank}.pt", False)})
    leave()
