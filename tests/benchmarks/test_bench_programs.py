"""Random programs: all judges agree on a sample of the benchmark, and its judge sees faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autoshard
from tests.helpers import LONG

BENCHMARKS = Path(autoshard.__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="not beside the package here")


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


TRANSFORM = 644
"""What XLA:CPU refused: a transform beside products that are better off with another order."""


@pytest.mark.parametrize("number", [*range(4), pytest.param(TRANSFORM, marks=LONG)])
def test_all_judges_agree_on_a_sample(number):
    from drawn import child

    found = child.judge(11, number)
    assert found["said"].startswith("agrees"), found


def test_a_child_that_hangs_or_ends_is_a_fault(tmp_path):
    import argparse

    import numbered

    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, sys, time\n"
        "seed, first, step, count = map(int, sys.argv[1:])\n"
        "for number in range(first, count, step):\n"
        "    print(json.dumps({'number': number}), flush=True)\n"
        "    if number == 1: time.sleep(1000)\n"
        "    if number == 2: os._exit(7)\n"
        "    print(json.dumps({'number': number, 'said': 'agrees'}), flush=True)\n"
    )
    options = argparse.Namespace(seed=0, first=0, count=4, only=None, workers=1)
    told = []
    found = numbered.judged(child, options, limit=2.0, tell=told.append)
    said = [one["said"] for one in found]
    assert said == ["agrees", "the process ended with -9", "the process ended with 7", "agrees"]
    assert json.dumps(told) == json.dumps(found)
