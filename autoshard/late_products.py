"""Products that XLA:TPU computes in the kernel that adds them to a table's other gradient.

    dE = scatter(ids, dx) + dlogits^T h       a table that is looked up and multiplied with, too

An addition is fused into the product that it reads. Where the scatter is exchanged, summed or cut
before it is added, the product so waits for the scatter, which a backward pass comes to last, and
what it reads lies in memory until then: the logits through all of the layers' backward pass. Where
nothing stands between, the scatter starts from the product, and that is computed where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.accumulation import ADDITIONS
from autoshard.decided import Decided
from autoshard.graph import Op

CASTS = frozenset({"convert_element_type", "reshape", "transpose"})


def late_products(decided: Decided) -> Iterator[int]:
    """The values that such products would write."""
    program = decided.prices.program
    for op in program.ops:
        if op.primitive not in ADDITIONS or len(op.inputs) != 2 or min(op.inputs) < 0:
            continue
        for term, other in (op.inputs, op.inputs[::-1]):
            scatter, exchanged = _made_by(decided, other)
            if scatter is None or scatter.primitive != "scatter-add" or not exchanged:
                continue
            product, moved = _made_by(decided, term)
            if product is None or product.primitive != "dot_general" or moved:
                continue
            if product.region == op.region:
                yield product.outputs[0]


def _made_by(decided: Decided, value: int) -> tuple[Op | None, bool]:
    """What makes a value that is cast for its one reader, and whether it is moved on the way.

    None where something else reads it.
    """
    program, moved = decided.prices.program, False
    while value >= 0 and program.values[value].producer >= 0:
        if len(decided.prices.dataflow.readers[value]) > 1:
            return None, moved
        maker = program.ops[program.values[value].producer]
        settled = decided.of_sum(maker) is not None
        moved = moved or settled or decided.decisions.copy[value] is not None
        if maker.primitive not in CASTS:
            return maker, moved
        value = maker.inputs[0]
    return None, moved
