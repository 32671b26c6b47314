"""Looking at every file of a results folder: what is as it was written, what is not, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from raybench.core.errors import InputError
from raybench.store import identity, log
from raybench.store.files import Files
from raybench.store.log import DOUBLE, NO_SWEEP, UNCOMMITTED, Finding, Log

HARMLESS = (UNCOMMITTED,)
"""Kinds of findings that take nothing from the results."""


@dataclass(frozen=True)
class Verified:
    """What was found in a folder. log: the shards that count; findings: all that is not as it should be."""

    log: Log
    findings: tuple[Finding, ...]

    @property
    def harm(self) -> bool:
        """Whether anything was found that is not harmless."""
        return any(finding.kind not in HARMLESS for finding in self.findings)

    def by_kind(self) -> dict[str, list[Finding]]:
        """Return the findings by kind, harm first."""
        kinds = {f.kind: None for f in self.findings if f.kind not in HARMLESS}
        order = [*kinds, *HARMLESS]
        found = {k: [f for f in self.findings if f.kind == k] for k in order}
        return {kind: own for kind, own in found.items() if own}


def verified(files: Files) -> Verified:
    """Return what is found in a results folder when every file is read."""
    files.check()
    found = log.look(files, deep=True)
    findings = [*found.findings, *log.strays(files, found)]
    for shard, cells in log.doubles(found).items():
        what = f"{len(cells)} of its cells stand in another shard"
        findings.append(Finding(f"cells/{shard}.parquet", DOUBLE, what))
    text = files.read("sweep.yaml")
    if text is None:
        findings.append(Finding("sweep.yaml", NO_SWEEP, "it is missing"))
    else:
        try:
            identity.parse(identity.decoded(text, files.name), "sweep.yaml")
        except InputError as error:
            findings.append(Finding("sweep.yaml", NO_SWEEP, error.complaints[0].what))
    return Verified(found, tuple(findings))
