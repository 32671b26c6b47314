"""Plug-ins: the documented examples run and conform, files and entry points register, ids follow code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cli_kit
import pandas as pd
import pytest
from cli_kit import call, cli
from tiers import first_of_each

import raybench
from raybench import plugins, spec
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.problems.networks.build import _of_user
from raybench.runtime.callbacks import named_callbacks

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "plugins.md"
here = cli_kit.here
pytestmark = pytest.mark.usefixtures("here")
FILES = {
    "rand_block.py": "compressor",
    "byte_top_k.py": "compressor",
    "heavy_ball.py": "algorithm",
    "pseudo_huber.py": "problem",
    "largest.py": "metric",
}


def test_page_shows_the_examples_as_they_are():
    page = PAGE.read_text()
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", page, re.DOTALL)
    shown = [block for block in blocks if block.startswith(('"""', "#"))]
    assert shown == [(EXAMPLES / name).read_text() for name in ("rand_block.py", "heavy_ball.py")]
    assert all(f"examples/{name}" in page for name in (*FILES, "plugin_sweep.yaml"))


@pytest.mark.parametrize(("name", "kind"), first_of_each(FILES.items()))
def test_examples_conform(name, kind):
    said = cli("check", EXAMPLES / name)
    assert said.code == 0, said.out
    (entry,) = registry.load_plugin(EXAMPLES / name)
    lines = said.out.splitlines()
    assert lines[0] == f"{kind} {entry.name}"
    assert all(line.startswith("  ok  ") for line in lines[1:-1])
    assert re.match(r"\d+ checks passed", lines[-1])


@pytest.mark.thorough
def test_example_sweep_runs(here):
    assert raybench.sweep(EXAMPLES / "plugin_sweep.yaml", inline=True).exit_code == 0
    cells = pd.read_parquet(here / "results" / "plugin_sweep" / "cells")
    assert set(cells["status"]) == {"ok"}
    best = cells.loc[cells["algorithm"] != "gd"].groupby("algorithm")["grad_norm_sq"].min()
    assert (best < 1e-9).all()  # they optimise, all of them


def test_all_a_plugin_needs_is_in_one_place():
    kinds = {"Choice", "Count", "Flag", "Integer", "List", "Number", "Operator", "Text"}
    assert kinds < set(plugins.__all__)
    assert all(hasattr(plugins, name) for name in plugins.__all__)
    assert len(plugins.__all__) == len(set(plugins.__all__))


# Faults are found ----------------------------------------------------------------------------------


FAULTS = [
    ("largest", "x.abs().amax(-1)", "x.abs().amax()", "largest: "),
    ("rand_block", "scale=d / k", "scale=1.0", r"rand_block:k=25%: unbiased: \S"),
    ("heavy_ball", "wire.up(m).mean()", "m.decode().mean(1)", ".*: ranks change nothing"),
    ("pseudo_huber", "noise = torch", "noise = tolch", ".*: can be made: NameError"),
]
"""Faults in examples, and what ``check`` says of them: file, text, text in its place, finding."""


@pytest.mark.parametrize(("name", "old", "new", "finding"), first_of_each(FAULTS))
def test_check_finds(here, name, old, new, finding):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert old in text
    (here / "p.py").write_text(text.replace(old, new))
    said = cli("check", "p.py")
    assert said.code == 1
    assert re.search(r"^\d+ checks?, \d+ failed$", said.out, re.M)
    assert re.search(rf"^  FAIL  {finding}", said.out, re.M)


# What registers, and what ids depend on ------------------------------------------------------------


def test_ids_follow_the_file(here, monkeypatch):
    config = {
        "problem": "quadratic",
        "algorithm": "marina",
        "compressor": [{"name": "rand_block", "k": 3}, {"name": "rand_k", "k": 3}],
    }

    def ids(change: str = "") -> list[str]:
        (here / "p.py").write_text((EXAMPLES / "rand_block.py").read_text() + change)
        return [cell.id for cell in spec.load(config, plugins=["p.py"]).cells]

    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    first, again, other = ids(), ids(), ids("# edited\n")
    assert [path.name for path in here.iterdir()] == ["p.py"], "nothing is left beside it"
    assert first == again
    assert first[0] != other[0]  # its own code changed
    assert first[1] == other[1]  # that of rand_k did not


