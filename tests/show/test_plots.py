"""Axes have few ticks, round in one unit."""

import pytest

from autoshard.show.plots import MOST_TICKS, round_ticks
from autoshard.units import format_bytes


@pytest.mark.parametrize(
    ("top", "step"),
    [(74 * 2**30, "20.0 GiB"), (999 * 2**20, "200 MiB"), (62.4 * 2**10, "20.0 KiB"), (3, "1 B")],
)
def test_bytes_are_round_in_their_unit(top, step):
    found, count = round_ticks(top, in_bytes=True)
    assert format_bytes(found) == step
    assert (count - 1) * found < top <= count * found


@pytest.mark.parametrize("top", [0, 1, 3, 17, 1e6, 123456789])
def test_counts_are_whole_and_few(top):
    step, count = round_ticks(top, in_bytes=False)
    assert step == int(step)
    assert 1 <= count <= MOST_TICKS
    assert top <= step * count
