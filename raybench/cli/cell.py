"""One cell from flags: the options of ``run`` and ``show`` and the sweep file they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from raybench.core.facts import Role

if TYPE_CHECKING:
    from raybench.spec import Sweep

USUAL_PROBLEM = "logistic:dataset=breast_cancer,scale=columns,clients=10"

Problem = Annotated[
    str | None,
    typer.Option(metavar="NAME[:KEY=VALUE,...]", help=f"The problem. [default: {USUAL_PROBLEM}]"),
]
Dataset = Annotated[
    str | None, typer.Option(metavar="NAME|PATH", help="Its data set; raybench ls datasets.")
]
Clients = Annotated[int | None, typer.Option(metavar="N", help="How many clients share it.")]
Compressor = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:KEY=VALUE,...]",
        help=f"The operator. [default: {' or '.join(sorted({r.usual_form for r in Role}))}]",
    ),
]
Downlink = Annotated[
    str | None, typer.Option(metavar="NAME[:KEY=VALUE,...]", help="The server's operator.")
]


def config(
    algorithm: str,
    problem: str | None,
    dataset: str | None,
    clients: int | None,
    compressor: str | None,
    downlink: str | None = None,
    **more: object,
) -> dict[str, Any]:
    """Return the sweep file of one cell; further keys that are None are left out.

    Without a problem the default one is meant; a data set alone replaces that of the default, with
    its features as they are. Raises InputError for a malformed short form.
    """
    from raybench.spec import short

    section = short.parse(problem or USUAL_PROBLEM, "problem")
    if problem is None and dataset is not None:
        section = {"name": section["name"], "clients": section["clients"]}
    own = {"dataset": dataset, "clients": clients}
    section |= {key: value for key, value in own.items() if value is not None}
    parts = {"compressor": compressor, "downlink": downlink}
    return {
        "problem": section,
        "algorithm": short.parse(algorithm, "algorithm"),
        **{key: short.parse(text, key) for key, text in parts.items() if text is not None},
        **{key: value for key, value in more.items() if value is not None},
    }


def usual_operator(algorithm: str) -> str | None:
    """Return the operator of a method that takes one where none is given; None where it takes none."""
    from raybench.core import registry

    role = registry.lookup("algorithm", algorithm).facts.up
    return None if role is None else role.usual_form


def folder_name(sweep: Sweep) -> str:
    """Return the name under which runs on a problem are kept together: ``run-<problem>-<hash>``."""
    import hashlib
    import re

    from raybench.spec.parts import canonical

    problem = sweep.cells[0].problem
    digest = hashlib.sha256(canonical(problem.config()).encode()).hexdigest()[:6]
    words = [problem.name, str(problem.params.get("dataset") or "").rsplit("/", 1)[-1], digest]
    plain = (re.sub(r"[^A-Za-z0-9._]+", "_", word)[:40] for word in words if word)
    return "-".join(["run", *plain])
