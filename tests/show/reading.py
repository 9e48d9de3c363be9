"""HTML read back: whether it is whole, what it fetches, what stands in its tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "wbr"}
FETCHING = {"src", "srcset", "data", "poster", "action", "formaction", "background", "ping"}


@dataclass
class Read(HTMLParser):
    """A document: its text, tags, attributes by tag, tables as rows of cells, and faults."""

    text: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    tables: list[list[list[str]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if {"script", "style"} & set(self.open):
            self.scripts.append(data)
            return
        self.text.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def all_text(self) -> str:
        return " ".join(" ".join(self.text).split())


def read(document: str) -> Read:
    """A document that is whole, and fetches nothing; otherwise it fails."""
    found = Read()
    found.feed(document)
    found.close()
    assert found.faults == []
    assert found.open == []
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert [a for a in found.attributes if a[1] in FETCHING or a[1].startswith("on")] == []
    links = [(tag, value) for tag, name, value in found.attributes if name == "href"]
    assert [tag for tag, _ in links if tag != "a"] == []
    assert all(value.startswith(("#", "https://", "http://")) for _, value in links)
    for code in found.scripts:
        for word in ("http:", "https:", "url(", "@import", "fetch(", "XMLHttpRequest", "import("):
            assert word not in code
    return found
