"""What raybench does on one CUDA machine, in one command of less than eight minutes.

    python benchmarks/gpu.py [--out DIR] [--small] [--parts operations,codecs] [--minutes 7.5]

It writes ``gpu.json`` and ``gpu.md``, its tables, without Ray and without a network. Parts: what messages are made
of, timed, and bit for bit beside the CPU; every registered method beside the CPU; the codecs of compressors; collectives of one process;
training steps with and without compression; the tests that need a GPU. A part that fails leaves the text of its error
and the next one follows. Without CUDA all runs on the CPU with small sizes: a test of this file, of no other use.
``raybench advise --gpu gpu.json`` reads the codecs' times.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import raybench
import raybench.torch as rt
from raybench.compressors import by_size, unpack
from raybench.compressors.selection import at_least
from raybench.core import registry
from raybench.core.layout import Layout
from raybench.core.streams import Stream, stream
from raybench.execution.execute import hosted
from raybench.execution.run import Options, Run
from raybench.measure.advise import CATALOGUE
from raybench.measure.timing import ActionClock, named
from raybench.spec.model import Record
from raybench.testing.algorithms import methods
from raybench.testing.vectors import SIZE
from raybench.wire import bitpack
from raybench.wire.sparse import SparseMessage
from raybench.wire.transport import Transport

ROUNDS, EQUAL = 2, 1e-9  # of each method, and how near to the CPU it has to stay
SHAPES = {10**5: (250, 400), 10**6: (1000, 1000), 10**7: (2500, 4000)}
SHAPES |= {10**8: (10**4, 10**4), 10**9: (25000, 40000)}
ROOM = 40  # bytes of free memory that a number of a codec takes at most
CLIENTS = 8  # whose sparse messages are added up
FORMAT = "raybench gpu 1"
Row = dict[str, Any]


class Machine:
    """The device, whether sizes are small, and the time at which parts begin to leave things out."""

    def __init__(self, small: bool, minutes: float) -> None:
        self.cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.cuda else "cpu")
        self.small, self.began = small or not self.cuda, time.perf_counter()
        self.end = self.began + 60 * minutes

    def left(self) -> float:
        """Return the seconds left."""
        return self.end - time.perf_counter()

    def facts(self) -> Row:
        """Return what the machine is."""
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True).stdout if self.cuda else ""
        name = torch.cuda.get_device_name() if self.cuda else platform.processor() or "CPU"
        facts = {"device": name, "kind": self.device.type, "small": self.small}
        facts |= {"torch": torch.__version__, "python": platform.python_version()}
        return facts | {"cuda": torch.version.cuda, "driver": driver.strip() or None}


# Operations --------------------------------------------------------------------------------------


def best(device: torch.device, action: Callable[[], Any], repeats: int = 5) -> float:
    """Return the least seconds of an action, after one that is not counted."""
    action()
    clock = ActionClock(device)
    for _ in range(repeats):
        clock("", action)
    return clock.best[""]


def cases(x: Tensor) -> dict[str, Callable[[], Any]]:
    """Return what is timed on x (1, d), float32."""
    d, source = x.shape[-1], stream(0, x.device).each([0])
    short = x[:, : d // 1000 * 1000].view(-1, 1000)
    k = max(1, d // 100)
    rows = [by_size.largest(x.roll(7919 * i, -1), k) for i in range(CLIENTS)]
    indices, values = (torch.stack(part, 1) for part in zip(*rows, strict=True))
    message = SparseMessage(d, x.dtype, indices, values)
    cut = values.abs().amin((1, 2))
    codes = (x > 0).to(torch.uint8) * 5
    trits = codes // 4
    levels, natural = raybench.compressor("dithering:s=7"), raybench.compressor("natural")
    sent, out, packed = levels.compress(x, source), torch.empty_like(x), bitpack.pack(codes, 3)
    return {
        "largest, 0.1%": lambda: by_size.largest(x, -(-d // 1000)),
        "largest, 1%": lambda: by_size.largest(x, k),
        "largest, 10%": lambda: by_size.largest(x, -(-d // 10)),
        "largest, 1% of rows of 1000": lambda: by_size.largest(short, 10),
        "above a threshold, 1%": lambda: at_least(x, cut),
        f"sum of {CLIENTS} sparse messages": message.sum_clients,
        "64 random bits each": lambda: Stream(source.keys).bits(d),
        "uniform numbers": lambda: Stream(source.keys).uniform(d),
        "1% of a permutation": lambda: Stream(source.keys).subset(d, k),
        "dithering, compress": lambda: levels.compress(x, source),
        "dithering, decode": lambda: sent.decode(out),
        "natural, compress": lambda: natural.compress(x, source),
        "pack 3 bits": lambda: bitpack.pack(codes, 3),
        "unpack 3 bits": lambda: bitpack.unpack(packed, 3, d, torch.uint8),
        "pack trits": lambda: bitpack.pack(trits, bitpack.TRIT),
    }


def tensors(result: Any) -> list[Tensor]:
    """Return copies of the tensors of a result: itself, several, or a message's bytes."""
    if isinstance(result, Tensor):
        return [result.clone()]
    return list(result) if isinstance(result, tuple) else [x.payload() for x in result.leaves()]


