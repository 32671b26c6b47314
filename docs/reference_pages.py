"""What mkdocs asks when it builds the site: pages made from the code, and files that the pages link to.

The reference of methods, compressors, problems and Python functions is made from what is registered, each time the
site is built: the same words as ``raybench show`` prints. Pages link to files beside ``docs/``; the site shows
each of them on a page of its own, as a reader of the site may have no other copy. ``mkdocs.yml`` names this file as a hook.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from raybench import theory
from raybench.core import registry
from raybench.theory import Convention, Theorem

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from raybench.core.facts import AlgorithmFacts
    from raybench.core.params import Param
    from raybench.core.registry import Entry
    from raybench.spec.keys import Key

ROOT = Path(__file__).parent.parent
MARK = re.compile(r"<!-- generated (\w+): (\w*).*?-->")
LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".py": "python", ".sh": "sh", ".toml": "toml"}
TITLES = {
    "algorithm": ("reference/methods.md", "Every method"),
    "compressor": ("reference/compressors.md", "Every compressor"),
    "problem": ("reference/problems.md", "Every problem"),
    "metric": ("reference/metrics.md", "Every metric"),
}
STEPS = ("reference/steps.md", "Every theoretical step")
PYTHON = ("reference/python.md", "Python")
ANALYSIS = (
    *("closing_table", "tuned", "curves", "bands", "to_target", "profile", "rank", "trials"),
    *("compare", "scaling", "audit", "frames"),
)
VERBS = ("reference/verbs.md", "Every verb")
HOOKS = ("reference/hooks.md", "Hooks, wire and messages")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code, and a page for every file that a page links to."""
    from mkdocs.structure.files import File

    made = reference()
    linked: set[str] = set()
    for file in files.documentation_pages():
        linked |= {
            match[1] for match in outside(file.src_uri).finditer(filled(file.content_string))
        }
    for name in sorted(linked):
        made |= shown(name)
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put what is made from the code in place of its marks; lead links to files beside ``docs/`` to pages that show them."""
    up = "../" * page.file.src_uri.count("/")
    way = outside(page.file.src_uri)
    return way.sub(lambda m: f"]({up}{page_of(m[1])}{m[2] or ''})", filled(markdown))


def filled(markdown: str) -> str:
    """Return a page with its marks, such as ``<!-- generated columns: curves, .. -->``, replaced by what they name.

    Raises KeyError for a mark that names nothing.
    """
    makers = {
        "pages": links,
        "columns": columns,
        "keys": key_tables,
        "sweeps": sweeps,
    }
    return MARK.sub(lambda match: makers[match[1]](match[2]), markdown)


def links(_: str) -> str:
    """Return the list of the pages made from the code."""
    return "\n".join(
        f"* [{title}]({path})" for path, title in [*TITLES.values(), STEPS, VERBS, HOOKS, PYTHON]
    )


def sweeps(_: str) -> str:
    """Return the table of the sweeps that ship with the question that the head of each file asks."""
    from raybench.cli.lookup import shipped_sweeps

    rows = [
        f"| [`{name}`](../sweeps/{name}.yaml) | {cell(question)} |"
        for name, question in shipped_sweeps()
    ]
    return "\n".join(["| sweep | question |\n|---|---|", *rows])


def outside(page: str) -> re.Pattern[str]:
    """Return what finds the links of a page in ``docs/`` that lead out of it."""
    up = r"\.\./" * (1 + page.count("/"))
    return re.compile(rf"\]\({up}([^)#]+)(#[^)]*)?\)")


def columns(table: str) -> str:
    """Return the table of the columns of ``curves`` or ``cells``, from their schema."""
    from raybench.store import CELLS, CURVES

    rows = ["| column | unit | meaning |\n|---|---|---|"]
    for field in {"curves": CURVES, "cells": CELLS}[table]:
        about = {key.decode(): value.decode() for key, value in field.metadata.items()}
        unit = about["unit"] if about["unit"] != "1" else ""
        rows.append(f"| `{field.name}` | {cell(unit)} | {cell(about['description'])} |")
    return "\n".join(rows)


def page_of(name: str) -> str:
    """Return the page of the site that shows a file: ``cluster/gcp.yaml`` is on ``files/cluster/gcp.yaml.md``."""
    path = ROOT / name
    if path.is_dir():
        return f"files/{name.rstrip('/')}/index.md"
    return f"files/{name}" if path.suffix == ".md" else f"files/{name}.md"


def shown(name: str) -> dict[str, str]:
    """Return the pages that show a file, or a folder and each of its files.

    Raises FileNotFoundError where there is no such file.
    """
    path = ROOT / name
    if path.is_dir():
        inside = sorted(f for f in path.iterdir() if f.suffix in (*LANGUAGES, ".md"))
        pages = {}
        rows = [f"# {name}", ""]
        for file in inside:
            relative = file.relative_to(ROOT).as_posix()
            pages |= shown(relative)
            rows.append(f"* [{file.name}]({page_of(relative).rpartition('/')[2]})")
        return {page_of(name): "\n".join(rows) + "\n", **pages}
    text = path.read_text()
    if path.suffix == ".md":
        return {page_of(name): without_links(text)}
    return {page_of(name): f"# {name}\n\n{fenced(text, LANGUAGES.get(path.suffix, ''))}"}


def without_links(text: str) -> str:
    """Return Markdown from elsewhere in the repository with the words of its relative links alone."""
    return re.sub(r"\[([^\]]+)\]\((?![a-z]+:|#)[^)]+\)", r"\1", text)


def fenced(text: str, language: str = "") -> str:
    """Return text as a block of code, whatever is in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def reference() -> dict[str, str]:
    """Return the pages of the reference: plug-ins of each kind, step sizes, verbs, hooks, Python."""
    pages = {STEPS[0]: "\n".join(step_table())}
    for kind, (path, title) in TITLES.items():
        entries = [registry.lookup(kind, name) for name in registry.names(kind)]
        parts = [f"# {title}\n", f"{len(entries)} are registered. {INTRODUCTIONS[kind]}\n"]
        parts += ["\n".join(overview(entries)) + "\n"]
        parts += ["\n".join(described(one)) for one in entries]
        pages[path] = "\n".join(parts)
    pages[VERBS[0]] = "\n".join(verbs())
    pages[HOOKS[0]] = "\n".join(hooks())
    pages[PYTHON[0]] = "\n".join(python())
    return pages


