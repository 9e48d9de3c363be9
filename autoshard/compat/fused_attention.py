"""cuDNN's fused attention, as `jax.nn.dot_product_attention(implementation="cudnn")` binds it.

JAX asks for cuDNN and for a GPU while it traces, although the equation depends on neither. Here
both are taken to be there (`traced_without_gpu`), so that a step can be planned anywhere. The
primitive is one that XLA's partitioner is told to cut; what it runs on each part is its own
implementation, one call of cuDNN.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.compat.process_wide import attention_of_part

FORWARD = "dot_product_attention_fwd_wrapper"
BACKWARD = "dot_product_attention_bwd_wrapper"
FUSED_ATTENTION = frozenset({FORWARD, BACKWARD})
"""Names of its primitives, before they are cut."""

INSIDE_FUSED_ATTENTION = frozenset(name.removesuffix("_wrapper") for name in FUSED_ATTENTION)
"""Names of the primitives that call cuDNN on each part."""

_NEWEST = 91900
"""A version of cuDNN as JAX writes it, 9.19: where none is here, that of today's wheels."""


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """What an equation of cuDNN's attention computes.

    Operands are queries, keys, values, bias, lengths of queries and of keys, offsets of both,
    tables of pages of both; the backward pass has the log-sum-exp, the output and its cotangent
    behind. An operand of no elements is absent. Results are the output and the log-sum-exp
    `[b, n, t]`, or the cotangents of queries, keys, values and, if it has one, the bias.

    Attributes:
      backward: whether it is the backward pass.
      heads_first: whether arrays are `[b, n, t, h]`, and not `[b, t, n, h]`.
      causal: whether queries see no keys behind them, both counted from the first.
      padded: whether sequences end where the lengths say.
      window: how many keys a query sees at most, itself included; None for all.
      scale: of the scores.
      bias: whether there is one; if so, the backward pass returns its cotangent.
      dropout: share of the weights that is dropped.
      paged: whether keys and values are blocks that tables of pages name.
      packed: whether a sequence holds several, from offset to offset.
      modified: whether a function of the user's changes the scores.
    """

    backward: bool
    heads_first: bool
    causal: bool
    padded: bool
    window: int | None
    scale: float
    bias: bool
    dropout: float
    paged: bool
    packed: bool
    modified: bool


def fused_attention(equation: Any) -> FusedAttention:
    """What an equation of one of `FUSED_ATTENTION` says."""
    params = equation.params
    mask = params["mask_type"].name
    shapes = [atom.aval.shape for atom in equation.invars]
    return FusedAttention(
        backward=equation.primitive.name == BACKWARD,
        heads_first=params["layout"] == 1,
        causal=mask in ("CAUSAL", "PADDING_CAUSAL"),
        padded=mask in ("PADDING", "PADDING_CAUSAL"),
        window=params["sliding_window_length"],
        scale=float(params["scale"]),
        bias=bool(params["variadic_args"][0]),
        dropout=float(params["dropout_rate"]),
        paged=len(shapes[8]) == 4,
        packed=len(shapes[6]) == 2,
        modified=params.get("score_mod") is not None,
    )


def bind_fused_attention(
    equation: Any, operands: Sequence[Any], causal: bool | None = None
) -> list[Any]:
    """The call of cuDNN on the parts that one device holds, which no partitioner looks at.

    If `causal` is given, the call has that mask or none, and gives all its results: forward, the
    log-sum-exp, too.
    """
    attention_of_part()
    params = dict(equation.params)
    if causal is not None:
        kinds = type(params["mask_type"])
        params["mask_type"] = kinds.CAUSAL if causal else kinds.NO_MASK
        if "is_training" in params:
            params["is_training"] = True
    return list(equation.primitive.impl(*operands, **params))


def replaced_by(equation: Any, function: Callable[..., Any]) -> Any:
    """An equation of the same operands and results that calls a function instead."""
    import jax

    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    (call,) = jax.make_jaxpr(jax.jit(function))(*shapes).eqns
    return call.replace(invars=equation.invars, outvars=equation.outvars)


@contextlib.contextmanager
def traced_without_gpu() -> Iterator[None]:
    """Let JAX trace attention for cuDNN where there is none, as for the newest GPU."""
    from jax._src.cudnn import fused_attention_stablehlo

    module: Any = fused_attention_stablehlo
    before = module.check_cudnn_version, module.check_compute_capability

    def version() -> int:
        try:
            return before[0]()
        except Exception:
            return _NEWEST

    module.check_cudnn_version = version
    module.check_compute_capability = lambda least: _has_no_gpu() or before[1](least)
    try:
        yield
    finally:
        module.check_cudnn_version, module.check_compute_capability = before


def _has_no_gpu() -> bool:
    import jax

    return jax.default_backend() != "gpu"
