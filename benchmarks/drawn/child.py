"""Random programs, each planned, lowered and judged; one line of JSON for each (`programs.py`).

    python benchmarks/drawn/child.py SEED FIRST STEP COUNT LIMIT

The pool of a program begins with one array; pieces (`drawn.pieces`, `drawn.algorithms`) read an
entry of it and add another. What no piece reads is returned; of a quarter of the programs, the
gradient is, too, and the weights come back as state. A random machine makes it worth while to cut
small arrays, and random pins make plans differ.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import autoshard
from autoshard.lower import lower
from autoshard.lower.parts.cut import LoweringError
from autoshard.lower.verify import numeric_differences, verify_collectives, verify_written
from autoshard.machine.chip import Chip
from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch
from autoshard.problem.requirements.records import RequirementError
from autoshard.program.trace import Program, TraceError, trace
from autoshard.search.search import InfeasibleError, NoPlanError
from drawn.algorithms import NO_GRADIENT
from drawn.pieces import PIECES, WITHOUT_GRADIENT, F, I

REFUSALS = (TraceError, LoweringError, RequirementError, InfeasibleError, NoPlanError)
"""What may be said instead of a plan: with op, line and repair."""
MESHES = ({"x": 8}, {"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2})
SIZES = (4, 4, 6, 8, 16)
MOST_ELEMENTS = 4096


@dataclass(frozen=True)
class Drawn:
    """A program: its function, abstract arguments, arrays for them, and options of its trace."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    arrays: tuple[Any, ...]
    options: dict[str, Any]
    pieces: tuple[str, ...]


def draw(seed: int, number: int) -> Drawn:
    """Program `number` of `seed`."""
    dice = np.random.default_rng((seed, number))
    rank = int(dice.choice([1, 2, 2, 3]))
    first = (int(dice.choice([8, 16])), *(int(dice.choice(SIZES)) for _ in range(rank - 1)))
    trains = bool(dice.random() < 0.25)
    shapes, inputs = [first], [jax.ShapeDtypeStruct(first, jnp.float32)]
    steps: list[tuple[str, int, list[int], Callable[..., Any]]] = []
    arrays = [dice.normal(size=first)]
    for _ in range(int(dice.integers(1, 6))):
        source = int(dice.integers(max(len(shapes) - 2, 0), len(shapes)))
        fitting = [name for name, (fits, _) in PIECES.items() if fits(shapes[source])]
        if trains:
            fitting = [name for name in fitting if name not in WITHOUT_GRADIENT | NO_GRADIENT]
        name = str(dice.choice(fitting))
        extra, function = PIECES[name][1](dice, shapes[source])
        made = [_abstract(one) for one in extra]
        found = jax.eval_shape(function, _abstract(F(shapes[source])), *made)
        if not 0 < found.size <= MOST_ELEMENTS or len(found.shape) not in (1, 2, 3):
            continue
        steps.append((name, source, list(range(len(inputs), len(inputs) + len(extra))), function))
        inputs += made
        arrays += [_array(dice, one) for one in extra]
        shapes.append(found.shape)
    fn = _train_step(steps, inputs) if trains else _step(steps)
    floats = [k for k, one in enumerate(inputs) if k and one.dtype == jnp.float32]
    options: dict[str, Any] = {"donate_argnums": tuple(floats)} if trains and floats else {}
    given = tuple(jnp.asarray(array, one.dtype) for array, one in zip(arrays, inputs, strict=True))
    return Drawn(fn, tuple(inputs), given, options, tuple(name for name, *_ in steps))


def _abstract(one: F | I) -> Any:
    return jax.ShapeDtypeStruct(one.shape, jnp.float32 if isinstance(one, F) else jnp.int32)


def _array(dice: np.random.Generator, one: F | I) -> Any:
    if isinstance(one, F):
        return dice.normal(size=one.shape)
    return dice.integers(0, one.below, one.shape)


def _results(steps: Any, values: list[Any]) -> list[Any]:
    pool, read = [values[0]], set()
    for _, source, extra, function in steps:
        pool.append(function(pool[source], *(values[k] for k in extra)))
        read.add(source)
    return [entry for k, entry in enumerate(pool) if k not in read]


def _step(steps: Any) -> Callable[..., Any]:
    def step(*values: Any) -> Any:
        return _results(steps, list(values))

    return step


