"""Which parameters a train step trains, and which it only reads.

A *parameter* is an input of floating-point numbers (or of integers of at most 8 bits, as quantized
weights are) that the backward pass depends on, and that holds no examples. The moments of an
optimizer are none: they meet gradients after that pass. A parameter is *trained* where the result
that takes its place depends on the backward pass. There are two ways not to be:

* it is state, and comes back as it was, or changed by what no gradient reaches: masks of an
  optimizer and `stop_gradient` make its gradient zero, and zeros stay zero in what is linear in
  them, as a clip by the norm of all gradients;
* it is no state: an argument that the step reads, as the weights below adapters are (LoRA).

Where no gradient reaches any parameter, there is no backward pass either, and the step looks like
one that serves. But its optimizer still makes new state of the old, without a word of the examples.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.graph import Program, Value
from autoshard.program.microbatches import CutError, examples_in
from autoshard.program.place import is_backward
from autoshard.program.vocabulary import ADDITIONS, BARRIER, INLINED

_QUANTIZED = frozenset({"int8", "int4", "uint4", "int2", "uint2"})
_ZERO_BY_ANY = frozenset(
    {"mul", "and", "dot_general", "conv_general_dilated", "ragged_dot_general"}
)
"""Zero where any operand is."""
_ZERO_BY_FIRST = frozenset(
    {
        *("div", "broadcast_in_dim", "reshape", "convert_element_type", "transpose", "squeeze"),
        *("expand_dims", "neg", "abs", "sign", "sqrt", "square", "tanh", "copy", "copy_p", "name"),
        *("slice", "dynamic_slice", "gather", "rev", "split", "real", "imag", "reduce_precision"),
        *("reduce_sum", "reduce_max", "reduce_min", "cumsum", "sharding_constraint", "reshard"),
        *("device_put", "integer_pow"),
    }
)
"""Zero where the first operand is."""
_ZERO_BY_ALL = frozenset({"sub", "concatenate", "stack", "pad", "max", "min", *ADDITIONS})
"""Zero where all operands are."""
_ZERO_BY_TERMS = {
    "select_n": slice(1, None),
    "dynamic_update_slice": slice(0, 2),
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add"), slice(0, 3, 2)),
}
"""Zero where these operands are."""


class Origin(enum.IntEnum):
    """What a value is made of; of several, the last."""

    ZERO = 0
    GIVEN = 1
    GRADIENT = 2


@dataclass(frozen=True, slots=True)
class Trained:
    """How many parameters a step trains.

    Attributes:
      trained, frozen: values of inputs.
      trained_count, count: numbers in these, and in all parameters; of a step that trains none,
        in all its state.
    """

    trained: tuple[int, ...]
    frozen: tuple[int, ...]
    trained_count: int
    count: int


def few_trained(program: Program, most: float) -> Trained | None:
    """The parameters of a step that trains at most a share of them; None of other steps."""
    if not any(op.backward for op in program.ops):
        return _none_trained(program)
    read = _read_by_backward(program)
    origins = _results(program.jaxpr.jaxpr, [Origin.GIVEN] * len(program.inputs), False)
    ties, trained, frozen, others = dict(program.ties), [], [], []
    for position, index in enumerate(program.inputs):
        if index not in read or not _may_be_weights(program.values[index]):
            continue
        if position not in ties:
            others.append(position)
        elif origins[ties[position]] is Origin.GRADIENT:
            trained.append(index)
        else:
            frozen.append(index)
    if not trained:
        return None
    count = _numbers(program, trained)
    known = count + _numbers(program, frozen)
    maybe = _numbers(program, [program.inputs[position] for position in others])
    if count > most * (known + maybe):
        return None
    if maybe:
        frozen += [program.inputs[position] for position in _without_examples(program, others)]
    total = count + _numbers(program, frozen)
    return Trained(tuple(trained), tuple(frozen), count, total) if count <= most * total else None


def _may_be_weights(value: Value) -> bool:
    return value.dtype.startswith(("float", "bfloat", "complex")) or value.dtype in _QUANTIZED


def _numbers(program: Program, values: Sequence[int]) -> int:
    return sum(math.prod(program.values[index].shape) for index in values)


def _read_by_backward(program: Program) -> set[int]:
    """The values that the backward pass depends on."""
    found: set[int] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        for op in reversed(program.ops):
            if op.backward or not found.isdisjoint(op.outputs):
                found.update(one for one in op.inputs if one >= 0)
        found.update(handed for carried, handed in program.carries if carried in found)
    return found


def _none_trained(program: Program) -> Trained | None:
    """The state of a step that makes most of its new state, but of the old state alone.

    None of steps that hand their state on as it is, or that make it of what else they are given:
    these serve. None of steps that are given no other arrays: these simulate.
    """
    jaxpr, ties = program.jaxpr.jaxpr, dict(program.ties)
    others = [one for k, one in enumerate(program.inputs) if k not in ties]
    if not any(program.values[one].shape for one in others):
        return None
    given = [Origin.GIVEN if k in ties else Origin.GRADIENT for k in range(len(program.inputs))]
    origins = _results(jaxpr, given, False)
    state = {
        k: program.inputs[k] for k in ties if _may_be_weights(program.values[program.inputs[k]])
    }
    found = [
        index
        for k, index in state.items()
        if origins[ties[k]] is not Origin.GRADIENT and jaxpr.outvars[ties[k]] is not jaxpr.invars[k]
    ]
    count = _numbers(program, found)
    if not found or 2 * count < _numbers(program, list(state.values())):
        return None
    return Trained((), tuple(found), 0, count)


def _without_examples(program: Program, positions: Sequence[int]) -> list[int]:
    """Those of the inputs that are no state which hold no examples; none where it is not known."""
    arrays = [k for k in positions if program.values[program.inputs[k]].shape]
    if not arrays:
        return []
    state = {position for position, _ in program.ties}
    try:
        examples = examples_in(program.jaxpr, state=state, user_rules=program.user_rules)
    except CutError:
        return []
    return [position for position in arrays if position not in examples]


def _results(jaxpr: Any, origins: Sequence[Origin], backward: bool) -> list[Origin]:
    """The origins of the results of a jaxpr."""
    known: dict[Any, Origin] = dict.fromkeys(jaxpr.constvars, Origin.GIVEN)
    known.update(zip(jaxpr.invars, origins, strict=True))

    def read(atom: Any) -> Origin:
        return _of_literal(atom) if compat.is_literal(atom) else known[atom]

    for equation in jaxpr.eqns:
        made = _of(equation, [read(atom) for atom in equation.invars], backward)
        known.update(zip(equation.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _of_literal(atom: Any) -> Origin:
    dtype = compat.array_facts(atom.aval)[1]
    is_number = dtype != "token" and not dtype.startswith("key<")
    return Origin.ZERO if is_number and not np.any(np.asarray(atom.val)) else Origin.GIVEN


def _of(equation: Any, origins: list[Origin], backward: bool) -> list[Origin]:
    """The origins of the results of an equation."""
    name, count = equation.primitive.name, len(equation.outvars)
    backward = backward or is_backward(equation)
    if name == BARRIER:
        return origins
    if name in INLINED:
        return _results(compat.called_jaxpr(equation)[0], origins, backward)
    if name in ("scan", "while"):
        return _of_loop(equation, origins, backward)
    if name == "cond":
        chosen = [_results(one.jaxpr, origins[1:], backward) for one in equation.params["branches"]]
        return [max(same) for same in zip(*chosen, strict=True)]
    if _is_zero(name, origins):
        return [Origin.ZERO] * count
    return [Origin.GRADIENT if backward else max([Origin.GIVEN, *origins])] * count


def _of_loop(equation: Any, origins: list[Origin], backward: bool) -> list[Origin]:
    """As `_of`: what a loop carries has the origin that holds at its start and after each turn."""
    params = equation.params
    if equation.primitive.name == "scan":
        body = params["jaxpr"].jaxpr
        first, carries = compat.scan_counts(params)
        before = origins[:first]
    else:
        body = params["body_jaxpr"].jaxpr
        skipped, first = params["cond_nconsts"], params["body_nconsts"]
        before, carries = origins[skipped : skipped + first], len(equation.outvars)
        origins = origins[skipped:]
    carried, scanned = origins[first : first + carries], origins[first + carries :]
    while True:
        made = _results(body, [*before, *carried, *scanned], backward)
        joined = [max(pair) for pair in zip(carried, made[:carries], strict=True)]
        if joined == carried:
            return [*carried, *made[carries:]]
        carried = joined


def _is_zero(name: str, origins: Sequence[Origin]) -> bool:
    zeros = [one is Origin.ZERO for one in origins]
    if name in _ZERO_BY_ANY:
        return any(zeros)
    if name in _ZERO_BY_FIRST:
        return zeros[0]
    return bool(zeros) and (
        (name in _ZERO_BY_ALL and all(zeros))
        or (name in _ZERO_BY_TERMS and all(zeros[_ZERO_BY_TERMS[name]]))
    )
