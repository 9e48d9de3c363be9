"""The README and the pages of `docs/`, with their code blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)((?: {4}[^\n]*\n)+)(?=\n)")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: where it begins, what it says that it is, and its text."""

    page: str
    line: int
    kind: str
    text: str

    @property
    def title(self) -> str:
        """The file that it shows, or nothing."""
        found = re.search(r'title="(.*?)"', self.kind)
        return found[1] if found else ""


def name_of(page: Path) -> str:
    """How a page is called: by its path from the top of the project."""
    return page.relative_to(ROOT).as_posix()


def sentences_of(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def all_blocks() -> list[Block]:
    """Those of every page in the order of the page; indented ones are commands."""
    return [block for page in PAGES for block in blocks_of(page)]


def blocks_of(page: Path) -> list[Block]:
    """Those of one page."""
    text = page.read_text(encoding="utf-8")
    fenced = [
        Block(name_of(page), text[: found.start()].count("\n") + 1, found[1].strip(), found[2])
        for found in _FENCE.finditer(text)
    ]
    plain = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    indented = [
        Block(
            name_of(page),
            plain[: found.start()].count("\n") + 1,
            "sh",
            "".join(line[4:] + "\n" for line in found[1].splitlines()),
        )
        for found in _INDENTED.finditer(plain)
    ]
    return sorted([*fenced, *indented], key=lambda block: block.line)


def block(page: str, kind: str, number: int = 0) -> str:
    """The text of the block of a page of `docs/` that is of this kind."""
    return [one.text for one in blocks_of(DOCS / page) if one.kind == kind][number]
