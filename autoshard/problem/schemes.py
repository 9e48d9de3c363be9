"""The schemes that people write by hand, as pins on the problem.

A scheme fixes the layouts of inputs and how weights are used; the solver completes it at the same
prices as the plan. So each scheme comes out at its best, and the comparison is fair.

With state = inputs of a train step that come back as outputs, or the weights of a serving step;
batch = the other inputs; use = a matrix product or a lookup that reads a weight:

    data parallel          state replicated, batch over all axes, weights whole at every use
    FSDP                   state over all axes on one dimension, batch over all axes, weights whole
                           at every use
    tensor parallel        weights over all axes, never gathered; batch replicated
    FSDP x TP              data = all axes but the last, model = the last; batch over data, weights
                           over both, never gathered over model, whole over data at every use;
                           layer boundaries over data only
    FSDP x TP x sequence   the same, with layer boundaries over model on their second dimension

A dimension that does not divide is left replicated where the scheme allows it; a scheme that does
not apply says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.problem.build import Built
from autoshard.problem.value_choices import ValueChoices
from autoshard.program.flops import is_matrix_op
from autoshard.program.select import shown_path
from autoshard.program.trace import Op, Program

Mask = NDArray[np.bool_]
Pins = dict[int, NDArray[np.int64]]


class DoesNotApplyError(ValueError):
    """A scheme that makes no sense for a program or mesh; the message says why."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A named function from a built problem to pins; `axes`: mesh axes that it tells apart."""

    name: str
    axes: int
    pins: Callable[[Built], Pins]


@dataclass(frozen=True, slots=True)
class Roles:
    """Which values of a program are what.

    Attributes:
      state, batch: inputs; see the module docstring.
      weights: state, and what is derived from state alone ahead of its use.
      used: those of the weights that end up in a product or a lookup (norms and biases do not).
      boundaries: activations that one layer hands to the next.
    """

    state: frozenset[int]
    batch: frozenset[int]
    weights: frozenset[int]
    used: frozenset[int]
    boundaries: frozenset[int]


def roles(built: Built) -> Roles:
    """Find the roles from ties, data flow and repeats; nothing is asked of names."""
    program, flow = built.prices.program, built.prices.dataflow
    tied = {program.inputs[i] for i, _ in program.ties}
    state = {v for v in tied if program.values[v].shape}
    if not any(op.backward for op in program.ops):
        state = _served_weights(program, tied) or state
    batch = {
        v for v in program.inputs if v not in state and v not in tied and program.values[v].shape
    }
    derived = set(state)
    for op in program.ops:
        real = [i for i in op.inputs if i >= 0 and not program.values[i].free]
        early = all(flow.prefetchable[o] for o in op.outputs)
        if real and early and all(i in derived for i in real):
            derived.update(op.outputs)
    used: set[int] = set()
    for op in reversed(program.ops):
        if _is_use(op) or used.intersection(op.outputs):
            used.update(derived.intersection(op.inputs))
    return Roles(*map(frozenset, (state, batch, derived, used, _boundaries(built))))


def _is_use(op: Op) -> bool:
    return is_matrix_op(op.primitive) or op.primitive == "gather"


def _served_weights(program: Program, tied: set[int]) -> set[int]:
    """The weights of a serving step: the argument with most arrays that does not come back.

    Where no argument is a tree, the arrays that are not small beside the largest.
    """
    arguments: dict[str, list[int]] = {}
    for value in program.inputs:
        if value not in tied and program.values[value].shape:
            path = program.values[value].path
            arguments.setdefault(path[: path.find("]") + 1], []).append(value)
    most = max(arguments.values(), key=len, default=[])
    if len(most) > 1:
        return set(most)
    sizes = {value: program.values[value].bytes for (value,) in arguments.values()}
    return {value for value, size in sizes.items() if size * 64 >= max(sizes.values())}


