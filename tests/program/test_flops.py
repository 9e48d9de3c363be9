"""What the ops of a program are priced at."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.program.flops import FLOPS, INSIDE, MATRIX, MOVES, UNKNOWN
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


REGISTERING = [
    "buffer_callback",
    "compute_on",
    "multihost_utils",
    "pallas",
    "pallas.fuser",
    "pallas.mosaic_gpu",
    "pallas.tpu",
    "rnn",
    "sparse",
]
"""Parts of JAX that register primitives when they are imported, as other tests may have done."""


def test_every_primitive_of_jax_is_priced_or_known_to_be_free_or_listed_as_unknown() -> None:
    """A new version of JAX may bring primitives: say of each in which of the tables it stands.

    A process of its own has those of JAX alone: other packages register more.
    """
    imports = [f"import jax.experimental.{module}" for module in REGISTERING]
    shown = "from autoshard import compat; print(*sorted(compat.registered_primitives()))"
    words = [sys.executable, "-c", "; ".join([*imports, shown])]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    known = {*FLOPS, *MOVES, *INSIDE, *UNKNOWN}
    assert len(printed.split()) > 100
    assert sorted({*printed.split()} - known) == []


def test_no_primitive_stands_in_two_tables() -> None:
    tables = [set(FLOPS), MOVES, INSIDE, UNKNOWN]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert set(FLOPS) >= MATRIX


def c64(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.complex64)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def general(contracted, batch, ragged, groups):
    numbers = lax.RaggedDotDimensionNumbers((contracted, batch), [ragged], groups)
    return lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, numbers)


@pytest.mark.parametrize(
    ("fn", "shapes", "flops", "groups"),
    [
        (lax.ragged_dot, (f(64, 16), f(4, 16, 8), i32(4)), 2 * 64 * 16 * 8, 4),
        (
            general(((1,), (2,)), ((), ()), 0, [0]),  # the gradient of the rows
            (f(64, 8), f(4, 16, 8), i32(4)),
            2 * 64 * 16 * 8,
            4,
        ),
        (
            general(((0,), (0,)), ((), ()), 0, []),  # the gradient of the matrices
            (f(64, 16), f(64, 8), i32(4)),
            2 * 64 * 16 * 8,
            4,
        ),
        (
            general(((2,), (1,)), ((0,), (0,)), 0, []),  # the batch is ragged
            (f(64, 5, 16), f(64, 16, 8), i32(4)),
            2 * 64 * 5 * 16 * 8,
            1,
        ),
        (
            jax.vmap(lax.ragged_dot),
            (f(3, 64, 16), f(3, 4, 16, 8), i32(3, 4)),
            2 * 3 * 64 * 16 * 8,
            4,
        ),
    ],
)
def test_a_ragged_product_multiplies_each_row_once(fn, shapes, flops, groups) -> None:
    (op,) = of_kind(trace(fn, *shapes), "ragged_dot_general")
    assert (op.flops, op.groups) == (flops, groups)


@pytest.mark.parametrize(
    ("fn", "shapes", "primitive", "flops"),
    [
        (jnp.matmul, (c64(4, 8), c64(8, 2)), "dot_general", 4 * 2 * 4 * 8 * 2),
        (
            lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
            (f(16, 16), f(16, 128)),
            "triangular_solve",
            16 * 16 * 128,
        ),
    ],
)
def test_flops_of_other_arithmetic(fn, shapes, primitive, flops) -> None:
    assert of_kind(trace(fn, *shapes), primitive)[0].flops == flops
