"""Hugging Face's Trainer with a callback of raybench; with the path of a checkpoint it goes on. Two processes:

torchrun --nproc_per_node 2 examples/loop_transformers.py
"""

import sys

import torch
from digits import Network, dataset
from transformers import Trainer, TrainingArguments

import raybench.torch

torch.manual_seed(0)
rows = [{"images": images, "labels": labels} for images, labels in dataset()]
arguments = TrainingArguments(
    "transformers",
    use_cpu=True,
    num_train_epochs=4,
    learning_rate=3e-3,
    per_device_train_batch_size=32,
    save_strategy="epoch",
    logging_strategy="epoch",
    report_to=[],
)
trainer = Trainer(Network(), arguments, train_dataset=rows)
compress = raybench.torch.TrainerCallback(
    trainer, algorithm="ef14:memory=gradient", compressor="top_k:k=5%"
)
trainer.add_callback(compress)
trainer.train(resume_from_checkpoint=(sys.argv[1:] or [None])[0])
if trainer.is_world_process_zero():
    for entry in trainer.state.log_history[:-1]:
        print(f"loss {float(entry['loss']):.6f} · epoch {entry['epoch']}")
    print(compress.hook.report())
