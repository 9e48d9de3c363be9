"""Signals that end a command early: none is lost, and each is taken as the user's wish to stop.

Python raises `KeyboardInterrupt` in whatever code runs when Ctrl-C is pressed. In a callback of the
garbage collector, a finaliser or foreign code that clears errors, the exception is swallowed, and
the search runs on. So the handler here keeps a flag as well: an `Interrupt` that is gone before
it was acknowledged was swallowed, and is raised again a moment later, until it is.

While a library of C is loaded nothing is raised either: those of jaxlib end the process where their
beginning is interrupted (in 7 of 90 tries in the first second of a search). The signal comes again
a moment later.

    with interrupts():          # SIGINT and SIGTERM, in the main thread
        try:
            work()
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)    # what there is, is finished from here on
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any

LEFT_RUNNING = "a solver of autoshard"
"""The name of threads that no signal ends: a process that ends beside one is aborted by C++."""
LOOK_SECONDS = 0.05
"""How often it is looked whether an interrupt was swallowed."""


class Interrupt(KeyboardInterrupt):
    """A signal asked to stop; see the module."""

    def __init__(self, signals: _Signals) -> None:
        super().__init__()
        self.signals = signals


def acknowledge(interrupt: KeyboardInterrupt) -> None:
    """Say that an interrupt has arrived where it is acted on."""
    if isinstance(interrupt, Interrupt):
        interrupt.signals.waiting = None


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Raise `Interrupt` on SIGINT and SIGTERM while the context is open, until it is acknowledged.

    Signals that somebody else handles or ignores stay theirs; so do all in other threads than the
    main one.
    """
    signals = _Signals()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        mine = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        for number, usual in mine.items():
            if signal.getsignal(number) is usual:
                before[number] = signal.signal(number, signals.raise_interrupt)
    said, sys.unraisablehook = sys.unraisablehook, signals.unraisable
    try:
        yield
    finally:
        signals.waiting = None
        sys.unraisablehook = said
        for number, handler in before.items():
            signal.signal(number, handler)


def loads_c(frame: FrameType | None) -> bool:
    """Whether a frame runs for an extension module that is being loaded, which may call Python."""
    while frame is not None:
        if frame.f_code.co_name in ("create_module", "exec_module"):
            loader = frame.f_locals.get("self")
            if isinstance(loader, ExtensionFileLoader):
                return True
        frame = frame.f_back
    return False


class _Signals:
    """The handler of the signals, and what it waits for.

    Attributes:
      waiting: the interrupt that is not acknowledged yet, if there is one.
    """

    def __init__(self) -> None:
        self.waiting: weakref.ref[Interrupt] | None = None
        self.said = sys.unraisablehook

    def raise_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise an interrupt in the main thread, and look after it; later where C is loaded."""
        interrupt = Interrupt(self)
        looked_after = self.waiting is not None
        self.waiting = weakref.ref(interrupt)
        if not looked_after:
            threading.Thread(target=self._look_after, args=(number,), daemon=True).start()
        if loads_c(frame):
            return  # the interrupt ends here as if it had been swallowed
        try:
            raise interrupt
        finally:
            del interrupt  # its traceback holds this frame: without it, it ends where it is dropped

    def _look_after(self, number: int) -> None:
        """Send the signal again where its interrupt was swallowed."""
        main = threading.main_thread().ident
        pause = threading.Event()
        while (waiting := self.waiting) is not None and main is not None:
            if waiting() is None:
                signal.pthread_kill(main, number)
            pause.wait(LOOK_SECONDS)

    def unraisable(self, failed: Any) -> None:
        """Say nothing of a swallowed interrupt, which comes again."""
        if not issubclass(failed.exc_type, Interrupt):
            self.said(failed)
