"""The ways in which tokamax' ragged products may have been called.

The first kind (`gmm`, `tgmm`) says its options in the metadata of its kernel, but for the
precision, which its products say, and the activation, which is one of `jax.nn`; the second kind
(`gmm_v2`, `tgmm_v2`, and MaxText's copies) says all of them. Operands go by the names of
parameters, which a traced call keeps.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard import compat
from autoshard.program.bodies import equations_in
from autoshard.program.kernels.known.record import Form, Options, kernels_of, names_of

ACTIVATIONS = (
    jax.nn.relu,
    jax.nn.silu,
    jax.nn.gelu,
    jax.nn.sigmoid,
    jax.nn.tanh,
    jax.nn.relu6,
    jax.nn.softplus,
    jnp.tanh,
)


def forms(_: Callable[..., Any], equation: Any) -> Iterator[Form]:
    """The forms of `gmm` and `tgmm`."""
    kernel: Any = _only_kernel(equation)
    names = names_of(equation)
    said = _metadata(kernel)
    if "xprof_metadata" not in said or not names:
        return
    read = json.loads(said["xprof_metadata"])
    tiling = tuple(read["tiling"][one] for one in ("tile_m", "tile_k", "tile_n"))
    (result,) = equation.outvars
    common: dict[str, Any] = {
        "out_dtype": result.aval.dtype,
        "tiling": tiling,
        "input_buffer_count": read["input_buffer_count"],
        "interpret": kernel.params["interpret"],
    }
    if "transpose_rhs" in read:
        common["transpose_rhs"] = read["transpose_rhs"]
    else:
        common["num_actual_groups"] = read["num_actual_groups"]
    scopes = (False,) if "transpose_rhs" in read else (False, True)
    for activation in (None, *ACTIVATIONS):
        for precision in _precisions(kernel):
            for combined in scopes:
                more = {"combine_scopes": combined} if combined else {}
                told = {"activation": activation, "precision": precision, **more}
                yield Form(tuple(f"*{one}" for one in names), {**common, **told})


def _precisions(kernel: Any) -> list[Any]:
    """What the precision of a kernel's products may have been said to be."""
    found: dict[Any, None] = {}
    for body, _ in compat.bodies_of(kernel):
        for equation in equations_in(body):
            if equation.primitive.name == "dot_general":
                found[equation.params["precision"]] = None
    return [*found, lax.DotAlgorithmPreset.BF16_BF16_F32]


def forms_on_cores(function: Callable[..., Any], equation: Any) -> Iterator[Form]:
    """The forms of `gmm_v2` and `tgmm_v2`."""
    kernel: Any = _only_kernel(equation)
    names = names_of(equation)
    read = _metadata(kernel)
    if "tiles.tile_m" not in read or not names:
        return
    types = {one: jnp.dtype(read[one]) for one in _TYPES if one in read}
    quantises = "lhs_cfgs.quant_dtype" in types
    options = {
        "vmem_limit_bytes": kernel.params["compiler_params"].vmem_limit_bytes,
        "preferred_element_type": types["out_dtype"],
        "acc_dtype": types["acc_dtype"],
        "maybe_quantize_lhs": quantises,
        "lhs_quant_dtype": types.get("lhs_cfgs.quant_dtype"),
        "rhs_quant_dtype": types.get("rhs_cfgs.quant_dtype"),
        "zero_initialize": read["zero_init"],
        "fuse_act": read.get("fuse_act"),
        "transpose_rhs": read.get("transpose_rhs", False),
        "num_actual_groups": equation.outvars[0].aval.shape[0],
    }
    tiles = {one.removeprefix("tiles."): read[one] for one in read if one.startswith("tiles.")}
    for tile_info in (None, tiles):
        taken = _taken(function, {**options, "tile_info": tile_info})
        yield Form(tuple(f"*{one}" for one in names), taken)


_TYPES = "out_dtype", "acc_dtype", "lhs_cfgs.quant_dtype", "rhs_cfgs.quant_dtype"


def _taken(function: Callable[..., Any], options: Options) -> Options:
    """The options that a function takes.

    Tiles are said by the function's own class; where none are said, it chooses them.
    """
    takes = inspect.signature(function).parameters
    taken = {name: value for name, value in options.items() if name in takes}
    tiles = taken.pop("tile_info")
    if tiles is not None:
        module = sys.modules[takes["tile_info"].default.__module__]
        kind = getattr(module, "TileSizes", None) or module.gmm_v2.TileSizes
        taken["tile_info"] = kind(**tiles)
    return taken


def _only_kernel(equation: Any) -> Any:
    """The kernel of a call that has one, and one result; or None."""
    kernels = kernels_of(equation)
    return kernels[0] if len(kernels) == 1 and len(equation.outvars) == 1 else None


def _metadata(kernel: Any) -> dict[str, Any]:
    """What a kernel says of itself; nothing of none."""
    return {} if kernel is None else dict(kernel.params.get("metadata") or {})