INTRODUCTIONS = {
    "algorithm": "All minimise f(x) = (1/n) sum_i f_i(x) over n clients. The first line of each is its update, in the "
    "notation of its paper: x is the model, gamma the step size, C or Q the compressor, f_i the loss of client i, x+ the "
    "value of x after the round. *Up* is what a client sends in a round and *down* what the server broadcasts; a value is "
    "one number of the model's type, so d values cost 64 d bits in double precision. [Families of "
    "methods](../algorithms.md) is a shorter way in, and [theoretical step sizes](../theory.md) explains the rules and "
    "the letters L, L_tilde, theta, rho. How a method is tested: the conformance checks of `raybench check` run on every one, a "
    "*theorem*'s step is computed anew by a test, and one *recalled from the paper* is not; what its section links to are "
    "runs beside published results. `raybench show NAME` prints the same, and with `--problem` the numbers.",
    "compressor": "C(x) is what arrives when x is sent, and x_S keeps the coordinates in S. An unbiased compressor has the "
    "constant omega, E||C(x) - x||^2 <= omega ||x||^2; a contractive one has alpha, E||C(x) - x||^2 <= (1 - alpha) "
    "||x||^2. [Families of compressors](../compressors.md) explains these classes, and B1 and B2. `raybench show NAME --d "
    "1000` prints the constants and the bits in a dimension.",
    "problem": "f is the mean of the clients' losses f_i. `raybench show NAME` prints the same, and with `--dataset` "
    "the constants.",
    "metric": "A metric is a number that is recorded beside the usual ones.",
}


