"""The fewest annotations: Shardy makes the plan of them, and of no fewer."""

from __future__ import annotations

import pytest

from autoshard.lower.collectives import explicit_collectives
from autoshard.lower.compare import compare
from autoshard.lower.fewest import fewest
from autoshard.lower.spmd import lower
from tests.requirements.programs import array, plan_of, train_program, train_step

ARGUMENTS = (
    {"up": array(256, 1024), "down": array(1024, 256)},
    {"inputs": array(64, 256), "targets": array(64, 256)},
)
BY_HAND = (
    "pin weights.up [data, model]",
    "pin weights.down [model, data]",
    "pin batch.* [data, None]",
)


@pytest.mark.parametrize("requirements", [(), BY_HAND])
def test_shardy_makes_the_plan_of_the_fewest_and_of_no_fewer(requirements):
    plan = plan_of(train_program(), *requirements)
    checks = []
    found = fewest(lower(plan, train_step, *ARGUMENTS), heard=lambda n, ok: checks.append((n, ok)))
    made = explicit_collectives(found.lowered.lower(platforms=("tpu",)))
    assert compare(plan.moves, made).agrees
    assert len(found.sites) < found.of / 2
    count = len(found.sites)
    assert (count, True) in checks
    assert found.checks == len(checks)
    # None can be left out: every set of one fewer was checked, and does not suffice.
    assert checks.count((count - 1, False)) >= count
    assert (count - 1, True) not in checks
    text = str(found)
    assert text.startswith(f"{count} of {found.of} places")
    assert "programs.py:" in text
    assert "with_sharding_constraint(x, P(" in text


def test_what_propagation_does_alone_needs_no_lines():
    """Data parallelism follows from the batch."""
    plan = plan_of(
        train_program(),
        "pin weights.* [None, None]",
        "pin batch.* [(data, model), None]",
        "forbid scope mlp:dot_general [None, ?]",
        "limit all_gather count 0",
        "limit all_to_all count 0",
    )
    found = fewest(lower(plan, train_step, *ARGUMENTS))
    assert len(found.sites) <= 1
