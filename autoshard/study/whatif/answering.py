"""The rows of a sweep, handed out to workers, and heard of as they come.

Groups of rows are handed out as workers become free, those of most chips first, which take longest;
a worker for which there is none left takes over half of the longest one. The rows of a worker that
is gone are free again. A row that several workers did not survive says so in place of a plan.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoshard.interrupts import acknowledge
from autoshard.study.whatif.cases import Case
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.solver import Answer
from autoshard.study.whatif.workers import POLL_SECONDS, EndedError, GoneError, Seat, Workers
from autoshard.units import counted

MOST_WORKERS = 3
"""A row is given up when so many workers have gone while they were at it."""


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """A row came in: how many are done of how many, and the seconds left, if all goes on so."""

    row: Row
    known: bool
    done: int
    total: int
    seconds_left: float

    def __str__(self) -> str:
        return (
            f"{self.done}/{counted(self.total, 'row')}, about {self.seconds_left:.0f} "
            f"s left: {self.row}"
        )


@dataclass(slots=True)
class Work:
    """The rows that nobody has begun with; `own` are those of each seat."""

    groups: list[list[int]]
    own: dict[int, list[int]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopped: bool = False

    def take(self, seat: int, *, wait: bool = False) -> int | None:
        """The next row of a seat; None where nothing is left, and if it waits, once it is stopped.

        It waits for rows that others give back.
        """
        with self.changed:
            while not self.stopped:
                if not self.own.get(seat):
                    self.own[seat] = self.groups.pop(0) if self.groups else self._half()
                if self.own[seat]:
                    return self.own[seat].pop(0)
                if not wait:
                    break
                self.changed.wait()
            return None

    def give_back(self, seat: int, begun: Sequence[int]) -> None:
        """A seat is gone: the rows that it had begun or not begun with are free."""
        with self.changed:
            self.groups.insert(0, [*begun, *self.own.pop(seat, [])])
            self.groups = [group for group in self.groups if group]
            self.changed.notify_all()

    def stop(self) -> None:
        """Give out no more rows."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def _half(self) -> list[int]:
        """The second half of the longest group that is under way."""
        longest = max(self.own.values(), key=len, default=[])
        taken = longest[len(longest) // 2 :]
        del longest[len(longest) // 2 :]
        return taken


@dataclass(frozen=True, slots=True)
class _Gone:
    """The worker at a place is gone; it was at a row."""

    place: int
    number: int
    why: str


class Answers:
    """The rows of a sweep.

    Args:
      cases: the questions.
      groups: their numbers, those that are alike in one group.
      workers: who answers.
      progress: called as rows come in.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        groups: list[list[int]],
        workers: Workers,
        progress: Callable[[SweepProgress], None] | None,
    ) -> None:
        self.cases, self.workers, self.progress = cases, workers, progress
        self.work = Work(groups)
        self.came: queue.SimpleQueue[tuple[int, Answer] | _Gone | BaseException] = (
            queue.SimpleQueue()
        )
        self.rows: dict[int, Row] = {}
        self.seats = 0
        self.solved = 0
        self.lost: Counter[int] = Counter()
        self.warned = False
        self.started = time.monotonic()

    def found(self) -> tuple[list[Row], str]:
        """The rows in the order of the cases, and what ended the sweep before the last, if so.

        Raises:
          KeyboardInterrupt, EndedError: it ended before the first row.
        """
        ended = ""
        try:
            if self.workers.more is None and len(self.workers.seats) == 1:
                # In this thread, where an interrupt ends the search itself.
                while (number := self.work.take(0)) is not None:
                    self._heard(number, self.workers.seats[0].row(self.cases[number]))
            else:
                self._share()
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)
            if not self.rows:
                raise
            ended = "interrupted"
        except EndedError as error:
            if not self.rows:
                raise
            ended = str(error)
        finally:
            self.work.stop()
        return [self.rows[number] for number in sorted(self.rows)], ended

    def _share(self) -> None:
        """Have all seats answer, and those that come."""
        self._seat(self.workers.seats)
        more, asked = self.workers.more, time.monotonic()
        while len(self.rows) < len(self.cases):
            try:
                news = self.came.get(timeout=None if more is None else POLL_SECONDS)
            except queue.Empty:
                news = None
            if isinstance(news, BaseException):
                raise news
            if isinstance(news, _Gone):
                self._gone(news)
            elif news is not None:
                self._heard(*news)
            if more is not None and time.monotonic() - asked > POLL_SECONDS:
                self._seat(more())
                asked = time.monotonic()

    def _seat(self, seats: Sequence[Seat]) -> None:
        for seat in seats:
            threading.Thread(target=self._sit, args=(self.seats, seat), daemon=True).start()
            self.seats += 1

    def _sit(self, place: int, seat: Seat) -> None:
        try:
            while (number := self.work.take(place, wait=True)) is not None:
                try:
                    self.came.put((number, seat.row(self.cases[number])))
                except GoneError as gone:
                    self.came.put(_Gone(place, number, str(gone)))
                    return
        except BaseException as error:
            self.came.put(error)

    def _gone(self, gone: _Gone) -> None:
        """Have another worker answer the row, or give it up."""
        number = gone.number
        self.lost[number] += 1
        if self.lost[number] < MOST_WORKERS:
            self.work.give_back(gone.place, [number])
            return
        self.work.give_back(gone.place, [])
        case = self.cases[number]
        row = Row(
            sizes=dict(case.sizes),
            chip=case.chip,
            chips=case.machine.chips,
            machine=case.machine.name,
            limit_bytes=case.limit,
            status="no plan",
            why=f"given up, since workers died while they planned it ({MOST_WORKERS}); {gone.why}",
        )
        self._heard(number, Answer(row))

    def _heard(self, number: int, answer: Answer) -> None:
        row, known, unkept = answer
        self.rows[number] = row
        self.solved += not known
        if unkept and not self.warned:
            self.warned = True
            warnings.warn(f"rows are not kept for the next sweep: {unkept}", stacklevel=4)
        if self.progress is not None:
            pace = (time.monotonic() - self.started) / max(self.solved, 1)
            left = pace * (len(self.cases) - len(self.rows))
            news = SweepProgress(row, known, len(self.rows), len(self.cases), left)
            self.progress(news)
