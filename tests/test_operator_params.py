"""Parameters that are compressors themselves: how they are written, spread, named and checked."""

from __future__ import annotations

import pytest
from cli_kit import own_plugins
from hypothesis import given
from hypothesis import strategies as st
from spec_kit import BASE, wrong

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.registry import Choice, Count, Flag, Integer, List, Number, Operator, Text
from raybench.spec import Section, load, sections
from raybench.spec.sections import default


@pytest.fixture(autouse=True, scope="module")
def _dummies():
    with own_plugins():

        def plugin() -> type:
            return type("Plugin", (), {"__doc__": "A plug-in."})

        registry.compressor("any_k", k=Count("1%"), mask=Choice("independent", "common"))(plugin())
        two = {"first": Operator("top_k:k=25%"), "then": Operator()}
        registry.compressor("two_parts", **two)(plugin())
        registry.compressor(
            "all_sorts",
            count=Count("10%", words=("auto",)),
            number=Number(2.0, low=1, words=("inf",), tags={"times": Number(low=0)}),
            whole=Integer(3),
            way=Choice("here", "there"),
            flag=Flag(),
            text=Text("word"),
            sizes=List("auto", words=("auto",)),
            maybe=Operator(None),
        )(plugin())
        yield


def sweep_of(value):
    """Return a sweep of an operator of which ``first`` is this raw value."""
    operator = {"name": "two_parts", "first": value, "then": "natural"}
    return {"problem": "quadratic", "algorithm": "ef21", "compressor": operator}


def operators(value):
    """Return the canonical values of ``first`` for a raw value of it."""
    return [cell.compressor.params["first"] for cell in load(sweep_of(value)).cells]


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        ("top_k:k=5", "top_k:k=5"),
        ("(top_k: k = 5.0)", "top_k:k=5"),
        ({"name": "top_k", "k": 5}, "top_k:k=5"),
        ({"name": "top_k:k=1", "k": 5}, "top_k:k=5"),
        ("top_k:k=0.01", "top_k:k=1%"),
        ("any_k:mask=common,k=2", "any_k:k=2,mask=common"),
        ("any_k:k=1%,mask=independent", "any_k"),
        ("natural", "natural"),
        ("((natural))", "natural"),
        ("two_parts:then=(top_k:k=1)", "two_parts:then=(top_k:k=1)"),
        (
            {"name": "two_parts", "first": "top_k:k=0.25", "then": {"name": "any_k", "k": "2%"}},
            "two_parts:then=(any_k:k=2%)",
        ),
        (
            "two_parts:then=(two_parts:then=(any_k:mask=common,k=3),first=natural)",
            "two_parts:then=(two_parts:first=natural,then=(any_k:k=3,mask=common))",
        ),
        ("all_sorts:number=3,text='a, (b'", 'all_sorts:number=3,text="a, (b"'),
        (
            "all_sorts:number={times: 2},sizes=[[1, 2.0]]",
            "all_sorts:number={times: 2},sizes=[[1,2]]",
        ),
        ("all_sorts:count=auto,flag=true,way=there", "all_sorts:count=auto,flag=true,way=there"),
        ("all_sorts:maybe=null,number=2,sizes=auto,text=word", "all_sorts"),
        ("all_sorts:maybe=natural", "all_sorts:maybe=natural"),
        ("all_sorts:number=inf", "all_sorts:number=inf"),
        ("all_sorts:text='%'", 'all_sorts:text="%"'),
        ("all_sorts:text='1.0'", 'all_sorts:text="1.0"'),
    ],
)
def test_one_canonical_text(value, canonical):
    assert operators(value) == [canonical]
    assert operators(canonical) == [canonical]


@pytest.mark.parametrize(
    ("value", "many"),
    [
        (["natural", "top_k:k=1"], ["natural", "top_k:k=1"]),
        ({"name": "top_k", "k": [1, 5]}, ["top_k:k=1", "top_k:k=5"]),
        ("top_k:k=1..3", ["top_k:k=1", "top_k:k=2", "top_k:k=3"]),
        ("top_k:k=[1,5]", ["top_k:k=1", "top_k:k=5"]),
        ({"name": ["top_k", "any_k"], "k": 2}, ["top_k:k=2", "any_k:k=2"]),
        (
            "two_parts:then=[(any_k:k=2,mask=common),natural]",
            ["two_parts:then=(any_k:k=2,mask=common)", "two_parts:then=natural"],
        ),
        (
            {"name": "two_parts", "first": "natural", "then": {"name": "top_k", "k": "2^0..2^1"}},
            [
                "two_parts:first=natural,then=(top_k:k=1)",
                "two_parts:first=natural,then=(top_k:k=2)",
            ],
        ),
        (["top_k:k=1", {"name": "top_k", "k": 1.0}], ["top_k:k=1"]),
    ],
)
def test_axes_inside_spread(value, many):
    assert operators(value) == many