def overview(entries: list[Entry[Any]]) -> Iterator[str]:
    """Yield a table of all plug-ins of a kind, a row each, with links to their sections."""
    from raybench.core.facts import AlgorithmFacts

    methods = isinstance(entries[0].facts, AlgorithmFacts)
    more = ["compressor", "parameters", "step of theory"] if methods else ["parameters"]
    yield f"| {' | '.join(['name', 'what it is', *more])} |\n|{'---|' * (2 + len(more))}"
    for entry in entries:
        first = (inspect.getdoc(entry.target) or "").partition("\n\n")[0]
        row = [f"[`{entry.name}`](#{entry.name})", cell(first)]
        names = ", ".join(f"`{name}`" for name in entry.params)
        if methods:
            sizes = theory.of(entry.facts.theory)
            steps = [] if sizes is None else [sizes.under(rule) for rule in theory.RULES]
            bases = {basis(step) for step in steps if step is not None}
            row += [needs(entry.facts).partition(",")[0], names]
            kinds = ("theorem", "recalled theorem")
            row.append(next((k for k in kinds if k in bases), "rule of thumb" if bases else "none"))
        else:
            row.append(names)
        yield f"| {' | '.join(row)} |"


def described(entry: Entry[Any]) -> Iterator[str]:
    """Yield the Markdown lines of one plug-in."""
    from raybench.core.facts import AlgorithmFacts

    first, _, rest = (inspect.getdoc(entry.target) or "No description.").partition("\n\n")
    yield f"## {entry.name}\n"
    yield quoted(first)
    if rest:
        yield escaped(rest) + "\n"
    if isinstance(entry.facts, AlgorithmFacts):
        title = f"**In figures:** {escaped(entry.facts.title)}. " if entry.facts.title else ""
        yield f"{title}**Compressor:** {needs(entry.facts)}.\n"
        wants = "; ".join(requirements(entry.facts))
        if wants:
            yield f"**Needs:** {wants}.\n"
        yield f"**In a training loop:** {in_loops(entry)}.\n"
        takes = "; ".join(options(entry.facts))
        yield f"**Takes:** {takes}.\n" if takes else ""
    yield from parameters(entry)
    if isinstance(entry.facts, AlgorithmFacts):
        yield from steps(entry.facts.theory)
        pages = studies().get(entry.name)
        if pages:
            yield f"**Beside published results:** {', '.join(pages)}.\n"


def needs(facts: AlgorithmFacts) -> str:
    """Return what a method asks of the compressor for its messages."""
    if facts.own is not None:
        return f"its own, [`{facts.own}`](compressors.md#{facts.own})"
    if facts.up is None:
        return "none, its messages are dense or of its own kind"
    return f"{facts.up} or none" if facts.dense else str(facts.up)


def requirements(facts: AlgorithmFacts) -> Iterator[str]:
    """Yield what a method cannot do without, beside a compressor."""
    if facts.down is not None:
        yield f"{with_article(facts.down)} `downlink`"
    for name, role in facts.operators.items():
        yield f"a compressor `{name}` that is {role}"
    words = {
        "clock": "a [`clock`](../clock.md)",
        "decentralised": "a `graph`, as there is no server; f is recorded at the mean of the clients' points",
        "vertical": "a problem whose features are split over the clients (`vertical_least_squares`, `vertical_network`)",
        "predicts": "a problem with predictions (`outputs`, `predict` and `distill`)",
        "minimizer": "a problem whose minimiser x\\* is known",
    }
    yield from (text for fact, text in words.items() if getattr(facts, fact))


def in_loops(entry: Entry[Any]) -> str:
    """Return whether a method runs in [training loops](../loops.md) of users, and if not why not."""
    from raybench.algorithms.build import check_loop
    from raybench.core.errors import InputError

    defaults = {name: param.default for name, param in entry.params.items()}
    said = ""
    for local in (False, True):
        try:
            check_loop(entry, defaults, local=local)
        except InputError as error:
            complaint = error.complaints[0]
            said = (
                said or f"no, it {complaint.what.removeprefix(entry.name + ' ')}; {complaint.fix}"
            )
        else:
            return "with local steps" if local else "yes"
    return escaped(said)


