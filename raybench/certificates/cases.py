"""Worst cases in numbers: saved, and replayed by the method itself in float64."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raybench.certificates.program import Program
from raybench.certificates.question import Question, question
from raybench.certificates.space import Call, Trace
from raybench.core.safe_files import replacement
from raybench.data.files import open_archive

REPLAY = 1e-6  # by which a replay may differ, relative to its terms
BROKEN = 1e-5  # by which vectors from a solver may break a condition


@dataclass(frozen=True)
class Case:
    """A worst case in numbers, on which the method can be run: vectors (N, r), values (N,), what was asked in order."""

    asked: Mapping[str, Any]
    step: float
    extra: str
    vectors: np.ndarray
    f: np.ndarray
    script: Sequence[tuple[str, int, Sequence[int], float]]

    @classmethod
    def of(
        cls, about: Question, trace: Trace, program: Program, G: np.ndarray, f: np.ndarray
    ) -> Case:
        """Return the worst case of a program's solution."""
        script = [(one.kind, len(one.inputs), one.answers, one.alpha) for one in trace.calls]
        return cls(about.asked, about.subject.step, program.extra, program.numbers(G), f, script)

    def replay(self, about: Question, trace: Trace | None = None) -> float | None:
        """Return where the method ends, run on the vectors in float64; None where they break the class.

        trace: the run in coordinates, which it must agree with.
        """
        calls = [
            Call(kind, np.empty((m, 0)), tuple(who), alpha) for kind, m, who, alpha in self.script
        ]
        other = about.subject.run(torch.from_numpy(self.vectors), calls)
        program = Program(about.subject, other, about.projection, self.extra, self.vectors)
        apart = 0.0 if trace is None else trace.apart(other, self.vectors)
        if apart > REPLAY or program.broken(self.f, about.start) > BROKEN:
            return None
        return program.measure(about.measure).value(np.eye(len(program.R)), self.f)

    def save(self, path: str | Path) -> None:
        """Write it to a file ``.npz``: arrays and JSON, nothing that would be run."""
        text = json.dumps(
            {"asked": self.asked, "step": self.step, "extra": self.extra, "script": self.script}
        )
        with replacement(path) as fresh:
            np.savez(fresh, vectors=self.vectors, f=self.f, text=np.array(text))


def replay(path: str | Path) -> float | None:
    """Return what the method ends at on the worst case in a file; None where the numbers break its class.

    A plug-in must be registered before. Raises InputError for a file that ``certify`` has not written.
    """
    with open_archive(Path(path), "a file that raybench certify has saved", "replay") as file:
        text = json.loads(str(file.read("text")))
        numbers = file.numbers("vectors"), file.numbers("f")
        case = Case(text["asked"], text["step"], text["extra"], *numbers, text["script"])
        return case.replay(question(**case.asked).at(case.step))
