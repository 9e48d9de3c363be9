"""Who solves the rows: this process, processes of this machine, or workers of a Dask scheduler.

Every worker is a `Seat`: it answers one row at a time, and keeps what it learned for the next one
(`autoshard.study.whatif.solver`). A group of rows that are alike stays on one seat.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Protocol

from autoshard.study.whatif.cases import Case
from autoshard.study.whatif.child import begin
from autoshard.study.whatif.kept import own_digest
from autoshard.study.whatif.solver import Answer, Asked, Solver
from autoshard.study.whatif.words import SweepError

_solvers: dict[str, Solver] = {}
"""The solver of the sweep that this worker process is at, by the sweep's name."""
_one_at_a_time = threading.Lock()
"""Dask may have several workers in one process, each a thread, which share the solver."""


POLL_SECONDS = 1.0
"""So often workers that come and go are asked for."""
GRACE_SECONDS = 5.0
"""A worker that is gone has this long until its exit code is there."""
AGAIN = "rows that were done are kept: the same sweep again goes on from there"


class GoneError(Exception):
    """A worker is gone, and another one may answer its row."""


class EndedError(SweepError):
    """There are no workers any more."""


class Seat(Protocol):
    """Answers rows, one at a time."""

    def row(self, case: Case) -> Answer:
        """The row of a case.

        Raises:
          GoneError: whoever was to answer it is gone.
          EndedError: nobody answers any more.
        """
        ...


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a sweep.

    Attributes:
      seats: those that are there.
      more: those that have come since it was called last; None where none can come or go.
    """

    seats: Sequence[Seat]
    more: Callable[[], Sequence[Seat]] | None = None


class ProcessSeat:
    """A process of its own on this machine."""

    def __init__(self, asked: Asked, sweep: str) -> None:
        context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=begin)
        self._asked, self._sweep = asked, sweep
        self._processes: list[BaseProcess] = []

    def row(self, case: Case) -> Answer:
        """See `Seat`."""
        try:
            future = self._pool.submit(answer, self._sweep, self._asked, case)
            # A worker that was just killed is no longer among those that run.
            self._processes = self._running() or self._processes
            return future.result()
        except BrokenProcessPool as error:
            codes = [_exit_code(process) for process in self._processes]
            raise SweepError(f"the worker that planned {case} {_ended(codes)}; {AGAIN}") from error

    def close(self) -> None:
        """End the process, at once if it is at work."""
        for process in self._running():
            process.terminate()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _running(self) -> list[BaseProcess]:
        return list((self._pool._processes or {}).values())


@contextlib.contextmanager
def seats(asked: Asked, workers: int, scheduler: str | None) -> Iterator[Workers]:
    """The workers of a sweep.

    Args:
      workers: processes on this machine; 0 for this process alone.
      scheduler: address of a Dask scheduler, such as "tcp://10.0.0.1:8786"; its workers are taken
        instead, and must be able to import autoshard and the program.

    Raises:
      SweepError: there is no Dask, no scheduler at the address, or it has no workers.
    """
    sweep = uuid.uuid4().hex
    if scheduler is not None:
        from autoshard.study.whatif.dask_workers import cluster_of

        with cluster_of(scheduler, asked, sweep) as cluster:
            yield Workers(cluster.more(), cluster.more)
    elif workers == 0:
        yield Workers([Solver(asked)])
    else:
        processes = [ProcessSeat(asked, sweep) for _ in range(workers)]
        try:
            yield Workers(processes)
        finally:
            for process in processes:
                process.close()


def answer(sweep: str, asked: Asked, case: Case) -> Answer:
    """The row of a case, from the solver that this process keeps for a sweep.

    Workers that are threads of one process answer one after the other.
    """
    with _one_at_a_time:
        return _answer(sweep, asked, case)


def _answer(sweep: str, asked: Asked, case: Case) -> Answer:
    if sweep not in _solvers:
        if own_digest() != asked.code:
            raise SweepError(
                "a worker has another autoshard than the process that sweeps; install the same "
                "version in both, and sweep again"
            )
        _solvers.clear()
        _solvers[sweep] = Solver(asked)
    try:
        return _solvers[sweep].row(case)
    except KeyboardInterrupt as error:
        # Workers of this machine do not hear Ctrl-C, which is for the process that sweeps.
        raise SweepError(f"the worker that planned {case} was interrupted; {AGAIN}") from error


def _exit_code(process: BaseProcess) -> int | None:
    """The exit code of a process that is gone; None where it is not there in `GRACE_SECONDS`.

    The pool waits for its processes in a thread of its own. `join` returns at once where that
    thread has taken the code from the system and has not written it down yet.
    """
    until = time.monotonic() + GRACE_SECONDS
    while process.exitcode is None and time.monotonic() < until:
        time.sleep(0.01)
    return process.exitcode


def _ended(codes: Sequence[int | None]) -> str:
    """How a worker ended, from its exit code: that of a signal is negative."""
    code = next((code for code in codes if code), None)
    if code is None:
        return "ended"
    if code > 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    if -code == signal.SIGKILL:
        return (
            f"was killed ({name}), as the system does where memory runs out; take fewer workers if "
            "it was that"
        )
    return f"was killed ({name})"
