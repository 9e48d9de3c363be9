"""What a notebook shows of a plan."""

from __future__ import annotations

from types import SimpleNamespace

from IPython.core.formatters import DisplayFormatter

from autoshard.show.notebook import register
from tests.show.reading import read
from tests.show.test_page import toy


def test_a_notebook_shows_a_plan():
    shell = SimpleNamespace(display_formatter=DisplayFormatter())
    register(shell)
    shown, _ = shell.display_formatter.format(toy())
    found = read(shown["text/html"])
    text = found.all_text()
    assert "toy on v5e-8" in text
    assert "Which devices hold which part" in text
    assert "script" not in found.tags
    assert "h2" not in found.tags
