"""Pallas calls: their grids, blocks and bodies as plain records, and calls made smaller.

A call walks over a grid, the last axis first. Of each operand and result it holds one block at a
time, which an index map finds from the place in the grid; scalars that are given in advance may be
read by the map. `KernelCall` says that much of an equation, `bind_kernel` applies it again to parts
of its operands, with a smaller grid.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.compat.jaxprs import bind_equation
from autoshard.compat.kernel_equations import open_jaxpr, with_plain_literals
from autoshard.compat.told_kernels import Start, told

RANDOM_STATE = frozenset({"prng_seed", "prng_random_bits"})
"""What reads or changes the random state of a core."""
COPIES = frozenset({"dma_start", "dma_wait", "semaphore_signal", "semaphore_wait"})
"""What begins or awaits copies by the kernel itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What of one array a kernel sees at a time.

    Attributes:
      shape: of the whole array.
      itemsize: bytes of an element.
      sizes: of the block, one for a dimension that the kernel does not see.
      units: elements by which a block moves where its index grows by one.
      plain: whether all dimensions are cut in blocks, or begin at an element, without margins.
      index_map: a closed jaxpr from the place in the grid, and the scalars given in advance, to an
        index for every dimension.
    """

    shape: tuple[int, ...]
    itemsize: int
    sizes: tuple[int, ...]
    units: tuple[int, ...]
    plain: bool
    index_map: Any


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """A Pallas call, of operands `bounds, scalars, inputs`.

    Attributes:
      name: of the kernel.
      grid: its sizes, the slowest first; None where a size is an operand.
      ids: the axis of the grid for each number by which `program_id` asks.
      bounds, scalars, inputs, outputs: how many operands are sizes of the grid, scalars given in
        advance and arrays in blocks, and how many results there are.
      blocks: of the inputs, then of the outputs.
      body: the kernel's jaxpr over references `scalars, inputs, outputs, scratch`.
      consts: its constants.
      aliases: (operand, result) where a result takes the operand's place.
      parallel: axes of the grid whose steps are said to be independent of each other, and those of
        `vmap`, of which nothing is said.
      estimate: (FLOP, transcendental functions, bytes) where the call says so.
      scalable: whether the call is one of a grid alone, and not of a mesh of cores.
      platform: for which it is written, "tpu" or "gpu"; None where it does not say.
    """

    name: str
    grid: tuple[int | None, ...]
    ids: tuple[int, ...]
    bounds: int
    scalars: int
    inputs: int
    outputs: int
    blocks: tuple[Block, ...]
    body: Any
    consts: tuple[Any, ...]
    aliases: tuple[tuple[int, int], ...]
    parallel: frozenset[int]
    estimate: tuple[float, float, float] | None
    scalable: bool
    platform: str | None

    @property
    def scratch(self) -> tuple[Any, ...]:
        """The abstract references of the kernel's scratch."""
        return tuple(var.aval for var in self.body.invars[self.scalars + len(self.blocks) :])

    @property
    def is_told(self) -> bool:
        """Whether it is told its grid, or scalars in advance."""
        return self.bounds + self.scalars > 0


def kernel_call(equation: Any) -> KernelCall:
    """What an equation of `pallas_call` says."""
    params = equation.params
    mapping = params["grid_mapping"]
    body, consts = open_jaxpr(params["jaxpr"])
    grid = tuple(size if isinstance(size, int) else None for size in mapping.grid)
    vmapped = frozenset(mapping.vmapped_dims)
    own = tuple(axis for axis in range(len(grid)) if axis not in vmapped)
    semantics = getattr(params["compiler_params"], "dimension_semantics", None) or ()
    said = params["cost_estimate"]
    return KernelCall(
        name=kernel_name(params),
        grid=grid,
        ids=own,
        bounds=mapping.num_dynamic_grid_bounds,
        scalars=mapping.num_index_operands,
        inputs=mapping.num_inputs,
        outputs=mapping.num_outputs,
        blocks=tuple(_block(one) for one in mapping.block_mappings),
        body=body,
        consts=tuple(consts),
        aliases=tuple(params["input_output_aliases"]),
        parallel=frozenset(
            axis
            for axis, kind in zip(own, semantics, strict=False)
            if str(kind).lower().endswith("parallel")
        )
        | vmapped,
        estimate=None
        if said is None
        else (float(said.flops), float(said.transcendentals), float(said.bytes_accessed)),
        scalable=params.get("mesh") is None,
        platform=_platform(params, mapping),
    )


