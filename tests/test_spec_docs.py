"""docs/sweep-file.md: its examples load, its error is the one that is printed, no key is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raybench.core import yaml
from raybench.core.errors import InputError
from raybench.spec import cells, document, keys, load, sections
from raybench.spec.cells import Group

TEXT = (Path(__file__).parent.parent / "docs" / "sweep-file.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```([a-z ]*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
EXAMPLES = [body for kind, body in BLOCKS if kind == "yaml"]
FIRST = yaml.parse(EXAMPLES[0])


def laid_over_the_first(text: str) -> dict:
    """Return an example over the first one; its exclusions fit the first one's axes only."""
    base = {key: value for key, value in FIRST.items() if key != "exclude"}
    given = yaml.parse(text)
    if "problem" in given:  # an example of a problem stands for itself
        base.pop("problem")
    return document.overlay(base, given)


def test_there_are_examples():
    assert len(EXAMPLES) > 10


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_load_and_every_key_matters(text):
    sweep = load(laid_over_the_first(text))
    assert sweep.cells
    assert not [note for note in sweep.notes if "matches no cell" in note]


def test_the_first_example_is_the_grid_that_one_expects():
    sweep = load(FIRST)
    assert len(sweep.cells) == 2 * 6 * 27 + (6 - 2) * 2 * 3 + 27
    assert sweep.notes == ("gd x 6 compressors: 162 cells merged to 27",)


def test_the_wrong_example_says_what_the_page_says():
    kinds = [kind for kind, _ in BLOCKS]
    at = kinds.index("yaml wrong")
    with pytest.raises(InputError) as caught:
        load(BLOCKS[at][1])
    assert BLOCKS[at + 1] == ("text", f"{caught.value}\n")


def groups() -> dict[str, Group]:
    """Return the keys that are mappings of settings."""
    settings = document.settings().items()
    return {name: key.kind for name, key in settings if isinstance(key.kind, Group)}


def test_every_key_is_described():
    names = [*document.every_key(), *keys.STEP, *cells.STOP_PARAMS, *sections.GRAPHS]
    names += [name for group in groups().values() for name in group.fields]
    missing = [name for name in names if not re.search(rf"\b{name}\b", TEXT)]
    assert not missing


def test_defaults_on_the_page_are_the_defaults():
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", TEXT, re.MULTILINE))
    assert set(rows) == {
        *("accounting", "resources", "evaluate", "checkpoint", "plugins", "search", "prune")
    }
    plain = {key: value for key, value in FIRST.items() if key not in ("record", "exclude")}
    written = {key: yaml.parse(text) for key, text in rows.items()}
    one, two = load(plain), load({**plain, **written})
    for key in rows:
        assert getattr(one, key) == getattr(two, key)
    for key, group in groups().items():
        if key in written:
            assert set(written[key]) == set(group.fields)
