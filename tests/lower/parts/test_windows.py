"""Convolutions with groups, and their gradients, cut in every way compute what they do whole."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autoshard
from autoshard.lower.verify import verify
from tests.helpers import case, random_plan, toy_machine
from tests.lower.parts.one_op import OneOp
from tests.program.rules.oracle import apply, operand_values

CONVOLUTION = "conv_general_dilated"
FAMILIES = {
    "depthwise": ((4, 8, 8), (8, 1, 4), 1, {"feature_group_count": 8}),
    "depthwise, several each": ((4, 8, 8), (16, 1, 2), 2, {"feature_group_count": 8}),
    "two groups": ((4, 8, 8), (16, 4, 2), 2, {"feature_group_count": 2}),
    "four groups, one place": ((4, 8, 8), (8, 2, 1), 1, {"feature_group_count": 4}),
    "batch groups": ((8, 4, 8), (8, 4, 3), 1, {"batch_group_count": 4}),
    "patches": ((4, 4, 16), (8, 4, 4), 4, {}),
    "single places, strided": ((4, 4, 8), (8, 4, 1), 2, {}),
}
"""Shapes of operand [batch, channels, places] and kernel, the stride, and groups."""


def step(stride, groups, w, x):
    def loss(w, x):
        y = lax.conv_general_dilated(x, w, (stride,), "SAME", **groups)
        return jnp.mean(y**2)

    return jax.value_and_grad(loss, (0, 1))(w, x)


def drawn(*shapes):
    generator = np.random.default_rng(0)
    return tuple(jnp.asarray(generator.normal(size=shape), jnp.float32) for shape in shapes)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_cut_of_a_convolution_and_of_its_gradients_computes_the_whole(name: str) -> None:
    operand, kernel, stride, groups = FAMILIES[name]
    arguments = drawn(kernel, operand)
    found = 0
    for equation, arrays in operand_values(functools.partial(step, stride, groups), arguments):
        if equation.primitive.name != CONVOLUTION:
            continue
        op = OneOp(lambda *a, e=equation: apply(e, a)[0], arrays, CONVOLUTION)
        (expected,) = apply(equation, arrays)
        for assignment in op.assignments((2, 2)):
            if assignment != (-1, -1) and assignment[0] <= assignment[1]:
                result = op.on_parts(assignment, (2, 2))
                np.testing.assert_allclose(result, expected, atol=1e-4, err_msg=str(assignment))
                found += 1
    assert found > 10


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_random_plans_of_a_step_are_what_shardy_makes_and_compute_the_same(
    name: str, explicit: bool
) -> None:
    operand, kernel, stride, groups = FAMILIES[name]
    arguments = drawn(kernel, operand)
    fn = functools.partial(step, stride, groups)
    for seed in range(3):
        plan = random_plan(case(fn, *arguments, mesh={"x": 4, "y": 2}), seed)
        verdict = verify(plan, fn, *arguments, concrete=arguments, explicit=explicit)
        assert verdict, str(verdict)


@pytest.mark.parametrize("size", [4, 1])
def test_strided_windows_cut_by_places_and_channels_have_the_numbers_of_the_whole(size):
    """The partitioner's own numbers are wrong there."""

    def patches(x, w):
        return lax.conv_general_dilated(x, w, (4,), "VALID")

    arguments = drawn((4, 4, 32), (8, 4, size))
    program = autoshard.trace(patches, *arguments)
    pins = ["pin x [None, None, x]", "pin w [y, None, None]", "pin result [None, y, x]"]
    mesh = {"x": 2, "y": 2}
    plan = autoshard.search(program, toy_machine(4), mesh=mesh, requirements=pins)
    assert not plan.moves
    lowered = autoshard.lower(plan, patches, *arguments, devices=jax.devices()[:4])
    result = lowered.jit()(*lowered.shard(*arguments))
    np.testing.assert_allclose(result, patches(*arguments), atol=1e-4)
