"""What clients do in the first seconds of the simulated clock: a few rounds of cells, run again with a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from raybench.clock.clients import Span
from raybench.core.errors import InputError
from raybench.execution.batch import Batch
from raybench.execution.checks import Skip
from raybench.execution.execute import hosted
from raybench.execution.plan import facts_of
from raybench.execution.resolve import Resolver, problem_of
from raybench.execution.run import Options, Run
from raybench.spec import Cell
from raybench.spec.model import Record
from raybench.wire.transport import Transport

SLOWEST = 3.0  # calls of the slowest client that are shown
MOST_ROUNDS = 5_000
COLUMNS = ["panel", "client", "kind", "start", "end"]


def timeline(cells: Mapping[str, Cell], allow_unproven: bool = False) -> pd.DataFrame:
    """Return what every client does, until the slowest has computed a few times: rows of ``COLUMNS``.

    cells: of which each is run again from its start, by the name of its panel. kind: of ``raybench.clock.clients``.
    Raises InputError where a cell has no clock.
    """
    rows: list[Sequence[object]] = []
    for panel, cell in cells.items():
        if cell.clock is None:
            raise InputError.of("--kind", f"{panel} has no clock", "a sweep with a clock in it")
        try:
            resolved = Resolver(allow_unproven).resolve(cell)
        except Skip:
            continue
        batch = Batch((resolved,), facts=facts_of(problem_of(cell.problem)))
        transport = Transport()
        options = Options(record=Record(every=MOST_ROUNDS))
        run = Run(batch, hosted(batch, transport, "cpu"), options, transport)
        rows += [(panel, *span) for span in _spans(run)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _spans(run: Run) -> list[tuple[int, int, float, float]]:
    run.advance(0)  # the start
    assert run.net.timing is not None
    until = SLOWEST * float(run.net.timing.clients.tau[0].max())
    log: list[Span] = []
    run.net.timing.log = log
    began = float(run.net.timing.columns(1)["clock_seconds"][0])
    while not run.advance(1) and run.t < MOST_ROUNDS:
        # what is under way is noted as it ends
        if float(run.net.timing.columns(1)["clock_seconds"][0]) > began + 2 * until:
            break
    return [
        (client, kind, max(start - began, 0.0), min(end - began, until))
        for client, kind, start, end in log
        if start < began + until
    ]
