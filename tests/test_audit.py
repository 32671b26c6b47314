"""An audit: every reading is what the table says under it, and what turns an order round is told truly."""

from __future__ import annotations

import numpy as np
import pandas as pd
from cli_kit import cli
from hypothesis import given
from hypothesis import strategies as st

from raybench.analysis import closing_table
from raybench.analysis.rankings import FACTORS, audit, explained
from raybench.report.charts import shares
from raybench.report.rankings import audit_lines as told


def test_readings_are_those_of_the_table(swept):
    found = audit(swept)
    own = found.readings[found.readings["own"]].set_index("method")["cost"]
    want = closing_table(swept).set_index("method")["bits_to_target"].dropna()
    assert own.to_dict() == want.to_dict()
    some = [("32", "none", "free"), ("dtype", "explicit", "counted"), ("32", "bitmask", "counted")]
    for values, indices, first in some:
        how = {
            "value_bits": 32 if values == "32" else "dtype",
            "index_bits": indices,
            "count_init": first == "counted",
        }
        want = closing_table(swept, how).set_index("method")["bits_to_target"].dropna()
        part = found.readings.query("values == @values and indices == @indices and first == @first")
        part = part.query("side == 'up' and steps == 'tuned'").set_index("method")["cost"]
        assert part.to_dict() == want.to_dict()


def test_pairs_count_what_the_readings_say(swept):
    found = audit(swept)
    costs = found.readings.set_index([*FACTORS, "method"])["cost"].unstack()
    assert len(found.pairs) > 2
    for row in found.pairs.itertuples():
        one, other = costs[row.better], costs[row.worse]
        assert row.flipped == int((other < one).sum())
        assert row.decided == int(((other < one) | (one < other)).sum())
        assert row.cost_better < row.cost_worse


def test_what_turns_an_order_round_is_found():
    table = pd.DataFrame(
        [(v, i, s) for v in ("dtype", "32") for i in ("auto", "explicit", "none") for s in ("up", "up + down")],
        columns=["values", "indices", "side"],
    )  # fmt: skip
    explicit, both, wide = (
        table["indices"] == "explicit",
        table["side"] == "up + down",
        table["values"] == "dtype",
    )
    said = {
        "indices = explicit": explicit,
        "indices = explicit or none": table["indices"] != "auto",
        "values = dtype and indices = explicit": wide & explicit,
        "indices = explicit, or values = dtype and side = up + down": explicit | (wide & both),
    }
    for text, hit in said.items():
        assert explained(table, hit.to_numpy()) == text
    assert explained(table, np.zeros(len(table), bool)) == ""
    odd = explained(table, (wide ^ both ^ explicit).to_numpy())
    assert odd.count(", or ") > 2, "no short rule says it"


@given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_rule_holds_exactly_where_it_says(hits):
    table = pd.DataFrame(
        [(a, b, c) for a in "xy" for b in "uv" for c in "pq"], columns=["a", "b", "c"]
    )
    said = explained(table, np.array(hits))
    assert bool(said) == any(hits)
    if not said or all(hits):
        return
    holds = np.zeros(len(table), bool)
    for term in said.split(", or "):
        parts = [part.split(" = ") for part in term.split(" and ")]
        own = [table[column].isin(values.split(" or ")) for column, values in parts]
        holds |= np.logical_and.reduce(own)
    assert holds.tolist() == hits


def test_it_is_told_and_drawn(swept, tmp_path):
    said = cli("audit", swept, "--out", tmp_path / "figures")
    assert said.code == 0, said.err
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == [
        "audit.csv", "audit.pdf", "audit.png", "audit_pairs.csv"
    ]  # fmt: skip
    found = audit(swept)
    assert set(told(found)[:-1]) <= set(said.out.splitlines())
    moved = found.pairs[found.pairs["flipped"] > 0]
    assert sum(" unless " in line for line in told(found)) == min(12, len(moved))
    count = len(found.readings.drop_duplicates([*FACTORS]))
    rest = found.pairs[["decided", "absent", "missed", "equal"]].sum(axis=1)
    assert (rest == count).all()
    np.testing.assert_allclose(shares(found.readings).sum(axis=1), 1.0)


def test_readings_that_tell_nothing_are_counted_by_their_reason(tmp_path):
    text = """
name: b
problem: {name: quadratic, dim: 12, clients: 4}
algorithm:
  - {name: gd, step_size: {theory: [1, 2]}}
  - {name: ef21, compressor: {name: top_k, k: 3}, step_size: {theory: [2, 4]}}
rounds: 20
"""
    (tmp_path / "b.yaml").write_text(text)
    assert cli("sweep", tmp_path / "b.yaml", "--out", tmp_path / "out", "--inline").code == 0
    found = audit(tmp_path / "out")
    count = len(found.readings.drop_duplicates([*FACTORS]))
    (row,) = found.pairs.itertuples()
    assert (row.absent, row.decided) == (count // 3, count - count // 3)  # ef21 has no step 1
    lines = told(found)
    assert any("one of them has no such step" in line for line in lines)
    if row.flipped:
        assert any(
            f"of {row.decided} readings; in {row.absent} more one has no such step" in n
            for n in lines
        )
