"""Progress: one line on a terminal, few lines elsewhere, nothing where quiet is asked for."""

from __future__ import annotations

from autoshard.cli import progress
from autoshard.cli.progress import ProgressLine
from autoshard.solve import Progress


class Screen:
    """A stream that remembers what was written, and may be a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_progress_on_a_terminal_is_one_line():
    screen = Screen(terminal=True)
    with ProgressLine(stream=screen) as line:
        line.show("first", group="a")
        line.show("too soon", group="a")
        line.show("x" * 500, group="b")
    assert "\n" not in screen.text
    assert "too soon" not in screen.text
    assert "x" * 500 not in screen.text
    assert screen.text.startswith("\r\x1b[Kfirst\r\x1b[Kxxx")
    assert screen.text.endswith("\r\x1b[K")


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