def with_article(role: str) -> str:
    """Return a role with its article."""
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"


def options(facts: AlgorithmFacts) -> Iterator[str]:
    """Yield what a method can do that others cannot."""
    if facts.proximal:
        yield "a nonsmooth part of f, by a proximal step"
    if facts.robust:
        yield "a [`robust`](../robust.md) rule"
    if facts.broadcast is not None and facts.down is None:
        yield f"{with_article(facts.broadcast)} `downlink`"
    if facts.participation is not None:
        yield f"`participation`, as `{facts.participation}`"


@cache
def studies() -> dict[str, list[str]]:
    """Return by method the links to the pages of the reproductions that run it, from their sweeps."""
    from raybench import reproduce
    from raybench.core import yaml

    pages: dict[str, list[str]] = {}
    for name in sorted(reproduce.catalogue()):
        study = reproduce.find(name)
        if study.sweep is None or not (ROOT / "docs" / "reproductions" / f"{name}.md").is_file():
            continue
        for method in sorted({*algorithms(yaml.parse(study.sweep.read_text()))}):
            if method in registry.names("algorithm"):
                link = f"[{escaped(study.title)}](../reproductions/{name}.md)"
                pages.setdefault(method, []).append(link)
    return pages


def algorithms(content: Any, inside: bool = False) -> Iterator[str]:
    """Yield the names of the methods in a sweep file, from its lists, mappings and cases."""
    if isinstance(content, list):
        for item in content:
            yield from algorithms(item, inside)
    elif isinstance(content, dict):
        for key, value in content.items():
            if key == "algorithm" or (inside and key == "name"):
                yield from algorithms(value, inside=True)
            elif not inside:
                yield from algorithms(value)
    elif inside and isinstance(content, str):
        yield content.partition(":")[0]


def parameters(entry: Entry[Any]) -> Iterator[str]:
    """Yield the table of a plug-in's parameters, nothing where it has none."""
    if not entry.params:
        return
    yield "| parameter | default | allowed | meaning |\n|---|---|---|---|"
    for name, param in entry.params.items():
        meaning = "; ".join(filter(None, (param.help, automatic(entry, name))))
        texts = (written(param), values_of(param), meaning)
        cells = [f"`{name}`", *(cell(str(text)) for text in texts)]
        yield f"| {' | '.join(cells)} |"
    yield ""


def automatic(entry: Entry[Any], name: str) -> str:
    """Return what the word ``auto`` means for a parameter, nothing where it has no such rule."""
    rule = getattr(entry.facts, "auto", {}).get(name)
    first = (inspect.getdoc(rule) or "").partition("\n\n")[0] if rule else ""
    return f"auto: {first.removeprefix('Return ').rstrip('.')}" if first else ""


def step_table() -> Iterator[str]:
    """Yield the page of what each method's step rests on under each rule."""
    yield f"# {STEPS[1]}\n"
    yield (
        "What the step of each method rests on under each [rule](../theory.md#the-rules). The section of the method has "
        "the formula, the assumptions and the source. A *theorem* gives the largest step that is proved here, under "
        "`paper` the paper's own; a test computes it anew. The constants of a *recalled theorem* are quoted from memory "
        "of the paper, neither proved nor tested here. A *rule of thumb* and *released code* promise nothing.\n"
    )
    yield f"| method | {' | '.join(f'`{rule}`' for rule in theory.RULES)} |"
    yield "|---" * (1 + len(theory.RULES)) + "|"
    without = []
    for name in registry.names("algorithm"):
        link = f"[`{name}`](methods.md#{name})"
        sizes = theory.of(registry.lookup("algorithm", name).facts.theory)
        if sizes is None:
            without.append(link)
        else:
            yield f"| {link} | {' | '.join(basis(sizes.under(rule)) for rule in theory.RULES)} |"
    yield f"\nNo step under any rule: {', '.join(without)}.\n"


