"""Faults by hand: those that once passed all tests, and changes that are known to make no difference."""

from __future__ import annotations

from dataclasses import dataclass

from mutations import Change


@dataclass(frozen=True)
class Known:
    """A fault that once passed all tests: ``old``, found once in the file, becomes ``new``.

    target: whose tests must notice it.
    """

    name: str
    target: str
    path: str
    old: str
    new: str


KNOWN = (
    Known(
        "ef21_hb: eta (1 + eta) for 2 eta (1 + eta)",
        "steps",
        "raybench/algorithms/ef21_hb.py",
        "(2 * eta * (1 + eta) / (1 - eta) ** 2 * L**2",
        "(eta * (1 + eta) / (1 - eta) ** 2 * L**2",
    ),
    Known(
        "dasha_mvr: 2 v for 3 v",
        "steps",
        "raybench/algorithms/dasha_mvr.py",
        "** 2 + 3 * v, v / (q",
        "** 2 + 2 * v, v / (q",
    ),
    Known(
        "ef21_page: 2 noise for 3 noise",
        "steps",
        "raybench/algorithms/ef21_page.py",
        "** 2 + 3 * noise) + noise / p",
        "** 2 + 2 * noise) + noise / p",
    ),
    Known(
        "dasha, PL: the gain 1 + 2 a omega for 1 + 4 a omega",
        "steps",
        "raybench/algorithms/dasha.py",
        "B=2 * k.mean_omega * (1 + 4 * a * omega) * far**2",
        "B=2 * k.mean_omega * (1 + 2 * a * omega) * far**2",
    ),
    Known(
        "adiana: 32 for 64",
        "steps",
        "raybench/algorithms/adiana.py",
        "noise = 64 * k.mean_omega",
        "noise = 32 * k.mean_omega",
    ),
    Known(
        "dithering, p = inf: half of omega",
        "operators",
        "raybench/compressors/dithering.py",
        "min(d / (4 * s * s), (1 + root) / (2 * s))",
        "min(d / (8 * s * s), (1 + root) / (4 * s))",
    ),
    Known(
        "lazy: the vector is sent 2 % less often",
        "operators",
        "raybench/compressors/sparsification.py",
        "sent = stream.uniform(1)[..., 0] < self.p\n",
        "sent = stream.uniform(1)[..., 0] < 0.98 * self.p\n",
    ),
    Known(
        "the checksum has no seed",
        "messages",
        "raybench/wire/base.py",
        "xxhash.xxh3_64(text, seed=len(text))",
        "xxhash.xxh3_64(text)",
    ),
    Known(
        "the ledger rounds bits beside messages down to bytes",
        "ledger",
        "raybench/wire/ledger.py",
        "size = -(-bits // 8)",
        "size = bits // 8",
    ),
    Known(
        "messages round their bits down to bytes",
        "costs",
        "raybench/wire/base.py",
        "indices, raw = (-(-bits // 8) for bits",
        "indices, raw = (bits // 8 for bits",
    ),
    Known(
        "stop.bits counts the initial messages that are free",
        "bits",
        "raybench/engine/run.py",
        "counts = counts - self._initial[side][:, self.index]",
        "counts = counts - 0 * self._initial[side][:, self.index]",
    ),
    Known(
        "the server draws from the stream that all share",
        "core",
        "raybench/core/draws.py",
        "return self._round.fold(purpose).fold(-1)",
        "return self._round.fold(purpose)",
    ),
    Known(
        "bits_down booked anew count the initial messages that are free",
        "accounting",
        "raybench/store/booking.py",
        "if not accounting.count_init:",
        'if not accounting.count_init and side == "up":',
    ),
    Known(
        "curves are not written again after a concurrent repair()",
        "store",
        "raybench/store/writer.py",
        "if curves is not None and not self.files.exists(",
        "if False and not self.files.exists(",
    ),
    Known(
        "cells that had failed are committed as a batch beside their failed rows",
        "store",
        "raybench/store/writer.py",
        "if len(ids) > 1 and self.apart.intersection(ids):",
        "if False and self.apart.intersection(ids):",
    ),
    Known(
        "curves of the right size are not compared with their digest",
        "store",
        "raybench/store/seal.py",
        "len(data) == self.size and digest(data) == self.curves",
        "len(data) == self.size",
    ),
    Known(
        "the cost of a step is the mean over seeds, not the median",
        "analysis",
        "raybench/analysis/tuned.py",
        "found = [interval(part) for part",
        "found = [(part.mean(), *tuple(interval(part))[1:]) for part",
    ),
    Known(
        "econtrol: the error counts for no more than the message",
        "steps",
        "raybench/algorithms/econtrol.py",
        "factor = max(left, eta / weight)",
        "factor = left",
    ),
    Known(
        "f of networks with BatchNorm is taken on the statistics of the start",
        "networks",
        "raybench/problems/network.py",
        '(measure, x, inputs, buffers)["test_loss"]',
        '(measure, x, inputs, self._first(len(x)))["test_loss"]',
    ),
    Known(
        "frozen BatchNorm normalises by the minibatch",
        "networks",
        "raybench/problems/networks/passes.py",
        "norm.train(on and bool(self.statistics))",
        "norm.train(on)",
    ),
    Known(
        "images are shifted by 3 pixels at most to one side",
        "networks",
        "raybench/problems/networks/passes.py",
        "2 * padding + 1)",
        "2 * padding)",
    ),
    Known(
        "losses of bfloat16 layers are computed in bfloat16",
        "networks",
        "raybench/problems/networks/passes.py",
        "(inputs,)).float()",
        "(inputs,))",
    ),
    Known(
        "participants pay for the mean of all clients' samples",
        "oracle",
        "raybench/engine/oracle.py",
        "return self._mean_over_clients(each * self.wire.here(self._counts[None]).to(each))",
        "return self._mean_over_clients(each) * self._full",
    ),
    Known(
        "full gradients that some have paid for cost the others nothing",
        "oracle",
        "raybench/engine/oracle.py",
        "0.0, paid or clients is None",
        "0.0, True",
    ),
    Known(
        "clients that sit out take over BatchNorm's statistics",
        "networks",
        "raybench/engine/oracles.py",
        "if clients is not None:",
        "if False:",
    ),
    Known(
        "the record takes one client's statistics for the mean",
        "networks",
        "raybench/engine/oracles.py",
        "gather(own, n).mean(1) for",
        "gather(own, n)[:, 0] for",
    ),
    Known(
        "all_to_all: means are compressed by the stream that the clients had",
        "collectives",
        "raybench/wire/collectives.py",
        'm.source.fold("mean")',
        "m.source",
    ),
    Known(
        "reduce: bfloat16 is added up in bfloat16",
        "collectives",
        "raybench/wire/collectives.py",
        "own.float() if own.dtype in HALVES",
        "own.float() if own.dtype == torch.float16",
    ),
    Known(
        "hierarchical links: a node that is not full is none",
        "analysis",
        "raybench/analysis/links.py",
        "np.ceil(n / within)",
        "np.floor(n / within)",
    ),
    Known(
        "trials: a step that diverges for one seed may be chosen for the others",
        "analysis",
        "raybench/analysis/trials.py",
        'np.where(order["eligible"].to_numpy(bool)[:, None], part, np.inf)',
        "part",
    ),
    Known(
        "who pays for a gradient is looked up twice where only some cells ask",
        "networks",
        "raybench/engine/oracles.py",
        "there = clients.view(",
        "there = clients[cells].view(",
    ),
    Known(
        "images of all clients are shifted alike",
        "networks",
        "raybench/problems/network.py",
        'Stream(keys[j]).fold("augment")',
        'Stream(keys[0]).fold("augment")',
    ),
    Known(
        "three of ten images are mirrored",
        "networks",
        "raybench/problems/networks/passes.py",
        "uniform(b) < 0.5",
        "uniform(b) < 0.3",
    ),
    Known(
        "full gradients of small clients weigh less",
        "networks",
        "raybench/problems/network.py",
        "counts.to(x)[:, None])",
        "counts.to(x).mean())",
    ),
    Known(
        "examples are held out where there is a test part",
        "networks",
        "raybench/problems/network.py",
        "test_size if test is None else 0.0",
        "test_size",
    ),
    Known(
        "a gradient that the record evaluates again for f is paid for twice",
        "oracle",
        "raybench/engine/oracle.py",
        "            paid = last.paid\n",
        "            paid = False\n",
    ),
)


