"""How messages become one mean that everyone holds, other than by gathering all of them.

``reduce``: messages whose sum is a message are added on the way, in one all-reduce. ``all_to_all``:
client j gets part j of every vector, adds them, and sends the mean of the part, compressed again, to all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor

from raybench.core.counts import ALL_TO_ALL, REDUCE, Clock, Counts
from raybench.wire.base import Additive, Message, zero_absent
from raybench.wire.compound import CasesMessage, MeansMessage, PartsMessage
from raybench.wire.fields import HALVES
from raybench.wire.transport import Transport


@dataclass(eq=False)
class Stub(Message):
    """What the ledger needs of messages that are on other ranks: how many they are, and their cost."""

    shape: torch.Size
    counts: Counts

    @property
    def lead(self) -> torch.Size:
        return self.shape

    @property
    def cost(self) -> Counts:
        return self.counts


def exchange_of(message: Message) -> str:
    """Return how messages are averaged on the way: in parts, or in one all-reduce."""
    in_parts = any(isinstance(leaf, PartsMessage) for leaf in message.leaves())
    return ALL_TO_ALL if in_parts else REDUCE


def combines(message: Message) -> bool:
    """Return whether messages can be averaged on the way: all are in parts, or add up to one."""
    if isinstance(message, CasesMessage):
        return all(map(combines, message.parts))
    return isinstance(message, PartsMessage) or all(map(_adds_up, message.leaves()))


def _adds_up(leaf: Message) -> TypeGuard[Additive]:
    return isinstance(leaf, Additive) and leaf.additive


def average(message: Message, n: int, transport: Transport, clock: Clock) -> tuple[Tensor, Message]:
    """Return the mean over all n clients (B, d), and what everyone is sent so that it holds it."""
    if isinstance(message, CasesMessage):
        pairs = [average(part, n, transport, clock) for part in message.parts]
        value = message.in_order([mean for mean, _ in pairs]) * message.scale
        return value, replace(message, parts=[answer for _, answer in pairs])
    if isinstance(message, PartsMessage):
        answer: Message = _by_parts(message, n, transport, clock)
    else:
        answer = _added(message, n, transport)
    return answer.decode(), answer


def _added(message: Message, n: int, transport: Transport) -> Message:
    """Return the message (B,) of the mean over all n clients, in the format that each sends.

    Clients hosted here are added in client order, those of 16 bits in float32; the sums of the ranks
    are rounded to the format and added in it, all of a format in one all-reduce.
    """
    leaves = list(filter(_adds_up, message.leaves()))  # all of them: see ``combines``
    sums = transport.all_reduce([_mean_here(leaf, n) for leaf in leaves])
    means = [leaf.of_summands(total) for leaf, total in zip(leaves, sums, strict=True)]
    whole = message.rebuild(iter(means))
    absent = [leaf.present is not None for leaf in leaves]
    return _where_sent(message, whole, n, transport) if any(absent) else whole


def _mean_here(leaf: Additive, n: int) -> Tensor:
    """Return what the clients here add to the mean of all n, (B, m), in the format of a message."""
    summands = leaf.values
    wide = summands.float() if summands.dtype in HALVES else summands
    if leaf.present is not None:
        wide = zero_absent(wide, leaf.present)
    # in the memory of the sum, which is the format's own or wider
    mean = wide.sum(-2).div_(n) if wide.shape[-2] > 1 else wide.squeeze(-2) / n
    return mean.to(summands.dtype)


def _where_sent(message: Message, whole: Message, n: int, transport: Transport) -> Message:
    """Return the mean as it is broadcast: not in cells in which nobody sends."""
    sent = torch.as_tensor(message.cost.messages > 0, device=message.device).expand(message.lead)
    who = transport.gather_rows(sent.to(torch.uint8)[..., None], n)[..., 0]
    return whole.masked(who.bool().any(-1))


def _by_parts(m: PartsMessage, n: int, transport: Transport, clock: Clock) -> Message:
    """Return the means of all parts, each added up by its owner and compressed again."""
    got = transport.to_owners(m.inner, n)
    means = got.sum_clients().div_(n)
    with clock.on("compress"):
        again = m.again(means, m.source.fold("mean"))
    return MeansMessage(m.d, m.dtype, transport.gather(again, n), m.sizes)


def of_everyone(message: Message, n: int, transport: Transport) -> Message:
    """Return what stands for the messages of all n clients in the ledger."""
    if transport.size == 1:
        return message
    if isinstance(message, CasesMessage):
        parts = [of_everyone(part, n, transport) for part in message.parts]
        return replace(message, parts=parts)
    cost, lead = message.cost, message.lead
    if cost.varies:
        cost = Counts(*transport.gather_rows(cost.stacked(lead, "cpu"), n).unbind(-1))
    return Stub(message.d, message.dtype, torch.Size((*lead[:-1], n)), cost)