def basis(found: Theorem | Convention | None) -> str:
    """Return what a step rests on, in a word or two."""

    if found is None:
        return "–"
    if isinstance(found, Theorem):
        return "recalled theorem" if found.recalled else "theorem"
    return found.kind


def steps(known: Any) -> Iterator[str]:
    """Yield what the theoretical step sizes of a method rest on, rule by rule."""
    sizes = theory.of(known)
    if sizes is None:
        yield "**Step size:** no theorem. Give `step_size: {value: ...}`, or borrow another method's step with `of`.\n"
        return
    seen: dict[str, Theorem | Convention] = {}
    for rule in theory.RULES:
        found = sizes.under(rule)
        if found is None:
            continue
        same = next((other for other, one in seen.items() if one is found), None)
        if same is None:
            yield from explained(rule, found)
        else:
            yield f"**Step size, rule `{rule}`:** the same as under `{same}`.\n"
        seen[rule] = found


def explained(rule: str, found: Theorem | Convention) -> Iterator[str]:
    """Yield the source of a step, what it promises, what it assumes and the formula."""
    if isinstance(found, Theorem):
        kind = "a theorem recalled from the paper" if found.recalled else "a theorem"
        yield f"**Step size, rule `{rule}`:** {kind}. Source: {escaped(found.source)}.\n"
        yield quoted(theory.pretty(found.promises))
        yield "It assumes that\n"
        yield from (f"* {escaped(one.text)}" for one in found.assumes)
        yield ""
    else:
        yield f"**Step size, rule `{rule}`:** {found.kind}, no theorem. Source: {escaped(found.source)}.\n"
    why = " ".join(theory.explained(found).split())
    if why:
        yield f"Formula: {escaped(why)}\n"


def verbs() -> Iterator[str]:
    """Yield the page of the command line: what each verb does, its arguments and its options."""
    import typer

    from raybench.cli import app

    yield f"# {VERBS[1]}\n"
    yield "`raybench VERB --help` prints the same. [Exit codes](../faults.md#exit-codes) are told once for all.\n"
    for name, verb in vars(typer.main.get_command(app))["commands"].items():
        yield f"## {name}\n"
        for part, command in getattr(verb, "commands", {"": verb}).items():
            if part:
                yield f"### {name} {part}\n"
            yield escaped(inspect.cleandoc(command.help or "")) + "\n"
            rows = []
            for param in command.params:
                if getattr(param, "hidden", False) or param.name == "help":
                    continue
                words = (*param.opts, *param.secondary_opts)
                if param.param_type_name == "argument":
                    words = ((param.metavar or param.name).upper(),)
                shown = ", ".join(f"`{word}`" for word in words)
                rows.append(f"| {shown} | {cell(param.help or '')} |")
            if rows:
                yield "\n".join(["| argument or option | meaning |\n|---|---|", *rows]) + "\n"


def python() -> Iterator[str]:
    """Yield the page of what ``raybench``, its analysis and its training loops give: signatures and docstrings."""
    import raybench
    import raybench.torch as loops
    from raybench import analysis

    yield f"# {PYTHON[1]}\n"
    yield "What `import raybench` gives, and what users call of `raybench.analysis` and `raybench.torch`.\n"
    named = {f"raybench.{name}": getattr(raybench, name) for name in raybench.__all__}
    named |= {f"raybench.analysis.{name}": getattr(analysis, name) for name in ANALYSIS}
    absent = (
        "Its framework is not installed where this page was built: `pip install raybench[train]`."
    )
    for name in loops.__all__:
        try:
            named[f"raybench.torch.{name}"] = getattr(loops, name)
        except ImportError:  # a callback of a framework derives from one of its classes
            named[f"raybench.torch.{name}"] = SimpleNamespace(__doc__=absent)
    for name, target in named.items():
        yield f"## {name}\n"
        if callable(target) and not inspect.isclass(target):
            yield fenced(f"{name}{inspect.signature(target)}", "python")
        yield fenced(inspect.getdoc(target) or "No description.", "text")


