"""What has the cells on axis 0: numbers per cell, and the named state of a method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

# The operand decides what an operation with numbers per cell gives: a tensor of its shape where it is
# one, numbers per cell otherwise. That is more than a type can say, so the operations below return Any.
Operand: TypeAlias = "Tensor | PerCell | float"


def _operation(op: Callable[..., Tensor]) -> Callable[[PerCell, Operand], Any]:
    def method(self: PerCell, other: Operand) -> Any:
        if isinstance(other, PerCell):
            return PerCell(op(self.values, other.values))
        if isinstance(other, Tensor) and other.ndim:
            return op(self.like(other), other)
        return PerCell(op(self.values, other))

    return method


class PerCell:
    """A number per cell, (B,), that broadcasts against any tensor with cells on axis 0.

    Plain (B, 1) numbers fit iterates (B, d) but not client tensors (B, n, d); this fits both.
    """

    __slots__ = ("_column", "values")
    __array_priority__ = 1000

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._column = values.unsqueeze(-1)  # what iterates ask for, each round

    def like(self, other: Tensor) -> Tensor:
        """Return the numbers shaped (B, 1, .., 1) for a tensor with cells on axis 0."""
        if other.ndim == 2:
            return self._column
        return self.values.view(-1, *[1] * (other.ndim - 1))

    def __getitem__(self, cells: Tensor | slice) -> PerCell:
        return PerCell(self.values[cells])

    __mul__ = __rmul__ = _operation(torch.mul)
    __add__ = __radd__ = _operation(torch.add)
    __sub__ = _operation(torch.sub)
    __rsub__ = _operation(lambda x, y: y - x)
    __truediv__ = _operation(torch.true_divide)
    __rtruediv__ = _operation(lambda x, y: y / x)

    def __neg__(self) -> PerCell:
        return PerCell(-self.values)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        wide = max((x.ndim for x in args if isinstance(x, Tensor)), default=1)
        fit = [x.values.view(-1, *[1] * (wide - 1)) if isinstance(x, PerCell) else x for x in args]
        return func(*fit, **(kwargs or {}))


class State:
    """All that a method remembers: replicated ``s`` (cells on axis 0), per-client ``c`` (clients on 1).

    A value is a tensor, a list or tuple of values, or a plain number, text or None that all cells share.
    """

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None: ...  # names are the method's own

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name} in the state: set it in setup()")

    def __iter__(self) -> Iterator[tuple[str, object]]:
        return iter(vars(self).items())

    def select(self, cells: Tensor) -> State:
        """Return the state of some cells."""
        return State.of({name: part_of_cells(value, cells) for name, value in self})

    @classmethod
    def of(cls, values: Mapping[str, object]) -> State:
        """Return the state of these values by name."""
        made = cls()
        vars(made).update(values)
        return made

    def state(self) -> dict[str, object]:
        """Return the values by name, each a tensor with memory of its own, a list, or a plain value.

        Raises TypeError for anything that could not be written to a file and read back safely.
        """
        return {name: _plain(value, name) for name, value in self}


def mapped(value: object, of_tensor: Callable[[Any], Any]) -> object:
    """Return a value (as ``State`` has them, or its ``state``) with a function applied to its tensors."""
    if isinstance(value, Tensor | PerCell):
        return of_tensor(value)
    if isinstance(value, list | tuple):
        return type(value)(mapped(v, of_tensor) for v in value)
    if isinstance(value, dict):
        return {name: mapped(v, of_tensor) for name, v in value.items()}
    return value


def part_of_cells(value: object, cells: Tensor) -> object:
    """Return the part of a value (as ``State`` has them) that belongs to some cells."""
    return mapped(value, lambda x: x[cells])


def copied(state: State) -> State:
    """Return a state of the same values, whose tensors have memory of their own."""
    return State.of({name: mapped(value, torch.clone) for name, value in state})


def _plain(value: object, name: str) -> object:
    if isinstance(value, Tensor):
        return value.detach().clone(memory_format=torch.contiguous_format)
    if isinstance(value, list | tuple):
        return [_plain(v, name) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    what = f"a {type(value).__name__}: tensors, lists and numbers can be saved"
    raise TypeError(f"state {name} is {what}")


def joined(values: Sequence[Any]) -> Any:
    """Return a value of the clients' state from those of consecutive stretches of clients."""
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(list(values), 1)
    if isinstance(first, list):
        return [joined(group) for group in zip(*values, strict=True)]
    if isinstance(first, dict):
        return {name: joined([v[name] for v in values]) for name in first}
    return first
