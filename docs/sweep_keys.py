"""The tables of the keys of a sweep file, put into ``docs/sweep-file.md`` as mkdocs builds the site.

They are made from the declarations in ``raybench/spec``, of which ``raybench schema`` prints the JSON schema.
``mkdocs.yml`` names this file as a hook.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from raybench.core.params import Param
    from raybench.spec.keys import Key

MARK = re.compile(r"<!-- generated keys: (\w+) .*?-->")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the tables in place of their marks."""
    return filled(markdown)


def filled(markdown: str) -> str:
    """Return a page with ``<!-- generated keys: cell .. -->`` and ``.. sweep .. -->`` replaced by tables."""
    return MARK.sub(lambda match: "\n".join(tables(match[1])), markdown)


def tables(part: str) -> Iterator[str]:
    """Yield the tables of the keys that make a cell (part ``cell``) or hold for the whole sweep (``sweep``).

    The keys themselves stand in the first table; each mapping of settings has a table behind it.
    Raises KeyError for another part.
    """
    from raybench.spec import document

    keys = {"cell": document.axes, "sweep": document.settings}[part]()
    yield "| key | default | allowed | meaning |\n|---|---|---|---|"
    for name, key in keys.items():
        yield row(name, default_of(key), allowed_of(key), meaning_of(key))
    yield ""
    for name, key in keys.items():
        params = settings_of(key)
        if not params:
            continue
        yield f"Settings of `{name}`:\n\n| setting | default | allowed | meaning |\n|---|---|---|---|"
        for setting, param in params.items():
            yield row(setting, written(param), values_of(param), param.help)
        yield ""


def row(name: str, default: str, allowed: str, meaning: str) -> str:
    """Return a row of a table of keys."""
    return f"| `{name}` | {cell(default)} | {cell(allowed)} | {cell(meaning)} |"


def meaning_of(key: Key) -> str:
    """Return what a key means, and whether an entry of ``algorithm`` may set it for itself."""
    return key.help + ("; also in an entry of `algorithm`" if key.override else "")


def default_of(key: Key) -> str:
    """Return the default of a key as a sweep file would have it."""
    from raybench.spec.cells import Group
    from raybench.spec.values import show

    if key.required:
        return "required"
    if isinstance(key.kind, Group):
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

    return {key.field for key in document.axes().values()}


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

    if isinstance(key.kind, keys.Steps):
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


def cell(text: str) -> str:
    """Return text for a cell of a table; what is in backticks stays code."""
    text = re.sub(r"([|*\[\]])", r"\\\1", " ".join(str(text).split()))
    return text.replace("<", "&lt;").replace(">", "&gt;")
