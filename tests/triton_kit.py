"""Compile every launch of our Triton kernels for a GPU that need not be here, and say what came out.

``python tests/triton_kit.py`` calls what the package offers, on the CPU, with the launches compiled in place of
run: the interpreter allows what the compiler refuses. It prints a list of [kernel, its PTX].
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from raybench.core import gpu

HOPPER = GPUTarget("cuda", 90, 32)
NAMES = {
    torch.bool: "i1", torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
}  # fmt: skip
found: dict[tuple[str, ...], str] = {}


def compile_launch(kernel: Any, programs: int, /, *args: Any, **constants: Any) -> None:
    """Compile as a launch would: an integer of 1 is a constant, multiples of 16 are told."""
    warps = constants.pop("num_warps", 4)
    given = dict(zip(kernel.arg_names, args)) | constants
    assert set(given) == set(kernel.arg_names)
    types: dict[str, str] = {}
    fixed, divisible = {}, {}
    values = {name: given[name] for name in kernel.arg_names}
    for i, (name, value) in enumerate(values.items()):
        if name in constants or (isinstance(value, int) and value == 1):
            types[name], fixed[(i,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            types[name] = "*" + NAMES[value.dtype]
            value.zero_()  # what no kernel wrote must not be read as a size
        else:
            types[name] = "i32" if value < 2**31 else "i64"
        if types[name] != "constexpr" and not (isinstance(value, int) and value % 16):
            divisible[(i,)] = [["tt.divisibility", 16]]
    key = (kernel.fn.__name__, str(types), str(fixed), str(divisible))
    if key not in found:
        source = ASTSource(kernel, types, fixed, divisible)
        options = {"num_warps": warps, "enable_fp_fusion": False}
        found[key] = triton.compile(source, target=HOPPER, options=options).asm["ptx"]


def drive() -> None:
    """Call all that the package offers."""
    from raybench.compressors.gpu import selection
    from raybench.core.gpu import quantisers, streams
    from raybench.wire import gpu as of_wire

    x, keys = torch.randn(2, 10000), torch.zeros(2, 3, dtype=torch.int64)
    selection.largest(x, 100)
    selection.largest(x[:1].bfloat16(), 1)
    selection.largest(x[:, :1000].half(), 10)
    selection.largest(x[:, :1], 1)
    selection.above(x, torch.zeros(2, dtype=torch.int32))
    selection.above(x[:1, :2], torch.zeros(1, dtype=torch.int32))
    streams.draws(keys, 5, torch.int64)
    streams.draws(keys, 1, torch.float64)
    streams.keys_of(keys[:, 0], (1, 2), keys[0])
    streams.keys_of(keys[0, 0], (1,), None)
    streams.images(keys, keys, 5001, 30, 12)
    ones, wide = torch.ones(2, 100, dtype=torch.float64), torch.randn(2, 10000).double()
    for way in ("dithered", "nearest", "floor", "power"):
        quantisers.codes(x, keys[:, 0], ones, ones, way, 7, 100, x.byte())
        quantisers.codes(wide, keys[:, 0], ones[:, :1], ones[:, :1], way, 1, 0, x.short())
    quantisers.cut(x.view(torch.int32), keys[:, 0], 23, 255, 254, x.short())
    quantisers.cut(wide.view(torch.int64), None, 52, 2047, 2046, x.short())
    quantisers.decode(x.byte(), x[0, :256].clone(), x[:, :1], 0, x.clone())
    quantisers.decode(x.byte(), None, ones, 200, wide)
    for width in (1, 11):
        data = torch.zeros(2, 10000 * width // 8, dtype=torch.uint8)
        of_wire.pack_blocks(x.short(), width, data, 0)
        of_wire.unpack_blocks(data, width, x.byte(), 0)
    of_wire.pack_blocks(x.byte(), -1, data, 4)
    of_wire.unpack_blocks(data, -1, x.byte(), 4)
    of_wire.add_rows(torch.zeros(2, 3, 50, dtype=torch.int64), x[:, None, :50].repeat(1, 3, 1), x)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    gpu.launch = compile_launch
    drive()
    print(json.dumps([[key[0], ptx] for key, ptx in found.items()]))
