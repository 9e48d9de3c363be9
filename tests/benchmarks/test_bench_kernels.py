"""A sample of the random kernels: all cuts compute the whole, and a wrong cut is found."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.cli.bench import load_benchmark
from autoshard.program.kernels import cuts


@pytest.fixture(scope="module")
def child() -> Any:
    return load_benchmark("kernels_child")


def test_a_sample_of_random_kernels_computes_on_parts_what_the_whole_does(child: Any) -> None:
    found = [child.judge(0, number) for number in range(8)]
    assert {one["said"] for one in found} == {"agrees", "whole"}
    assert sum(one["cuts"] for one in found) > 5


def test_a_cut_through_scratch_that_is_carried_is_seen(child: Any, monkeypatch: Any) -> None:
    """Without the check that forbids it; the benchmark can fail."""
    assert child.judge(0, 43)["said"] == "whole"
    monkeypatch.setattr(cuts, "_check_scratch", lambda *_: None)
    assert child.judge(0, 43)["said"].startswith("differs where mesh axes (2, 2) cut")
