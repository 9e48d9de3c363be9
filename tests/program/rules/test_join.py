"""Joining the rules of several operations into the rule of one equation."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.compat import LoweredModule, LoweredOp
from autoshard.program.rules.join import join_rules


def joined(shapes: list[tuple[int, ...]], ops: list[LoweredOp], result: int) -> str:
    """The rule of one equation: value 0 is its operand, `result` its result."""
    module = LoweredModule(tuple(ops), tuple(shapes), ((0,),), ((result,),))
    return str(join_rules(module)[0])


def op(name: str, operands: tuple[int, ...], result: int, rule: str | None = None, **facts: Any):
    return LoweredOp(f"stablehlo.{name}", operands, (result,), rule, **facts)


def test_a_factor_is_split_where_ops_see_a_dimension_differently() -> None:
    ops = [
        op("exponential", (0,), 1, "([i])->([i]) {i=12}"),
        op("reshape", (1,), 2, "([ij])->([i, j]) {i=3, j=4}"),
    ]
    assert joined([(12,), (12,), (3, 4)], ops, 2) == "([ij])->([i, j]) {i=3, j=4}"


def test_no_common_split_means_replication() -> None:
    ops = [
        op("reshape", (0,), 1, "([i, j])->([ij]) {i=2, j=3}"),
        op("reshape", (1,), 2, "([ij])->([i, j]) {i=3, j=2}"),
    ]
    assert joined([(2, 3), (6,), (3, 2)], ops, 2) == (
        "([k, l])->([i, j]) {i=3, j=2, k=2, l=3} need_replication={i, j, k, l}"
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [("negate", "reduction={j}"), ("exponential", "need_replication={j}")],
)
def test_partial_sums_pass_through_linear_ops_only(name: str, kind: str) -> None:
    ops = [
        op("constant", (), 1, splat=0.0),
        op("reduce", (0, 1), 2, "([i, j], [])->([i]) {i=4, j=8} reduction={j}", operator="sum"),
        op(name, (2,), 3, "([i])->([i]) {i=4}"),
    ]
    assert joined([(4, 8), (), (4,), (4,)], ops, 3) == f"([i, j])->([i]) {{i=4, j=8}} {kind}"


def test_a_sum_that_is_used_beside_its_summands_must_be_whole() -> None:
    ops = [
        op("constant", (), 1, splat=0.0),
        op("reduce", (0, 1), 2, "([i, j], [])->([i]) {i=4, j=8} reduction={j}", operator="sum"),
        op("broadcast_in_dim", (2,), 3, "([i])->([i, j]) {i=4, j=8}"),
        op("multiply", (0, 3), 4, "([i, j], [i, j])->([i, j]) {i=4, j=8}"),
    ]
    assert joined([(4, 8), (), (4,), (4, 8), (4, 8)], ops, 4) == (
        "([i, j])->([i, j]) {i=4, j=8} need_replication={j}"
    )


def test_constants_tie_nothing_together() -> None:
    same = "([i, j], [i, j])->([i, j]) {i=4, j=4}"
    ops = [
        op("iota", (), 1),
        op("add", (0, 1), 2, same),
        op("transpose", (1,), 3, "([i, j])->([j, i]) {i=4, j=4}"),
        op("add", (2, 3), 4, same),
    ]
    assert joined([(4, 4)] * 5, ops, 4) == "([i, j])->([i, j]) {i=4, j=4}"


def test_a_factor_on_two_dimensions_of_one_value_must_be_whole() -> None:
    ops = [
        op("transpose", (0,), 1, "([i, j])->([j, i]) {i=4, j=4}"),
        op("add", (0, 1), 2, "([i, j], [i, j])->([i, j]) {i=4, j=4}"),
    ]
    assert joined([(4, 4)] * 3, ops, 2) == (
        "([i, k])->([i, j]) {i=4, j=4, k=4} need_replication={i, j, k}"
    )


def test_ops_of_which_nothing_is_known_need_all_of_their_operands() -> None:
    ops = [op("while", (0,), 1), op("custom_call", (1,), 2, "([i])->([i]) {i=4}")]
    assert joined([(4,)] * 3, ops, 2) == "([j])->([i]) {i=4, j=4} need_replication={i, j}"