LOOPS = (
    Known(
        "loops: a checkpoint forgets how many local steps were done",
        "loops",
        "raybench/torch/local.py",
        'self.count = state["count"]',
        "self.count = 0",
    ),
    Known(
        "loops: presets move the shared point a second time",
        "loops",
        "raybench/torch/exchange.py",
        "        if self.local:  # each time anew",
        "        if not self.local:  # each time anew",
    ),
    Known(
        "loops: errors of fewer ranks are not scaled",
        "loops",
        "raybench/torch/saved.py",
        "stay.shape[1]) * (n / before)",
        "stay.shape[1])",
    ),
    Known(
        "loops: NaN goes into memories",
        "loops",
        "raybench/torch/exchange.py",
        "        if self.met.bad:\n",
        "        if False and self.met.bad:\n",
    ),
    Known(
        "loops: parts sent before a NaN are not undone",
        "loops",
        "raybench/torch/attached.py",
        "for exchange in self.done:\n            exchange.undo()",
        "for exchange in self.done[:0]:\n            exchange.undo()",
    ),
    Known(
        "loops: a skipped step has gradients of zero",
        "loops",
        "raybench/torch/attached.py",
        "p.grad = None",
        "p.grad = torch.zeros_like(p)",
    ),
    Known(
        "loops: what is undone keeps its place in the random numbers",
        "loops",
        "raybench/torch/exchange.py",
        "self.steps -= 1",
        "self.steps -= 0",
    ),
    Known(
        "loops: shards that are finite do not hear of others",
        "loops",
        "raybench/torch/sharded.py",
        "if self.replica.anywhere(skipped) and not skipped:",
        "if False and self.replica.anywhere(skipped) and not skipped:",
    ),
    Known(
        "loops: digests of ranks are never different",
        "loops",
        "raybench/torch/replicas.py",
        "every == every[:, :1]",
        "every == every",
    ),
    Known(
        "loops: parameters may be unfrozen later",
        "loops",
        "raybench/torch/replicas.py",
        "changed = self.asked != [",
        "changed = False and self.asked != [",
    ),
    Known(
        "loops: a hook compares no parameters",
        "loops",
        "raybench/torch/attached.py",
        "if self.replica.every and",
        "if False and self.replica.every and",
    ),
    Known(
        "loops: the seed is not used",
        "loops",
        "raybench/torch/exchange.py",
        "stream([plan.seed], like.device)",
        "stream([0], like.device)",
    ),
    Known(
        "loops: the residual is squared",
        "loops",
        "raybench/torch/exchange.py",
        "for e in found) ** 0.5)",
        "for e in found))",
    ),
    Known(
        "loops: reports compare with one gradient for each exchange",
        "loops",
        "raybench/torch/report.py",
        "bytes_dense=bytes_dense / max(steps, 1)",
        "bytes_dense=bytes_dense / max(count, 1)",
    ),
    Known(
        "loops: gradients are counted in the width of messages",
        "loops",
        "raybench/torch/flat.py",
        "p.numel() * p.element_size()",
        "p.numel() * self.vector.element_size()",
    ),
    Known(
        "loops: each rank searches a line by its own loss",
        "loops",
        "raybench/torch/optimizer.py",
        "return self._exchange.met.loss if is_number else loss",
        "return loss",
    ),
    Known(
        "loops: a hook hands on directions without the scaler's factor",
        "loops",
        "raybench/torch/hook.py",
        "u if scale == 1.0 else u * scale",
        "u",
    ),
    Known(
        "loops: a hook's group has the timeout of torch",
        "loops",
        "raybench/torch/hook.py",
        "timeout=_timeout(model.process_group, named[0][1].device)",
        "timeout=None",
    ),
)
"""Faults of ``raybench.torch``."""


