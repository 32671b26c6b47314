"""Plug-ins registered for the tests of sweep files, so that they depend on none of the real ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.registry import Choice, Count, Flag, Integer, List, Number, Text
from raybench.spec import load

BASE = """
problem: {name: logistic, dataset: mushrooms, clients: 20}
algorithm: ef21
compressor: {name: top_k, k: 1}
"""


@contextmanager
def registered() -> Iterator[pytest.MonkeyPatch]:
    """Replace the registry's plug-ins by a few that have every kind of parameter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_entries", {})
        patch.setattr(registry, "_ensure", lambda kind: None)

        class Data:
            """A problem on a data set."""

            __params__ = {
                "dataset": Text(),
                "clients": Integer(10, low=1),
                "split": Choice(
                    "contiguous", "shuffled", tags={"dirichlet": Number(low=0, open_low=True)}
                ),
                "lambda": Number(0.1, low=0, tags={"times_L": Number(low=0)}),
                "test_size": Number(0.0, low=0, high=1),
                "intercept": Flag(),
                "positive": List(None),
                "seed": Integer(0),
                "rows": Integer(None, low=1),
            }

        registry.problem("logistic")(Data)
        registry.problem("quadratic", x0="problem", dim=Integer(100, low=1), shape=List(None))(
            type("Quadratic", (), {"__doc__": "Quadratics."})
        )

        def plugin() -> type:
            return type("Plugin", (), {"__doc__": "A plug-in."})

        registry.algorithm("gd", up=None)(plugin())
        registry.algorithm("ef21", up="contractive", init=Choice("compressed", "full", "zero"))(
            plugin()
        )
        registry.algorithm(
            "marina",
            up="unbiased",
            auto={"p": lambda setting: 0.5},
            p=Number("auto", low=0, high=1, open_low=True, words=("auto",)),
            batch=Integer(1, low=1),
        )(plugin())
        registry.algorithm("diana", up="unbiased")(plugin())
        registry.algorithm("ef21_bc", up="contractive", down="contractive")(plugin())
        registry.algorithm("prox_lead", up="unbiased", decentralised=True)(plugin())
        registry.compressor("top_k", k=Count())(plugin())
        registry.compressor("rand_k", k=Count("1%"), mask=Choice("independent", "common"))(plugin())
        registry.compressor("natural")(plugin())
        registry.metric("norm")(plugin())
        yield patch


@pytest.fixture(autouse=True, scope="module")
def dummies() -> Iterator[None]:
    """These plug-ins alone, in every module that imports this."""
    with registered():
        yield


def wrong(source, **more) -> dict[str, str]:
    """Load what must be refused; return the messages by key path."""
    with pytest.raises(InputError) as caught:
        load(source, **more)
    return {c.where: f"{c.what} / {c.fix}" for c in caught.value.complaints}
