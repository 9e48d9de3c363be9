"""Small random programs on random machines, and all plans of a problem.

`random_program` throws dice over what a JAX program is made of: products, elementwise chains,
sums, transposes, merged and split dimensions, broadcasts, slices, operands that are shared, scans
whose weights are stacked or closed over, train steps whose state comes back. Sizes are between 2
and 8, so that some dimensions divide a mesh axis and some do not.

`all_plans` knows nothing of solvers: it extends every consistent choice of the nodes so far by
every choice of one more node that no edge forbids, until all nodes have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from autoshard.machine.chip import Chip
from autoshard.machine.compiler import Compiler
from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch, Torus
from autoshard.solve.problem import Problem
from tests.helpers import Case, case

Shape = tuple[int, ...]
Plans = NDArray[np.int64]
MESHES = ((2,), (4,), (2, 2))
SIZES = (2, 3, 3, 4, 5, 5, 6, 8)
SMOOTH = ("product", "bias", "unary", "binary", "transpose", "reshape")
ANYTHING = (*SMOOTH, "product", "reduce", "broadcast", "slice", "concatenate", "cumulate")


@dataclass
class _Writer:
    """Writes a program step by step; pool entries are the inputs and the results so far."""

    dice: np.random.Generator
    sizes: tuple[int, ...] = SIZES
    shapes: list[Shape] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    steps: list[tuple[int, tuple[int, ...], Callable[..., Any]]] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    def size(self) -> int:
        return int(self.dice.choice(self.sizes))

    def pick(self, options: list[int]) -> int:
        """A pool entry, the latest ones more often."""
        odds = np.arange(1, len(options) + 1, dtype=float) ** 2
        return int(self.dice.choice(options, p=odds / odds.sum()))

    def new_input(self, shape: Shape) -> int:
        self.shapes.append(shape)
        self.inputs.append(len(self.shapes) - 1)
        return self.inputs[-1]

    def record(self, shape: Shape, operands: tuple[int, ...], function: Callable[..., Any]) -> None:
        self.used.update(operands)
        self.shapes.append(shape)
        self.steps.append((len(self.shapes) - 1, operands, function))

    def write(self, kind: str) -> None:
        dice = self.dice
        least = {"product": 1, "reduce": 1, "transpose": 2, "reshape": 1, "bias": 2}.get(kind, 1)
        fitting = [k for k, shape in enumerate(self.shapes) if least <= len(shape) <= 3]
        if not fitting:
            return
        source = self.pick(fitting)
        shape = self.shapes[source]
        axis = int(dice.integers(len(shape)))
        if kind == "product":
            others = [
                k for k in fitting if len(self.shapes[k]) == 2 and self.shapes[k][0] == shape[-1]
            ]
            shared = bool(others) and dice.random() < 0.4
            other = self.pick(others) if shared else self.new_input((shape[-1], self.size()))
            width = self.shapes[other][1]
            self.record((*shape[:-1], width), (source, other), lambda a, b: a @ b)
        elif kind == "bias":
            other = self.new_input((shape[-1],))
            self.record(shape, (source, other), lambda a, b: a + b)
        elif kind == "unary":
            self.record(shape, (source,), [jnp.tanh, jnp.exp, jnp.negative][dice.integers(3)])
        elif kind == "binary":
            others = [k for k in fitting if self.shapes[k] == shape]
            other = self.pick(others) if dice.random() < 0.8 else self.new_input(shape)
            self.record(shape, (source, other), [jnp.add, jnp.multiply][dice.integers(2)])
        elif kind == "transpose":
            order = tuple(dice.permutation(len(shape)).tolist())
            result = tuple(shape[k] for k in order)
            self.record(result, (source,), lambda a: jnp.transpose(a, order))
        elif kind == "reshape":
            result = self._reshaped(shape, axis)
            self.record(result, (source,), lambda a: jnp.reshape(a, result))
        elif kind == "reduce":
            function = [jnp.sum, jnp.max][dice.integers(2)]
            result = (*shape[:axis], *shape[axis + 1 :])
            self.record(result, (source,), lambda a: function(a, axis=axis))
        elif kind == "broadcast":
            result = (self.size(), *shape) if len(shape) < 3 else shape
            self.record(result, (source,), lambda a: jnp.broadcast_to(a, result))
        elif kind == "slice":
            kept = max(shape[axis] // 2, 1)
            result = (*shape[:axis], kept, *shape[axis + 1 :])
            self.record(result, (source,), lambda a: jax.lax.slice_in_dim(a, 0, kept, axis=axis))
        elif kind == "concatenate":
            result = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
            self.record(result, (source,), lambda a: jnp.concatenate([a, a], axis=axis))
        elif kind == "cumulate":
            self.record(shape, (source,), lambda a: jnp.cumsum(a, axis=axis))
        elif kind == "scan":
            self._scan(source, shape)

    def _reshaped(self, shape: Shape, axis: int) -> Shape:
        if axis + 1 < len(shape):  # merge
            return (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        if shape[axis] % 2 == 0 and shape[axis] > 2:
            parts = (2, shape[axis] // 2) if self.dice.random() < 0.5 else (shape[axis] // 2, 2)
            return (*shape[:axis], *parts)
        return (*shape, 1)

    def _scan(self, source: int, shape: Shape) -> None:
        width, trips = shape[-1], int(self.dice.integers(2, 4))
        stacked, collects = self.dice.random() < 0.5, self.dice.random() < 0.5
        weight = self.new_input((trips, width, width) if stacked else (width, width))

        def run(start: Any, weights: Any) -> Any:
            def body(carry: Any, one: Any) -> Any:
                carry = jnp.tanh(carry @ (one if stacked else weights))
                return carry, carry if collects else None

            last, outputs = jax.lax.scan(
                body, start, weights if stacked else None, length=None if stacked else trips
            )
            return last + outputs.sum(axis=0) if collects else last

        self.record(shape, (source, weight), run)

    def results(self, values: list[Any]) -> list[Any]:
        """Computed entries that nothing reads, from the values of the inputs."""
        pool = dict(zip(self.inputs, values, strict=True))
        for number, (entry, operands, function) in enumerate(self.steps):
            with jax.named_scope(f"part_{number % 2}"):
                pool[entry] = function(*(pool[operand] for operand in operands))
        return [pool[entry] for entry, _, _ in self.steps if entry not in self.used]


def random_program(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A function, its abstract arguments and the options of its trace, drawn with `seed`."""
    dice = np.random.default_rng(seed)
    trains, loops = (dice.random(2) < (0.25, 0.15)).tolist()
    writer = _Writer(dice, (3, 3, 3, 5, 6) if trains or loops else SIZES)
    rank = int(dice.choice([1, 2, 2, 2, 3]))
    rank = max(rank, 2) if trains else rank
    writer.new_input((int(dice.choice([2, 4, 6, 8])), *(writer.size() for _ in range(rank - 1))))
    if trains:
        writer.write("scan" if loops else "product")
        if not loops and dice.random() < 0.7:
            writer.write(str(dice.choice(SMOOTH)))
    else:
        if loops:
            writer.write("scan")
        for _ in range(int(dice.integers(1, 3) if loops else dice.integers(2, 6))):
            writer.write(str(dice.choice(ANYTHING)))
    shapes = [writer.shapes[k] for k in writer.inputs]
    args = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    if trains:
        return _train_step(writer), args, {"donate_argnums": tuple(range(1, len(args)))}

    def step(*values: Any) -> Any:
        return writer.results(list(values))

    donated = {}
    if dice.random() < 0.4:  # state: an argument that some result of its shape replaces
        out = [tuple(leaf.shape) for leaf in jax.eval_shape(step, *args)]
        states = [k for k, shape in enumerate(shapes) if shape in out]
        donated = {"donate_argnums": tuple(states[:1])}
    return step, args, donated


