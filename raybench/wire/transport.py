"""How messages get from the clients hosted here to others: in this process, or over ranks.

``gather``: every rank ends with the messages of all n clients in client order, so that each reduces in the
same fixed order. ``all_reduce``: every rank ends with the sum of all ranks' numbers. ``to_owners``: every
rank ends with the parts that its clients own, of all clients. Over ranks, messages travel as the packed
bytes that the ledger books; lengths of varying messages and who is present travel beside them as framing.
"""

from __future__ import annotations

import datetime
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # now, or its defaults keep the group of all ranks alive
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

    def all_reduce(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums over the ranks, the same bits on each; all of a dtype in one exchange.

        In that dtype: how a sum is rounded on the way is the backend's. The tensors may be written to.
        """
        return list(tensors)

    def to_owners(self, message: Message, n: int) -> Message:
        """Return the messages (B, n_here, n) of all clients for the owners here.

        message: (B, n, n_here), of the clients here for all owners; owner j is client j.
        """
        return message

    def agree(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return value

    def everyone(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order, on every rank."""
        return [value]

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
        rows = x.transpose(0, 1).contiguous()
        if n % self.size == 0:  # long vectors are neither padded nor put together anew
            return self.gathered(rows).transpose(0, 1).contiguous()
        padded = rows.new_zeros(len(share_of(0, self.size, n)), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = self.exchange(padded)
        kept = [part[: len(share_of(r, self.size, n))] for r, part in enumerate(parts)]
        return torch.cat(kept).transpose(0, 1).contiguous()

    def gathered(self, rows: Tensor) -> Tensor:
        """Return every rank's rows (same shape and dtype everywhere) in one tensor, in rank order."""
        return torch.cat(self.exchange(rows))

    def gather(self, message: Message, n: int) -> Message:
        leaves = message.leaves()
        blocks = self._framed(leaves)  # (cells of the leaf, n_here, bytes)
        rows = self.gather_rows(_side_by_side(blocks)[None], n)[0]
        everyone = torch.arange(n)
        return self._read(message, leaves, _apart(rows, blocks), slice(None), everyone)

    def all_reduce(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        alike: dict[torch.dtype, list[int]] = {}
        for i, x in enumerate(tensors):
            alike.setdefault(x.dtype, []).append(i)
        out = list(tensors)
        for group in alike.values():
            pieces = [tensors[i].flatten() for i in group]
            flat = self.add_up(torch.cat(pieces) if len(pieces) > 1 else pieces[0])
            for i, piece in zip(group, flat.split([tensors[i].numel() for i in group])):
                out[i] = piece.view(tensors[i].shape)
        return out

    def to_owners(self, message: Message, n: int) -> Message:
        leaves = message.leaves()
        blocks = self._framed(leaves)  # (cells of the leaf, n, n_here, bytes)
        rows = _side_by_side(blocks)
        shares = [share_of(rank, self.size, n) for rank in range(self.size)]
        here = shares[self.rank]
        shapes = [torch.Size((len(here), len(share), rows.shape[-1])) for share in shares]
        got = self.deal([rows[share.start : share.stop] for share in shares], shapes)
        place = slice(here.start, here.stop)
        everyone = torch.arange(n)
        return self._read(message, leaves, _apart(torch.cat(got, 1), blocks), place, everyone)

    def add_up(self, flat: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, (m,) of the same shape and dtype everywhere."""
        raise NotImplementedError

    def deal(self, pieces: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        """Send piece s to rank s; return what each rank has sent here, of these shapes."""
        raise NotImplementedError

    def _framed(self, leaves: list[Message]) -> list[Tensor]:
        """Return the payloads (*lead, P), P agreed, with a byte in front where some are absent."""
        payloads = [leaf.payload() for leaf in leaves]
        varying = [i for i, leaf in enumerate(leaves) if not isinstance(leaf._size(), int)]
        if varying:
            widths = torch.tensor([payloads[i].shape[-1] for i in varying])
            widest = torch.stack(self.exchange(widths.to(payloads[0].device))).amax(0).tolist()
            for i, wide in zip(varying, widest, strict=True):
                missing = wide - payloads[i].shape[-1]
                payloads[i] = torch.nn.functional.pad(payloads[i], (0, missing))
        for i, leaf in enumerate(leaves):
            if leaf.present is not None:
                there = leaf.present[..., None].to(torch.uint8)
                payloads[i] = torch.cat((there, payloads[i]), -1)
        return payloads

    @staticmethod
    def _read(
        message: Message, leaves: list[Message], blocks: list[Tensor], mine: slice, ids: Tensor
    ) -> Message:
        """Return the message of framed payloads of clients, ids; mine: which of its owners are here."""
        got = []
        for leaf, data in zip(leaves, blocks, strict=True):
            present, stream = None, leaf.stream
            if leaf.present is not None:
                present, data = data[..., 0].bool(), data[..., 1:]
            if stream is not None:
                stream = stream.at(ids.to(message.device))
                stream = stream[:, mine] if stream.root.ndim > 1 else stream
            whole = type(leaf).read(leaf.known(), data, stream)
            got.append(whole if present is None else whole.masked(present))
        return message.rebuild(iter(got))


def _side_by_side(blocks: list[Tensor]) -> Tensor:
    """Return payloads (cells, .., P) in one tensor of rows (.., bytes)."""
    flat = [block.movedim(0, -2).flatten(-2) for block in blocks]
    return flat[0] if len(flat) == 1 else torch.cat(flat, -1)  # a lone long one is not copied


def _apart(rows: Tensor, blocks: list[Tensor]) -> list[Tensor]:
    """Return the payloads of rows (.., bytes), laid out as ``blocks`` are but for axes in the middle."""
    sizes = [block.shape[0] * block.shape[-1] for block in blocks]
    pieces = zip(rows.split(sizes, -1), blocks, strict=True)
    return [p.unflatten(-1, (b.shape[0], b.shape[-1])).movedim(-2, 0) for p, b in pieces]


class Distributed(Ranks):
    """Ranks of a group of torch.distributed, by default of all: NCCL where each has a GPU of its own, else gloo.

    The group is torch's and may be destroyed at any time: it is not kept alive from here. A group that is held
    beyond ``destroy_process_group`` goes on running threads, and those abort a process that ends.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self._group = None if group is None else weakref.ref(group)
        self._gloo = dist.get_backend(group) == "gloo"
        self._failures = 0

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group, None for all ranks. Raises RuntimeError where it was destroyed."""
        if self._group is None:
            return None
        group = self._group()
        if group is None:
            raise RuntimeError("the process group of this exchange was destroyed")
        return group

    def exchange(self, data: Tensor) -> list[Tensor]:
        return list(self.gathered(data[None]))

    def gathered(self, rows: Tensor) -> Tensor:
        if not self._gloo:
            whole = rows.new_empty(self.size * len(rows), *rows.shape[1:])
            dist.all_gather_into_tensor(whole, rows, self.group)
            return whole
        # gloo, which ranks that share a GPU use, gathers what is in main memory. Its all_gather copies all
        # once more and takes three to five times as long for 45 MB as a broadcast by every rank.
        sent = rows.cpu()
        parts = sent.new_empty(self.size, *sent.shape)
        parts[self.rank] = sent
        works = [
            dist.broadcast(part, group=self.group, group_src=r, async_op=True)
            for r, part in enumerate(parts)
        ]
        for work in works:
            assert work is not None
            work.wait()
        return parts.flatten(0, 1).to(rows.device)

    def add_up(self, flat: Tensor) -> Tensor:
        total = flat.cpu() if self._gloo else flat
        dist.all_reduce(total, group=self.group)
        return total.to(flat.device)

    def deal(self, pieces: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        device = pieces[0].device
        there = torch.device("cpu") if self._gloo else device
        sent = torch.cat([piece.reshape(-1) for piece in pieces]).to(there)
        sizes = [shape.numel() for shape in shapes]
        got = torch.empty(sum(sizes), dtype=sent.dtype, device=there)
        counts = [piece.numel() for piece in pieces]
        dist.all_to_all_single(got, sent, sizes, counts, group=self.group)
        parts = got.to(device).split(sizes)
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def agree(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, group=self.group, group_src=0)
        return box[0]

    def everyone(self, value: Any) -> list[Any]:
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

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

    def add_up(self, flat: Tensor) -> Tensor:
        first, *others = self.exchange(flat)
        total = first.clone()
        for other in others:
            total += other
        return total

    def deal(self, pieces: list[Tensor], shapes: list[torch.Size]) -> list[Tensor]:
        return [sent[self.rank] for sent in self.board.swap(self.rank, pieces)]

    def agree(self, value: Any) -> Any:
        return self.board.swap(self.rank, value)[0]

    def everyone(self, value: Any) -> list[Any]:
        return self.board.swap(self.rank, value)


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
