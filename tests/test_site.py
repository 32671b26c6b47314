"""The documentation site builds without a warning, knows every plug-in and needs no network."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_kit import call

from raybench import spec
from raybench.core import registry
from raybench.core import yaml as core_yaml

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
PACKAGES = ("mkdocs", "material")
missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_mkdocs = pytest.mark.skipif(
    bool(missing), reason="mkdocs-material is not installed: pip install 'raybench[docs]'"
)


def hooks() -> dict[str, Any]:
    """Return what docs/reference_pages.py defines."""
    return runpy.run_path(str(ROOT / "docs" / "reference_pages.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site strictly: a link that leads nowhere, or a page that no one finds, ends it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = call(*command, cwd=ROOT, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@needs_mkdocs
def test_pages_fetch_nothing(site: Path) -> None:
    """No page names a script, a style, a font or a picture that is elsewhere."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    loads = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+")
    links = re.compile(r"<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^\"'> ]+[^>]*>")
    for page in pages:
        text = page.read_text()
        found = [*loads.findall(text), *links.findall(text)]
        assert not found, f"{page.relative_to(site)}: {found}"


KNOWN = """a article aside blockquote body br button circle code details div em form h1 h2 h3 h4 h5 h6 head header hr html
img input label li link main meta nav noscript ol p path pre script section span strong style summary svg table tbody td
th thead title tr ul footer"""


@needs_mkdocs
def test_formulas_are_taken_for_no_markup(site: Path) -> None:
    """What Markdown takes for a tag (``<E C(x), x>``) or for emphasis (two ``x*``) would be lost on the page."""
    for page in site.glob("*.html"):
        text = page.read_text()
        tags = {name.lower() for name in re.findall(r"<([A-Za-z][\w-]*)", text)}
        assert tags <= {*KNOWN.split()}, f"{page.name}: {sorted(tags - {*KNOWN.split()})}"
        for said in re.findall(r"<em>(.*?)</em>", text, re.DOTALL):
            assert said.count("(") == said.count(")"), f"{page.name}: {said}"
            assert "<code" not in said, f"{page.name}: {said}"


@needs_mkdocs
def test_files_beside_the_pages_are_shown(site: Path) -> None:
    """Links to files outside of docs/ lead to pages of the site."""
    cluster = (site / "cluster.html").read_text()
    assert 'href="files/cluster/gcp.yaml.html"' in cluster
    shown = (site / "files" / "cluster" / "gcp.yaml.html").read_text()
    assert "max_workers" in shown
    assert (site / "files" / "examples" / "heavy_ball.py.html").is_file()
    assert (site / "files" / "SECURITY.html").is_file()


@needs_mkdocs
def test_search_runs_from_disk(site: Path) -> None:
    assert "glossary.html" in (site / "search" / "search_index.js").read_text()
    assert "assets/iframe-worker.js" in (site / "index.html").read_text()
    assert (site / "assets" / "iframe-worker.js").is_file()


def test_reference_has_every_plugin() -> None:
    """Each registered plug-in has a section with its first line; each method says what its step rests on."""
    module = hooks()
    pages = module["reference"]()
    for kind, (path, _) in module["TITLES"].items():
        heads = re.findall(r"^## (\S+)$", pages[path], re.MULTILINE)
        assert heads == list(registry.names(kind))
    sections = re.split(r"^## ", pages["reference/methods.md"], flags=re.MULTILINE)[1:]
    for section in sections:
        assert "**Compressor:**" in section, section[:200]
        assert "**Step size" in section, section[:200]


def test_reference_says_what_show_says() -> None:
    text = hooks()["reference"]()["reference/methods.md"]
    marina = text.split("\n## marina\n")[1].split("\n## ")[0]
    assert r"with probability p g &lt;- grad f(x), else g &lt;- g + mean Q\_i(difference)" in marina
    assert "Gorbunov, Burlachenko, Li, Richtarik 2021" in marina
    assert "the same as under `nonconvex`" not in marina.split("rule `paper`")[1]
    assert "* the compressor is unbiased" in marina
    assert "| `p` | auto |" in marina


def test_sweep_file_of_the_tutorial_is_what_the_page_says() -> None:
    """The file, and the file with the lines that the page changes, have the numbers of cells that it prints."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    first, change = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    sweep = core_yaml.parse(first)
    assert len(spec.load(sweep).cells) == 372
    assert "372 cells: 372 to run" in text
    later = {**sweep, **core_yaml.parse("algorithm:\n" + change)}
    assert len(spec.load(later).cells) == 492
    assert "492 cells: 492 ok" in text