def _train_step(writer: _Writer) -> Callable[..., Any]:
    def step(data: Any, *weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            return sum(jnp.sum(jnp.tanh(result)) for result in writer.results([data, *weights]))

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, *(w - 0.1 * g for w, g in zip(weights, gradients, strict=True))

    return step


def random_machine(dice: np.random.Generator, mesh: Shape) -> Machine:
    """A machine of as many chips as `mesh`, whose rates lie within three orders of magnitude."""

    def rate(low: float, high: float) -> float:
        return float(10 ** dice.uniform(low, high))

    chip = Chip(
        name="dice",
        peak_flops={"float32": rate(6, 8)},
        vector_flops=rate(5, 7),
        memory_bytes=2.0**30,
        memory_bandwidth=rate(6, 8),
        reserve_bytes=0.0,
        launch_seconds=float(dice.choice([0.0, rate(-7, -5)])),
        matmul_efficiency=0.9,
        memory_efficiency=0.8,
        exponential_flops=float(dice.choice([0.0, 40.0])),
        transaction_bytes=float(dice.choice([0.0, 16.0])),
        compiler=Compiler(
            "xla:gpu" if dice.choice([False, True]) else "",
            heap_overhead=float(dice.choice([0.0, 0.25])),
        ),
    )
    latency = float(dice.choice([0.0, rate(-7, -5)]))
    level: Switch | Torus = Switch(math.prod(mesh), rate(3, 7), latency, efficiency=0.7)
    if dice.random() < 0.5:
        level = Torus(mesh, tuple(size > 2 for size in mesh), rate(3, 7), latency, efficiency=0.7)
    return Machine("dice", "dice", chip, (level,), overlap=float(dice.choice([0.0, 0.5, 0.9])))


def random_case(seed: int) -> Case:
    """A random program, with its problem on a random machine and mesh."""
    fn, args, options = random_program(seed)
    dice = np.random.default_rng((seed, 1))
    used = {size for arg in args for size in arg.shape}
    fitting = [mesh for mesh in MESHES if all(any(n % k == 0 for n in used) for k in mesh)]
    odds = np.array([3.0 if mesh == (2,) else 1.0 for mesh in fitting])
    mesh = fitting[int(dice.choice(len(fitting), p=odds / odds.sum()))] if fitting else (2,)
    machine = random_machine(dice, mesh)
    return case(
        fn, *args, mesh=dict(zip("xy", mesh, strict=False)), machine=machine, fold=False, **options
    )


def all_plans(problem: Problem, most: int) -> Plans | None:
    """The choices `[plans, nodes]` of every plan that no edge forbids; None if more than `most`."""
    sizes = [node.costs.size for node in problem.nodes]
    neighbours: list[list[tuple[int, NDArray[np.bool_]]]] = [[] for _ in sizes]
    for edge in problem.edges:
        allowed = np.isfinite(edge.pair_costs())
        neighbours[edge.u].append((edge.v, allowed.T))
        neighbours[edge.v].append((edge.u, allowed))
    columns: dict[int, int] = {}
    plans = np.zeros((1, 0), dtype=np.int64)
    while len(columns) < len(sizes):
        left = [node for node in range(len(sizes)) if node not in columns]
        node = min(left, key=lambda n: (not any(o in columns for o, _ in neighbours[n]), sizes[n]))
        possible = np.ones((len(plans), sizes[node]), dtype=bool)
        for other, allowed in neighbours[node]:
            if other in columns:
                possible &= allowed[plans[:, columns[other]]]
        rows, choices = np.nonzero(possible)
        plans = np.concatenate([plans[rows], choices[:, None]], axis=1)
        columns[node] = len(columns)
        if len(plans) > most:
            return None
    return plans[:, [columns[node] for node in range(len(sizes))]]


def prices_of(problem: Problem, plans: Plans) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds and peak bytes of every plan, by the numbers of the problem."""
    seconds = np.full(len(plans), problem.offset)
    for node, record in enumerate(problem.nodes):
        seconds += record.costs[plans[:, node]]
    for edge in problem.edges:
        seconds += edge.pair_costs()[plans[:, edge.u], plans[:, edge.v]]
    times = sorted({time for usage in problem.usages for time in (usage.start, usage.stop)})
    peak = np.zeros(len(plans))
    for time in times:
        occupied = np.zeros(len(plans))
        for usage in problem.usages:
            if usage.start <= time < usage.stop:
                occupied += usage.amounts[plans[:, usage.node]]
        peak = np.maximum(peak, occupied)
    return seconds, peak
