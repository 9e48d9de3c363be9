"""What a traced program says of its work: tokens a step, and the FLOP that the model needs.

**Model FLOP** are those of matrix products and convolutions, without what `jax.checkpoint` computes
a second time. Attention's products count in full, as they are computed.
"""

from __future__ import annotations

import math

from autoshard.program.flops import is_matrix_op
from autoshard.program.select import path_keys, shown_path
from autoshard.program.trace import Program

TOKEN_INPUTS = ("tokens", "input_ids", "token_ids", "inputs")
"""What integers are called that a model of language reads; `inputs` are MaxText's."""
RECOMPUTED = "rematted_computation"


def tokens_per_step(program: Program) -> int | None:
    """Elements of the integers that are called `tokens` (or `input_ids`); None where none are."""
    for name in TOKEN_INPUTS:
        for number in program.inputs:
            value = program.values[number]
            named = path_keys(shown_path(program, number))[-1:] == [name]
            if named and value.dtype.startswith(("int", "uint")):
                return math.prod(value.shape)
    return None


def model_flops(program: Program) -> dict[str, float]:
    """FLOP of one step that the model needs, by the dtype of the operands."""
    found: dict[str, float] = {}
    for op in program.ops:
        if not is_matrix_op(op.primitive) or RECOMPUTED in op.scope.split("/"):
            continue
        dtype = next((program.values[v].dtype for v in op.inputs if v >= 0), "float32")
        found[dtype] = found.get(dtype, 0.0) + op.product_flops * op.trips * op.weight
    return found
