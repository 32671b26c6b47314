"""The documentation keeps up: every column, method, compressor and verb that exists is described."""

from __future__ import annotations

import ast
import inspect
import operator
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from cli_kit import cli, own_plugins

import raybench
import raybench.torch
from raybench import theory
from raybench.cli import app
from raybench.core import registry
from raybench.store import CELLS, CURVES

ROOT = Path(__file__).parent.parent
HAND = (*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md"))
PAGES = sorted([ROOT / "README.md", ROOT / "results" / "README.md", *HAND])


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


@pytest.fixture(scope="module")
def made() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "reference_pages.py")))


def test_every_column_is_described(made: SimpleNamespace) -> None:
    """The site makes both tables from the schemas, in place of their marks."""
    text = text_of("results.md")
    for name, schema in (("curves", CURVES), ("cells", CELLS)):
        assert f"<!-- generated columns: {name}, " in text
        rows = made.columns(name).splitlines()[2:]
        assert [row.split("`")[1] for row in rows] == schema.names
        assert all(row.split(" | ")[2].removesuffix(" |") for row in rows)


@pytest.mark.parametrize("kind", ["algorithm", "compressor", "problem", "metric"])
def test_every_plugin_is_in_the_reference(made: SimpleNamespace, kind: str) -> None:
    """Each has a row that names its parameters, and a section that the row leads to."""
    page = made.reference()[made.TITLES[kind][0]]
    assert re.findall(r"^## (\S+)$", page, re.MULTILINE) == list(registry.names(kind))
    for entry in ours(kind):
        row = next(line for line in page.splitlines() if line.startswith(f"| [`{entry.name}`]("))
        missing = [parameter for parameter in entry.params if f"`{parameter}`" not in row]
        assert not missing, f"{entry.name}: {missing}"


def ours(kind: str) -> list[registry.Entry]:
    """Return the plug-ins of a kind that come with raybench."""
    entries = [registry.lookup(kind, name) for name in registry.names(kind)]
    return [entry for entry in entries if entry.target.__module__.startswith("raybench.")]


def test_the_readme_counts_what_there_is() -> None:
    methods = ours("algorithm")
    steps = [sizes for entry in methods if (sizes := theory.of(entry.facts.theory)) is not None]
    rules = [[sizes.under(rule) for rule in theory.RULES] for sizes in steps]
    theorems = [[step for step in some if isinstance(step, theory.Theorem)] for some in rules]
    proven = sum(any(not step.recalled for step in some) for some in theorems)
    quoted = sum(map(bool, theorems)) - proven
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"{len(methods)} methods (" in text
    assert f"{len(ours('compressor'))} compressors" in text
    thumb = len(rules) - proven - quoted
    told = f"{proven} of {len(methods)} methods have one that the tests compute anew, {quoted} one that is quoted, {thumb} a"
    assert told in text


def test_the_reference_says_what_a_method_needs_and_what_its_steps_rest_on(made) -> None:
    pages = made.reference()
    rows, _, without = pages[made.STEPS[0]].partition("No step under any rule: ")
    for section in re.split(r"^## ", pages["reference/methods.md"], flags=re.MULTILINE)[1:]:
        name = section.split()[0]
        facts = registry.lookup("algorithm", name).facts
        needs = section.partition("**Needs:** ")[2].partition("\n")[0]
        assert ("`clock`" in needs, "`graph`" in needs) == (facts.clock, facts.decentralised), name
        assert ("`downlink`" in needs) is (facts.down is not None), name
        link, sizes = f"[`{name}`](methods.md#{name})", theory.of(facts.theory)
        kinds = [made.basis(sizes.under(rule)) if sizes else "–" for rule in theory.RULES]
        told = [f"**Step size, rule `{rule}`:**" in section for rule in theory.RULES]
        assert told == [kind != "–" for kind in kinds], name
        assert f"\n| {link} | {' | '.join(kinds)} |\n" in rows if sizes else link in without
        assert ("**Step size:** no theorem" in section) is (sizes is None), name
        assert ("](../reproductions/marina_diana.md)" in section) is (name in ("marina", "diana"))


UNITS = r"s|ms|seconds?|minutes?|hours?|[KMG]iB|[kMGT]B|bytes?|[kMGT]?bits?|%|percent|times|rounds"
THREE_DIGITS = r"(?=[0.,]*[1-9](?:[.,]?\d){2})(?:\d+\.\d+|\d[\d,]*[1-9])"
FIGURE = re.compile(rf"(?<![\w.,^/-])({THREE_DIGITS}(?:e-?\d+)?) ?({UNITS})(?![\w^])")
TOLD_TWICE = {("13.5", "kbit")}  # what EF21 needs in the quickstart, the example of three pages


def test_one_number_stands_in_one_place() -> None:
    """A measured number with its unit is told on one page that is written by hand; others lead to it."""
    assert FIGURE.findall("4.95 kB, 1,000 bits, 0.05 s, 147s") == [("4.95", "kB"), ("147", "s")]
    written = [page for page in PAGES if page.name != "reproductions.md"]
    numbers = [number for page in written for number in {*FIGURE.findall(page.read_text())}]
    assert len(numbers) >= 20
    assert {number for number in numbers if numbers.count(number) > 1} <= TOLD_TWICE


