"""docs/port.md: its files are saved as they stand there, and every command on it is run and prints the results shown.

The first sweep gets fewer rounds than on the page: the best steps arrive within 100, the others only take time.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_kit import cli, own_plugins

pytestmark = pytest.mark.thorough

PAGE = (Path(__file__).parent.parent / "docs" / "port.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FIRST_SWEEP = "raybench sweep port.yaml --inline"


def results(text: str) -> list[list[str]]:
    """Return the rows of the tables in what was printed, as words, without how far below the target cells ended."""
    return [
        line.split("  ")[0:1] + line.split()[-12:-2]
        for line in text.splitlines()
        if "bit  " in line
    ]


def test_the_commands_of_the_page_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (source,) = [body for kind, body in BLOCKS if kind == "python"]
    (sweep,) = [body for kind, body in BLOCKS if kind == "yaml"]
    Path("my_method.py").write_text(source)
    Path("port.yaml").write_text(sweep)
    commands, shown = 0, 0
    with own_plugins():
        for i, (kind, body) in enumerate(BLOCKS):
            if kind != "sh":
                continue
            for line in body.splitlines():
                fewer = ("--set", "rounds=500") if line == FIRST_SWEEP else ()
                said = cli(*line.split()[1:], *fewer)
                assert said.code == 0, (line, said.out, said.err)
                commands += 1
            if BLOCKS[i + 1 : i + 2] and BLOCKS[i + 1][0] == "text":
                expected = BLOCKS[i + 1][1]
                assert results(said.out) == results(expected)
                if "checks passed" in expected:
                    assert said.out == expected
                shown += 1
    assert FIRST_SWEEP in PAGE
    assert (commands, shown) == (7, 3)
    assert Path("results/port/figures/grad_norm_sq_vs_bits_up.pdf").is_file()
    assert Path("theory/grad_norm_sq_vs_bits_up.pdf").is_file()
    assert len(results(PAGE)) == 6
