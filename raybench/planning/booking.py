"""How a sweep's bits are booked where its folder already holds some."""

from __future__ import annotations

import os
from dataclasses import replace

from raybench.spec import Sweep
from raybench.store import identity, reader


def as_booked(sweep: Sweep, folder: str | os.PathLike[str]) -> Sweep:
    """Return the sweep with the accounting of its results folder, and a note where it is another.

    A folder keeps the accounting that its first curves were booked by, so that its bits compare.
    """
    kept = reader.accounting_of(folder, sweep.accounting)
    if kept == sweep.accounting:
        return sweep
    note = (
        f"{folder} was begun with the accounting {kept} and keeps it, so that its bits compare: "
        f"raybench table {folder} --accounting HOW shows them by another"
    )
    return replace(
        sweep,
        accounting=kept,
        text=identity.with_accounting(sweep.text, kept),
        notes=(*sweep.notes, note),
    )