def operations(machine: Machine) -> Iterator[Row]:
    """Time what messages are made of over a copy, and compare its bits with those that the CPU makes."""
    x = stream(0, machine.device).each([0]).normal(10**5 if machine.small else SIZE).float()
    out, k = torch.empty_like(x), max(1, x.shape[-1] // 100)
    copy = best(machine.device, lambda: out.copy_(x), 20)
    yield {"case": "copy", "numbers": x.shape[-1], "seconds": copy}
    plain = {"torch.topk of |x|, 1%": lambda: x.abs().topk(k, sorted=False)}
    plain["a random number each, torch's own"] = lambda: out.uniform_()
    for name, action in plain.items():
        yield {"case": name, "copies": best(machine.device, action) / copy}
    on_cpu = cases(x.cpu())
    for name, action in cases(x).items():
        there, here = tensors(action()), tensors(on_cpu[name]())
        equal = all(torch.equal(a.cpu(), b) for a, b in zip(there, here, strict=True))
        yield {"case": name, "copies": best(machine.device, action) / copy, "equal": equal}


# Methods -----------------------------------------------------------------------------------------


def ended(batch: Any, device: str) -> Tensor:
    """Return where a batch is after its rounds, on the CPU."""
    transport = Transport()
    problem = hosted(batch, transport, device)
    run = Run(batch, problem, Options(record=Record(every=1)), transport)
    run.advance(run.rounds)
    return run.a.point(run.net, run.s, run.c).double().cpu().clone()


def beside_the_cpu(machine: Machine) -> Iterator[Row]:
    """Run every registered method two rounds on the device and on the CPU, in float64."""
    for name in registry.names("algorithm"):
        row: Row = {"method": name}
        try:
            entry = registry.lookup("algorithm", name)
            method = replace(methods(entry)[0], rounds=ROUNDS)
            batch = method.batch()
            row |= {"compressor": str(method.compressor or "")}
            here = ended(batch, "cpu")
            if entry.facts.clock:
                yield row | {"said": "simulated clock: on the CPU only"}
                continue
            there = ended(batch, machine.device.type)
            size = max(float(here.abs().max()), 1e-300)
            gap = float((there - here).abs().max()) / size
            yield row | {"relative difference": gap, "equal": gap <= EQUAL}
        except Exception as error:  # of one method: the others are tried
            yield row | {"equal": False, "said": f"{type(error).__name__}: {error}"}


# Codecs ------------------------------------------------------------------------------------------


def forms() -> list[str]:
    """Return the catalogue of ``advise``, then every other compressor with usual parameters."""
    texts = [candidate.compressor for candidate in CATALOGUE]
    names = {text.partition(":")[0] for text in texts}
    for name in registry.names("compressor"):
        if name not in names:
            try:
                texts.append(named(name)[0])
            except Exception:  # has no usual parameters
                texts.append(name)
    return list(dict.fromkeys(texts))


def codec(op: Any, x: Tensor, out: Tensor, source: Any) -> dict[str, float]:
    """Return the best seconds of encoding, of decoding, and of the two sums of error feedback."""
    clock, memory = ActionClock(x.device), torch.zeros_like(x)
    for turn in range(3):
        began = time.perf_counter()
        message = clock("compress", partial(op.compress, x, source))
        packed = clock("pack", message.pack)
        unpacked = clock("unpack", partial(unpack, packed, tuple(x.shape)))
        clock("decode", lambda m=unpacked: out.copy_(m.decode()))
        clock("first", partial(memory.add_, x))
        clock("second", lambda m=message: m.scaled(-1.0).add_to(memory))
        b, clock.best = clock.best, clock.best if turn else {}  # the first turn compiled
        if time.perf_counter() - began > 1:
            break
    times = {"encode": b["compress"] + b["pack"], "decode": b["unpack"] + b["decode"]}
    return times | {"feedback": b["first"] + b["second"]}


def codecs(machine: Machine) -> Iterator[Row]:
    """Time compress + pack, unpack + decode, and the two sums of error feedback, at growing sizes."""
    sizes = [10**5] if machine.small else [10**6, 10**7, 10**8, 10**9]
    share, slow = machine.left() * (0.9 if machine.small else 0.45), {}
    stop = time.perf_counter() + share
    for d in sizes:
        if machine.cuda and ROOM * d > torch.cuda.mem_get_info()[0]:
            yield {"compressor": "all", "numbers": d, "said": "left out: too little memory"}
            continue
        x = stream(0, machine.device).each([0]).normal(d).float()
        out = torch.empty_like(x)
        copy = best(machine.device, partial(out.copy_, x), 10)
        yield {"compressor": "copy", "numbers": d, "encode": copy, "unit": "seconds"}
        layout, source = Layout((("w", SHAPES[d]),)), stream(1, machine.device).each([0])
        for form in forms():
            row: Row = {"compressor": form, "numbers": d, "unit": "seconds"}
            guess = 10 * slow.get(form, 0.0)
            if guess > max(0.0, stop - time.perf_counter()) / 4:
                yield row | {"said": "left out: too little time"}
                continue
            began = time.perf_counter()
            try:
                op = raybench.compressor(form).bind(d, 2, layout).compressor
                times = codec(op, x, out, source)
                ratios = {f"{k}, copies": seconds / copy for k, seconds in times.items()}
                yield row | times | ratios
            except Exception as error:  # of one compressor: the others are tried
                yield row | {"said": f"{type(error).__name__}: {str(error)[:200]}"}
            slow[form] = time.perf_counter() - began


# Collectives and training ------------------------------------------------------------------------


def collectives(machine: Machine) -> Iterator[Row]:
    """Time collectives of a group of one process."""
    for d in [10**5] if machine.small else [10**6, 10**8]:
        x = torch.ones(d, device=machine.device)
        calls = {"all_reduce": partial(dist.all_reduce, x)}
        calls["broadcast"] = partial(dist.broadcast, x, 0)
        calls["all_gather"] = partial(dist.all_gather, [torch.empty_like(x)], x)
        for name, call in calls.items():
            yield {"call": name, "numbers": d, "seconds": best(machine.device, call)}


class Words(nn.Module):
    """A transformer of the usual form, its first and last matrix shared: 124 million parameters, or few."""

    def __init__(self, small: bool) -> None:
        super().__init__()
        words, width, heads, layers = (64, 32, 2, 2) if small else (50257, 768, 12, 12)
        self.length, self.words = 16 if small else 1024, words
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(self.length, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        y = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        return F.linear(self.body(y, mask, is_causal=True), self.embed.weight).flatten(0, 1)


def networks(machine: Machine) -> Iterator[tuple[str, Callable[[], nn.Module], Tensor, Tensor]]:
    """Yield names, makers, inputs and targets."""
    import torchvision

    small, there = machine.small, machine.device
    name, batch, side = ("resnet18", 2, 32) if small else ("resnet50", 64, 224)
    images = torch.randn(batch, 3, side, side, device=there)
    targets = torch.randint(10, (batch,), device=there)
    yield name, partial(getattr(torchvision.models, name), num_classes=1000), images, targets
    words = Words(small)
    x = torch.randint(words.words, (2 if small else 8, words.length), device=there)
    yield "transformer", partial(Words, small), x, x.roll(-1, 1).flatten()


def stepped(model: nn.Module, optimizer: Any, x: Tensor, targets: Tensor) -> None:
    """Do a step of training."""
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = F.cross_entropy(model(x).float(), targets)
    loss.backward()
    optimizer.step()


def training(machine: Machine) -> Iterator[Row]:
    """Time a step in bfloat16 autocast in one process: plain, by hooks, and by CompressedOptimizer."""
    hooks = {"hook, gd": ("gd", None), "hook, dcgd bf16": ("dcgd", "bf16")}
    hooks |= {"hook, ef21 top_k 1%": ("ef21", "top_k:k=1%"), "hook, dcgd int8": ("dcgd", "int8")}
    ways = ["DistributedDataParallel", *hooks, "CompressedOptimizer, ef21 top_k 1%"]
    for name, make, x, targets in networks(machine):
        dense = math.nan
        for way in ways:
            torch.manual_seed(0)
            model = make().to(machine.device)
            row = {"network": name, "parameters": sum(p.numel() for p in model.parameters())}
            row["way"], optimizer = way, torch.optim.SGD(model.parameters(), lr=1e-3)
            if way.startswith("Compressed"):
                optimizer = rt.CompressedOptimizer(optimizer, "top_k:k=1%", "ef21", watch=10**9)
            else:
                model = DistributedDataParallel(model)
            if way in hooks:
                rt.attach(model, *hooks[way], watch=10**9)

            step = partial(stepped, model, optimizer, x, targets)
            took = best(machine.device, step, 2 if machine.small else 10)
            dense = took if way == ways[0] else dense
            yield row | {"seconds a step": took, "ratio": took / dense}
            del model, optimizer, step


def tests(machine: Machine) -> Iterator[Row]:
    """Run the tests that are marked gpu."""
    if not machine.cuda:
        yield {"said": "no CUDA here: not run"}
        return
    root, most = Path(__file__).parents[1], max(20.0, machine.left())
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=most)
    said = re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout[-500:])
    counts = {word: int(n) for n, word in said}
    yield {"exit code": done.returncode, **counts, "said": done.stdout.strip().splitlines()[-1]}


