"""Random requirement sets against all plans; `brute_force` checks many more."""

from __future__ import annotations

import pytest

from tests.problem.requirements.brute_force import check


@pytest.mark.parametrize("first", range(0, 120, 8))
def test_random_sets_are_kept_or_explained(first):
    kinds = {check(seed) for seed in range(first, first + 8)}
    assert kinds & {"feasible", "infeasible"}
