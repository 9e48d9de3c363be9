"""Which ops work row by row along their first dimension, and how they do with fewer rows.

To be absent here costs a join of what comes in pieces (`autoshard.lower.mpmd.cut.pieces`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from autoshard.lower.mpmd.cut.graph import Graph, Node

ELEMENTWISE = frozenset(
    {
        "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2",
        "atanh", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "cos", "cosh",
        "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor",
        "ge", "gt", "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "log2",
        "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not",
        "one_minus_square", "optimization_barrier", "or", "polynomial", "pow", "real",
        "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt",
        "square", "stop_gradient",
        "sub", "tan", "tanh", "xor",
    }
)  # fmt: skip
COMBINE: Mapping[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": jax.lax.add,
    "reduce_max": jax.lax.max,
    "reduce_min": jax.lax.min,
    "reduce_and": jax.lax.bitwise_and,
    "reduce_or": jax.lax.bitwise_or,
}


def row_operands(graph: Graph, node: Node) -> tuple[list[int], list[int]] | None:
    """Inputs and outputs whose rows (first dimension) belong together; None: the op has none."""
    name = node.name
    if node.equation is None:
        return None
    avals = graph.avals
    results = list(node.outputs)
    if name in ELEMENTWISE:
        shape = avals[results[0]].shape
        operands = [v for v in node.inputs if avals[v].shape == shape]
        same = len(operands) == sum(1 for v in node.inputs if avals[v].shape)
        literal = any(getattr(one, "shape", ()) for one in node.literals)
        return (operands, results) if shape and same and not literal else None
    params = node.equation.params
    if name == "broadcast_in_dim" and params["shape"] and 0 not in params["broadcast_dimensions"]:
        return [], results
    if not node.inputs or not avals[node.inputs[0]].shape:
        return None
    operand = node.inputs[0]
    shape, made = avals[operand].shape, avals[results[0]].shape
    if name in COMBINE:
        return [operand], ([] if 0 in params["axes"] else results)
    kept = (
        (name == "transpose" and params["permutation"][0] == 0)
        or (name == "reshape" and made[:1] == shape[:1] and params.get("dimensions") is None)
        or (name == "broadcast_in_dim" and params["broadcast_dimensions"][0] == 0)
    )
    kept = kept and len(node.inputs) == 1 and made[:1] == shape[:1]
    return ([operand], results) if kept else None


def changed_params(node: Node, rows: int) -> Mapping[str, Any]:
    """The parameters of a node that works on `rows` rows."""
    params = node.equation.params
    if node.name == "reshape":
        return {"new_sizes": (rows, *params["new_sizes"][1:])}
    if node.name == "broadcast_in_dim":
        return {"shape": (rows, *params["shape"][1:])}
    return {}
