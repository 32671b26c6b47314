"""Lightning with a callback of raybench; with the path of a checkpoint it goes on from there. Two processes:

torchrun --nproc_per_node 2 examples/loop_lightning.py
"""

import sys

import lightning
import torch
from digits import Network, dataset
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

import raybench.torch


class Digits(Network, lightning.LightningModule):
    def training_step(self, batch, number):
        self.loss = self(*batch)["loss"]
        return self.loss

    def on_train_epoch_end(self):
        self.print(f"loss {self.loss.item():.6f} · {compress.hook.report()}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


lightning.seed_everything(0)
method = {"algorithm": "ef14:memory=gradient", "compressor": "top_k:k=5%"}
compress = raybench.torch.LightningCallback(**method)
callbacks = [compress, ModelCheckpoint("lightning", "{epoch}", save_top_k=-1)]
two = {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}
trainer = lightning.Trainer(**two, max_epochs=4, callbacks=callbacks, logger=False)
batches = DataLoader(dataset(), batch_size=32, shuffle=True)
trainer.fit(Digits(), batches, ckpt_path=(sys.argv[1:] or [None])[0])
