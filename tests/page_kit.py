"""What the HTML report holds, its tables, loads and packed data; and Chromium, which opens it from disk and runs a script in it."""

import base64
import gzip
import html
import json
import re
import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """What a page loads, its tables' texts and the ids of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads, self.ids, self.cells, self.tag = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        result = dict(attrs)
        self.tag = tag
        self.loads += [result[a] for a in ("src", "href") if a in result]
        if "id" in result:
            self.ids.append(result["id"])

    def handle_endtag(self, tag):
        self.tag = ""

    def handle_data(self, data):
        if self.tag in ("td", "th"):
            self.cells.append(data)


def unpacked(page: str, name: str) -> str:
    """Return the text that a page holds packed under this id."""
    result = re.search(rf'<script type="text/plain" id="{name}">([^<]*)</script>', page)
    return gzip.decompress(base64.b64decode(result.group(1))).decode()


def drawn(page: str) -> dict[str, dict]:
    """Return what plotly draws in a page: {data, layout} by the id of the element."""
    return json.loads(unpacked(page, "data"))


def table_rows(page: str, name: str) -> list[dict[str, str]]:
    """Return the rows of the table with this id: the texts of their cells, by head, and ``ending``."""
    result = re.search(rf'<table[^>]* id="{name}">(.*?)</table>', page, re.S).group(1)
    rows = []
    for attributes, row in re.findall(r"<tr([^>]*)>(.*?)</tr>", result, re.S)[1:]:
        cells = dict(re.findall(r'<td data-l="([^"]*)"[^>]*>(.*?)</td>', row, re.S))
        ending = re.search(r'class="([^"]*)"', attributes)
        rows.append({**cells, "ending": ending.group(1) if ending else ""})
    return rows


# -- Chromium without a window ---------------------------------------------------------------------


CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
ABSENT = "needs chromium (Debian and Ubuntu: apt install chromium)"
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom")
DARK = "--blink-settings=preferredColorScheme=0"
RUN = """<script>(async () => {
  const wait = () => new Promise((then) => setTimeout(then, 20));
  while (!document.documentElement.classList.contains("drawn")) await wait();
  let told;
  try { told = await (async () => { SCRIPT })(); } catch (error) { told = `${error.stack}`; }
  const out = document.createElement("pre");
  out.id = "told";
  out.textContent = JSON.stringify(told);
  document.body.replaceChildren(out);
})();</script></body>"""


def visit(page: Path, script: str, *flags: str, width: int = 1280) -> Any:
    """Return what a script (the body of an async function) returns, run once a page has drawn its figures.

    Raises AssertionError where the console says anything, as it does where the page's own rules forbid a request.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "page.html")
        copy.write_text(page.read_text("utf-8").replace("</body>", RUN.replace("SCRIPT", script)))
        more = [f"--user-data-dir={folder}/profile", f"--window-size={width},900"]
        more += ["--enable-logging=stderr", "--virtual-time-budget=60000", *flags]
        command = [str(CHROMIUM), *FLAGS, *more, copy.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    (told,) = re.findall(r'<pre id="told">(.*?)</pre>', done.stdout, re.S)
    return json.loads(html.unescape(told))
