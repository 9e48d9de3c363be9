"""Signals end what runs, wherever they arrive, once and for all."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import signal
import threading
import time
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType

import pytest

from autoshard.interrupts import LOOK_SECONDS, Interrupt, acknowledge, interrupts

PATIENCE = 20.0


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def wait() -> None:
    """Work in pure Python until an interrupt ends it; fail where none comes."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        time.sleep(0.01)
    raise AssertionError("the interrupt was lost")


def send_and_wait(number: int) -> None:
    send(number)
    wait()


class Careless:
    """Its finaliser is where the signal arrives."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        send(self.number)
        for _ in range(1000):
            pass


def in_a_finaliser(number: int) -> None:
    Careless(number)


def in_a_garbage_collection(number: int) -> None:
    def callback(phase: str, _: object) -> None:
        if phase == "start":
            gc.callbacks.remove(callback)
            send(number)
            for _ in range(1000):
                pass

    gc.callbacks.append(callback)
    gc.collect()


def in_code_that_catches_all(number: int) -> None:
    with contextlib.suppress(BaseException):
        send(number)
        time.sleep(0.01)


def in_the_open(number: int) -> None:
    send(number)


class Loader(ExtensionFileLoader):
    """Loads a library of C; a signal arrives meanwhile, in Python that the library calls."""

    def __init__(self, number: int) -> None:
        super().__init__("_json", importlib.import_module("_json").__file__ or "")
        self.number = number
        self.whole = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        send_and_look_on(self.number)
        self.whole = True
        return super().create_module(spec)


def send_and_look_on(number: int) -> None:
    send(number)
    for _ in range(4):
        time.sleep(LOOK_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_libraries_of_c_are_loaded_whole(number):
    loader = Loader(number)

    def load() -> None:
        spec = importlib.util.spec_from_loader("_json", loader)
        assert spec is not None
        importlib.util.module_from_spec(spec)
        wait()

    with interrupts(), pytest.raises(Interrupt):
        load()
    assert loader.whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "place", [in_the_open, in_a_finaliser, in_a_garbage_collection, in_code_that_catches_all]
)
def test_no_signal_is_lost(place, number, capsys):
    def arrive() -> None:
        place(number)
        wait()

    with interrupts(), pytest.raises(Interrupt):
        arrive()
    assert capsys.readouterr().err == ""


def test_what_was_heard_does_not_come_again():
    with interrupts():
        try:
            send_and_wait(signal.SIGINT)
        except KeyboardInterrupt as interrupt:
            acknowledge(interrupt)
        gc.collect()
        time.sleep(4 * LOOK_SECONDS)  # the work is finished here
        with pytest.raises(Interrupt):  # another one counts again
            send_and_wait(signal.SIGTERM)


def test_cleaning_up_is_not_interrupted_again():
    done = []

    def work() -> None:
        try:
            send_and_wait(signal.SIGINT)
        finally:
            time.sleep(4 * LOOK_SECONDS)
            done.append(True)

    with interrupts(), pytest.raises(Interrupt):
        work()
    assert done


def test_handlers_of_others_stay():
    heard_by_others = []
    mine = signal.signal(signal.SIGTERM, lambda number, _: heard_by_others.append(number))
    try:
        with interrupts():
            send(signal.SIGTERM)
            time.sleep(0.01)
        assert heard_by_others == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, mine)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_change_nothing():
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def enter() -> None:
        with interrupts():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]