def test_a_file_of_another_kind_is_no_plugin(here):
    (here / "notes.md").write_text("# notes\n")
    with pytest.raises(InputError, match="not a Python file"):
        registry.load_plugin("notes.md")


def _callback_size():
    return named_callbacks(["mine.py:Mine"])[0][1].size


def _network_size():
    return _of_user("mine.py:mine", ()).model.out_features


READERS = {
    "class Mine(raybench.plugins.Callback):\n    size = SIZE\n": _callback_size,
    "def mine():\n    return torch.nn.Linear(3, SIZE)\n": _network_size,
}
"""Files of users that are run on import, and what reads SIZE from them."""


@pytest.mark.parametrize("text", READERS, ids=["callback", "network"])
def test_nothing_is_left_beside_a_file_nor_is_an_older_text_of_it_run(here, monkeypatch, text):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = here / "mine.py"
    for size in (4, 5):  # of one length, within one second: bytecode would be taken for current
        file.write_text(f"import torch, raybench.plugins\n{text.replace('SIZE', str(size))}")
        assert READERS[text]() == size
    assert [path.name for path in here.iterdir()] == ["mine.py"]
    assert not sys.dont_write_bytecode


@pytest.mark.thorough
def test_entry_points(here):
    """A package on the path with entry points of every kind offers them to a new Python."""
    package = here / "site" / "my_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name in FILES:
        (package / name).write_text((EXAMPLES / name).read_text())
    info = here / "site" / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    points = "".join(
        f"[raybench.{kind}s]\nmine = my_package.{name.removesuffix('.py')}\n"
        for name, kind in FILES.items()
    )
    (info / "entry_points.txt").write_text(points)
    (here / "uses.py").write_text(
        "import sys; sys.path.insert(0, 'site')\n"
        "from raybench.core import registry\n"
        "print(registry.lookup('compressor', 'rand_block').target(k=5).omega(50))\n"
        "print(*(registry.lookup(*entry.split('/')).name for entry in sys.argv[1:]))\n"
    )
    names = ["pseudo_huber", "ef21_heavy_ball", "largest", "byte_top_k"]
    kinds = ["problem", "algorithm", "metric", "compressor"]
    done = call(sys.executable, "uses.py", *map("/".join, zip(kinds, names)))
    assert done.stdout.splitlines() == ["9.0", " ".join(names)], done.stderr


# docs/port.md --------------------------------------------------------------------------------------

PORT = (ROOT / "docs" / "port.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PORT, re.MULTILINE | re.DOTALL)
FIRST_SWEEP = "raybench sweep port.yaml --inline"


def results(text: str) -> list[list[str]]:
    """Return the rows of the tables in what was printed, as words, without how far below the target cells ended."""
    lines = [line for line in text.splitlines() if "bit  " in line]
    return [line.split("  ")[0:1] + line.split()[-12:-2] for line in lines]


@pytest.mark.thorough
def test_the_commands_of_the_page_print_what_it_shows(here):
    """The first sweep gets fewer rounds than there: the best steps arrive within 100, the others only take time."""
    (source,) = [body for kind, body in BLOCKS if kind == "python"]
    (sweep,) = [body for kind, body in BLOCKS if kind == "yaml"]
    (here / "my_method.py").write_text(source)
    (here / "port.yaml").write_text(sweep)
    commands, shown = 0, 0
    for (kind, body), (after, expected) in zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True):
        for line in body.splitlines() if kind == "sh" else ():
            fewer = ("--set", "rounds=500") if line == FIRST_SWEEP else ()
            said = cli(*line.split()[1:], *fewer)
            assert said.code == 0, (line, said.out, said.err)
            commands += 1
        if (kind, after) == ("sh", "text"):
            assert results(said.out) == results(expected)
            if "checks passed" in expected:
                assert said.out == expected
            shown += 1
    assert FIRST_SWEEP in PORT
    assert (commands, shown) == (7, 3)
    assert (here / "results/port/figures/grad_norm_sq_vs_bits_up.pdf").is_file()
    assert (here / "theory/grad_norm_sq_vs_bits_up.pdf").is_file()
    assert len(results(PORT)) == 6