def test_relative_links_lead_somewhere() -> None:
    wrong = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            heads = re.findall(r"^#+ (.*)$", file.read_text(), re.M) if anchor else []
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}
            if not file.exists() or (anchor and anchor not in anchors):
                wrong.append(f"{page.name} links to {target}")
    assert not wrong, "\n".join(wrong)


def test_verbs_and_options_on_the_pages_exist() -> None:
    """Every ``raybench`` command on the pages, in blocks and in lines, is a verb, with options of that verb."""
    verbs = typer.main.get_command(app).commands
    wrong, count = [], 0
    for page in sorted([*PAGES, *(ROOT / "docs" / "reproductions").glob("*.md")]):
        text = page.read_text().replace("\\\n", " ")
        blocks = "\n".join(re.findall(r"```(?:sh|text)?\n(.*?)```", text, re.DOTALL))
        lines = re.findall(r"^(?:\$ )?raybench (.+?)(?:  +#.*)?$", blocks, re.MULTILINE)
        for line in (*lines, *re.findall(r"`raybench ([^`]+)`", text)):
            verb, *words = line.split()
            if verb not in verbs:
                wrong += [f"{page.name}: raybench {verb}"] if re.fullmatch("[a-z]+", verb) else []
                continue
            params = (
                verbs[verb].params
                if not hasattr(verbs[verb], "commands")
                else [param for child in verbs[verb].commands.values() for param in child.params]
            )
            there = {option for param in params for option in (*param.opts, *param.secondary_opts)}
            asked = {word.partition("=")[0] for word in words if re.match(r"-(-\w|\w$)", word)}
            count += len(asked)
            wrong += [f"{page.name}: raybench {verb} {o}" for o in asked - there - {"-h", "--help"}]
    assert count > 80
    assert not wrong, "\n".join(wrong)


def test_calls_on_the_pages_fit_what_they_call() -> None:
    """Every call of ``raybench. ..`` in a Python block has arguments that the function takes."""
    count = 0
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            for call in (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)):
                path = re.fullmatch(r"raybench\.([\w.]+)", ast.unparse(call.func))
                if path is None:
                    continue
                target = operator.attrgetter(path[1])(raybench)
                keywords = {word.arg: None for word in call.keywords if word.arg is not None}
                inspect.signature(target).bind_partial(*call.args, **keywords)
                count += 1
    assert count >= 15


@pytest.mark.thorough
def test_python_blocks_of_the_pages_are_valid_and_the_short_ones_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            compile(block, page.name, "exec")
    (block,) = re.findall(r"```python\n(.*?)```", text_of("compressors.md"), re.DOTALL)
    exec(compile(block, "compressors.md", "exec"), {})
    own = re.findall(r"```python\n(.*?)```", text_of("data.md"), re.DOTALL)
    (block,) = (block for block in own if "data={" in block)
    exec(compile(block, "data.md", "exec"), {})
    blocks = re.findall(r"```python\n(.*?)```", text_of("plugins.md"), re.DOTALL)
    short = [block for block in blocks if block.startswith("from ")]  # not one of the examples
    (twice,) = [block for block in short if "EF21Twice" in block]
    (waits,) = [block for block in short if "every_other" in block]
    assert [block for block in short if block not in (twice, waits)] == [OWN_KIND]
    with monkeypatch.context() as patch:  # the methods are forgotten afterwards
        patch.setattr(registry, "_entries", dict(registry._entries))
        exec(compile(twice, "plugins.md", "exec"), {})
        assert registry.lookup("algorithm", "ef21_twice").facts.theory is not None
        exec(compile(waits, "plugins.md", "exec"), {})
        assert registry.lookup("algorithm", "every_other").facts.clock


@pytest.mark.thorough
def test_the_asynchronous_method_of_the_page_conforms(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", text_of("plugins.md"), re.DOTALL)
    (source,) = [block for block in blocks if "every_other" in block]
    (tmp_path / "p.py").write_text(source)
    with own_plugins():
        said = cli("check", tmp_path / "p.py")
    assert said.code == 0, said.out


(OWN_KIND,) = re.findall(r"```python\n(from dataclasses.*?)```", text_of("plugins.md"), re.DOTALL)
ITS_OPERATOR = """
from raybench.plugins import Compressor, compressor


@compressor("tenths")
class InTenths(Compressor):
    deterministic = True

    def encode(self, x, stream):
        tenths = (10 * x).round().nan_to_num().clamp(-128, 127)
        return Tenths(x.shape[-1], x.dtype, tenths.to(torch.int16))
"""


@pytest.mark.thorough
def test_the_kind_of_message_of_the_page_conforms(tmp_path: Path) -> None:
    """All but its compressor's behaviour on tiny, large and infinite numbers, of which it knows nothing."""
    (tmp_path / "p.py").write_text(OWN_KIND + ITS_OPERATOR)
    with own_plugins():
        said = cli("check", tmp_path / "p.py", "--verbose")
    failed = re.findall(r"^  FAIL  [^:]*: ([a-z ]+): ", said.out, re.MULTILINE)
    assert set(failed) <= {"non finite input shows"}
    assert "ok    tenths: holds no more than its bytes" in said.out


def test_the_reference_has_every_verb_with_its_options(made: SimpleNamespace) -> None:
    page = made.reference()["reference/verbs.md"]
    for name, verb in typer.main.get_command(app).commands.items():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for command in getattr(verb, "commands", {name: verb}).values():
            options = [o for p in command.params if not p.hidden for o in p.opts if o[:2] == "--"]
            assert all(f"`{option}`" in section for option in options), name