def _platform(params: Mapping[str, Any], mapping: Any) -> str | None:
    """For which platform a call is written, as its options say."""
    options = type(params["compiler_params"]).__module__
    if "triton" in options or "mosaic_gpu" in options:
        return "gpu"
    return "tpu" if "mosaic" in options or mapping.num_index_operands else None


def kernel_name(params: Mapping[str, Any]) -> str:
    """The name of a kernel: its own, or its function's."""
    info = open_jaxpr(params["jaxpr"])[0].debug_info
    return params.get("name") or (info.func_name if info is not None else "kernel")


def kernel_function(equation: Any) -> tuple[str, str]:
    """The name of the function that is a kernel, and its file; or nothing."""
    info = open_jaxpr(equation.params["jaxpr"])[0].debug_info
    return ("", "") if info is None else (info.func_name, info.func_filename or "")


def _block(mapping: Any) -> Block:
    sizes, units, plain = [], [], not mapping.transforms
    for dimension in mapping.block_shape:
        kind = type(dimension).__name__
        size = int(getattr(dimension, "block_size", 1) or 1)
        sizes.append(size)
        units.append(size if kind == "Blocked" else 1)
        padding = tuple(getattr(dimension, "padding", (0, 0)))
        plain &= kind in ("Blocked", "Squeezed", "Element") and not any(padding)
    aval = mapping.array_aval
    return Block(
        tuple(aval.shape),
        int(getattr(aval.dtype, "itemsize", 0)),
        tuple(sizes),
        tuple(units),
        plain and not mapping.index_map_jaxpr.consts,
        mapping.index_map_jaxpr,
    )


def is_dropped(var: Any) -> bool:
    """Whether nobody reads a result of an equation."""
    from jax._src.core import DropVar

    return isinstance(var, DropVar)


def bind_kernel(
    equation: Any,
    operands: Sequence[Any],
    results: Sequence[Sequence[int]],
    shards: Mapping[int, int],
    starts: Mapping[int, Start] | None = None,
    *,
    maps: bool = False,
) -> list[Any]:
    """Apply a Pallas call to parts of its operands, on a part of its grid.

    On CPU, calls that are for another platform run in interpret mode.

    Args:
      equation: of the call.
      operands: parts of its operands.
      results: shapes of the parts of its results.
      shards: into how many parts axes of its grid are cut.
      starts: where the part starts, by axes along which the kernel is told.
      maps: whether its index maps have to be told as well.
    """
    import jax
    import jax.numpy as jnp

    params = equation.params
    mapping = params["grid_mapping"]
    first = len(operands) - mapping.num_inputs
    shapes = [tuple(one.shape) for one in operands[first:]] + [tuple(one) for one in results]
    local = mapping.replace(
        grid=tuple(
            size // shards[axis] if axis in shards else size
            for axis, size in enumerate(mapping.grid)
        ),
        block_mappings=tuple(
            one.replace(array_aval=one.array_aval.update(shape=shape))
            for one, shape in zip(mapping.block_mappings, shapes, strict=True)
        ),
    )
    changed: dict[str, Any] = {
        "grid_mapping": local,
        "out_avals": tuple(
            aval.update(shape=tuple(shape))
            for aval, shape in zip(params["out_avals"], results, strict=True)
        ),
        "cost_estimate": _divided(params["cost_estimate"], math.prod(shards.values())),
    }
    platform = _platform(params, mapping)
    last = mapping.num_dynamic_grid_bounds + mapping.num_index_operands

    def bound(given: Sequence[Any], *, scalars: bool, interpret: bool = False) -> list[Any]:
        more: dict[str, Any] = {}
        if interpret:
            more = {"interpret": True, "jaxpr": with_plain_literals(params["jaxpr"])}
        if not starts:
            return bind_equation(equation, given, **changed, **more)
        steps = jnp.stack([jnp.asarray(one.step, jnp.int32) for one in starts.values()])
        place = last if scalars else len(given)
        given = [*given[:place], steps, *given[place:]]
        new = told({**params, **changed, **more}, starts, in_advance=scalars)
        return bind_equation(equation, given, **{**changed, **more, **new})

    scalars = platform != "gpu"
    if params["interpret"]:
        return bound(operands, scalars=scalars)
    on_gpu = scalars and (platform == "tpu" or maps)
    return jax.lax.platform_dependent(
        *operands,
        cpu=lambda *given: bound(given, scalars=scalars, interpret=True),
        tpu=lambda *given: bound(given, scalars=scalars),
        default=lambda *given: bound(given, scalars=on_gpu),
    )