@dataclass(frozen=True)
class Equivalent:
    """Changes of a file that make no difference to any result, and why.

    within: a piece of text that the changed piece holds, or the class or function around it. new:
    what the change makes of it, empty for any change.
    """

    path: str
    within: str
    new: str
    why: str

    def is_of(self, change: Change) -> bool:
        """Return whether a change is one of these."""
        return (
            change.path == f"raybench/{self.path}"
            and (self.within in change.scope or self.within in change.old)
            and self.new in change.new
        )


EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        "core/clock.py", "perf_counter", "", "it measures the time that communication takes"
    ),
    Equivalent(
        "algorithms/diana.py", "> 1e-12", ">= 1e-12", "a tolerance for rounding has no exact edge"
    ),
    Equivalent(
        "algorithms/diana.py", "1e-12", "1.5e-12", "any tolerance far above rounding will do"
    ),
    Equivalent(
        "algorithms/vr_diana.py", "1e-12", "1.5e-12", "any tolerance far above rounding will do"
    ),
    Equivalent(
        "analysis/tuned.py", "final_vs_step", "True", "the order of groups: the result is sorted"
    ),
    Equivalent(
        "algorithms/dasha.py", "1e-12", "1.5e-12", "any tolerance far above rounding will do"
    ),
    Equivalent("wire/ledger.py", "-1", "(1)", "messages of clients have two leading axes"),
    Equivalent(
        "analysis/methods.py", "-1", "(1)", "no operator has cells with K and cells without"
    ),
    Equivalent("store/combine.py", "sorted(ids)", "(ids)", "a set of values has no order"),
    Equivalent("theory/setting.py", "1000", "1001", "every plan says how many rounds there are"),
    Equivalent("store/log.py", "8", "9", "another look at what stays damaged finds it damaged"),
    Equivalent("store/log.py", "time.sleep", "", "how long a retry waits changes no result"),
    Equivalent("store/log.py", "0.01", "", "how long a retry waits changes no result"),
    Equivalent(
        "wire/ledger.py", "float(times.mean())", "(times.mean())", "NumPy's floats multiply alike"
    ),
    Equivalent(
        "wire/ledger.py", "select", "1", "a ledger of some cells gets all its arrays at once"
    ),
    Equivalent("store/lock.py", "_local", "1", "what is written next begins at the file's start"),
    Equivalent("algorithms/ef21.py", "1e-9", "1.5", "any share far below those of clients will do"),
    Equivalent(
        "analysis/tuned.py", "1e-9", "g > value", "a tolerance for rounding has no exact edge"
    ),
    Equivalent("analysis/tuned.py", "1e-9", "1.5", "any tolerance far above rounding will do"),
    Equivalent("algorithms/sign_sgd.py", "-1", "(1)", "votes have two axes, cells and coordinates"),
)
