"""Workers of a Dask scheduler that die and come while a sweep runs: real processes on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoshard.study.whatif import answering, dask_workers, workers
from autoshard.study.whatif.answering import Work
from autoshard.study.whatif.sweep import SweepProgress, whatif
from autoshard.study.whatif.table import WhatIf
from autoshard.study.whatif.words import SweepError

pytest.importorskip("distributed")

ROOT = Path(__file__).parents[3]
SWEEP = {"machine": ["v5e-4", "v5e-8", "h100-8"], "batch": [64]}
HELD = "tests.study.whatif.programs:held"


class Cluster:
    """A scheduler and its workers, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        words = "scheduler --host 127.0.0.1 --port 0 --no-dashboard --scheduler-file"
        self.scheduler = self._start(words, str(folder / "scheduler.json"))
        self.address = self._address()

    def _start(self, words: str, *more: str) -> subprocess.Popen[bytes]:
        here = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "HELD": str(self.folder),
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(here),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *words.split(), *more],
            env=environment,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        return process

    def _address(self) -> str:
        file = self.folder / "scheduler.json"
        until(file.exists)
        return json.loads(file.read_text())["address"]

    def worker(self) -> subprocess.Popen[bytes]:
        words = f"worker {self.address} --host 127.0.0.1 --no-nanny --no-dashboard --nthreads 1"
        return self._start(words)

    def waits(self, worker: subprocess.Popen[bytes]) -> bool:
        """Whether a worker is at a row."""
        return (self.folder / str(worker.pid)).exists()

    def go(self) -> None:
        """Let rows be answered."""
        (self.folder / "go").touch()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def until(true: Any) -> None:
    limit = time.monotonic() + 300
    while not true():
        assert time.monotonic() < limit, "it did not become so in 300 s"
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(tmp_path)
    yield one
    one.close()


@contextmanager
def sweeping(
    cluster: Cluster, words: dict[str, list[Any]] = SWEEP, **options: Any
) -> Iterator[list[WhatIf]]:
    """A sweep in a thread; its table is there when the context is left."""
    found: list[WhatIf] = []

    def run() -> None:
        found.append(whatif(HELD, words, scheduler=cluster.address, gap=0.2, **options))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield found
    thread.join()


def ready(cluster: Cluster, *workers: subprocess.Popen[bytes]) -> None:
    """Wait until workers are registered."""
    from distributed import Client  # pyright: ignore[reportMissingImports]

    with Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(len(workers))


def test_rows_of_a_worker_that_dies_are_answered_by_others_and_by_one_that_comes(
    cluster: Cluster, tmp_path: Path
) -> None:
    first = cluster.worker()
    ready(cluster, first)
    with sweeping(cluster, keep=False) as found:
        until(lambda: cluster.waits(first))
        first.send_signal(signal.SIGKILL)
        second = cluster.worker()  # comes to a sweep that has no worker
        until(lambda: cluster.waits(second))
        cluster.go()
    (table,) = found
    assert [row.fits for row in table.rows] == [True] * 3
    assert (table.interrupted, table.ended) == (False, "")


def test_a_scheduler_that_dies_ends_with_the_rows_that_are_there(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_workers, "CONNECTION_SECONDS", 2.0)
    worker = cluster.worker()
    ready(cluster, worker)
    (cluster.folder / "once").touch()  # all other rows wait, however late the scheduler dies

    def heard(news: SweepProgress) -> None:
        if news.done == 1:
            cluster.scheduler.kill()

    keep = tmp_path / "rows"
    words = {"machine": ["v5e-4"], "batch": [64, 128, 256]}
    with sweeping(cluster, words, folder=keep, progress=heard) as found:
        pass
    (table,) = found
    assert len(table.rows) == 1
    assert table.interrupted
    assert table.ended == (
        f"the scheduler at {cluster.address} is gone; rows that were done are kept: the same sweep "
        "again goes on from there"
    )
    assert "interrupted, 2 not answered" in str(table)
    assert list(keep.glob("*.json"))


def test_a_row_that_workers_do_not_survive_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "MOST_WORKERS", 1)
    first = cluster.worker()
    ready(cluster, first)
    with sweeping(cluster, keep=False) as found:
        until(lambda: cluster.waits(first))
        first.send_signal(signal.SIGKILL)
        first.wait()
        cluster.go()
        cluster.worker()
    (table,) = found
    (row,) = [row for row in table.rows if not row.fits]
    assert row.status == "no plan"
    assert row.why is not None
    said = "given up, since workers died while they planned it (1); the worker at tcp://127.0.0.1:"
    assert row.why.startswith(said)


def test_a_sweep_without_workers_ends(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SweepError, match="has no workers; start some"):
        whatif(HELD, SWEEP, scheduler=cluster.address)
    monkeypatch.setattr(dask_workers, "PATIENCE_SECONDS", 1.0)
    worker = cluster.worker()
    ready(cluster, worker)
    caught: list[SweepError] = []

    def run() -> None:
        try:
            whatif(HELD, SWEEP, scheduler=cluster.address, keep=False)
        except SweepError as error:
            caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: cluster.waits(worker))
    worker.send_signal(signal.SIGKILL)
    thread.join()
    assert "has had no workers for 1 s; rows that were done are kept" in str(caught[0])


class Late:
    """A future that is done just after it was waited for in vain, with an answer or an error."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.asked = error, 0

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> str:
        self.asked += 1
        if self.asked == 1:
            raise TimeoutError
        if self.error is not None:
            raise self.error
        return "answer"


@pytest.mark.parametrize("error", [None, TimeoutError("of the row"), ValueError("of the row")])
def test_an_answer_that_comes_as_the_wait_ends_is_taken(error: Exception | None) -> None:
    client = SimpleNamespace(submit=lambda *_, **__: Late(error), status="running")
    cluster: Any = SimpleNamespace(client=client, sweep="a", asked=None, addresses={"tcp://a"})
    seat = dask_workers.DaskSeat(cluster, "tcp://a")
    case: Any = "case"
    if error is None:
        assert seat.row(case) == "answer"
    else:
        with pytest.raises(type(error), match="of the row"):
            seat.row(case)


def test_workers_that_are_threads_of_one_process_share_a_solver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    class Slow:
        at_work = False

        def __init__(self, asked: Any) -> None:
            time.sleep(0.02)
            made.append(self)

        def row(self, case: int) -> int:
            assert not self.at_work
            self.at_work = True
            time.sleep(0.02)
            self.at_work = False
            return case

    monkeypatch.setattr(workers, "Solver", Slow)
    monkeypatch.setattr(workers, "own_digest", lambda: time.sleep(0.01) or "code")
    monkeypatch.setattr(workers, "_solvers", {})
    asked: Any = SimpleNamespace(code="code")
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda case: workers.answer("sweep", asked, case), range(8)))
    assert rows == [*range(8)]
    assert len(made) == 1


def test_rows_that_are_given_back_are_taken_by_who_waits() -> None:
    work = Work([[0, 1, 2, 3]])
    assert work.take(0) == 0
    assert work.take(1) == 2
    assert work.take(1) == 3
    taken: list[int | None] = []
    thread = threading.Thread(
        target=lambda: taken.extend(work.take(1, wait=True) for _ in range(3)), daemon=True
    )
    thread.start()
    work.give_back(0, [0])
    until(lambda: not work.groups and not work.own.get(0) and not work.own.get(1))
    work.stop()
    thread.join()
    assert sorted(taken[:2], key=str) == [0, 1]
    assert taken[2] is None
