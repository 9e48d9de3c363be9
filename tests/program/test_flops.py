"""What the ops of a program are priced at."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.program.trace import trace
from tests.program.steps import f, of_kind, traced


@pytest.mark.parametrize(
    ("name", "primitive", "flops"),
    [
        ("dead_code_is_gone", "dot_general", 2 * 8 * 16 * 4),
        ("value_and_gradient", "dot_general", 2 * 8 * 16 * 4),
        ("scan", "dot_general", 2 * 2 * 8 * 8),
        ("convolved", "conv_general_dilated", 2 * (8 * 8 * 8 * 6) * (3 * 3 * 4)),
        ("gathered", "gather", 8 * 16),
        ("scattered", "scatter-add", 8 * 16),
        ("dynamic_slices", "dynamic_slice", 8 * 4),
        ("dynamic_slices", "dynamic_update_slice", 8 * 4),
        ("linear_algebra", "cholesky", 3 * 4**3),
    ],
)
def test_flops_of_one_run_of_an_op(name: str, primitive: str, flops: int) -> None:
    assert {op.flops for op in of_kind(traced(name), primitive)} == {float(flops)}


def test_flops_of_a_product_with_batch_dimensions_and_of_a_grouped_convolution() -> None:
    batched = trace(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), f(3, 4, 5), f(3, 5, 6))
    assert of_kind(batched, "dot_general")[0].flops == 2 * 3 * 4 * 5 * 6

    def grouped(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (2, 2), "VALID", dimension_numbers=numbers, feature_group_count=2
        )

    program = trace(grouped, f(1, 8, 8, 4), f(2, 2, 2, 6))
    assert program.ops[0].flops == 2 * (4 * 4 * 6) * (2 * 2 * 2)


def test_only_the_dearest_branch_is_priced() -> None:
    program = traced("three_branches")
    weights = [
        {op.weight for op in program.ops[region.start : region.stop]}
        for region in program.regions
        if region.kind == "branch"
    ]
    assert weights == [{0.0}, {1.0}, {0.0}]
    assert {op.weight for op in program.ops if op.region == 0} == {1.0}
