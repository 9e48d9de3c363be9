"""Names, links and messages on the pages are there, and the references leave nothing out."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

import autoshard
from autoshard.cli.main import parser_of_commands
from tests.docs.pages import DOCS, PAGES, ROOT, name_of, sentences_of
from tests.messages import Message, messages

PACKAGE = Path(autoshard.__file__).parent


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or something of one."""
    words = dotted.split(".")
    if words[1] in autoshard.__all__ and has(autoshard, words[1:]):
        return True
    for count in range(len(words), 0, -1):
        try:
            module = importlib.import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        return has(module, words[count:])
    return False


def has(thing: object, names: Sequence[str]) -> bool:
    """Whether a thing has a thing of the first name, that has one of the second, and so on."""
    for name in names:
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True


def test_names_of_the_package_exist():
    text = {page: page.read_text(encoding="utf-8") for page in PAGES}
    dotted = {
        (name_of(page), name)
        for page, said in text.items()
        for name in re.findall(r"(?:`|::: |text of )(autoshard(?:\.\w+)+)", said)
        if not name.endswith((".py", ".toml"))
    }
    assert [one for one in sorted(dotted) if not resolves(one[1])] == []
    paths = {
        (name_of(page), path)
        for page, said in text.items()
        for path in re.findall(r"`((?:autoshard|benchmarks|tests|docs|examples)/[\w./]*)`", said)
    }
    assert [one for one in sorted(paths) if not (ROOT / one[1]).exists()] == []


def slug(heading: str) -> str:
    """The anchor of a heading, as MkDocs and GitHub make it of plain words."""
    kept = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return re.sub(r"[-\s]+", "-", kept)


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", sentences_of(page)):
            if not target.startswith("http"):
                yield page, target


def test_links_lead_somewhere():
    wrong = []
    for page, target in links():
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists():
            wrong.append(f"{name_of(page)}: {target}")
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
            if anchor not in map(slug, headings):
                wrong.append(f"{name_of(page)}: {target}")
    assert wrong == []


@cache
def every_message() -> tuple[Message, ...]:
    return tuple(messages())


def said(message: Message, heading: str) -> bool:
    """Whether a heading, with ... for what is put in, is of this message."""
    at = 0
    for piece in (part.strip() for part in heading.split("...")):
        at = message.text.find(piece, at)
        if at < 0:
            return False
    return True


@pytest.mark.parametrize(
    "heading",
    re.findall(r"^### `(.*)`$", (DOCS / "troubleshooting.md").read_text(), flags=re.MULTILINE),
)
def test_a_message_that_is_explained_is_one(heading):
    if not any(said(message, heading) for message in every_message()):
        assert any(f'"{heading}' in file.read_text() for file in PACKAGE.rglob("*.py"))


def test_the_list_of_messages_sees_all_kinds(tmp_path):
    (tmp_path / "one.py").write_text(
        "import sys, warnings\n"
        "def f(x):\n"
        "    warnings.warn(f'it is {x}', stacklevel=2)\n"
        "    print('to a person', file=sys.stderr)\n"
        "    print('to a script')\n"
        "    error = ValueError('a ' + 'b')\n"
        "    raise LookupError('c d' if x else 'e f') from error\n"
    )
    assert [message.text for message in messages(tmp_path)] == [
        "c d",
        "it is {x}",
        "to a person",
        "a b",
    ]


def test_the_reference_has_every_public_name():
    page = (DOCS / "reference/python.md").read_text()
    named = set(re.findall(r"^::: autoshard\.(?:\w+\.)*(\w+)$", page, flags=re.MULTILINE))
    assert set(autoshard.__all__) - named == set()


def test_the_generated_references_leave_nothing_out():
    from autoshard.machine.file import KEYS
    from autoshard.xla import HABITS

    spec = importlib.util.spec_from_file_location("generated", DOCS / "site/generated.py")
    assert spec is not None
    assert spec.loader is not None
    generated = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generated)
    made = {
        page: generated.on_page_markdown((DOCS / "reference" / page).read_text())
        for page in ("command-line.md", "machine-file.md", "habits.md", "requirements.md")
    }
    assert not any("<!--" in text for text in made.values())
    commands = parser_of_commands()._subparsers._group_actions[0].choices  # pyright: ignore
    assert [name for name in commands if f"\n## {name}\n" not in made["command-line.md"]] == []
    assert [one.name for one in HABITS if f"`{one.name}`" not in made["habits.md"]] == []
    keys = [key for table in KEYS.values() for key in table]
    assert [key for key in keys if f"`{key}`" not in made["machine-file.md"]] == []
    assert "limit memory SIZE" in made["requirements.md"]


def test_pages_stand_in_the_navigation_once():
    listed = re.findall(r": (\S+\.md)$", (DOCS / "site/mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES[1:])


def test_docstrings_of_public_names_say_something():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    assert ast.get_docstring(tree)
    silent = [name for name in autoshard.__all__ if not getattr(autoshard, name).__doc__]
    assert silent == []


def test_the_version_stands_everywhere_alike():
    cited = re.search(r"^version: (.*)$", (DOCS / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited is not None
    assert cited[1] == autoshard.__version__
    assert f"\n## {autoshard.__version__}\n" in (DOCS / "changelog.md").read_text()


def test_the_glossary_has_what_reports_of_plans_call_their_lines():
    words = (ROOT / "docs" / "glossary.md").read_text()
    known = set(re.findall(r"\*\*([^*]+)\*\*", words))
    shown = (ROOT / "tests" / "cli" / "snapshots" / "show-plan.txt").read_text()
    named = set(re.findall(r"^  ([a-z]+)(?=   *\S)", shown.partition("\n====")[0], re.MULTILINE))
    assert {"step", "compute", "proof", "dearest"} <= named
    assert named - known == set()
