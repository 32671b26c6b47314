"""Facts and parameters of plug-ins: typed, checked when they register, each declared once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from cli_kit import own_plugins

from raybench.algorithms.base import Algorithm, Points
from raybench.compressors import Compressor, Role
from raybench.core import registry
from raybench.core.errors import InputError, nearest
from raybench.core.facts import AlgorithmFacts
from raybench.core.registry import Choice, Count, Flag, Integer, List, Number, Operator, Text

RATE: dict[str, Any] = {"p": Number("auto", low=0, high=1, words=("auto",))}


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Plug-ins of a test are forgotten after it."""
    with own_plugins():
        yield


def refused(kind: str, target: Any = None, **given: Any) -> str:
    """Return what is said where a plug-in with these facts registers, after asserting that it is refused."""
    target = type("Plugin", (), {}) if target is None else target
    with pytest.raises(InputError) as caught:
        getattr(registry, kind)("mine", **given)(target)
    assert "mine" not in registry.names(kind)
    return str(caught.value)


# Facts -----------------------------------------------------------------------------------------------


def test_capital_letters_do_not_hide_the_name_that_is_meant():
    assert nearest("EF21", registry.names("algorithm")) == "did you mean ef21?"
    assert nearest("Topk", ["rand_k", "top_k"]) == "did you mean top_k?"
    many = [f"{letter}{i}" for letter in "abcxyz" for i in range(20)]
    assert all(f"z{i}," in nearest("z-----", many) for i in range(20))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"stocastic": True}, "unknown fact 'stocastic'\n    did you mean stochastic?"),
        ({"uplink": Role.ANY}, "unknown fact 'uplink'\n    allowed: "),
        ({"momentum": 0.9}, "parameter momentum is a bare 0.9\n    declare it"),
        ({"stochastic": 1}, "stochastic is 1\n    expected True or False"),
        ({"up": "contractiv"}, "up is 'contractiv'\n    expected Contractive, Unbiased, Any_ or None"),
        ({"own": 1}, "expected a name"),
        ({"auto": {"p": 0.5}, **RATE}, "expected functions of a Setting"),
        ({"operators": ["first"]}, "expected roles by parameter"),
        ({"vertical": True, "decentralised": True}, "vertical: contradicts decentralised"),
        ({"down": Role.CONTRACTIVE, "decentralised": True}, "down: contradicts"),
        ({"own": "sign", "up": Role.CONTRACTIVE}, "own: contradicts up"),
        ({"operators": {"frist": Role.ANY}, "first": Operator("natural")}, "did you mean first?"),
        ({"operators": {"first": Role.ANY}, "first": Text()}, "is no parameter that is a compressor"),
        ({"auto": {"q": abs}, **RATE}, "auto: 'q' is no parameter that takes"),
        (RATE, "takes the word auto, which has no rule"),
        ({"participation": "q", "p": Number(1.0)}, "participation: 'q' is no parameter"),
    ],
)  # fmt: skip
def test_a_wrong_fact_is_refused_and_the_nearest_named(given, says):
    said = refused("algorithm", **given)
    assert said.startswith("algorithm mine: ")
    assert says in said


def test_kinds_with_few_facts_refuse_others():
    assert "a metric states no facts" in refused("metric", deterministic=True)
    assert "allowed: title" in refused("compressor", deterministic=True)


def test_titles_read_from_sources_are_those_of_the_entries():
    for kind in ("algorithm", "compressor"):
        stated = {name: registry.lookup(kind, name).facts.title for name in registry.names(kind)}
        titles = {name: said for name, said in registry.declared(kind).items() if said}
        assert titles == {name: said for name, said in stated.items() if said}


def test_a_problem_starts_at_one_of_two_places():
    assert "expected 'zeros' or 'problem'" in refused("problem", x0="ones")
    registry.problem("mine", x0="problem")(type("Plugin", (), {}))
    assert registry.lookup("problem", "mine").facts.x0 == "problem"


def test_facts_are_typed_and_frozen():
    registry.algorithm("mine", up=Role.UNBIASED, auto={"p": abs}, **RATE)(type("Plugin", (), {}))
    result = registry.lookup("algorithm", "mine").facts
    assert result == AlgorithmFacts(up=Role.UNBIASED, auto={"p": abs})
    assert isinstance(result.up, Role)
    assert result.compresses("up")
    assert not result.compresses("down")
    with pytest.raises(FrozenInstanceError):
        result.up = None


