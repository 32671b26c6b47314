"""Problems: objectives f = (1/n) sum_i f_i with exact gradients and their smoothness constants.

The registry imports every module of this package, so a new problem is one file with one decorator.
"""

import keyword
from collections.abc import Mapping

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.problems.base import Constants, Fact, Problem

__all__ = ["Constants", "Fact", "Layout", "Problem", "build", "read_problem"]


def build(name: str, params: Mapping[str, object]) -> Problem:
    """Return the problem registered as ``name`` with all its clients.

    ``params`` are keys of the sweep file; a key that is a Python keyword reaches the problem with
    an underscore appended (``lambda`` as ``lambda_``). Raises InputError for bad input.
    """
    target = registry.lookup("problem", name, "problem.name").target
    return target(**{k + "_" if keyword.iskeyword(k) else k: v for k, v in params.items()})


def read_problem(section: Mapping[str, object]) -> Problem:
    """Return the problem that a section of a sweep file describes: ``name`` and parameters, typed and checked.

    Raises InputError with everything that is wrong.
    """
    # what reads sweep files is loaded when there is something to read
    from raybench.spec import sections

    name = section.get("name")
    if not isinstance(name, str):
        raise InputError.of("problem", f"{dict(section)!r} has no name", "such as name: network")
    result = sections.section("problem", name, {k: v for k, v in section.items() if k != "name"})
    return build(result.name, result.params)
