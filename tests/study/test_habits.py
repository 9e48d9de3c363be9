"""Which names are habits."""

from __future__ import annotations

import pytest

from autoshard.study.habits import HabitError, named


def test_names_that_are_none_are_all_named_with_near_ones():
    with pytest.raises(HabitError) as error:
        named(["gpu.gathers-combind", "gpu.gathers-combined", "nonsense"])
    first, near, strange = str(error.value).split("\n")
    assert first == "no habits:"
    assert near.startswith("  - there is no habit 'gpu.gathers-combind'; did you mean gpu.gathers-")
    assert strange == "  - there is no habit 'nonsense'"
    assert [one.name for one in named(["gpu.gathers-combined"])] == ["gpu.gathers-combined"]
