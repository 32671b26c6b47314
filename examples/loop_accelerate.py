"""Accelerate, with accumulated gradients; with the path of a checkpoint it goes on from there. Two processes:

torchrun --nproc_per_node 2 examples/loop_accelerate.py
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from digits import Network, dataset
from torch.utils.data import DataLoader

import raybench.torch

set_seed(0)
order = DataLoaderConfiguration(use_seedable_sampler=True)  # of an epoch, the same when resumed
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=order)
network, batches = Network(), DataLoader(dataset(), batch_size=32, shuffle=True)
adamw = torch.optim.AdamW(network.parameters(), lr=3e-3)
model, optimizer, batches = accelerator.prepare(network, adamw, batches)
hook = raybench.torch.accelerate(accelerator, model, "ef14:memory=gradient", "top_k:k=5%")
first = int(sys.argv[1].rpartition("-")[2]) + 1 if sys.argv[1:] else 0
if first:
    accelerator.load_state(sys.argv[1])
for epoch in range(first, 6):
    batches.set_epoch(epoch)
    for images, labels in batches:
        with accelerator.accumulate(model):
            loss = model(images, labels)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"loss {loss.item():.6f} · {hook.report()}")
    accelerator.save_state(f"accelerate/epoch-{epoch}")
