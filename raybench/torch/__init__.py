"""raybench's methods in a training loop of your own: around an optimizer, or as a hook of a parallel model.

The methods are those of ``raybench.algorithms``. Nothing here needs a sweep file or Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Its functions keep the group of all ranks as a default if they are first imported, as by making any optimizer,
# when there is one; then it outlives destroy_process_group, and its threads abort a process that ends.
import torch.distributed.nn.functional  # noqa: F401

from raybench.core import fetching

if TYPE_CHECKING:
    from raybench.torch.frameworks import LightningCallback, TrainerCallback, accelerate
    from raybench.torch.hook import attach
    from raybench.torch.minibatches import batches
    from raybench.torch.optimizer import CompressedOptimizer
    from raybench.torch.recorder import record
    from raybench.torch.saved import whole

__all__ = [
    "CompressedOptimizer",
    "LightningCallback",
    "TrainerCallback",
    "accelerate",
    "attach",
    "batches",
    "record",
    "whole",
]

__getattr__ = fetching(
    __name__,
    {
        "CompressedOptimizer": "optimizer",
        "LightningCallback": "frameworks",
        "TrainerCallback": "frameworks",
        "accelerate": "frameworks",
        "attach": "hook",
        "batches": "minibatches",
        "record": "recorder",
        "whole": "saved",
    },
)
