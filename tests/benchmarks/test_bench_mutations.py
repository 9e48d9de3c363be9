"""Spoilt files: a sample of the benchmark has no fault, and its judge sees the faults there are."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import autoshard

BENCHMARKS = Path(autoshard.__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="not beside the package here")


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_a_sample_has_no_fault(capsys):
    import mutations

    kinds = ["pipeline", "verdicts", "times", "contest problem"]
    options = argparse.Namespace(
        kinds=kinds, files=None, count=32, only=None, seed=7, workers=1, limit=120.0, json=None
    )
    assert mutations.run(options) == 0, capsys.readouterr().out
    assert "32 inputs, 0 faults" in capsys.readouterr().out


def test_a_seed_and_a_number_give_the_same_file_again():
    from spoilt.mutate import mutated

    data = json.dumps({"a": [1, 2.5, "x"], "b": {"c": None}}).encode()
    for form in ("json", "text"):
        made = [mutated(data, form, random.Random(f"0 {number}")) for number in range(60)]
        again = [mutated(data, form, random.Random(f"0 {number}")) for number in range(60)]
        assert made == again
        assert len({one for one, _ in made if one != data}) > 30


def fail(_: object) -> int:
    raise KeyError("x")


def hang(_: object) -> int:
    while True:
        time.sleep(0.01)


def say_nothing(_: object) -> int:
    return 2


def say_a_traceback(_: object) -> int:
    print("Traceback (most recent call last):\nKeyError: 'x'", file=sys.stderr)
    return 0


def refuse(_: object) -> int:
    print("autoshard: error: it is damaged", file=sys.stderr)
    return 2


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (fail, "traceback: KeyError: 'x' at "),
        (hang, "hangs: "),
        (say_nothing, "no message"),
        (say_a_traceback, "traceback: KeyError: 'x'"),
        (lambda _: 1, "exit code 1"),
        (refuse, ""),
        (lambda _: 0, ""),
    ],
)
def test_the_judge(monkeypatch: pytest.MonkeyPatch, command: Any, fault: str):
    from spoilt import child

    monkeypatch.setattr(child, "main", command)
    before = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, child._ring)
    try:
        found = child._ran(["x"], 0.3)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert found["fault"].startswith(fault)
    assert bool(found["fault"]) == bool(fault)
