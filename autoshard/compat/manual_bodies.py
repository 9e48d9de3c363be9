"""Bodies of `jax.shard_map`: what they are given and give, and their equations without its types.

Inside of a body every array's type says over which mesh axes it varies, and equations keep the mesh
with its Manual axes. An equation that is bound outside of one must say neither.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.compat.explicit_types import plain_aval, without_mesh
from autoshard.compat.jaxprs import bind_equation, equation_scope


@dataclass(frozen=True, slots=True)
class MappedCall:
    """A call of `jax.shard_map`.

    Attributes:
      body: the jaxpr that runs on every part; its constants are among the operands.
      axes: the mesh axes over which it runs, in the order of the mesh; others stay automatic.
      sizes: the size of each axis of the mesh, by name.
      in_specs, out_specs: a `PartitionSpec` for each operand and result.
    """

    body: Any
    axes: tuple[str, ...]
    sizes: dict[str, int]
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]


def mapped_call(equation: Any) -> MappedCall:
    """What an equation of `shard_map` says."""
    params = equation.params
    mesh, manual = params["mesh"], params["newly_manual_axes"]
    return MappedCall(
        body=params["jaxpr"],
        axes=tuple(name for name in mesh.axis_names if name in manual),
        sizes=dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)),
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
    )


def plain_context(equation: Any) -> Any:
    """A context with the scope, line and settings of an equation of a body, but not its mesh."""
    context = contextlib.ExitStack()
    context.enter_context(equation_scope(equation))
    context.enter_context(equation.ctx.manager)
    context.enter_context(no_mesh())
    return context


def no_mesh() -> Any:
    """A context in which no mesh is set, whatever is set around it; for tracing, too."""
    from jax._src import mesh

    return mesh.use_abstract_mesh(mesh.empty_abstract_mesh)


def has_batching_rule(equation: Any) -> bool:
    """Whether JAX can run an equation on many parts at once."""
    from jax.interpreters.batching import fancy_primitive_batchers

    return equation.primitive in fancy_primitive_batchers


def bind_plainly(equation: Any, operands: Sequence[Any], **changed: Any) -> list[Any]:
    """Apply the primitive of an equation of a body outside of it; see `bind_equation`."""
    from jax._src import core
    from jax.sharding import NamedSharding

    if equation.primitive.name == "pallas_call":
        changed = {**_plain_kernel(equation.params), **changed}
    for key, value in equation.params.items():
        if key in ("out_sharding", "sharding") and isinstance(value, NamedSharding):
            changed.setdefault(key, None)
        elif key == "out_avals" and all(isinstance(one, core.ShapedArray) for one in value):
            changed.setdefault(key, type(value)(map(plain_aval, value)))
    return bind_equation(equation, operands, **changed)


def _plain_kernel(params: Mapping[str, Any]) -> dict[str, Any]:
    """What of a Pallas call's parameters speaks of the mesh, without it."""
    mapping = params["grid_mapping"]
    blocks = [
        one.replace(
            index_map_jaxpr=without_mesh(one.index_map_jaxpr),
            array_aval=plain_aval(one.array_aval),
        )
        for one in mapping.block_mappings
    ]
    return {
        "jaxpr": without_mesh(params["jaxpr"]),
        "grid_mapping": mapping.replace(block_mappings=tuple(blocks)),
    }