def _train_step(steps: Any, inputs: list[Any]) -> Callable[..., Any]:
    """A loss, and the float inputs after the first one less their gradients."""
    state = [k for k, one in enumerate(inputs) if k and one.dtype == jnp.float32]

    def step(*values: Any) -> Any:
        def loss(weights: list[Any]) -> Any:
            given = list(values)
            for k, weight in zip(state, weights, strict=True):
                given[k] = weight
            return sum(jnp.mean(jnp.tanh(one)) for one in _results(steps, given))

        value, gradients = jax.value_and_grad(loss)([values[k] for k in state])
        return value, *(values[k] - 0.1 * g for k, g in zip(state, gradients, strict=True))

    return step


def machine(dice: np.random.Generator) -> Machine:
    """Eight chips, slow beside their network."""

    def rate(low: float, high: float) -> float:
        return float(10 ** dice.uniform(low, high))

    chip = Chip(
        name="dice",
        peak_flops={"float32": rate(6, 8)},
        vector_flops=rate(5, 7),
        memory_bytes=2.0**30,
        memory_bandwidth=rate(6, 8),
        reserve_bytes=0.0,
        launch_seconds=0.0,
        matmul_efficiency=1.0,
        memory_efficiency=1.0,
    )
    network = (Switch(8, rate(6, 9), 0.0, efficiency=1.0),)
    return Machine("dice", "dice", chip, network, overlap=0.0)


def pins(dice: np.random.Generator, program: Program, mesh: dict[str, int]) -> list[str]:
    """A layout for some of the arguments that an axis divides."""
    found = []
    for path, value in zip(program.input_paths, program.inputs, strict=True):
        shape, axis = program.values[value].shape, str(dice.choice(list(mesh)))
        fitting = [d for d, size in enumerate(shape) if size % mesh[axis] == 0]
        if fitting and dice.random() < 0.4:
            cut = int(dice.choice(fitting))
            layout = ", ".join(axis if d == cut else "None" for d in range(len(shape)))
            found.append(f"pin {path} [{layout}]")
    return found


def judge(seed: int, number: int) -> dict[str, str]:
    """What became of one program: `said` is its outcome, `agrees` if all judges agree."""
    drawn = draw(seed, number)
    dice = np.random.default_rng((seed, number, 1))
    mesh = MESHES[int(dice.integers(len(MESHES)))]
    about = {"pieces": " ".join(drawn.pieces), "mesh": str(mesh)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            said = _judged(drawn, dice, mesh)
        except REFUSALS as error:
            said = f"refused: {type(error).__name__}: {error}"
    return {**about, "said": said}


def _judged(drawn: Drawn, dice: np.random.Generator, mesh: dict[str, int]) -> str:
    program = trace(drawn.fn, *drawn.args, trip_counts=2, **drawn.options)
    plan = autoshard.search(
        program,
        machine(dice),
        mesh=mesh,
        requirements=pins(dice, program, mesh),
        baselines=False,
        time_limit=20.0,
        gap=0.05,
    )
    lowered = lower(plan, drawn.fn, *drawn.args)
    found = verify_collectives(lowered)
    if not found.agrees:
        return f"collectives: {found}"
    differences = numeric_differences(lowered, drawn.fn, drawn.arrays)
    if differences:
        return f"numbers: {differences[0]}"
    try:
        written = lower(plan, drawn.fn, *drawn.args, explicit=True)
        found = verify_written(written)
        if not found.agrees:
            return f"explicit collectives: {found}"
        differences = numeric_differences(written, drawn.fn, drawn.arrays)
    except LoweringError as error:
        return f"agrees; explicit refused: {error}"
    return f"explicit numbers: {differences[0]}" if differences else "agrees"


def _too_long(*_: Any) -> None:
    raise TimeoutError("it takes too long")


def main() -> None:
    """Judge programs FIRST, FIRST + STEP, ... below COUNT."""
    seed, first, step, count, limit = map(int, sys.argv[1:])
    signal.signal(signal.SIGPROF, _too_long)
    for number in range(first, count, step):
        print(json.dumps({"number": number}), flush=True)  # so that a crash has a name
        started = time.monotonic()
        signal.setitimer(signal.ITIMER_PROF, limit)  # of its own time: the machine may be busy
        try:
            answer = judge(seed, number)
        except Exception as error:  # any of them is a fault of the product
            answer = {"said": f"raised: {type(error).__name__}: {error}"[:2000]}
            answer["trace"] = "".join(traceback.format_tb(error.__traceback__)[-4:])
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = round(time.monotonic() - started, 2)
        print(json.dumps({"number": number, "seconds": seconds, **answer}), flush=True)


if __name__ == "__main__":
    main()
