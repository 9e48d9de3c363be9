"""What programs say of the memory of the host is read as they say it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.program.trace import Program, TraceError, trace
from tests.host_steps import ACTIVATIONS, MOMENTS, SPACE, activations, f32, moments, momentum


def on_host(program: Program) -> list[str]:
    """The paths of inputs and outputs that lie on the host, and how many other values do."""
    ends = {*program.inputs, *program.outputs}
    return [program.values[v].path for v in sorted(ends) if program.values[v].host]


def transfers(program: Program) -> list[str]:
    return [op.primitive for op in program.ops if op.primitive in ("to_host", "from_host")]


def test_a_policy_offloads_through_the_stacks_of_its_loops() -> None:
    program = trace(activations, *ACTIVATIONS)
    assert transfers(program) == ["to_host", "from_host"]
    assert on_host(program) == []
    (stack,) = [v for v in program.values if v.host and v.shape == (3, 64, 64)]
    assert str(stack) == "f32<host>[3,64,64]"
    assert program.ops[stack.producer].primitive == "scan_stack"


def test_state_that_goes_to_the_host_comes_from_there() -> None:
    program = trace(moments, *MOMENTS, donate_argnums=(0, 1))
    assert on_host(program) == ["[1]['a']", "[1]['b']", "[1]['a']", "[1]['b']"]
    assert transfers(program) == ["from_host"] * 2 + ["to_host"] * 2


def test_state_that_is_read_as_it_is_stays_where_it_is() -> None:
    def step(kept: Any, x: Any) -> Any:
        return jax.device_put(kept * 2 + x, SPACE.Host), x

    program = trace(step, f32(8), f32(8), donate_argnums=0)
    assert on_host(program) == ["[0]"]
    assert transfers(program) == ["to_host"]


@pytest.mark.parametrize("kind", ["pinned_host", "device"])
def test_shardings_of_arguments_say_their_memory(kind: str) -> None:
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    given = jax.ShapeDtypeStruct(
        (8,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("x"), memory_kind=kind)
    )
    program = trace(lambda kept: jax.device_put(kept, SPACE.Device) + 1, given)
    assert on_host(program) == (["[0]"] if kind == "pinned_host" else [])


def test_shardings_of_transfers_lay_out_what_lies_on_devices() -> None:
    """A sharding behind a memory kind asks for a layout, and of no array on the host."""
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    there, here = (
        NamedSharding(mesh, PartitionSpec("x"), memory_kind=kind)
        for kind in ("pinned_host", "device")
    )
    program = trace(lambda x: jax.device_put(jax.device_put(x, there), here), f32(8))
    asked = [op for op in program.ops if op.primitive == "sharding_constraint"]
    assert transfers(program) == ["to_host", "from_host"]
    assert len(asked) == 2
    assert not any(program.values[v].host for op in asked for v in (*op.inputs, *op.outputs))


def test_what_jax_does_not_differentiate_is_refused_in_its_words() -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(jax.device_put(jax.device_put(x * x, SPACE.Host), SPACE.Device))

    with pytest.raises(TraceError, match=r"loss does not trace: ValueError: .*float32<host>"):
        trace(jax.grad(loss), f32(8))


def test_arguments_are_held_on_the_host_until_they_are_read() -> None:
    """A barrier keeps each from coming before the gradient that it is added to."""
    program = trace(momentum, *MOMENTS, donate_argnums=(0, 1), host=["kept"])
    assert on_host(program) == ["[1]['a']", "[1]['b']", "[1]['a']", "[1]['b']"]
    assert program.options["host"] == ["kept"]
    assert transfers(program) == ["from_host"] * 2 + ["to_host"] * 2
    fetches = [op for op in program.ops if op.primitive == "from_host"]
    products = [op.index for op in program.ops if op.primitive == "dot_general"]
    for fetch in fetches:
        barrier = program.ops[program.values[fetch.inputs[0]].producer]
        assert barrier.primitive == "optimization_barrier"
        assert barrier.inputs[0] in program.inputs
    assert max(op.index for op in fetches) > max(products)


def test_one_argument_of_several_is_held() -> None:
    program = trace(momentum, *MOMENTS, donate_argnums=(0, 1), host=["kept.a"])
    assert on_host(program) == ["[1]['a']", "[1]['a']"]


def test_what_is_not_renewed_stays_there() -> None:
    program = trace(lambda w, x: jnp.tanh(x) @ w, f32(8, 8), f32(8, 8), host=["w"])
    assert on_host(program) == ["[0]"]
    assert transfers(program) == ["from_host"]


def test_no_such_argument_is_named() -> None:
    with pytest.raises(TraceError) as error:
        trace(momentum, *MOMENTS, host=["moments"])
    assert str(error.value) == (
        "host='moments' names no argument; known: params, kept, x, [0]['a'], [0]['b'], "
        "[1]['a'], [1]['b'], [2]"
    )
