"""Who solves the rows: this process, processes of this machine, or workers of a Dask scheduler.

Every worker is a `Seat`: it answers one row at a time, and keeps what it learned for the next one
(`autoshard.study.whatif.solver`). A group of rows that are alike stays on one seat.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from autoshard.study.whatif.cases import Case
from autoshard.study.whatif.child import begin
from autoshard.study.whatif.kept import own_digest
from autoshard.study.whatif.solver import Answer, Asked, Solver
from autoshard.study.whatif.words import SweepError

_solvers: dict[str, Solver] = {}
"""The solver of the sweep that this worker process is at, by the sweep's name."""


GRACE_SECONDS = 5.0
"""A worker that is gone has this long until its exit code is there."""
AGAIN = "rows that were done are kept: the same sweep again goes on from there"


class Seat(Protocol):
    """Answers rows, one at a time."""

    def row(self, case: Case) -> Answer:
        """The row of a case."""
        ...


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
            answer = self._pool.submit(_answer, self._sweep, self._asked, case)
            # A worker that was just killed is no longer among those that run.
            self._processes = self._running() or self._processes
            return answer.result()
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


class DaskSeat:
    """One worker of a Dask cluster."""

    def __init__(self, client: Any, address: str, asked: Asked, sweep: str) -> None:
        self._client, self._address, self._asked, self._sweep = client, address, asked, sweep

    def row(self, case: Case) -> Answer:
        """See `Seat`."""
        future = self._client.submit(
            _answer, self._sweep, self._asked, case, workers=[self._address], pure=False
        )
        return future.result()


@contextlib.contextmanager
def seats(asked: Asked, workers: int, scheduler: str | None) -> Iterator[list[Seat]]:
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
        client = _client(scheduler)
        try:
            addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
            if not addresses:
                raise SweepError(f"the scheduler at {scheduler} has no workers; start some")
            yield [DaskSeat(client, address, asked, sweep) for address in addresses]
        finally:
            client.close()
    elif workers == 0:
        yield [Solver(asked)]
    else:
        processes = [ProcessSeat(asked, sweep) for _ in range(workers)]
        try:
            yield list(processes)
        finally:
            for process in processes:
                process.close()


def _client(scheduler: str) -> Any:
    try:
        from distributed import Client  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SweepError(
            "a scheduler needs Dask, which is not installed: pip install 'autoshard[dask]'"
        ) from error
    try:
        return Client(scheduler, timeout=10, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise SweepError(f"there is no Dask scheduler at {scheduler}: {error}") from error


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
