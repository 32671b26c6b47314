"""A method as the communication hook of DistributedDataParallel; two processes:

torchrun --nproc_per_node 2 examples/loop_ddp.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import raybench.torch

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
digits = load_digits()
inputs = torch.tensor(digits.data[rank::ranks] / 16, dtype=torch.float32)
targets = torch.tensor(digits.target[rank::ranks])

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = DistributedDataParallel(net)
hook = raybench.torch.attach(model, "power_sgd:rank=2", granularity="tensor", start_after=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for step in range(200):
    rows = torch.randint(len(inputs), (32,))
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs[rows]), targets[rows])
    loss.backward()  # the hook exchanges what the gradients say while this goes on
    optimizer.step()
    if step % 50 == 49 and rank == 0:
        print(f"loss {loss.item():.3f} · {hook.report()}", flush=True)

hook.detach()  # from here on gradients are averaged as they are
del model  # it holds the process group, which would go on running while the process ends
dist.destroy_process_group()
