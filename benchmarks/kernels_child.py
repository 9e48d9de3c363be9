"""Random Pallas kernels, cut in every way that is derived; a line of JSON for each (`kernels.py`).

    python benchmarks/kernels_child.py SEED FIRST STEP COUNT

A kernel has a grid of one to three axes, perhaps one more of a `vmap`, up to three operands and two
results. Each dimension of each of them is walked along in a random way: block by block, several
places sharing one, turned round, rotated, by two axes at once, up to a diagonal, as a table of
scalars says, with a last block that reaches beyond the end, or not at all. The body adds up what it
reads, and may multiply by its place in the grid, mask by it, ask how long an axis is, skip steps,
keep sums in scratch that it clears at the first step of all, of an axis, always or never, or write
over an operand. All numbers are small integers, so that sums are exact in any order.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh

import autoshard
from autoshard import compat
from autoshard.lower.local import run_in_parts
from autoshard.lower.parts.cut import Cut
from autoshard.lower.parts.manual import Devices
from autoshard.program.strategies import enumerate_strategies, project_assignment

SIZES = (1, 2, 2, 2, 3, 4, 4, 4, 6)
WALKS = ("each", "each", "each", "shared", "repeated", "turned", "rotated", "diagonal", "both")
CLEARED = ("first of all", "first of an axis", "first of an axis", "always", "never", "in part")
MESHES = ((2, 2), (4,), (2,))
MOST = 8
"""Cuts of one kernel on one mesh that are run, chosen at random where there are more."""


@dataclass(frozen=True)
class Walk:
    """One dimension of an array: its size, its block, and the index of the block by place."""

    size: int
    block: int
    index: Callable[..., Any]


@dataclass(frozen=True)
class Drawn:
    """A kernel as a function of arrays, and what is random about it in words."""

    fn: Callable[..., Any]
    arrays: tuple[Any, ...]
    words: str


def draw(seed: int, number: int) -> Drawn:
    """Kernel `number` of `seed`."""
    dice = np.random.default_rng((seed, number))
    grid = tuple(int(dice.choice(SIZES)) for _ in range(int(dice.integers(1, 4))))
    scalars = bool(dice.random() < 0.2)
    words = [f"grid {grid}"]
    inputs = [_array(dice, grid, words, scalars=scalars) for _ in range(int(dice.integers(1, 4)))]
    outputs = [
        _array(dice, grid, words, result=True, scalars=scalars)
        for _ in range(int(dice.integers(1, 3)))
    ]
    aliases = {}
    if dice.random() < 0.2:
        inputs[0] = outputs[0]
        aliases = {int(scalars): 0}
        words.append("in place")
    body, scratch = _body(dice, grid, outputs, words, count=len(inputs), scalars=scalars)
    call = pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(_shape(one), jnp.float32) for one in outputs],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=int(scalars),
            grid=grid,
            in_specs=[_spec(one) for one in inputs],
            out_specs=[_spec(one) for one in outputs],
            scratch_shapes=scratch,
        ),
        input_output_aliases=aliases,
        name="drawn",
    )
    unread = len(outputs) > 1 and bool(dice.random() < 0.3)
    words += ["the last result is not read"] * unread
    last = len(outputs) - unread
    shapes = [_shape(one) for one in inputs]
    given: list[Any] = [dice.integers(-2, 3, shape).astype(np.float32) for shape in shapes]
    if scalars:
        given.insert(0, dice.integers(0, min(grid), max(grid)).astype(np.int32))

    def fn(*arrays: Any) -> Any:
        return call(*arrays)[:last]

    if dice.random() < 0.2 and not scalars:
        words.append("of two at once")
        shared = [bool(dice.random() < 0.3) for _ in given]
        shared[0] = False
        given = [
            one if s else np.stack([one, one + 1]) for one, s in zip(given, shared, strict=True)
        ]
        fn = jax.vmap(fn, tuple(None if one else 0 for one in shared))
    return Drawn(fn, tuple(map(jnp.asarray, given)), "; ".join(words))


def _shape(array: tuple[Walk, ...]) -> tuple[int, ...]:
    return tuple(walk.size for walk in array)


def _spec(array: tuple[Walk, ...]) -> Any:
    return pl.BlockSpec(
        tuple(walk.block for walk in array),
        lambda *place: tuple(walk.index(*place) for walk in array),
    )


def _array(
    dice: np.random.Generator,
    grid: tuple[int, ...],
    words: list[str],
    *,
    result: bool = False,
    scalars: bool,
) -> tuple[Walk, ...]:
    """An array of one or two dimensions, or more where a result is to be walked by all axes."""
    axes = [int(one) for one in dice.permutation(len(grid))]
    walks, said = [], []
    for axis in axes[: int(dice.integers(1, len(grid) + 1))]:
        kind = str(dice.choice(["each"] * 3 + ["shared", "whole"] if result else WALKS))
        if dice.random() < 0.15:
            kind = "whole"
        if scalars and not result and dice.random() < 0.3:
            kind = "told"
        walk = _walk(dice, grid, axis, kind)
        if not result and dice.random() < 0.05 and walk.block > 1:
            walk, kind = Walk(walk.size - 1, walk.block, walk.index), f"{kind}, beyond the end"
        walks.append(walk)
        said.append(f"{kind} of {axis}")
    words.append(("result " if result else "operand ") + ", ".join(said))
    return tuple(walks)


def _walk(dice: np.random.Generator, grid: tuple[int, ...], axis: int, kind: str) -> Walk:
    size, block = grid[axis], int(dice.choice([1, 2, 4]))
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    few = int(dice.choice(divisors))
    other = int(dice.integers(len(grid)))
    match kind:
        case "each":
            return Walk(size * block, block, lambda *at: at[axis])
        case "shared":
            return Walk(size // few * block, block, lambda *at: at[axis] // few)
        case "repeated":
            return Walk(few * block, block, lambda *at: at[axis] % few)
        case "turned":
            return Walk(size * block, block, lambda *at: size - 1 - at[axis])
        case "rotated":
            return Walk(size * block, block, lambda *at: (at[axis] + 1) % size)
        case "diagonal":
            return Walk(
                size * block,
                block,
                lambda *at: jnp.where(at[axis] <= at[other], at[axis], 0),
            )
        case "both" if other != axis:
            count = grid[other]
            return Walk(size * count * block, block, lambda *at: at[axis] * count + at[other])
        case "told":
            last = size - 1
            return Walk(size * block, block, lambda *at: jnp.minimum(at[len(grid)][at[axis]], last))
        case _:
            return Walk(block, block, lambda *at: 0)


def _body(
    dice: np.random.Generator,
    grid: tuple[int, ...],
    outputs: list[tuple[Walk, ...]],
    words: list[str],
    *,
    count: int,
    scalars: bool,
) -> tuple[Callable[..., None], list[Any]]:
    """A kernel over operands, results and scratch, and the shapes of its scratch."""
    axis, other = (int(dice.integers(len(grid))) for _ in range(2))
    traits = {
        name: bool(dice.random() < share)
        for name, share in (("place", 0.15), ("mask", 0.15), ("length", 0.1), ("skip", 0.15))
    }
    traits |= {"scratch": bool(dice.random() < 0.4), "adds": bool(dice.random() < 0.3)}
    cleared = str(dice.choice(CLEARED))
    words += [f"{name} along {axis}" for name, is_so in traits.items() if is_so]
    words += [f"cleared {cleared} ({other})"] * traits["scratch"]
    factors = dice.integers(1, 4, count)

    def value_of(operands: tuple[Any, ...]) -> Any:
        total = jnp.float32(0)
        for factor, ref in zip(factors, operands, strict=True):
            block = ref[...]
            total += np.float32(factor) * jnp.sum(block * _ramp(block.shape))
        if traits["place"]:
            total *= 1 + pl.program_id(axis)
        if traits["length"]:
            total += pl.num_programs(axis)
        if traits["mask"]:
            total = jnp.where(pl.program_id(axis) * 2 > grid[axis], 0.0, total)
        return total

    def body(*refs: Any) -> None:
        refs = refs[scalars:]
        operands, results = refs[:count], refs[count : count + len(outputs)]
        value = value_of(operands)
        if traits["scratch"]:
            _clear(refs[-1], cleared, len(grid), other)
            refs[-1][...] += value
            value = value + jnp.sum(refs[-1][...])

        def write() -> None:
            for number, ref in enumerate(results):
                value_here = value * (1 + number) + _ramp(ref.shape)
                ref[...] = value_here + ref[...] if traits["adds"] else value_here

        if traits["adds"]:
            pl.when(pl.program_id(other) == 0)(
                lambda: [ref.__setitem__(..., jnp.zeros_like(ref)) for ref in results] and None
            )
        if traits["skip"]:
            pl.when(pl.program_id(axis) >= pl.program_id(other))(write)
        else:
            write()

    return body, [pltpu.VMEM((2, 4), jnp.float32)] if traits["scratch"] else []


def _clear(ref: Any, cleared: str, axes: int, axis: int) -> None:
    """Set scratch to zero, or not, as one of `CLEARED` says, of a grid of so many axes."""

    def now() -> None:
        ref[...] = jnp.zeros_like(ref)

    match cleared:
        case "always":
            now()
        case "in part":
            ref[0] = jnp.zeros_like(ref[0])
        case "first of all":
            first = sum(pl.program_id(k) for k in range(axes)) == 0
            pl.when(first)(now)
        case "first of an axis":
            pl.when(pl.program_id(axis) == 0)(now)


def _ramp(shape: tuple[int, ...]) -> Any:
    """Another number for every element of a block."""
    return jnp.arange(1, 1 + math.prod(shape), dtype=jnp.float32).reshape(shape)


def cuts(drawn: Drawn, mesh: tuple[int, ...], dice: np.random.Generator) -> Iterator[str]:
    """For each of a kernel's cuts over a mesh, how it differs from the whole; empty if not."""
    program = autoshard.trace(drawn.fn, *drawn.arrays)
    (op,) = (one for one in program.ops if one.primitive == compat.PALLAS)
    (equation,) = (e for e in program.jaxpr.jaxpr.eqns if e.primitive.name == compat.PALLAS)
    shapes = tuple(program.values[value].shape for value in op.outputs)
    axes = len(mesh)
    names = tuple("xyz"[:axes])
    devices = Mesh(np.array(jax.devices()[: np.prod(mesh)]).reshape(mesh), names)
    found = enumerate_strategies(op.rule, mesh, shapes)
    rows = sorted({tuple(row) for row in found.assignment.tolist()} - {(-1,) * axes})
    if len(rows) > MOST:
        rows = [rows[k] for k in sorted(dice.choice(len(rows), MOST, replace=False))]
    arrays = _operands(program, op, drawn.arrays)

    def results(assignment: tuple[int, ...]) -> list[Any]:
        whole = tuple(np.full((1, axes), -1) for _ in op.outputs)
        strategy = project_assignment(op.rule, np.array([assignment]), whole, mesh)
        cut = Cut(
            op,
            tuple(tuple(layout[0].tolist()) for layout in strategy.reads),
            tuple(tuple(layout[0].tolist()) for layout in strategy.written),
            (),
            shapes,
            Devices(names, mesh),
        )
        made = jax.jit(lambda *a: run_in_parts(equation, a, cut, devices))(*arrays)
        return [
            np.asarray(one)
            for one, var in zip(made, equation.outvars, strict=True)
            if not compat.is_dropped(var)
        ]

    if not rows:
        return
    expected = results((-1,) * axes)
    for row in rows:
        same = all(map(_equal, expected, results(row)))
        yield "" if same else f"differs where mesh axes {mesh} cut factors {row} of {op.rule}"


def _operands(program: Any, op: Any, arrays: tuple[Any, ...]) -> list[Any]:
    return [arrays[program.inputs.index(value)] for value in op.inputs]


def _equal(one: Any, other: Any) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def judge(seed: int, number: int) -> dict[str, Any]:
    """What comes of kernel `number`: `said` is "agrees", "whole" or what is wrong."""
    drawn = draw(seed, number)
    dice = np.random.default_rng((seed, number, 1))
    said, count = [], 0
    for mesh in MESHES[:1] if number % 4 else MESHES:
        for difference in cuts(drawn, mesh, dice):
            count += 1
            said += [difference] if difference else []
    outcome = "; ".join(said) or ("agrees" if count else "whole")
    return {"number": number, "words": drawn.words, "cuts": count, "said": outcome}


def main() -> None:
    """Judge every so manyth kernel."""
    seed, first, step, count = map(int, sys.argv[1:])
    for number in itertools.islice(itertools.count(first, step), len(range(first, count, step))):
        print(json.dumps({"number": number}), flush=True)
        try:
            answer = judge(seed, number)
        except Exception as error:
            answer = {"number": number, "words": "", "cuts": 0}
            answer["said"] = f"{type(error).__name__}: {str(error)[:400]}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