# All of it ---------------------------------------------------------------------------------------

PARTS = {"operations": operations, "methods": beside_the_cpu, "codecs": codecs}
PARTS |= {"collectives": collectives, "training": training, "tests": tests}


def page(figures: Row) -> str:
    """Return the figures as tables in Markdown."""
    lines = ["# Figures of one machine", ""]
    lines += [f"- {k}: {v}" for k, v in figures["machine"].items()]
    for name, part in figures["parts"].items():
        about = PARTS[name].__doc__.splitlines()[0]
        lines += ["", f"## {name}", "", f"{about} ({part['seconds']:.1f} s)", ""]
        lines += [f"**Failed:** `{part['error']}`", ""] if part["error"] else []
        heads = list(dict.fromkeys(key for row in part["rows"] for key in row))
        for cells in (heads, ["---"] * len(heads)) if heads else ():
            lines.append(f"| {' | '.join(cells)} |")
        for row in part["rows"]:
            cells = [row.get(key, "") for key in heads]
            texts = [f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells]
            plain = (t.replace("|", "\\|").replace("\n", " ") for t in texts)
            lines.append(f"| {' | '.join(plain)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the parts, and write what they found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder of gpu.json and gpu.md")
    parser.add_argument("--small", action="store_true", help="small sizes; always without CUDA")
    parser.add_argument("--parts", default=",".join(PARTS), help="of them, with commas")
    parser.add_argument("--minutes", type=float, default=7.5, help="then things are left out")
    arguments = parser.parse_args()
    if wrong := set(arguments.parts.split(",")) - set(PARTS):
        parser.error(f"unknown parts {sorted(wrong)}: {', '.join(PARTS)}")
    machine = Machine(arguments.small, arguments.minutes)
    figures: Row = {"format": FORMAT, "machine": machine.facts(), "parts": {}}
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if machine.cuda else "gloo"
        for name in arguments.parts.split(","):
            began, part = time.perf_counter(), {"error": "", "rows": []}
            try:
                if not dist.is_initialized() and name in ("collectives", "training"):
                    meet = f"file://{folder}/meet"
                    dist.init_process_group(backend, init_method=meet, rank=0, world_size=1)
                for row in PARTS[name](machine):
                    part["rows"].append(row)
            except Exception as error:  # the next part follows
                part["error"] = f"{type(error).__name__}: {error}"
            part["seconds"] = time.perf_counter() - began
            figures["parts"][name] = part
            print(f"{name}: {part['seconds']:.1f} s {part['error']}", flush=True)
        if dist.is_initialized():
            dist.destroy_process_group()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "gpu.json").write_text(json.dumps(figures, indent=1) + "\n")
    (arguments.out / "gpu.md").write_text(page(figures))
    print(f"written: {arguments.out / 'gpu.json'}, {arguments.out / 'gpu.md'}")


if __name__ == "__main__":
    main()
