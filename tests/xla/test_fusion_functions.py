"""The transcendental ops fused into a value: each once, by whatever paths."""

from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp

from autoshard.program.flops import TRANSCENDENTAL
from autoshard.program.trace import Program, trace
from autoshard.xla.fusion_functions import NONE, FusedFunctions

OPS = (jnp.tanh, jnp.exp, jnp.negative, jnp.add, jnp.multiply)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    steps = draw(st.lists(st.tuples(st.sampled_from(OPS), st.integers(0), st.integers(0))))

    def fn(x: jax.Array) -> jax.Array:
        made = [x]
        for op, first, second in steps:
            read = made[first % len(made)], made[second % len(made)]
            made.append(op(*read) if op in (jnp.add, jnp.multiply) else op(read[0]))
        return made[-1]

    return trace(fn, jax.ShapeDtypeStruct((4, 2), jnp.float32))


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(programs())
def test_each_op_counts_once(program: Program) -> None:
    fused = FusedFunctions(program)
    sets: list[frozenset[int]] = []
    for value in program.values:
        maker = program.ops[value.producer] if value.producer >= 0 else None
        if maker is None:
            fused.of_value.append(NONE)
            sets.append(frozenset())
            continue
        own = frozenset((maker.index,)) if maker.primitive in TRANSCENDENTAL else frozenset[int]()
        sets.append(own.union(*(sets[i] for i in maker.inputs if i >= 0)))
        fused.of_value.append(fused.of(maker))
        found = fused.of_value[-1]
        assert found.ops() == sets[-1]
        assert found.names == {program.ops[op].primitive for op in sets[-1]}
        assert fused.exponentials(found) == sum(
            TRANSCENDENTAL[program.ops[op].primitive] * math.prod((4, 2)) for op in sets[-1]
        )
