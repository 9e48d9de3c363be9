"""The fewest lines: Shardy makes the plan of them, and of no fewer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.lower.compare import Tally
from autoshard.lower.spmd import lower
from autoshard.study.annotate.fewest import Fewest, fewest
from autoshard.study.annotate.line_search import TOLERANCE
from tests.helpers import toy_machine
from tests.problem.requirements.programs import array, plan_of, train_program, train_step

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
    lowered = lower(plan, train_step, *ARGUMENTS)
    found = fewest(
        lowered, train_step, machine=toy_machine(), heard=lambda n, ok: checks.append((n, ok))
    )
    assert found.exact
    count = len(found.lines)
    assert (count, True) in checks
    assert found.checks == len(checks) + 1  # the last one traces the step with these lines alone
    # None can be left out: every set of one fewer was checked, and does not suffice.
    assert checks.count((count - 1, False)) >= count
    assert (count - 1, True) not in checks
    text = str(found)
    if count:
        assert text.startswith(f"{count} of {found.of} lines")
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
    found = fewest(lower(plan, train_step, *ARGUMENTS), train_step, machine=toy_machine())
    assert found.exact
    assert not found.lines
    assert str(found) == "the shardings of inputs and results are enough"


def test_products_cut_otherwise_and_dear_collectives_do_not_make_the_plan():
    """A share of the step below the tolerance is listed, and no failure; a product always is."""
    cheap = Tally("all_reduce", ("x",), 1024, planned=0, found=1)
    found = Fewest((), None, 3, left=(cheap,), share=TOLERANCE / 2)  # type: ignore[arg-type]
    assert found.enough
    assert not found.exact
    assert str(found).splitlines() == [
        "0 of 3 lines, beside the shardings of inputs and results:",
        "Otherwise than planned, 0.50 % of the step, are:",
        "  all_reduce over x of 1.00 KiB: 0 planned, 1 made",
    ]
    assert not replace(found, share=2 * TOLERANCE).enough
    assert not replace(found, products=1).enough


def test_when_the_time_is_over_the_best_lines_that_were_tried_are_there():
    plan = plan_of(train_program(), *BY_HAND)
    lowered = lower(plan, train_step, *ARGUMENTS)
    whole = fewest(lowered, train_step, machine=toy_machine())
    assert (whole.ended, whole.to_json()["ended"]) == ("", "")
    found = fewest(lowered, train_step, machine=toy_machine(), time_limit=1e-9)
    assert (found.lines, found.ended, found.exact) == ((), "time", False)
    assert str(found).endswith("The time is over: fewer lines, or others, may make the plan.")
    assert "No more lines were found" not in str(found)
    heard = []

    def interrupt(count, enough):
        heard.append(count)
        if heard.count(2) == 2:  # after all single lines, and some with another one
            raise KeyboardInterrupt

    some = fewest(lowered, train_step, machine=toy_machine(), heard=interrupt)
    assert some.ended == "interrupted"
    assert len(some.lines) in (1, 2)
    assert whole.share <= some.share < found.share
    assert str(some).endswith("It was interrupted: fewer lines, or others, may make the plan.")
