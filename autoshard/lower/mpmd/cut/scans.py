"""Loops over layers, taken apart: into loops over fewer layers, and into B and W.

A scan over the layers of several stages becomes one scan a stage, which hands its carry to the
next. A carry that only sums (the gradient of what all layers share) starts at zero in each, and
the sums are added up: no stage waits for another's weight gradients.

The backward loop of one stage becomes two, of which neither repeats anything:

    B    what the carry depends on: the gradient that goes from layer to layer
    W    the rest, gradients of weights, from intermediate values that B hands over, stacked
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from autoshard import compat
from autoshard.lower.mpmd.cut.flat import bound, graph_of
from autoshard.lower.mpmd.cut.graph import Builder, Graph, Node, needed, run
from autoshard.program.vocabulary import ADDITIONS


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """What a scan's parameters say of its operands: constants, carries, then slices."""

    constants: int
    carries: int
    length: int
    reverse: bool
    body: Any

    @classmethod
    def of(cls, node: Node) -> Loop:
        """The loop of a scan node."""
        params = node.equation.params
        return cls(
            *compat.scan_counts(params),
            params["length"],
            params["reverse"],
            params["jaxpr"],
        )

    @property
    def first_slice(self) -> int:
        """Position of the first operand that is sliced."""
        return self.constants + self.carries

    def sums(self) -> frozenset[int]:
        """Carries to which every iteration only adds something."""
        jaxpr = self.body.jaxpr
        uses: dict[Any, int] = {}
        for atom in (*(a for e in jaxpr.eqns for a in e.invars), *jaxpr.outvars):
            if not compat.is_literal(atom):
                uses[atom] = uses.get(atom, 0) + 1
        made = {e.outvars[0]: e for e in jaxpr.eqns if e.primitive.name in ADDITIONS}
        return frozenset(
            k
            for k in range(self.carries)
            if uses.get(var := jaxpr.invars[self.constants + k]) == 1
            and not compat.is_literal(jaxpr.outvars[k])
            and jaxpr.outvars[k] in made
            and var in made[jaxpr.outvars[k]].invars
        )


def part_of_scan(
    builder: Builder, node: Node, inputs: Sequence[int], length: int, stage: int
) -> tuple[int, ...]:
    """Add the scan `node` over `length` of its iterations, with other operands, to `builder`."""
    loop = Loop.of(node)
    stacked = [
        compat.shape_struct(aval, (length, *aval.shape))
        for aval in loop.body.out_avals[loop.carries :]
    ]
    outputs = tuple(
        builder.value(aval) for aval in (*loop.body.out_avals[: loop.carries], *stacked)
    )
    equation = node.equation.replace(params={**node.equation.params, "length": length})
    return builder.add(
        replace(
            node,
            inputs=tuple(inputs),
            outputs=outputs,
            apply=bound(equation, node.literals),
            key=(node.key, length),
            equation=equation,
            flops=node.flops * length / loop.length,
            stage=stage,
        )
    )


def zeros(builder: Builder, aval: Any, like: Node) -> int:
    """Zeros of a type."""
    shape, dtype = aval.shape, aval.dtype
    apply = lambda: [jnp.zeros(shape, dtype)]  # noqa: E731
    like = replace(like, stage=None)
    return builder.call("zeros", apply, (), (shape, str(dtype)), like)[0]


def added(builder: Builder, left: int, right: int, like: Node) -> int:
    """The sum of two values, as the backward pass writes it."""
    like = replace(like, stage=None)
    apply = lambda a, b: [jax.lax.add(a, b)]  # noqa: E731
    return builder.call("add_any", apply, (left, right), "", like)[0]