@pytest.mark.parametrize(
    ("value", "where", "said"),
    [
        ("topk:k=1", "compressor.first", "did you mean top_k?"),
        ({"name": "topk"}, "compressor.first.name", "did you mean top_k?"),
        ({"name": "top_k", "kk": 1}, "compressor.first.kk", "did you mean k?"),
        ({"name": "top_k", "k": 0}, "compressor.first.k", "out of range"),
        (["natural", "top_k:k=zero"], "compressor.first[1].k", "expected"),
        ("top_k", "compressor.first.k", "required"),
        (5, "compressor.first", "expected a compressor"),
        (None, "compressor.first", "no value"),
        ("none", "compressor.first", "unknown compressor"),
        ([["natural"]], "compressor.first[0]", "a list inside a list"),
        ([], "compressor.first", "empty list"),
        ("two_parts:then=(top_k:k=-1)", "compressor.first.then.k", "out of range"),
        ("two_parts:then=(top_k:k=1", "compressor.first.then", "do not match"),
        ("(top_k:k=1),then=x", "compressor.first", "do not match"),
        ("two_parts:then=(top_k:k=1)x", "compressor.first.then", "do not match"),
        ("two_parts:then=" * 300 + "natural", "compressor.first", "too deeply"),
        ("(" * 300 + ")" * 300, "compressor.first", "at most"),
        ({"name": "top_k:k", "k": 1}, "compressor.first", "not key=value"),
    ],
)
def test_errors_name_the_key_path(value, where, said):
    complaints = wrong(sweep_of(value))
    assert any(at.startswith(where) and said in text for at, text in complaints.items()), complaints


def test_overrides_and_exclusions_reach_inside():
    parts = "{name: two_parts, first: 'top_k:k=1', then: natural}"
    text = BASE.replace("{name: top_k, k: 1}", parts)
    (cell,) = load(text, sets=["compressor.first.k=7"]).cells
    assert cell.compressor.params["first"] == "top_k:k=7"
    text += "exclude: [{compressor.first: {name: top_k, k: [1, 2]}}]"
    kept = load(text, sets=["compressor.first.k=1..3"])
    assert [c.compressor.params["first"] for c in kept.cells] == ["top_k:k=3"]


def test_an_operator_may_be_optional_or_required():
    assert operators("all_sorts") == ["all_sorts"]
    assert default(registry.lookup("compressor", "all_sorts").params["maybe"]) is None
    with pytest.raises(InputError, match="then: required"):
        sections.section("compressor", "two_parts")


def test_a_new_default_is_seen_at_once():
    entry = registry.lookup("compressor", "any_k")
    assert operators("any_k:k=3") == ["any_k:k=3"]
    registry.compressor("any_k", k=Count(3))(type("Plugin", (), {"__doc__": "Another."}))
    try:
        assert operators("any_k:k=3") == ["any_k"]
    finally:
        registry.compressor("any_k", **entry.params)(entry.target)


OPERATORS = st.recursive(
    st.builds(
        lambda **params: Section("all_sorts", params),
        count=st.sampled_from(["auto", 1, 7, "1%", "12.5%"]),
        number=st.floats(1, 1e9)
        | st.just("inf")
        | st.builds(lambda x: {"times": x}, st.floats(0, 5)),
        whole=st.integers(-(2**40), 2**40),
        way=st.sampled_from(["here", "there"]),
        flag=st.booleans(),
        text=st.text(min_size=1).filter(lambda t: t.strip()),
        sizes=st.just("auto") | st.lists(st.integers() | st.text() | st.none(), max_size=3),
        maybe=st.none(),
    ),
    lambda inner: st.builds(
        lambda a, b: Section("two_parts", {"first": sections.spell(a), "then": sections.spell(b)}),
        inner,
        inner,
    ),
    max_leaves=4,
)


@pytest.mark.thorough
@given(OPERATORS)
def test_the_canonical_text_reads_back(section):
    text = sections.spell(section)
    assert sections.section("compressor", str(text)) == section  # parsed, not remembered
    assert operators(str(text)) == [text]
