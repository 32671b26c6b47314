"""What the HTML report holds: its tables, what it loads, and the data its script unpacks."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page loads, its tables' texts and the ids of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads, self.ids, self.cells, self.tag = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tag = tag
        self.loads += [found[a] for a in ("src", "href") if a in found]
        if "id" in found:
            self.ids.append(found["id"])

    def handle_endtag(self, tag):
        self.tag = ""

    def handle_data(self, data):
        if self.tag in ("td", "th"):
            self.cells.append(data)


def unpacked(page: str, name: str) -> str:
    """Return the text that a page holds packed under this id."""
    found = re.search(rf'<script type="text/plain" id="{name}">([^<]*)</script>', page)
    return gzip.decompress(base64.b64decode(found.group(1))).decode()


def drawn(page: str) -> dict[str, dict]:
    """Return what plotly draws in a page: {data, layout} by the id of the element."""
    return json.loads(unpacked(page, "data"))


def table_rows(page: str, name: str) -> list[dict[str, str]]:
    """Return the rows of the table with this id: the texts of their cells, by head, and ``ending``."""
    found = re.search(rf'<table[^>]* id="{name}">(.*?)</table>', page, re.S).group(1)
    rows = []
    for attributes, row in re.findall(r"<tr([^>]*)>(.*?)</tr>", found, re.S)[1:]:
        cells = dict(re.findall(r'<td data-l="([^"]*)"[^>]*>(.*?)</td>', row, re.S))
        ending = re.search(r'class="([^"]*)"', attributes)
        rows.append({**cells, "ending": ending.group(1) if ending else ""})
    return rows
