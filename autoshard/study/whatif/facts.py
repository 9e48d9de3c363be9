"""What a traced program says of its work: tokens a step, and the FLOP that the model needs.

**Model FLOP** are those of matrix products and convolutions, without what `jax.checkpoint` computes
a second time. Model FLOP utilisation (MFU) is the time that they take at the chip's peak, by the
dtype of each operation, over the time of the step: Chowdhery et al., PaLM, appendix B
(https://arxiv.org/abs/2204.02311). Attention's products count in full, as they are computed.
"""

from __future__ import annotations

from autoshard.machine.chip import Chip
from autoshard.program.flops import is_matrix_op
from autoshard.program.select import path_keys, shown_path
from autoshard.program.trace import Program

TOKEN_INPUTS = ("tokens", "input_ids", "token_ids")
RECOMPUTED = "rematted_computation"


def tokens_per_step(program: Program) -> int | None:
    """Elements of the input that is called `tokens` (or `input_ids`); None where there is none."""
    for name in TOKEN_INPUTS:
        for value in program.inputs:
            if path_keys(shown_path(program, value))[-1:] == [name]:
                elements = 1
                for size in program.values[value].shape:
                    elements *= size
                return elements
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


def utilisation(flops: dict[str, float], chip: Chip, chips: int, step_seconds: float) -> float:
    """Model FLOP utilisation of a step, in [0, 1]."""
    busy = sum(count / chip.matmul_flops(dtype) for dtype, count in flops.items())
    return busy / chips / step_seconds if step_seconds > 0 else 0.0
