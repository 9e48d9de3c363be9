"""Progress: one line on a terminal, few lines elsewhere, nothing where quiet is asked for."""

from __future__ import annotations

import io
import sys

import pytest

from autoshard.cli import progress
from autoshard.cli.progress import ProgressLine
from autoshard.solve import Progress


class Screen(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def text(self) -> str:
        return self.getvalue()


CLEAR = "\r\x1b[2K"
GONE = "\r\x1b[1A\x1b[2K"
"""A line is cleared; the line above is."""


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("NO_COLOR", "1")


def test_progress_on_a_terminal_is_one_line(monkeypatch):
    monkeypatch.setattr(progress, "UPDATE_SECONDS", 1e3)
    screen = Screen(terminal=True)
    with ProgressLine(stream=screen) as line:
        line.show("first", group="a")
        line.show("too soon", group="a")
        line.show("x" * 500, group="b")
    first, second, *rest = screen.text.split(CLEAR)
    assert first.endswith("first")
    assert second == "x" * 88 + "\u2026"
    assert "too soon" not in screen.text
    assert screen.text.count("\n") == 1
    assert screen.text.endswith(GONE)
    assert len(rest) == 1  # the last line again, before it goes


def test_a_warning_stands_above_the_line(monkeypatch):
    screen = Screen(terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    with ProgressLine() as line:
        line.show("first", group="a")
        print("[bold] " + "w" * 200, file=sys.stderr)
    assert f"first{CLEAR}[bold] {'w' * 200}\nfirst" in screen.text
    assert sys.stderr is screen


def test_a_terminal_that_obeys_nothing_is_written_to_as_a_file(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen(terminal=True)
    with ProgressLine(stream=screen) as line:
        line.show("first", group="a")
    assert screen.text == "first\n"


def test_progress_elsewhere_is_sparse():
    screen = Screen(terminal=False)
    with ProgressLine(stream=screen) as line:
        line.show("first", group="a")
        line.show("too soon", group="b")
    assert screen.text == "first\n"
    quiet = Screen(terminal=True)
    with ProgressLine(stream=quiet, quiet=True) as line:
        line.show("first", group="a")
    assert quiet.text == ""


def test_news_of_the_solver_can_be_shown():
    assert str(Progress("bound", 2.0, 1.0, 0.5, 3.0, 7))


def test_phases_beyond_a_time_limit_are_named(monkeypatch):
    moments = iter([0.0, 0.0, 2.0, 3.0, 3.05, 9.0, 9.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(moments))
    phases = progress.Phases()
    for phase in ("trace", "analyse", "build", "descent"):
        phases.enter(phase)
    assert phases.beyond(0.5) == (
        "this took 9.0 s, and the time limit is 0.5 s: the solver 6.0 s, tracing and its sharding "
        "rules 2.0 s, what the compiler makes of the program 1.0 s; what is begun is finished "
        "where there is no plan without it"
    )


def test_a_time_limit_that_is_kept_within_a_second_or_a_tenth_says_nothing(monkeypatch):
    for took, limit in ((1.4, 0.5), (10.9, 10.0), (65.0, 60.0)):
        moments = iter([0.0, took, took])
        monkeypatch.setattr(progress.time, "monotonic", lambda moments=moments: next(moments))
        assert progress.Phases().beyond(limit) == ""
