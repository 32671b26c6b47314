"""The operators' part of raybench show: constants, bits, and what a few draws show of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raybench.cli.shared import listing

if TYPE_CHECKING:
    from rich.padding import Padding

    from raybench.cli.shared import Screen
    from raybench.compressors import Compressor, Message
    from raybench.core.registry import Entry

# values that are shown for a count that is required and was not given
COUNTS_SHOWN = (1, "1%", "10%")
COUNT_CHECKED = "1%"  # the value for which the operator is drawn and compared with its constants
FIGURES = (
    *("ω", "α", "B1: α, β", "B2: γ, β", "B3: δ", "  of C times", "bits", "  values", "  index"),
    *("  raw", "of dense", "bytes", "  with header"),
)


def describe(out: Screen, entry: Entry, name: str, d: int, clients: int = 1) -> None:
    """Print class, constants, bits and a Monte Carlo check of an operator in dimension d, for several K if none is given.

    name: the operator with its parameters, ``top_k:k=5``. clients: how many there are of them, for
    operators that draw together.
    """
    from rich.table import Table
    from rich.text import Text

    from raybench.core.registry import REQUIRED
    from raybench.core.streams import stream
    from raybench.spec import short

    counts = [n for n, p in entry.params.items() if p.kind == "count" and p.default is REQUIRED]
    given = short.parse(name, "show")
    free = [n for n in counts if n not in given]
    tries: list[dict[str, object]] = (
        [dict.fromkeys(free, k) for k in COUNTS_SHOWN] if free else [{}]
    )
    x = stream(0).normal(d)
    ops, columns = {}, []
    for more in tries:
        section = short.section("compressor", name, more)
        op = entry.target(**section.params).bind(d, n=clients).operator
        label = ", ".join(str(section.params[n]) for n in counts)
        ops[label] = op
        columns.append([label, *_figures(op, op.compress(x), d)])
    if not entry.params:
        out.print("")
    out.print(_line(f"d = {d:,}, a Gaussian float64 vector; {_kind(op, d)}"))
    heads = ["K", *FIGURES]
    table = Table.grid(padding=(0, 3, 0, 0))
    for n in range(1 + len(columns)):
        table.add_column(justify="right" if n else "left")
    for row in zip(heads, *columns, strict=True):
        if any(row[1:]):
            table.add_row(Text(f"  {row[0]}", style="dim"), *row[1:])
    out.print(table)
    drawn = COUNT_CHECKED if COUNT_CHECKED in ops else next(iter(ops))
    _check(out, ops[drawn], d, f"K = {drawn}, " if len(ops) > 1 else "")


def _line(text: str) -> Padding:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, style="dim"), (0, 0, 0, 2))


def _kind(op: Compressor, d: int) -> str:
    kind = []
    if op.omega(d) is not None:
        kind.append("unbiased: E C(x) = x, E‖C(x) − x‖² ≤ ω‖x‖²")
    if op.alpha(d) is not None:
        kind.append("contractive: E‖C(x) − x‖² ≤ (1 − α)‖x‖²")
    kind.append("deterministic" if op.deterministic else "random")
    return "; ".join(kind)


def _figures(op: Compressor, message: Message, d: int) -> list[str]:
    """Return what FIGURES names, spelled."""

    def both(constants: tuple[float, float] | None) -> str:
        return "–" if constants is None else ", ".join(_number(c, 5) for c in constants)

    wider = op.b3(d)
    cost, bits = message.cost, int(message.bits)
    parts = (cost.values * message.dtype.itemsize * 8, cost.index_auto, cost.raw)
    return [
        _number(op.omega(d), 6),
        _number(op.alpha(d), 6),
        both(op.b1(d)),
        both(op.b2(d)),
        _number(wider[0], 6) if wider else "–",
        _number(wider[1], 4) if wider else "–",
        f"{bits:,}",
        *(f"{round(float(part)):,}" for part in parts),
        f"{bits / (64 * d):.3%}",
        f"{int(message.nbytes):,}",
        f"{len(message.pack()):,}",
    ]


def _check(out: Screen, op: Compressor, d: int, label: str) -> None:
    """Print what draws show about the claims, a line per family of vectors."""
    from rich.text import Text

    from raybench.testing import claims

    found = claims.check(op, d)
    unbiased = op.omega(d) is not None
    bound, factor = claims.claim(op, d)
    what = "C(x)" if factor == 1.0 else f"{_number(factor, 4)} C(x)"
    count = found[0].draws
    text = f"measured, {label}{count:,} {'draw' if count == 1 else 'draws'} each: "
    text += f"‖{what} − x‖²/‖x‖² beside its bound"
    if unbiased and count > 1:
        text += "; bias: ‖mean C(x) − x‖/‖x‖ beside chance"
    out.print("", _line(text))
    bias = ["bias", "by chance"] if unbiased and count > 1 else []
    heads = ["error", "± s.e.", "bound", *bias]
    table = listing("  vector", *heads, "", right=heads, fold="")
    for one in found:
        mean, error = one.error
        row = [_number(mean, 4), _number(error if error > 1e-9 * mean else 0.0, 2)]
        row.append(_number(bound, 4))
        if bias and one.bias is not None:
            row += [_number(part, 3) for part in one.bias]
        style = "red" if one.faults else ""
        table.add_row(f"  {one.family}", *row, Text(one.verdict, style=style))
    out.print(table)


def _number(value: float | None, digits: int) -> str:
    from raybench.report.words import number

    return "–" if value is None else number(value, digits)