def _boundaries(built: Built) -> set[int]:
    """Activations that one copy of a repeated block hands to the next, and loops' carries."""
    program, classes, flow = built.prices.program, built.classes, built.prices.dataflow
    found: set[int] = set()
    tied = {program.inputs[i] for i, _ in program.ties}
    for carried, _ in program.carries:
        value = program.values[carried]
        state = tied.intersection(program.ops[value.producer].inputs)  # such as a cache
        if len(value.shape) >= 2 and not state:
            found.add(carried)
    for value in program.values:
        if value.producer < 0 or len(value.shape) < 2 or value.free:
            continue
        run, copy = classes.copy_of[value.producer]
        if run < 0:
            continue
        for use in flow.readers[value.index]:
            other_run, other_copy = classes.copy_of[use.op]
            if other_run == run and other_copy == copy + 1:
                found.add(value.index)
    return found


def _pin(
    built: Built, pins: Pins, value: int, allow: Callable[[ValueChoices], Mask], why: str
) -> None:
    number = int(built.classes.value_class[value])
    node = built.value_node.get(number)
    if node is None:
        return
    choices = built.value_choices[number]
    mask = allow(choices)
    kept = np.flatnonzero(mask)
    if node in pins:
        kept = np.intersect1d(kept, pins[node])
    if not len(kept):
        program = built.prices.program
        raise DoesNotApplyError(f"{shown_path(program, value) or program.values[value]}: {why}")
    pins[node] = kept


def _replicated(choices: ValueChoices) -> Mask:
    return np.asarray((choices.table.dimensions[choices.stored] < 0).all(axis=1))


def _whole(choices: ValueChoices) -> Mask:
    """Replicated, and without a copy that is not."""
    return _replicated(choices) & np.asarray(choices.stored == choices.copy)


def _batch(axes: Sequence[int], count: int) -> Callable[[ValueChoices], Mask]:
    wanted = np.array([0 if axis in axes else -1 for axis in range(count)])

    def allow(choices: ValueChoices) -> Mask:
        return (choices.table.dimensions[choices.stored] == wanted).all(axis=1)

    return allow


def _state_over(built: Built, groups: Sequence[Sequence[int]]) -> Callable[[ValueChoices], Mask]:
    """All axes of each group on one dimension, where the shape allows it for each group."""
    mesh = built.prices.mesh_shape

    def allow(choices: ValueChoices) -> Mask:
        dimensions = choices.table.dimensions[choices.stored]
        mask = np.ones(len(dimensions), dtype=bool)
        for group in groups:
            live = [axis for axis in group if mesh[axis] > 1]
            if not live:
                continue
            first = dimensions[:, live[0]]
            together = (dimensions[:, live] == first[:, None]).all(axis=1)
            sharded = together & (first >= 0)
            mask &= sharded if (sharded & mask).any() else (dimensions[:, live] < 0).all(axis=1)
        return mask

    return allow


def _never_gathered(axes: Sequence[int]) -> Callable[[ValueChoices], Mask]:
    def allow(choices: ValueChoices) -> Mask:
        before = choices.table.dimensions[choices.stored][:, list(axes)]
        after = choices.table.dimensions[choices.copy][:, list(axes)]
        return (before == after).all(axis=1)

    return allow


def _fits_batch(built: Built, found: Roles, axes: Sequence[int], pins: Pins) -> None:
    mesh = built.prices.mesh_shape
    count = len(mesh)
    parts = math.prod(mesh[axis] for axis in axes)
    pinned = False
    for value in found.batch:
        shape = built.prices.program.values[value].shape
        if shape[0] % parts == 0:
            why = f"cannot be sharded over {parts} devices on its first dimension"
            _pin(built, pins, value, _batch(axes, count), why)
            pinned = True
    if not pinned and parts > 1:
        raise DoesNotApplyError(f"no batch dimension divides by {parts}")


