"""Keys of a sweep file: docs/sweep-file.md describes each as it is, and the ids of the shipped sweeps stay what they were."""

from __future__ import annotations

import hashlib
import re
import runpy
from pathlib import Path

import pytest

from raybench.core import yaml
from raybench.core.errors import InputError
from raybench.spec import cells, document, json_schema, keys, load, sections
from raybench.spec.cells import Group

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
    "stragglers": (360, "7542802796d961c0"),
    "vertical": (38, "47e3bd4342530978"),
}


@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_ids_of_shipped_sweeps_stay(name):
    result = load(ROOT / "sweeps" / f"{name}.yaml").cells
    text = "\n".join(f"{cell.id} {cell.group}" for cell in result)
    assert (len(result), hashlib.sha256(text.encode()).hexdigest()[:16]) == DIGESTS[name]


@pytest.mark.thorough
def test_shipped_sweeps_fit_the_schema():
    check = pytest.importorskip("jsonschema").Draft202012Validator(json_schema())
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


def test_the_first_example_is_the_grid_that_one_expects():
    sweep = load(FIRST)
    assert len(EXAMPLES) > 10
    assert len(sweep.cells) == 2 * 6 * 27 + (6 - 2) * 2 * 3 + 27
    assert sweep.notes == ("gd x 6 compressors: 162 cells merged to 27",)


def test_the_wrong_example_says_what_the_page_says():
    kinds = [kind for kind, _ in BLOCKS]
    at = kinds.index("yaml wrong")
    with pytest.raises(InputError) as caught:
        load(BLOCKS[at][1])
    assert BLOCKS[at + 1] == ("text", f"{caught.value}\n")


def test_the_tables_have_every_key_and_setting():
    """The site's tables name each key and each setting, and each default in them is what is taken where it is absent."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", BUILT, re.MULTILINE)
    wanted = {*document.axes(), *document.settings(), *keys.STEP, *cells.STOP_PARAMS}
    for key in document.settings().values():
        wanted |= set(key.kind.fields) if isinstance(key.kind, Group) else set()
    assert wanted <= {name for name, _ in rows}
    for name in (*document.every_key(), *sections.GRAPHS):
        assert re.search(rf"\b{name}\b", BUILT), name
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
