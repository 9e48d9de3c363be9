"""Products of which only the transpose is read: what is said of them is said of the transpose.

    g: bf16[f, d] = y^T x          the derivative of x w by w, as JAX writes it
    w': f32[d, f] = w - g^T

XLA makes a product transposed at no cost, by exchanging its factors, but only where nothing stands
in between. A constraint on `g` does, so that `g` would lie in memory as it was written; and where
XLA takes the constants of two updates for one array (equal literals are), an update of the other
weight may then be made in the order of `g`, beside the weight instead of in its place.

A partial sum that is scattered keeps its constraints: the two of them make it one reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.plan.decisions import Decisions
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.layout import UNREDUCED
from autoshard.program.readers import Reader
from autoshard.program.trace import Program


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