def split_backward(builder: Builder, node: Node) -> bool:
    """Add a backward scan to `builder` as B and W; False if there is nothing to take apart."""
    loop = Loop.of(node)
    body = graph_of(loop.body)
    chain = [k for k in range(loop.carries) if k not in loop.sums()]
    sums = [k for k in range(loop.carries) if k not in chain]
    in_chain = needed(body.nodes, [body.outputs[k] for k in chain])
    first = [one for one, keep in zip(body.nodes, in_chain, strict=True) if keep]
    second = [one for one, keep in zip(body.nodes, in_chain, strict=True) if not keep]
    if not second or not chain:
        return False
    made = {value for one in first for value in one.outputs}
    made |= {body.inputs[loop.constants + k] for k in chain}
    stacked = range(loop.carries, len(body.outputs))
    early = [k for k in stacked if body.outputs[k] in made]
    late = [k for k in stacked if body.outputs[k] not in made]
    read = dict.fromkeys(value for one in second for value in one.inputs)
    handed = [value for value in read if value in made]
    b = _Half(loop, body, node, first, chain, early, handed)
    w = _Half(loop, body, node, second, sums, late, [])
    kept = b.add(builder, "B", {})
    w.add(builder, "W", dict(zip(handed, kept, strict=True)))
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Half:
    """B or W of a loop: `nodes` with some of its carries and stacked results.

    `handed` are the values of the body that B hands on, stacked.
    """

    loop: Loop
    body: Graph
    node: Node
    nodes: Sequence[Node]
    carries: Sequence[int]
    stacked: Sequence[int]
    handed: Sequence[int]

    def add(self, builder: Builder, kind: str, given: dict[int, int]) -> tuple[int, ...]:
        """Add the half and return what it hands on; `given` are body values that come stacked."""
        loop, body, length = self.loop, self.body, self.loop.length
        outputs = [body.outputs[k] for k in (*self.carries, *self.stacked)] + list(self.handed)
        read = {value for one in self.nodes for value in one.inputs} | set(outputs)
        places = range(len(body.inputs))
        constants = [k for k in places if k < loop.constants and body.inputs[k] in read]
        sliced = [k for k in places if k >= loop.first_slice and body.inputs[k] in read]
        carried = [loop.constants + k for k in self.carries]
        inner = [body.inputs[k] for k in (*constants, *carried, *sliced)] + list(given)
        operands = [self.node.inputs[k] for k in (*constants, *carried, *sliced)]
        shapes = [
            *(builder.avals[self.node.outputs[k]] for k in (*self.carries, *self.stacked)),
            *(
                jax.ShapeDtypeStruct((length, *body.avals[v].shape), body.avals[v].dtype)
                for v in self.handed
            ),
        ]
        count = len(self.carries)
        known = [self.node.outputs[k] for k in (*self.carries, *self.stacked)]
        new = tuple(builder.value(aval) for aval in shapes[len(known) :])
        builder.add(
            replace(
                self.node,
                name=f"scan_{kind}",
                inputs=(*operands, *given.values()),
                outputs=(*known, *new),
                apply=_scan(
                    self.nodes, inner, outputs, len(constants), count, length, loop.reverse
                ),
                key=(self.node.key, kind),
                flops=length * sum(one.flops for one in self.nodes),
                equation=None,
                literals=(),
            )
        )
        return new


def _scan(
    nodes: Sequence[Node],
    inputs: Sequence[int],
    outputs: Sequence[int],
    constants: int,
    carries: int,
    length: int,
    reverse: bool,
) -> Any:
    def apply(*arrays: Any) -> list[Any]:
        shared = dict(zip(inputs[:constants], arrays[:constants], strict=True))

        def step(carry: Any, part: Any) -> tuple[Any, Any]:
            here = dict(zip(inputs[constants:], (*carry, *part), strict=True))
            results = run(nodes, {**shared, **here}, outputs)
            return tuple(results[:carries]), tuple(results[carries:])

        start = tuple(arrays[constants : constants + carries])
        carry, stacked = jax.lax.scan(
            step, start, tuple(arrays[constants + carries :]), length=length, reverse=reverse
        )
        return [*carry, *stacked]

    return apply
