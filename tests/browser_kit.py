"""Chromium without a window: it opens a page from disk, runs a script in it and prints what the script returns."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

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
