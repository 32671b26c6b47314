"""How messages get from the clients hosted here to everyone: in this process, or over ranks.

A transport gathers: every rank ends with the messages of all n clients in client order, so that each
reduces in the same fixed order. Over ranks, messages travel as the packed bytes that the ledger
books; lengths of varying messages and who is present travel beside them as framing.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from raybench.wire import Message

FAILURE_WAIT = 30  # seconds that ranks get to reach the same error


def share_of(rank: int, size: int, n: int) -> range:
    """Return the clients that a rank hosts: consecutive, their numbers differing by one at most."""
    small, extra = divmod(n, size)
    start = rank * small + min(rank, extra)
    return range(start, start + small + (rank < extra))


class Transport:
    """One process hosts all clients: gathering is doing nothing."""

    rank = 0
    size = 1

    def gather(self, message: Message, n: int) -> Message:
        """Return the message with all n clients on axis 1, from those hosted here."""
        return message

    def gather_rows(self, x: Tensor, n: int) -> Tensor:
        """Return (B, n, ...) from the clients hosted here (B, n_here, ...); for oracles, unbooked."""
        return x

    def agree(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return value

    def all_failed(self) -> bool:
        """Return whether every rank has come here after an error, so that all may go on together."""
        return True


class Ranks(Transport):
    """Several ranks; a subclass says how equal-sized byte tensors are exchanged."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def exchange(self, data: Tensor) -> list[Tensor]:
        """Return every rank's tensor (same shape and dtype everywhere), in rank order."""
        raise NotImplementedError

    def gather_rows(self, x: Tensor, n: int) -> Tensor:
        most = len(share_of(0, self.size, n))
        rows = x.transpose(0, 1).contiguous()
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = self.exchange(padded)
        kept = [part[: len(share_of(r, self.size, n))] for r, part in enumerate(parts)]
        return torch.cat(kept).transpose(0, 1).contiguous()

    def gather(self, message: Message, n: int) -> Message:
        leaves = message.leaves()
        blocks = [self._framed(leaf) for leaf in leaves]  # (cells of the leaf, n_here, bytes)
        flat = [b.transpose(0, 1).flatten(1) for b in blocks]
        rows = self.gather_rows(torch.cat(flat, -1)[None], n)[0]
        everyone = torch.arange(n, device=message.device)
        got = []
        for leaf, block, own in zip(leaves, blocks, rows.split([f.shape[1] for f in flat], -1)):
            data = own.reshape(n, block.shape[0], block.shape[-1]).transpose(0, 1)
            present = None
            if leaf.present is not None:
                present, data = data[..., 0].bool(), data[..., 1:]
            stream = None if leaf.stream is None else leaf.stream.at(everyone)
            whole = type(leaf).read(leaf.known(), data, stream)
            got.append(whole if present is None else whole.masked(present))
        return message.rebuild(iter(got))

    def _framed(self, leaf: Message) -> Tensor:
        """Return the payload (B, n_here, P), P agreed, with a byte in front where some are absent."""
        payload = leaf.payload()
        if not isinstance(leaf._size(), int):
            width = torch.tensor([payload.shape[-1]], device=payload.device)
            widest = max(int(w) for w in self.exchange(width))
            payload = torch.nn.functional.pad(payload, (0, widest - payload.shape[-1]))
        if leaf.present is not None:
            payload = torch.cat((leaf.present[..., None].to(torch.uint8), payload), -1)
        return payload


class Distributed(Ranks):
    """Ranks of torch.distributed's default group: NCCL where each has a GPU of its own, else gloo."""

    def __init__(self) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size())
        self._failures = 0

    def exchange(self, data: Tensor) -> list[Tensor]:
        # gloo, which ranks that share a GPU use, gathers what is in main memory
        sent = data.cpu() if dist.get_backend() == "gloo" else data
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(parts, sent)
        return [part.to(data.device) for part in parts]

    def agree(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def all_failed(self) -> bool:
        # Not a collective: a rank without the error still waits in one, and would take ours for it.
        store = dist.distributed_c10d._get_default_store()
        self._failures += 1
        keys = [f"raybench/failure/{self._failures}/{rank}" for rank in range(self.size)]
        store.set(keys[self.rank], "1")
        try:
            store.wait(keys, datetime.timedelta(seconds=FAILURE_WAIT))
        except RuntimeError:  # timed out: the others had no such error
            return False
        return True


class Threads(Ranks):
    """Virtual ranks: threads of one process, for tests that a method books all it combines."""

    def __init__(self, rank: int, size: int, board: Board) -> None:
        super().__init__(rank, size)
        self.board = board

    def exchange(self, data: Tensor) -> list[Tensor]:
        return self.board.swap(self.rank, data)

    def agree(self, value: Any) -> Any:
        return self.board.swap(self.rank, value)[0]


class Board:
    """Where virtual ranks meet: everyone posts, everyone reads, in lock step."""

    def __init__(self, size: int) -> None:
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=120)

    def swap(self, rank: int, value: Any) -> list[Any]:
        """Post a value and return everyone's; raises BrokenBarrierError if another rank failed."""
        self.slots[rank] = value
        self.barrier.wait()
        got = list(self.slots)
        self.barrier.wait()
        return got


def on_virtual_ranks(size: int, work: Callable[[Transport], Any]) -> list[Any]:
    """Run ``work(transport)`` on that many virtual ranks and return their results in rank order.

    Raises the first error of any rank.
    """
    if size == 1:
        return [work(Transport())]
    board, results, errors = Board(size), [None] * size, []

    def run(rank: int) -> None:
        try:
            results[rank] = work(Threads(rank, size, board))
        except Exception as error:
            errors.append(error)
            board.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    return results