@pytest.mark.parametrize("name", ["round", "gamma", "select"])
def test_a_parameter_may_not_hide_an_attribute_of_the_base(name):
    for parent in (Algorithm, Points):
        said = refused("algorithm", type("Plugin", (parent,), {}), **{name: Number(1.0)})
        assert f"parameter {name!r} hides " in said
        assert said.endswith("give it another name")


def test_a_parameter_may_not_hide_what_a_base_in_between_sets():
    class Between(Algorithm):
        opens = True
        weight: float = Number(1.0)
        steps: int = Integer(low=1)

    plugin = type("Plugin", (Between,), {})
    assert "hides Between.opens" in refused("algorithm", plugin, opens=Flag())
    registry.algorithm("mine", weight=Number(2.0))(plugin)
    assert registry.lookup("algorithm", "mine").params["weight"].default == 2.0
    assert Between.weight == 1.0
    assert not hasattr(Between, "steps"), "it is required"


def test_a_plug_in_file_is_told_the_line_of_its_wrong_fact(tmp_path):
    file = tmp_path / "p.py"
    file.write_text(
        "from raybench.plugins import Algorithm, algorithm\n\n\n"
        "@algorithm('mine', stocastic=True)\nclass Mine(Algorithm):\n    '''Mine.'''\n"
    )
    with pytest.raises(InputError) as caught:
        registry.load_plugin(file)
    (complaint,) = caught.value.complaints
    assert complaint.where == f"plug-in {file}, line 4: algorithm mine"
    assert complaint.fix.startswith("did you mean stochastic?")


# Parameters, declared once -----------------------------------------------------------------------------


def test_a_class_body_is_the_declaration_of_an_operator():
    @registry.compressor("mine")
    class Mine(Compressor):
        """Mine."""

        k: int | float | str = Count(help="how many")
        pool: float = Number(2.0, low=1)
        sizes: list[int] = List([3, 4])
        form: str = Choice("one", "two")

    params = registry.lookup("compressor", "mine").params
    assert list(params) == ["k", "pool", "sizes", "form"]
    assert params["k"].default is registry.REQUIRED
    assert (params["pool"].low, params["pool"].default) == (1, 2.0)
    made = Mine(5)
    assert (made.k, made.pool, made.sizes, made.form) == (5, 2.0, [3, 4], "one")
    assert Mine(k=1, pool=3.0) == Mine(1, 3.0) != made
    assert Mine(5).sizes is not made.sizes
    with pytest.raises(FrozenInstanceError):
        made.pool = 1.0
    with pytest.raises(TypeError, match="k"):
        Mine()


def test_a_signature_is_the_declaration_of_a_problem():
    @registry.problem("mine")
    def mine(
        dataset: str = Text(),
        clients: int = Integer(10, low=1),
        *,
        lambda_: float = Number(0.1, low=0),
        seed: int = Integer(low=0),
    ) -> tuple[Any, ...]:
        """Mine."""
        return dataset, clients, lambda_, seed

    params = registry.lookup("problem", "mine").params
    assert list(params) == ["dataset", "clients", "lambda", "seed"]
    assert mine("a9a", seed=1) == ("a9a", 10, 0.1, 1)
    for missing in ({"seed": 1}, {"dataset": "a9a"}):
        with pytest.raises(TypeError, match="required"):
            mine(**missing)

    @registry.problem("other")
    class Other:
        def __init__(self, d: int = Integer(), clients: int = Integer(4)) -> None:
            self.size = d * clients

    assert Other(3).size == 12
    assert list(registry.lookup("problem", "other").params) == ["d", "clients"]


def test_declarations_that_are_refused():
    def mine(clients: int = Integer(10), dataset: str = Text()) -> None:
        """Mine."""

    assert "dataset stands behind one with a default" in refused("problem", mine)
    untyped = type("Plugin", (Compressor,), {"k": Count()})
    assert "parameter k has no type" in refused("compressor", untyped)
    named_as_a_fact = type("Plugin", (), {"stochastic": Flag()})
    assert "'stochastic' is a fact" in refused("algorithm", named_as_a_fact)
