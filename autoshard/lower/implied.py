"""Values of which nothing need be said, since it follows from their neighbours' layouts.

A constraint that changes no layout still stands between two ops, and XLA does not see that they
undo each other or belong together. Two kinds of values are left without:

**Products of which only the transpose is read.** What is said of them is said of the transpose.

    g: bf16[f, d] = y^T x          the derivative of x w by w, as JAX writes it
    w': f32[d, f] = w - g^T

XLA makes a product transposed at no cost, by exchanging its factors, but only where nothing stands
in between: else `g` lies in memory as it was written; and where XLA takes the constants of two
updates for one array (equal literals are), an update of the other weight may then be made in the
order of `g`, beside the weight instead of in its place. A partial sum that is scattered keeps its
constraints: the two of them make it one reduce-scatter.

**What lies between a reshape and its inverse**, with elementwise ops in between.

    a: [b, 8, 4, t, s]  ->  x: [b, 32, t, s]  ->  y = exp(x - max)  ->  c: [b, 8, 4, t, s]

XLA takes both reshapes away and computes in the one shape, but only where nothing stands in
between: else it writes `y` for the sake of its other shape. A softmax of MaxText's attention is
such; its step of Llama-3-8B on v5p-64 compiles to 1.391 s with these constraints, to 1.250 s
without. Propagation carries the layout of `a` and `c` to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from autoshard.plan.decisions import Decisions
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.flops import TRANSCENDENTAL
from autoshard.program.layout import UNREDUCED
from autoshard.program.readers import Reader
from autoshard.program.rules.record import FactorKind
from autoshard.program.trace import Op, Program
from autoshard.program.vocabulary import ADDITIONS, FREE_PRIMITIVES

_ELEMENTWISE = frozenset({*FREE_PRIMITIVES, *ADDITIONS, *TRANSCENDENTAL, "name"})
"""Those that may be elementwise; their rules say whether they are."""
_BROADCAST = "broadcast_in_dim"


def implied_values(
    program: Program,
    decisions: Decisions,
    chosen: ChosenStrategies,
    readers: Sequence[Sequence[Reader]],
) -> frozenset[int]:
    """The values whose layouts follow from those of their neighbours."""
    turned = turned_products(program, decisions, chosen, readers)
    return turned | between_reshapes(program, decisions, chosen)


def turned_products(
    program: Program,
    decisions: Decisions,
    chosen: ChosenStrategies,
    readers: Sequence[Sequence[Reader]],
) -> frozenset[int]:
    """The values of which nothing need be said, since it follows from their transpose's layout."""
    found = set[int]()
    for op in program.ops:
        if op.primitive != "transpose" or op.inputs[0] < 0:
            continue
        (value,) = op.inputs
        maker = program.values[value].producer
        stored = decisions.stored[value]
        if maker < 0 or program.ops[maker].primitive != "dot_general" or stored is None:
            continue
        written = tuple(chosen(program.ops[maker]).written[0][0].tolist())
        if (
            program.ops[maker].region == op.region
            and len(readers[value]) == 1
            and decisions.copy[value] is None
            and UNREDUCED not in stored
            and written == stored
        ):
            found.add(value)
    return frozenset(found)


def between_reshapes(
    program: Program, decisions: Decisions, chosen: ChosenStrategies
) -> frozenset[int]:
    """The values of groups that elementwise ops connect, all of them between two such reshapes.

    All lie alike. What a group is reshaped from, and to, keeps its constraints.

    Args:
      program, decisions: of the plan.
      chosen: the strategies of the decisions.
    """
    joined: list[tuple[int, int]] = []  # values that an elementwise op connects
    made: set[int] = set()
    reshapes: list[tuple[int, int]] = []
    for op in program.ops:
        if not _is_kept_as_made(op, decisions, chosen):
            continue
        (result,) = op.outputs
        if op.primitive == "reshape" and _is_plain(op.inputs[0], decisions):
            reshapes.append((op.inputs[0], result))
            made.add(result)
        elif _is_elementwise(program, op):
            made.add(result)
            shape = program.values[result].shape
            for value in op.inputs:
                if value >= 0 and program.values[value].shape == shape:
                    joined.append((value, result))
    group_of = _components(joined, len(program.values))

    def members(group: int) -> list[int]:
        return np.flatnonzero(group_of == group).tolist()

    beside: dict[int, set[int]] = {}  # groups that a group is reshaped from or to
    entered: set[tuple[int, tuple[int, ...]]] = set()
    both: dict[int, None] = {}  # groups that are reshaped to what they are reshaped from
    for value, result in reshapes:
        one, other = group_of[value], group_of[result]
        beside.setdefault(one, set()).add(other)
        beside.setdefault(other, set()).add(one)
        entered.add((other, program.values[value].shape))
        if (one, program.values[result].shape) in entered:
            both[one] = None
    found: set[int] = set()
    for group in both:
        stored = [v for v in members(group) if decisions.stored[v] is not None]
        alike = len({decisions.stored[v] for v in stored}) == 1
        plain = all(v in made and _is_plain(v, decisions) for v in stored)
        if alike and plain and found.isdisjoint(v for g in beside[group] for v in members(g)):
            found.update(stored)
    return frozenset(found)


def _components(joined: Sequence[tuple[int, int]], count: int) -> np.ndarray:
    """By value, the number of the group of values that it is joined to."""
    ends = np.array(joined, dtype=np.int64).reshape(-1, 2).T
    return connected_components(coo_array((np.ones(len(joined)), ends), (count, count)))[1]


def _is_plain(value: int, decisions: Decisions) -> bool:
    """Whether a value has one layout, in which all its readers take it."""
    if value < 0:
        return False
    stored = decisions.stored[value]
    return stored is not None and UNREDUCED not in stored and decisions.copy[value] is None


def _is_kept_as_made(op: Op, decisions: Decisions, chosen: ChosenStrategies) -> bool:
    """Whether an op makes one value, and no collective follows it."""
    if op.boundary or len(op.outputs) != 1 or decisions.assignment[op.index] is None:
        return False
    (result,) = op.outputs
    if not _is_plain(result, decisions):
        return False
    return tuple(chosen(op).written[0][0].tolist()) == decisions.stored[result]


def _is_elementwise(program: Program, op: Op) -> bool:
    """Whether each element of the result is made of those of its place, or is a broadcast one."""
    if op.primitive not in _ELEMENTWISE or op.primitive == "reshape":
        return False
    if any(one.kind is not FactorKind.PASS for one in op.rule.factors if one.size > 1):
        return False
    if op.primitive == _BROADCAST:
        return True
    (made,) = op.rule.results
    for value, read in zip(op.inputs, op.rule.operands, strict=True):
        shape = program.values[value].shape if value >= 0 else ()
        if shape and len(shape) != len(made):
            return False
        pairs = zip(shape, read, made, strict=False)
        if any(size > 1 and factors != wanted for size, factors, wanted in pairs):
            return False
    return True
