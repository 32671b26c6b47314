"""DiLoCo: AdamW by itself on every rank, and one exchange every ten steps; two processes:

torchrun --nproc_per_node 2 examples/loop_diloco.py
"""

import torch
import torch.distributed as dist

import raybench.torch

CONFIG = {
    "problem": {"name": "network", "model": "mlp", "dataset": "digits", "clients": 2, "batch": 32},
    "algorithm": {"name": "diloco", "steps": 10},
    "rounds": 20,
}

dist.init_process_group("gloo")
data = raybench.torch.batches(CONFIG)
model = data.model()
opt = raybench.torch.CompressedOptimizer(
    torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0),
    algorithm="gd",  # whole directions; "sparseloco" with a compressor sends a part of them
    local={"steps": 10},
    outer={"optimizer": "nesterov", "momentum": 0.9, "step_size": 0.7},
)

for step, (inputs, targets) in enumerate(data):
    opt.zero_grad()
    loss = data.loss(model(inputs), targets)
    loss.backward()
    opt.step()  # every tenth call meets the other ranks
    if step % 50 == 49 and dist.get_rank() == 0:
        print(f"loss {loss.item():.3f} · {opt.report()}", flush=True)
dist.destroy_process_group()