def hooks() -> Iterator[str]:
    """Yield the page of what ``raybench.plugins`` gives: facts, hooks, what they are handed, and messages."""
    from raybench import plugins
    from raybench.algorithms import protocols
    from raybench.core import facts

    yield f"# {HOOKS[1]}\n"
    yield (
        "What a [plug-in](../plugins.md) may say, write, call and send. B is the number of cells of a batch, n of clients, n_here "
        "of those on this rank, d of coordinates; `lead` is usually (B, n_here).\n"
    )
    for kind in ("algorithm", "problem"):
        yield f"## Facts of {with_article(kind)}\n\n| fact | meaning | default |\n|---|---|---|"
        record = facts.KINDS[kind]()
        for name, (_, meaning) in facts.meanings(kind).items():
            default = getattr(record, name)
            default = default if default is None or isinstance(default, bool | str) else "none"
            yield f"| `{name}` | {with_code(meaning)} | `{default}` |"
        yield ""
    methods = [plugins.Estimator, plugins.Algorithm, plugins.Asynchronous]
    seen = (
        "Draws",
        "Wire",
        "Oracle",
        "Net",
        "EventNet",
        "Events",
        "Timed",
        "Vertical",
        "Predictions",
    )
    messages = {name for name in plugins.__all__ if name.endswith("Message")} - {"Message"}
    makers = {"NestedMessage": "nest", "FlaggedMessage": "choose"}
    groups: dict[str, list[Any]] = {
        "Methods": methods,
        "What methods are handed": [
            *(getattr(protocols, name) for name in seen),
            protocols.Received,
        ],
        "Compressors": [plugins.Compressor, plugins.Stream, plugins.count_of],
        "Messages": [plugins.Message, plugins.Dense, plugins.support_of, plugins.index_cost],
        "Problems": [plugins.Problem, plugins.Constants, plugins.Network],
        "Callbacks": [plugins.Callback],
    }
    groups["Messages"][2:2] = [
        getattr(plugins, makers.get(name, name)) for name in sorted(messages)
    ]
    for title, targets in groups.items():
        yield f"## {title}\n"
        for target in targets:
            yield from interface(target)


def interface(target: Any) -> Iterator[str]:
    """Yield the section of a class or function: its signature, its text, and a table of its public methods."""
    yield f"### {target.__name__}\n"
    if not inspect.isclass(target) or target.__name__.endswith("Message"):
        yield fenced(f"{target.__name__}{call_of(target)}", "python")
    yield escaped(inspect.getdoc(target) or "") + "\n"
    rows = [
        f"| `{name}{call_of(method)}` | {cell(inspect.getdoc(method) or '')} |"
        for name, method in vars(target).items()
        if inspect.isclass(target)
        and inspect.isfunction(method)
        and name[0] != "_"
        and method.__doc__
    ]
    if rows:
        yield "| method | what it does |\n|---|---|"
        yield from rows
        yield ""


def call_of(target: Any) -> str:
    """Return ``(parameters)`` without annotations, and without those that all methods, or all messages, have."""
    common = ("scale", "present") if inspect.isclass(target) else ("self", "a")
    shown = [
        param.replace(annotation=inspect.Parameter.empty)
        for param in inspect.signature(target).parameters.values()
        if param.name not in common
    ]
    return str(inspect.Signature(shown))


def quoted(text: str) -> str:
    """Return a formula in words as a block of its own that wraps."""
    return f"> {escaped(' '.join(text.split()))}\n"


def escaped(text: str) -> str:
    """Return plain text that Markdown shows as it is; words in double backticks stay code."""
    parts = re.split(r"(``.+?``)", text)
    parts[::2] = [re.sub(r"([\\`*_{}\[\]#|])", r"\\\1", part) for part in parts[::2]]
    parts[::2] = [part.replace("<", "&lt;").replace(">", "&gt;") for part in parts[::2]]
    return "".join(parts)


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return escaped(" ".join(text.split()))


