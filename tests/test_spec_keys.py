"""Keys of a sweep file: as docs/sweep-file.md has them, ids of shipped sweeps; YAML, ranges, single values."""

from __future__ import annotations

import hashlib
import math
import re
import runpy
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.core import yaml
from raybench.core.errors import InputError
from raybench.core.registry import Choice, Count, Flag, Integer, List, Number, Text
from raybench.spec import cells, document, json_schema, keys, load, sections, values
from raybench.spec.cells import SettingsGroup
from raybench.spec.sections import options

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "sweep-file.md").read_text(encoding="utf-8")
BUILT = runpy.run_path(str(ROOT / "docs" / "reference_pages.py"))["filled"](TEXT)
BLOCKS = re.findall(r"^```([a-z ]*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
EXAMPLES = [body for kind, body in BLOCKS if kind == "yaml"]
FIRST = yaml.parse(EXAMPLES[0])


# The ids of the shipped sweeps, as they were in version 0.1.0 (SHA-256 over "id group" of every cell in
# grid order, 16 digits). Copied from a run on purpose: ids are a contract, and results of old sweeps are
# found again by them alone. Whoever changes a shipped file, or the version of a plug-in it uses, records
# its digest anew; a digest that changes otherwise means that old results would be computed again.
DIGESTS = {
    "accelerated": (462, "98fce5dc119583d7"),
    "adamw": (66, "0d537914b545cd03"),
    "mnist_dgc_table": (44, "af0280313f48d4aa"),
    "autoencoder": (36, "48c649adc3176689"),
    "resnet_marina": (5, "e768d1185e635209"),
    "byzantine": (60, "f981812e1e0b8534"),
    "clag_heatmap": (900, "e4a1eedfa1323219"),
    "dasha": (162, "30909ce452268ea4"),
    "ef21_a9a": (33, "49900e0d2b0e98f1"),
    "ef21_family": (264, "8333834f09fe5075"),
    "grid480": (480, "b3df5eca3e202db8"),
    "lead": (30, "4ccc7be32727239b"),
    "lm_10m": (6, "bbae974f9e2c3571"),
    "marina_k": (324, "2836208423b24ef6"),
    "mnist_dgc": (6, "bee69471571613ba"),
    "multimodal": (49, "bf9b06d05c2bbf74"),
    "network": (6, "9d01890eabf90ba2"),
    "permk": (60, "ad9a9452eb565d5a"),
    "power_sgd": (126, "adc5497a68fa344a"),
    "quickstart": (351, "1425a3c9e0bada64"),
    "ring": (48, "5ca692e881214be2"),
    "shakespeare": (8, "7176c06627c4dd09"),
    "stragglers": (600, "30f0d7593ea08a7d"),
    "vertical": (38, "47e3bd4342530978"),
}


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_ids_of_shipped_sweeps_stay(name):
    result = load(ROOT / "sweeps" / f"{name}.yaml").cells
    text = "\n".join(f"{cell.id} {cell.group}" for cell in result)
    assert (len(result), hashlib.sha256(text.encode()).hexdigest()[:16]) == DIGESTS[name]


@pytest.mark.thorough
def test_the_schema_is_one_and_shipped_sweeps_fit_it():
    check = pytest.importorskip("jsonschema").Draft202012Validator(json_schema())
    check.check_schema(check.schema)
    for name in DIGESTS:
        check.validate(yaml.parse((ROOT / "sweeps" / f"{name}.yaml").read_text()))


# The page ----------------------------------------------------------------------------------------


def laid_over_the_first(text: str) -> dict:
    """Return an example over the first one; its exclusions fit the first one's axes only."""
    base = {key: value for key, value in FIRST.items() if key != "exclude"}
    given = yaml.parse(text)
    if "problem" in given:  # an example of a problem stands for itself
        base.pop("problem")
    return document.overlay(base, given)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_load_and_every_key_matters(text):
    sweep = load(laid_over_the_first(text))
    assert sweep.cells
    assert not [note for note in sweep.notes if "matches no cell" in note]


def test_the_wrong_example_says_what_the_page_says():
    kinds = [kind for kind, _ in BLOCKS]
    at = kinds.index("yaml wrong")
    with pytest.raises(InputError) as caught:
        load(BLOCKS[at][1])
    assert BLOCKS[at + 1] == ("text", f"{caught.value}\n")


def test_the_tables_have_every_key_and_setting():
    """The site's tables name each key and each setting, and each default in them is what is taken where it is absent."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", BUILT, re.MULTILINE)
    wanted = {*document.AXES, *document.SETTINGS, *keys.STEP, *cells.STOP_PARAMS}
    for key in document.SETTINGS.values():
        wanted |= set(key.kind.fields) if isinstance(key.kind, SettingsGroup) else set()
    assert wanted <= {name for name, _ in rows}
    for name in (*document.EVERY_KEY, *sections.GRAPHS):
        assert re.search(rf"\b{name}\b", BUILT), name
    assert "<!-- generated" not in BUILT
    for line in re.findall(r"^\| `step.*", BUILT, re.MULTILINE):
        assert len(re.findall(r"(?<!\\)\|", line)) == 5
    plain = {key: value for key, value in FIRST.items() if key not in ("record", "exclude")}
    one = load(plain)
    told = BUILT.split("## How it is run")[1].split("Settings of")
    for key in ("accounting", "attempts", "allow_unproven"):
        text = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", told[0], re.MULTILINE))[key]
        assert getattr(one, key) == getattr(load({**plain, key: yaml.parse(text)}), key)
    for part in told[1:]:
        key = re.findall(r"`(\w+)`", part)[0]
        table = re.findall(r"^\| `(\w+)` \| (.*?) \|", part.split("\n\n")[1], re.MULTILINE)
        written = {name: yaml.parse(text.replace("\\", "")) for name, text in table}
        written = {k: v for k, v in written.items() if v != "none" or key == "prune"}
        assert getattr(one, key) == getattr(load({**plain, key: written}), key)


# YAML as its 1.2 core schema has it ---------------------------------------------------------------


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{j}: &a{j} [{', '.join([f'*a{j - 1}'] * 9)}]\n" for j in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-14", 1e-14),
        ("-.5", -0.5),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("2001-12-14", "2001-12-14"),
        ("no", "no"),
        ("true", True),
        ("", None),
        ("2^0..2^8", "2^0..2^8"),
        ("-", [None]),
        ("'1e-14'", "1e-14"),
        (".inf", math.inf),
        ("{a: [1, 2.0, x]}", {"a": [1, 2.0, "x"]}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
    ],
)
def test_core_schema(text, value):
    got = yaml.parse(text)
    assert got == value
    assert type(got) is type(value)
    assert math.isnan(yaml.parse(".nan"))


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml, line 3, column 1", "duplicate key 'a'"),
        ("a:\n\t- 1\n", "f.yaml, line 2, column 1", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "f.yaml, line 2", "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "f.yaml, line 1", "not valid YAML"),
        ("1: 2\n", "f.yaml", "key 1 is not text"),
        ("a: *x\n", "f.yaml, line 1", "undefined alias"),
        ("a: &a [*a]\n", "", "too large or refers to itself"),
        (BOMB, "", "too large or refers to itself"),
        ("[" * 100_000, "f.yaml", "nested too deeply"),
        ("".join(" " * j + "a:\n" for j in range(1500)), "f.yaml", "nested too deeply"),
        ("a: " + "x" * 5_000_000, "f.yaml", "letters"),
        ("a: " + "9" * 100_000, "f.yaml", "not valid YAML"),
    ],
    ids=lambda text: str(text)[:40],
)
def test_bad_text(text, where, says):
    with pytest.raises(InputError) as caught:
        yaml.parse(text, "f.yaml")
    complaint = caught.value.complaints[0]
    assert complaint.where.startswith(where)
    assert says in complaint.what
    assert "ruamel" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert str(caught.value).count("\n") < 4


@settings(max_examples=150, deadline=None)
@given(
    st.text(
        alphabet=st.sampled_from(list("ab01 -:{}[],&*!|>'\"%@`#\n\t?.~^e_\x00\ud800é")), max_size=40
    )
)
def test_any_text_parses_or_is_an_input_error(text):
    try:
        value = yaml.parse(text)
    except InputError:
        return
    assert yaml.plain(value) == value or value != value or "nan" in repr(value)


# ------------------------------------------------------------------ ranges


@given(st.integers(2, 12), st.integers(-30, 30), st.integers(0, 20))
def test_ranges(base, first, length):
    numbers = range(first, first + length + 1)
    assert values.parse_range(f"{first}..{first + length}") == list(numbers)
    powers = values.parse_range(f"{base}^{first}..{base}^{first + length}")
    assert powers == [base**n if n >= 0 else float(Decimal(base) ** n) for n in numbers]
    assert [isinstance(power, int) for power in powers] == [n >= 0 for n in numbers]
    assert values.parse_range(f"{base}^{first}") == powers[:1]


@pytest.mark.parametrize(
    "text", ["3..2", "2^3..2^1", "2^1..3^2", "0..99999999", "2^99999", "1^3", "0^2"]
)
def test_bad_ranges(text):
    with pytest.raises(ValueError):
        values.parse_range(text)


# ------------------------------------------------------------------ values


def typed(param, value):
    result = []
    out = options(param, value, "x", result)
    return [str(c) for c in result] or out


@pytest.mark.parametrize(
    ("param", "value", "out"),
    [
        (Number(), 1, [1.0]),
        (Number(), [1, "2^-1..2^1"], [1.0, 0.5, 1.0, 2.0]),
        (Number(low=0, high=1), "25%", [0.25]),
        (Number(words=("auto",)), ["auto", 3], ["auto", 3.0]),
        (Number(0.1, tags={"times_L": Number()}), {"times_L": [1, 2]}, [{"times_L": 1.0}, {"times_L": 2.0}]),
        (Number(), -0.0, [0.0]),
        (Integer(), 3.0, [3]),
        (Integer(), "0..2", [0, 1, 2]),
        (Integer(None), [None, 1], [None, 1]),
        (Count(), ["10%", 0.1, "10.0%", 0.125, "100%"], ["10%", "10%", "10%", "12.5%", "100%"]),
        (Count(), ["10%", 1.0], ["10%", 1]),
        (Count(), 1e-9, ["0.0000001%"]),
        (Choice("a", "2"), ["a", 2], ["a", "2"]),
        (Flag(), [True, False], [True, False]),
        (Text(), "0..2", ["0..2"]),
        (List(), [[1.0, "a"], [2]], [[1, "a"], [2]]),
        (List(), [[]], [[]]),
    ],
)  # fmt: skip
def test_typed_values(param, value, out):
    got = typed(param, value)
    assert got == out
    assert list(map(repr, got)) == list(map(repr, out))


@pytest.mark.parametrize(
    ("param", "value", "says"),
    [
        (Number(), "1e-14", "expected a number, not '1e-14'"),
        (Number(), math.nan, "not a finite number"),
        (Number(low=0, high=1, open_low=True), 0, "> 0 and <= 1"),
        (Number(words=("auto",)), "atuo", "did you mean auto?"),
        (Count(), [0.01, 0.1, 1.0], "mixes shares with 1, which is one alone"),
        (Count(), [1, 0.5], "write 100% for all"),
        (Integer(), 1.5, "expected an integer"),
        (Integer(), "2^-1..2^1", "expected an integer, not 0.5"),
        (Choice("aa", "bb"), None, "no value"),
        (Flag(), "yes", "true or false"),
        (Text(), " ", "empty"),
        (List(), [1, 2], "write x: [[1, 2]]"),
        (List(), [[[1]]], "neither number nor text"),
        (List(), [], "no cells"),
    ],
)
def test_wrong_values(param, value, says):
    (message,) = typed(param, value)
    assert says in message
