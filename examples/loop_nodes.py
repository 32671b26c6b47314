"""DiLoCo between two nodes of two processes each: DistributedDataParallel within a node, messages between nodes only:

torchrun --nproc_per_node 4 examples/loop_nodes.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import raybench.torch

CONFIG = {
    "problem": {"name": "network", "model": "mlp", "dataset": "digits", "clients": 4, "batch": 32},
    "algorithm": {"name": "diloco", "steps": 10},
    "rounds": 20,
}

dist.init_process_group("gloo")
node = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "rank"))["rank"].get_group()
data = raybench.torch.batches(CONFIG)
model = DistributedDataParallel(data.model(), process_group=node)
opt = raybench.torch.CompressedOptimizer(
    torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0),
    "int8",
    algorithm="ef14",
    local={"steps": 10, "fragments": 2, "late": 5},  # messages travel beside five local steps
    outer={"optimizer": "nesterov", "momentum": 0.9, "step_size": 0.7},
    node=node,
)

for step, (inputs, targets) in enumerate(data):
    opt.zero_grad()
    (loss := data.loss(model(inputs), targets)).backward()
    opt.step()
    if step % 50 == 49 and dist.get_rank() == 0:
        print(f"loss {loss.item():.3f} · {opt.report()}", flush=True)
if dist.get_rank() == 0:
    opt.report().timeline("loop_nodes.png")
dist.destroy_process_group()
