"""One declaration per key of a sweep file: what follows from it, and that ids stay what they were."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from spec_plugins import BASE, registered, wrong

from raybench.core.params import Choice, Integer, Number, record
from raybench.spec import cells, json_schema, load
from raybench.spec.cells import Group, Single
from raybench.spec.keys import Scalar, Table, key

SWEEPS = Path(__file__).parents[1] / "sweeps"

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
    result = load(SWEEPS / f"{name}.yaml").cells
    text = "\n".join(f"{cell.id} {cell.group}" for cell in result)
    assert (len(result), hashlib.sha256(text.encode()).hexdigest()[:16]) == DIGESTS[name]


# A made-up key: everything follows from its declaration --------------------------------------------


@dataclass(frozen=True)
class Wider(cells.Cell):
    """A cell with two keys more: a mapping of parameters, and a number."""

    phases: Mapping[str, Any] | None = key(
        Table({"steps": Integer(1, low=1), "optimizer": Choice("sgd", "adamw")}),
        "what clients do between messages",
        override=True,
    )
    lag: float = key(
        Scalar(Number(0.0, low=0)),
        "rounds that messages are late",
        heard=lambda problem, method: not method.decentralised,
    )

    __hash__ = cells.Cell.__hash__


@record
class Backup:
    """When a cell is saved."""

    every: float = Number(600.0, low=0, open_low=True, help="seconds between saves")


@dataclass(frozen=True)
class WiderSweep(cells.Sweep):
    """A sweep with two settings more."""

    backup: Backup = key(Group(Backup), "when a cell is saved")
    prune: str = key(Single(Choice("none", "halving")), "which cells end early")


@pytest.fixture
def before(monkeypatch):
    """The cell of the plain sweep before the new keys are there, which then are."""
    with registered():
        (cell,) = load(BASE).cells
        monkeypatch.setattr(cells, "Cell", Wider)
        monkeypatch.setattr(cells, "Sweep", WiderSweep)
        yield cell


new_keys = pytest.mark.usefixtures("before")


@new_keys
def test_a_new_key_is_read_and_multiplied_out():
    sweep = load(BASE + "phases: {steps: [1, 2..3], optimizer: adamw}\nlag: [0, 2]\nseed: 0..1\n")
    assert len(sweep.cells) == 3 * 2 * 2
    assert [(c.phases["steps"], c.lag, c.seed) for c in sweep.cells[:5]] == [
        (1, 0.0, 0), (1, 0.0, 1), (1, 2.0, 0), (1, 2.0, 1), (2, 0.0, 0),
    ]  # fmt: skip
    assert {c.phases["optimizer"] for c in sweep.cells} == {"adamw"}
    assert sweep.cells[0].config()["phases"] == {"steps": 1, "optimizer": "adamw"}
    assert load(sweep.text).cells == sweep.cells


def test_ids_without_the_new_key_stay_and_others_differ(before):
    (cell,) = load(BASE).cells
    assert (cell.id, cell.group) == (before.id, before.group)
    assert (cell.phases, cell.lag) == (None, 0.0)
    (same,) = load(BASE + "lag: 0\n").cells
    assert same.id == before.id
    ids = {c.id for c in load(BASE + "phases: [{steps: 2}, {steps: 3}]\n").cells}
    assert len(ids | {before.id}) == 3
    one, two = (
        load(BASE + f"phases: {text}\n").cells[0]
        for text in ("{steps: 2}", "{steps: 2.0, optimizer: sgd}")
    )
    assert one.id == two.id  # defaults written out
    assert one.group != before.group


@new_keys
def test_a_method_that_does_not_hear_it_ignores_it():
    text = BASE.replace("ef21", "[ef21, prox_lead]") + "lag: [0, 1, 2]\n"
    sweep = load(text)
    assert [(c.algorithm.name, c.lag) for c in sweep.cells] == [
        ("ef21", 0.0), ("ef21", 1.0), ("ef21", 2.0), ("prox_lead", None),
    ]  # fmt: skip
    assert "prox_lead x 3 lags: 3 cells merged to 1" in sweep.notes


@new_keys
def test_entries_cases_set_and_patterns_may_give_it():
    entry = BASE.replace("ef21", "[gd, {name: ef21, phases: {steps: 4}}]") + "phases: {steps: 2}\n"
    assert [c.phases["steps"] for c in load(entry).cells] == [2, 4]
    cases = BASE + "phases: {steps: 2}\ncases: [{phases: {optimizer: adamw}}, {lag: 1}]\n"
    assert [(c.phases["steps"], c.phases["optimizer"], c.lag) for c in load(cases).cells] == [
        (2, "adamw", 0.0), (2, "sgd", 1.0),
    ]  # fmt: skip
    (cell,) = load(cases, sets=["phases.steps=9", "cases=[]"]).cells
    assert cell.phases["steps"] == 9
    text = BASE + "phases: {steps: [1, 2]}\nlag: [0, 1]\n"
    assert len(load(text + "exclude: [{phases.steps: 2}]\n").cells) == 2
    assert len(load(text + "exclude: [{phases: {steps: 2, optimizer: sgd}, lag: 1}]\n").cells) == 3


@pytest.mark.parametrize(
    ("line", "where", "says"),
    [
        ("phasis: {steps: 2}", "phasis", "did you mean phases?"),
        ("phases: {setps: 2}", "phases.setps", "did you mean steps?"),
        ("phases: 3", "phases", "keys: steps, optimizer"),
        ("lag: -1", "lag", "a number >= 0"),
        ("cases: [{phasis: 1}]", "cases[0].phasis", "did you mean phases?"),
        ("backup: {evry: 1}", "backup.evry", "did you mean every?"),
        ("cases: [{prune: halving}]", "cases[0].prune", "move it to the top level"),
        ("prune: halvin", "prune", "did you mean halving?"),
    ],
)
@new_keys
def test_misspelt_it_is_refused(line, where, says):
    result = wrong(BASE + line + "\n")
    assert list(result) == [where]
    assert says in result[where]


def test_a_new_setting_holds_for_the_whole_sweep(before):
    sweep = load(BASE + "backup: {every: 60}\nprune: halving\n")
    assert (sweep.backup, sweep.prune) == (Backup(60.0), "halving")
    assert sweep.cells[0].id == before.id
    assert load(BASE).backup == Backup(600.0)


@new_keys
def test_the_schema_shows_it():
    schema = json_schema()
    assert schema["properties"]["lag"]["description"] == "rounds that messages are late"
    assert schema["properties"]["lag"]["default"] == 0.0
    assert schema["$defs"]["phases"]["anyOf"][0]["properties"]["steps"]["default"] == 1
    entries = schema["$defs"]["algorithm"]["anyOf"][0]["anyOf"][1:]  # all but bare names
    assert all("phases" in entry["properties"] for entry in entries)
    assert not any("lag" in entry["properties"] for entry in entries)
    case = schema["properties"]["cases"]["items"]["properties"]
    assert {"phases", "lag", "exclude"} <= set(case)
    assert not {"backup", "name", "cases"} & set(case)
    assert schema["properties"]["backup"]["properties"]["every"]["default"] == 600.0
    json.dumps(schema)
