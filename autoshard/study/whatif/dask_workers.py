"""Workers of a Dask scheduler, which may come and go while a sweep runs.

A task is sent to one worker, so that rows that are alike find what that worker learned before.
Such a task waits for ever where its worker has died. So every worker is asked for again while it is
at work: a row of one that is gone is handed to another, workers that come take part, and a sweep
whose scheduler is gone, or has had no workers for a while, ends with the rows that there are.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterator
from typing import Any

from autoshard.extras import install_line
from autoshard.study.whatif.cases import Case
from autoshard.study.whatif.solver import Answer, Asked
from autoshard.study.whatif.words import SweepError
from autoshard.study.whatif.workers import (
    AGAIN,
    POLL_SECONDS,
    EndedError,
    GoneError,
    Seat,
    answer,
)

PATIENCE_SECONDS = 60.0
"""So long a sweep without workers waits for one."""
CONNECTION_SECONDS = 10.0
"""So long a scheduler has to answer."""


class Cluster:
    """The workers of a scheduler, each a seat.

    Attributes:
      addresses: of the workers that were there when they were asked for last.
      seated: of those that are at work.
    """

    def __init__(self, client: Any, scheduler: str, asked: Asked, sweep: str) -> None:
        self.client, self.scheduler = client, scheduler
        self.asked, self.sweep = asked, sweep
        self.addresses: frozenset[str] = frozenset()
        self.seated: set[str] = set()
        self._alone_since = time.monotonic()

    def more(self) -> list[Seat]:
        """The workers that are not at work.

        Raises:
          EndedError: the scheduler is gone, or has had no workers for `PATIENCE_SECONDS`.
        """
        now = time.monotonic()
        self.addresses = self._found()
        if self.addresses:
            self._alone_since = now
        elif now - self._alone_since > PATIENCE_SECONDS:
            raise EndedError(
                f"the scheduler at {self.scheduler} has had no workers for "
                f"{PATIENCE_SECONDS:.0f} s; {AGAIN}"
            )
        new = sorted(self.addresses - self.seated)
        self.seated.update(new)
        return [DaskSeat(self, address) for address in new]

    def gone(self, address: str) -> GoneError:
        """The error of a worker that no longer answers; it may come back."""
        self.seated.discard(address)
        return GoneError(f"the worker at {address} is gone")

    def lost(self) -> EndedError:
        """The error of a scheduler that is gone."""
        return EndedError(f"the scheduler at {self.scheduler} is gone; {AGAIN}")

    def _found(self) -> frozenset[str]:
        if self.client.status == "closed":
            raise self.lost()
        if self.client.status != "running":  # it is connecting again
            return self.addresses
        try:
            return frozenset(asked_for(self.client))
        except OSError:  # the client will say whether it connects again
            return self.addresses
        except Exception as error:
            if self.client.status == "running":
                raise self.lost() from error
            return self.addresses


def asked_for(client: Any) -> Collection[str]:
    """The addresses of a scheduler's workers.

    Not `Client.scheduler_info`, whose answer lists no workers if the client asks for its scheduler
    itself just then, as it does every two seconds.
    """
    return client.sync(client.scheduler.identity, n_workers=-1)["workers"]


class DaskSeat:
    """One worker of a Dask cluster."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self._cluster, self._address = cluster, address

    def row(self, case: Case) -> Answer:
        """See `Seat`."""
        from concurrent.futures import CancelledError

        from distributed import KilledWorker  # pyright: ignore[reportMissingImports]

        cluster = self._cluster
        try:
            future = cluster.client.submit(
                answer,
                cluster.sweep,
                cluster.asked,
                case,
                workers=[self._address],
                allow_other_workers=False,
                pure=False,
            )
            while True:
                try:
                    return future.result(timeout=POLL_SECONDS)
                except TimeoutError:
                    if future.done():  # since just now, or this is the row's own error
                        return future.result()
                if self._address not in cluster.addresses:
                    future.cancel()
                    raise cluster.gone(self._address)
        except (CancelledError, KilledWorker) as error:
            raise cluster.gone(self._address) from error
        except (GoneError, SweepError):
            raise
        except Exception as error:
            if cluster.client.status != "running":
                raise cluster.lost() from error
            raise


@contextlib.contextmanager
def cluster_of(scheduler: str, asked: Asked, sweep: str) -> Iterator[Cluster]:
    """The workers of the scheduler at an address.

    Raises:
      SweepError: there is no Dask, no scheduler at the address, or it has no workers.
    """
    try:
        from distributed import Client  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SweepError(
            f"a scheduler needs Dask, which is not installed: {install_line('dask')}"
        ) from error
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what a sweep does of it is said in one line
    try:
        try:
            client = Client(scheduler, timeout=CONNECTION_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise SweepError(f"there is no Dask scheduler at {scheduler}: {error}") from error
        cluster = Cluster(client, scheduler, asked, sweep)
        try:
            if not asked_for(client):
                raise SweepError(f"the scheduler at {scheduler} has no workers; start some")
            yield cluster
        finally:
            with contextlib.suppress(Exception):  # a scheduler that is gone closes nothing
                client.close(timeout=1)
    finally:
        logger.setLevel(level)