# Keys of a sweep file -------------------------------------------------------------------------------


def key_tables(part: str) -> str:
    """Return the tables of the keys that make a cell (part ``cell``) or hold for the whole sweep (``sweep``)."""
    return "\n".join(keys_of(part))


def keys_of(part: str) -> Iterator[str]:
    """Yield the tables of the keys that make a cell (part ``cell``) or hold for the whole sweep (``sweep``).

    The keys themselves stand in the first table; each mapping of settings has a table behind it.
    Raises KeyError for another part.
    """
    from raybench.spec import document

    keys = {"cell": document.AXES, "sweep": document.SETTINGS}[part]
    yield "| key | default | allowed | meaning |\n|---|---|---|---|"
    for name, key in keys.items():
        yield key_row(name, default_of(key), allowed_of(key), meaning_of(key))
    yield ""
    for name, key in keys.items():
        params = settings_of(key)
        if not params:
            continue
        yield f"Settings of `{name}`:\n\n| setting | default | allowed | meaning |\n|---|---|---|---|"
        for setting, param in params.items():
            yield key_row(setting, written(param), values_of(param), param.help)
        yield ""


def key_row(name: str, default: str, allowed: str, meaning: str) -> str:
    """Return a row of a table of keys."""
    return f"| `{name}` | {with_code(default)} | {with_code(allowed)} | {with_code(meaning)} |"


def meaning_of(key: Key) -> str:
    """Return what a key means, and whether an entry of ``algorithm`` may set it for itself."""
    return key.help + ("; also in an entry of `algorithm`" if key.override else "")


def default_of(key: Key) -> str:
    """Return the default of a key as a sweep file would have it."""
    from raybench.spec.cells import SettingsGroup
    from raybench.spec.values import show

    if key.required:
        return "required"
    if isinstance(key.kind, SettingsGroup):
        return "see its settings"
    value = key.kind.written() if key.field in cell_fields() else key.kind.absent()
    if isinstance(value, Mapping) and not value:
        return "none"
    if hasattr(value, "__dataclass_fields__"):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    return "none" if value is None or value == () else show(value, bare=True)


def cell_fields() -> set[str]:
    """Return the names of the fields of a cell."""
    from raybench.spec import document

    return {key.field for key in document.AXES.values()}


def allowed_of(key: Key) -> str:
    """Return what may be written for a key."""
    from raybench.spec.keys import Plugin

    param = getattr(key.kind, "param", None)
    if param is not None:
        return values_of(param)
    if isinstance(key.kind, Plugin):
        return f"a name, or a mapping with `name` and parameters (`raybench ls {key.kind.kind}s`)"
    return "a mapping, see its settings" if settings_of(key) else "see the text"


def settings_of(key: Key) -> Mapping[str, Param]:
    """Return the settings of a key that is a mapping, by name; none for other keys."""
    from raybench.spec import keys

    if isinstance(key.kind, keys.StepSizeKey):
        return keys.STEP
    return getattr(key.kind, "table", None) or getattr(key.kind, "fields", None) or {}


def values_of(param: Param) -> str:
    """Return what a parameter may be."""
    from raybench.spec.values import allowed

    return "a count of at least 1, or a share" if param.kind == "count" else allowed(param)


def written(param: Param) -> str:
    """Return the default of a parameter."""
    from raybench.core.registry import REQUIRED
    from raybench.spec.sections import default
    from raybench.spec.values import show

    value: Any = param.default if param.default is REQUIRED else default(param)
    return "required" if value is REQUIRED else "none" if value is None else show(value, bare=True)


def with_code(text: str) -> str:
    """Return text for a cell of a table; what is in backticks stays code."""
    text = re.sub(r"([|*\[\]])", r"\\\1", " ".join(str(text).split()))
    return text.replace("<", "&lt;").replace(">", "&gt;")