def _divided(estimate: Any, count: int) -> Any:
    if estimate is None or count == 1:
        return estimate
    fields = {one.name: getattr(estimate, one.name) for one in dataclasses.fields(estimate)}
    return type(estimate)(**{name: value // count for name, value in fields.items()})


def bind_foreign(
    equation: Any, operands: Sequence[Any], results: Sequence[Sequence[int]]
) -> list[Any]:
    """Apply an FFI call to parts of its operands; `results` are the shapes of those of its results.

    Its attributes stay as they are.
    """
    avals = equation.params["result_avals"]
    local = tuple(
        aval.update(shape=tuple(shape)) if hasattr(aval, "shape") else aval
        for aval, shape in zip(avals, results, strict=True)
    )
    return bind_equation(equation, operands, result_avals=local)


@dataclass(frozen=True, slots=True)
class Access:
    """One reading or writing of a reference in a kernel.

    Attributes:
      kind: "read", "write" or "add" (reads and writes).
      starts: for every dimension where it begins: a number, or an operand of the equation.
      sizes: how many elements it takes of each; None where nobody knows.
    """

    kind: str
    starts: tuple[Any, ...]
    sizes: tuple[int | None, ...]


_ACCESSES = {
    "get": "read",
    "swap": "write",
    "addupdate": "add",
    "masked_load": "read",
    "masked_swap": "add",
    "load": "read",
    "store": "write",
}


def access_of(equation: Any) -> Access | None:
    """What of its first operand, a reference, an equation reads or writes; None for other ones.

    What is not said in plain indices takes a dimension in unknown parts, and is said to "add".
    """
    from jax._src.state.indexing import NDIndexer
    from jax.experimental.pallas import Slice
    from jax.tree_util import tree_unflatten

    name, params = equation.primitive.name, equation.params
    if name not in _ACCESSES:
        return None
    shape = tuple(equation.invars[0].aval.shape)
    unknown = Access("add", (0,) * len(shape), (None,) * len(shape))
    if name in ("get", "swap", "addupdate"):
        values = equation.invars[1 if name == "get" else 2 :]
        indexers = tree_unflatten(params["tree"], values)
        masked = False
    else:
        ref, indexers, *rest = tree_unflatten(params["args_tree"], equation.invars)
        del ref
        mask = rest[-1] if name.startswith("masked") else None
        masked = mask is not None
    if not indexers:
        kind = _ACCESSES[name]
        return Access(kind, (0,) * len(shape), shape)
    if len(indexers) != 1 or not isinstance(indexers[0], NDIndexer) or masked:
        return unknown
    starts: list[Any] = []
    sizes: list[int | None] = []
    for index in indexers[0].indices:
        if isinstance(index, Slice):
            starts.append(index.start)
            size = index.size
            sizes.append(size if isinstance(size, int) and index.stride == 1 else None)
        else:
            starts.append(index)
            sizes.append(1 if not getattr(getattr(index, "aval", None), "shape", ()) else None)
    kind = "write" if name in ("swap", "masked_swap", "store") else _ACCESSES[name]
    return Access(kind, tuple(starts), tuple(sizes))