def _whole_at_use(built: Built, found: Roles, axes: Sequence[int], pins: Pins) -> None:
    """Products and lookups read weights that are not sharded over `axes`."""
    for op in built.prices.program.ops:
        number = int(built.classes.op_class[op.index])
        if number not in built.op_node or not _is_use(op):
            continue
        strategies = built.op_strategies[number]
        mask = np.ones(len(strategies), dtype=bool)
        for reads, value in zip(strategies.reads, op.inputs, strict=True):
            if value in found.weights:
                mask &= (reads[:, list(axes)] < 0).all(axis=1)
        if not mask.all():
            node = built.op_node[number]
            kept = np.flatnonzero(mask)
            pins[node] = np.intersect1d(kept, pins[node]) if node in pins else kept


def _data_parallel(built: Built) -> Pins:
    found, pins = roles(built), {}
    for value in found.weights:
        _pin(built, pins, value, _whole, "cannot be replicated")
    axes = range(len(built.prices.mesh_shape))
    _fits_batch(built, found, axes, pins)
    _whole_at_use(built, found, axes, pins)
    return pins


def _fsdp(built: Built) -> Pins:
    found, pins = roles(built), {}
    axes = list(range(len(built.prices.mesh_shape)))
    for value in found.state:
        _pin(built, pins, value, _state_over(built, [axes]), "cannot be sharded")
    _fits_batch(built, found, axes, pins)
    _whole_at_use(built, found, axes, pins)
    return pins


def _tensor_parallel(built: Built) -> Pins:
    found, pins = roles(built), {}
    axes = list(range(len(built.prices.mesh_shape)))
    _weights_stay(built, found, axes, [axes], pins)
    for value in found.batch:
        _pin(built, pins, value, _replicated, "cannot be replicated")
    return pins


def _weights_stay(
    built: Built,
    found: Roles,
    axes: Sequence[int],
    groups: Sequence[Sequence[int]],
    pins: Pins,
) -> None:
    values = built.prices.program.values
    shapes = {values[value].shape for value in found.used & found.state}
    # Moments have the shapes of their weights. Norms and biases are where the activations are.
    large = {value for value in found.state if values[value].shape in shapes}
    for value in large:
        _pin(built, pins, value, _state_over(built, groups), "cannot be sharded")
    for value in found.used | large:
        _pin(built, pins, value, _never_gathered(axes), "must be gathered")


def _both(sequence: bool) -> Callable[[Built], Pins]:
    def pins_of(built: Built) -> Pins:
        found: Roles = roles(built)
        pins: Pins = {}
        mesh = built.prices.mesh_shape
        if len(mesh) < 2:
            raise DoesNotApplyError("needs a mesh of at least two axes")
        model = len(mesh) - 1
        data = list(range(model))
        _weights_stay(built, found, [model], [data, [model]], pins)
        _fits_batch(built, found, data, pins)
        _whole_at_use(built, found, data, pins)
        values = built.prices.program.values
        boundaries = [v for v in found.boundaries if len(values[v].shape) >= (3 if sequence else 2)]
        if sequence and not boundaries:
            raise DoesNotApplyError("no layer boundary with a sequence dimension was found")
        wanted = np.array([*(0 for _ in data), 1 if sequence else -1])

        def allow(choices: ValueChoices) -> Mask:
            return (choices.table.dimensions[choices.stored] == wanted).all(axis=1)

        pinned = False
        for value in boundaries:
            maker = built.prices.program.ops[values[value].producer]
            if any(v in found.weights for v in maker.inputs):
                continue
            try:
                _pin(built, pins, value, allow, f"cannot be sharded as {tuple(wanted.tolist())}")
                pinned = True
            except DoesNotApplyError:
                continue  # not an activation, or a dimension does not divide
        if sequence and not pinned:
            raise DoesNotApplyError("no layer boundary divides on its second dimension")
        return pins

    return pins_of


SCHEMES = (
    Scheme("data parallel", 1, _data_parallel),
    Scheme("FSDP", 1, _fsdp),
    Scheme("tensor parallel", 1, _tensor_parallel),
    Scheme("FSDP x TP", 2, _both(sequence=False)),
    Scheme("FSDP x TP x sequence", 2, _both(sequence=True)),
)
