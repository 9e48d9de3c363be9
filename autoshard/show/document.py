"""The frame of every page: one HTML document with its style and script, which asks for nothing.

document(title, head, sections)    the whole page, with links to its sections
head(name, about, line, answers)   its first screen: what it is about, and the verdict
versions()                         its last rows: what made it
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from importlib import metadata, resources

from autoshard.show.html import Markup, element, in_pieces, join
from autoshard.show.verdict import Answer
from autoshard.units import held_together

Section = tuple[str, str, Markup | None]
"""Key, title and content; a section without content is left out."""
_BUTTON = re.compile(r"<button\b[^>]*>(.*?)</button>", re.DOTALL)
PACKAGES = ("autoshard", "jax", "jaxlib", "numpy", "scipy", "ortools", "highspy")


def document(title: str, head: Markup, sections: Iterable[Section]) -> str:
    """A page as a whole HTML document."""
    present = [(key, name, content) for key, name, content in sections if content is not None]
    links = (element("a", name, href=f"#{key}") for key, name, _ in present)
    main = element(
        "main",
        head,
        element("nav", *links, aria_label="sections"),
        *(
            element("section", element("h2", name), content, id=key)
            for key, name, content in present
        ),
    )
    top = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        style(),
    )
    script = element("script", Markup(_resource("page.js")))
    whole = element("html", top, element("body", main, script, class_="autoshard"), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def head(
    name: str, about: str, line: str, answers: Iterable[Answer], missing: Iterable[str] = ()
) -> Markup:
    """The first screen: a name, what it is about, the verdict in a line and in answers."""
    colours = {True: " good", False: " bad", None: ""}
    boxes = [
        element(
            "div",
            element("div", one.question, class_="question"),
            element("div", held_together(one.said), class_=f"said{colours[one.good]}"),
            element("div", *in_pieces(held_together(one.detail), "code"), class_="detail"),
            class_="answer",
        )
        for one in answers
    ]
    return join(
        element("h1", name),
        element("div", about, class_="soft"),
        element("p", held_together(line), class_="verdict"),
        element("div", *boxes, class_=f"answers of{len(boxes)}"),
        *(element("p", f"Left out: {why}", class_="warn") for why in missing),
    )


def fragment(*content: Markup | None) -> Markup:
    """A part of a page as a notebook shows it, with the style that it needs.

    It has no script, without which headings of tables sort nothing: they are no buttons here.
    """
    main = _BUTTON.sub(r"\1", element("main", *content))
    return element("div", style(), Markup(main), class_="autoshard")


def versions() -> tuple[tuple[str, str], ...]:
    """(name, version) of this package, of Python, and of what prices and solves."""
    known = [("Python", platform.python_version())]
    for name in PACKAGES:
        try:
            known.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            known.append((name, "not installed"))
    return tuple(known)


def style() -> Markup:
    """The style of all pages; it touches nothing outside of the class `autoshard`."""
    return element("style", Markup(_resource("page.css")))


def _resource(name: str) -> str:
    return (resources.files("autoshard") / "show" / name).read_text("utf-8")
