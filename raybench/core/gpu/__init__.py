"""Kernels for GPUs, in Triton: where they are used, and how they are launched.

A kernel serves CUDA tensors where Triton can be used. Elsewhere, and with ``RAYBENCH_TRITON=0``, numba packs and
draws random numbers in main memory, plain torch does the rest, and both are what kernels are tested
against. Triton is imported with the modules of this package, which callers import where they have met
such a tensor.

Every kernel is deterministic: a program writes what is its own, and programs share no additions, so the
result does not hang on the order in which they run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

SWITCH = "RAYBENCH_TRITON"  # 0: plain torch on GPUs


def usable(x: Tensor) -> bool:
    """Return whether the kernels of this package serve a tensor."""
    return x.is_cuda and available()


@lru_cache(maxsize=1)
def available() -> bool:
    """Return whether Triton is not switched off, is installed, and finds a C compiler, as it must."""
    if os.environ.get(SWITCH, "1") == "0" or importlib.util.find_spec("triton") is None:
        return False
    return "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))


def launch(kernel: Any, programs: int, first: Tensor, /, *more: Any, **constants: Any) -> None:
    """Run so many programs of a kernel on the device of its first argument.

    Products and sums are not fused: a fused one is rounded once, where the references round twice.
    """
    if programs:
        with torch.cuda.device_of(first):
            kernel[(programs,)](first, *more, **constants, enable_fp_fusion=False)
