"""docs/sweep-file.md: its examples load, its error is the one that is printed, no key is missing."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from raybench.core import yaml
from raybench.core.errors import InputError
from raybench.spec import cells, document, keys, load, sections
from raybench.spec.cells import Group

DOCS = Path(__file__).parent.parent / "docs"
TEXT = (DOCS / "sweep-file.md").read_text(encoding="utf-8")
BUILT = runpy.run_path(str(DOCS / "reference_pages.py"))["filled"](TEXT)
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
    missing = [name for name in names if not re.search(rf"\b{name}\b", BUILT)]
    assert not missing


def test_the_tables_have_every_key_and_setting():
    """The site's tables name each key and each setting, and each default in them is what is taken where it is absent."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", BUILT, re.MULTILINE)
    wanted = [*document.axes(), *document.settings(), *keys.STEP, *cells.STOP_PARAMS]
    wanted += [name for group in groups().values() for name in group.fields]
    assert not set(wanted) - {name for name, _ in rows}
    assert "<!-- generated" not in BUILT
    assert all(
        len(re.findall(r"(?<!\\)\|", line)) == 5
        for line in BUILT.splitlines()
        if line.startswith("| `step")
    )
    plain = {key: value for key, value in FIRST.items() if key not in ("record", "exclude")}
    one = load(plain)
    told = BUILT.split("## How it is run")[1].split("Settings of")
    for key in ("accounting", "attempts", "allow_unproven"):
        text = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", told[0], re.MULTILINE))[key]
        assert getattr(one, key) == getattr(load({**plain, key: yaml.parse(text)}), key)
    for part in told[1:]:
        key = re.findall(r"`(\w+)`", part)[0]
        table = part.split("\n\n")[1]
        written = {
            name: yaml.parse(text.replace("\\", ""))
            for name, text in re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.M)
        }
        written = {
            name: value for name, value in written.items() if value != "none" or key == "prune"
        }
        assert getattr(one, key) == getattr(load({**plain, key: written}), key)
