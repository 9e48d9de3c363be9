"""Pallas calls on a part of their grid that are told where the part starts.

A kernel on a part of its grid counts its places from 0. Where it has to know its places in the
whole grid (a mask by position does), it gets them by one operand more, an integer for each axis
that is cut so:

    program_id(axis)           place + start
    num_programs(axis)         the size of the whole axis
    an index map               of places in the whole grid; of an array that is cut, without the
                               blocks of the parts before

On TPUs the operand is a scalar that is given in advance, so that index maps may read it; XLA:GPU's
compilers of kernels know no such scalars, and get an array that the kernel reads.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.compat.kernel_equations import bodies_of, open_jaxpr
from autoshard.compat.manual_bodies import no_mesh

PLACES = frozenset({"program_id", "num_programs"})


class UntoldError(Exception):
    """A kernel asks for its place where it cannot be told; says where."""


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Where a part of one axis of a grid starts.

    Attributes:
      step: the place in the whole grid, an int32.
      size: of the whole axis.
      period: places that share what they read.
      dims: (block, dimension): blocks in a period, of the arrays that are cut with the axis.
    """

    step: Any
    size: int
    period: int
    dims: Mapping[tuple[int, int], int]


def told(
    params: Mapping[str, Any], starts: Mapping[int, Start], *, in_advance: bool
) -> dict[str, Any]:
    """Those parameters of a Pallas call that change where it is told its starts.

    Args:
      params: of the equation.
      starts: by axis of the grid.
      in_advance: whether the operand comes behind the scalars that are given in advance, or else
        behind all operands.

    Raises:
      UntoldError: the kernel asks for its place where it cannot be told.
    """
    from jax.tree_util import tree_structure

    mapping, axes = params["grid_mapping"], tuple(starts)
    extra = _extra_operand(len(mapping.grid), len(axes), in_advance)
    scalars, inputs = mapping.num_index_operands, mapping.num_inputs
    place = scalars if in_advance else scalars + inputs
    ids = [axis for axis in range(len(mapping.grid)) if axis not in set(mapping.vmapped_dims)]
    changed: dict[str, Any] = {
        "jaxpr": _told_body(params["jaxpr"], extra, place, ids, starts),
        "grid_mapping": mapping,
    }
    if not in_advance:
        maps = (*mapping.block_mappings[:inputs], extra.block, *mapping.block_mappings[inputs:])
        changed["grid_mapping"] = mapping.replace(block_mappings=maps, num_inputs=inputs + 1)
        return changed
    blocks = tuple(
        one.replace(index_map_jaxpr=_told_map(one.index_map_jaxpr, extra, number, starts))
        for number, one in enumerate(mapping.block_mappings)
    )
    avals = (*mapping.index_map_avals, extra.ref)
    tree = tree_structure(((*[0] * len(avals),), {}))
    changed["grid_mapping"] = _with_fields(
        mapping,
        block_mappings=blocks,
        index_map_avals=avals,
        index_map_tree=tree,
        num_index_operands=scalars + 1,
    )
    first = mapping.num_dynamic_grid_bounds + place
    changed["input_output_aliases"] = tuple(
        (operand + (operand >= first), result) for operand, result in params["input_output_aliases"]
    )
    return changed


def check_tellable(params: Mapping[str, Any], axis: int, size: int) -> None:
    """Raise UntoldError if a kernel cannot be told where a part of an axis starts."""
    told(params, {axis: Start(None, size, 1, {})}, in_advance=True)


def _with_fields(mapping: Any, **changed: Any) -> Any:
    import dataclasses

    return dataclasses.replace(mapping, **changed)


@dataclass(frozen=True, slots=True, eq=False)
class _Extra:
    """The operand that says starts, as a small kernel has it.

    Attributes:
      ref: what a kernel, or an index map, sees of it.
      reads: the equations of a kernel that read its elements, one after the other.
      asks: an equation that asks for a place.
      map_reads: an index map that returns its elements; None where none can read it.
      block: how it is handed over, where it is not a scalar.
    """

    ref: Any
    reads: tuple[Any, ...]
    asks: Any
    map_reads: Any
    block: Any


@functools.lru_cache(maxsize=64)
def _extra_operand(rank: int, count: int, in_advance: bool) -> _Extra:
    """The operand of `count` integers of a call with a grid of `rank` axes."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu

    def kernel(starts: Any, x: Any, out: Any) -> None:
        out[...] = x[...] + sum(starts[k] for k in range(count)) + pl.program_id(0)

    one = (1,) * count
    spec = pl.BlockSpec(one, lambda *at: tuple([0] * count))
    shape = jax.ShapeDtypeStruct(one, jnp.int32)
    numbers = jax.ShapeDtypeStruct((count,), jnp.int32)
    grid = (2,) * rank
    if in_advance:
        looked_up = pl.BlockSpec(one, lambda *at: tuple(at[rank][k] for k in range(count)))
        specs = tpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=grid, in_specs=[looked_up], out_specs=spec
        )
        call = pl.pallas_call(kernel, out_shape=shape, grid_spec=specs)
    else:
        all_of_it = pl.BlockSpec((count,), lambda *at: (0,))
        call = pl.pallas_call(
            kernel, out_shape=shape, grid=grid, in_specs=[all_of_it, spec], out_specs=spec
        )
    with no_mesh():  # it is kept for calls on other meshes
        (equation,) = jax.make_jaxpr(call)(numbers, shape).jaxpr.eqns
    body, _ = open_jaxpr(equation.params["jaxpr"])
    mapping = equation.params["grid_mapping"]
    reads = tuple(one for one in body.eqns if one.invars and one.invars[0] is body.invars[0])
    (asks,) = (one for one in body.eqns if one.primitive.name == "program_id")
    return _Extra(
        body.invars[0].aval,
        reads,
        asks,
        mapping.block_mappings[0].index_map_jaxpr if in_advance else None,
        None if in_advance else mapping.block_mappings[0],
    )


def _told_body(
    jaxpr: Any, extra: _Extra, place: int, ids: Sequence[int], starts: Mapping[int, Start]
) -> Any:
    """A kernel with the operand at `place`, whose places are those in the whole grid."""
    from jax.extend.core import Var

    body, _ = open_jaxpr(jaxpr)
    ref = Var(extra.ref)
    equations, places = [], {}
    for axis, read in zip(starts, extra.reads, strict=True):
        step = Var(read.outvars[0].aval)
        local, places[axis] = Var(step.aval), Var(step.aval)
        asked = extra.asks.replace(
            params={**extra.asks.params, "axis": ids.index(axis)}, outvars=[local]
        )
        equations += [asked, _renamed(read, {read.invars[0]: ref}, [step])]
        equations += _computed(lambda a, b: [a + b], [local, step], [places[axis]])
    said = _Said(ids, starts)
    known: dict[Any, Any] = {}
    equations += said.equations(body.eqns, places, known)
    invars = [*body.invars[:place], ref, *body.invars[place:]]
    return _remade(jaxpr, invars, equations, [_atom(one, known) for one in body.outvars])


def _atom(atom: Any, known: Mapping[Any, Any]) -> Any:
    """What stands for an operand."""
    return atom if hasattr(atom, "val") else known.get(atom, atom)


class _Said:
    """Equations of a kernel with their places said."""

    def __init__(self, ids: Sequence[int], starts: Mapping[int, Start]) -> None:
        self.ids, self.starts = ids, starts

    def equations(
        self, equations: Sequence[Any], places: Mapping[int, Any], known: dict[Any, Any]
    ) -> list[Any]:
        """The equations, where `places` are the variables of places by axis.

        Notes in `known` what stands for variables of equations that are gone.
        """
        from jax.extend.core import Literal

        found: list[Any] = []
        for equation in equations:
            name = equation.primitive.name
            axis = self._axis(equation)
            if axis is not None:
                (out,) = equation.outvars
                size = Literal(self.starts[axis].size, out.aval)
                known[out] = size if name == "num_programs" else places[axis]
            elif name == "cond" and self._asks(equation):
                found.append(self._branches(equation, places, known))
            elif self._asks(equation):
                raise UntoldError(f"within {name}")
            else:
                found.append(_renamed(equation, known, equation.outvars))
        return found

    def _axis(self, equation: Any) -> int | None:
        """The told axis of which an equation asks; None for others."""
        if equation.primitive.name not in PLACES:
            return None
        axis = self.ids[equation.params["axis"]]
        return axis if axis in self.starts else None

    def _asks(self, equation: Any) -> bool:
        """Whether a body in an equation asks for a place."""
        return any(
            self._axis(one) is not None or self._asks(one)
            for body, _ in bodies_of(equation)
            for one in body.eqns
        )

    def _branches(self, equation: Any, places: Mapping[int, Any], known: Mapping[Any, Any]) -> Any:
        """A choice among branches that are given the places, too."""
        from jax.extend.core import Var

        branches = []
        for closed in equation.params["branches"]:
            body, _ = open_jaxpr(closed)
            inner = {axis: Var(place.aval) for axis, place in places.items()}
            inside: dict[Any, Any] = {}
            equations = self.equations(body.eqns, inner, inside)
            outvars = [_atom(one, inside) for one in body.outvars]
            branches.append(_remade(closed, [*body.invars, *inner.values()], equations, outvars))
        params = {**equation.params, "branches": tuple(branches)}
        renamed = _renamed(equation, known, equation.outvars)
        return renamed.replace(params=params, invars=[*renamed.invars, *places.values()])


def _told_map(closed: Any, extra: _Extra, number: int, starts: Mapping[int, Start]) -> Any:
    """An index map of places in the whole grid, of the blocks that a part has."""
    import jax
    from jax.extend.core import Var

    body, _ = open_jaxpr(closed)
    ref = Var(extra.ref)
    equations, renames, steps = [], {}, {}
    reading, _ = open_jaxpr(extra.map_reads)
    names = dict(zip(reading.invars, [*body.invars[: len(reading.invars) - 1], ref], strict=True))
    for one in reading.eqns:
        outs = [Var(var.aval) for var in one.outvars]
        equations.append(_renamed(one, names, outs))
        names.update(zip(one.outvars, outs, strict=True))
    for axis, out in zip(starts, reading.outvars, strict=True):
        steps[axis] = names[out]
        whole = Var(body.invars[axis].aval)
        equations += _computed(lambda a, b: [a + b], [body.invars[axis], steps[axis]], [whole])
        renames[body.invars[axis]] = whole
    equations += [_renamed(one, renames, one.outvars) for one in body.eqns]
    outvars = [one if hasattr(one, "val") else renames.get(one, one) for one in body.outvars]
    for axis, start in starts.items():
        for (block, d), count in start.dims.items():
            if block == number:
                local = Var(outvars[d].aval)
                equations += _computed(
                    lambda at, step, n=count, p=start.period: [at - jax.lax.div(step, p) * n],
                    [outvars[d], steps[axis]],
                    [local],
                )
                outvars[d] = local
    return _remade(closed, [*body.invars, ref], equations, outvars)


def _renamed(equation: Any, renames: Mapping[Any, Any], outvars: Sequence[Any]) -> Any:
    """An equation of other variables, which its effects name, too."""
    if not renames and list(outvars) == list(equation.outvars):
        return equation
    effects = {
        one.replace(input=renames.get(one.input, one.input)) if hasattr(one, "input") else one
        for one in equation.effects
    }
    invars = [one if hasattr(one, "val") else renames.get(one, one) for one in equation.invars]
    return equation.replace(invars=invars, outvars=list(outvars), effects=effects)


def _computed(function: Any, operands: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """The equations of a function of scalars, from operands to `outvars`."""
    import jax
    from jax.extend.core import Var

    shapes = [jax.ShapeDtypeStruct((), atom.aval.dtype) for atom in operands]
    body = jax.make_jaxpr(function)(*shapes).jaxpr
    names: dict[Any, Any] = dict(zip(body.invars, operands, strict=True))
    last = dict(zip(body.outvars, outvars, strict=True))
    found = []
    for one in body.eqns:
        outs = [last.get(var) or Var(var.aval) for var in one.outvars]
        found.append(_renamed(one, names, outs))
        names.update(zip(one.outvars, outs, strict=True))
    return found


def _remade(jaxpr: Any, invars: Sequence[Any], equations: Sequence[Any], outvars: Any) -> Any:
    """A jaxpr, closed if it was, of other inputs, equations and outputs."""
    from jax._src.interpreters.partial_eval import make_jaxpr_effects

    body, _ = open_jaxpr(jaxpr)
    effects = make_jaxpr_effects(body.constvars, invars, outvars, equations)
    info = body.debug_info.with_unknown_names() if body.debug_info is not None else None
    made = body.replace(
        invars=list(invars),
        eqns=list(equations),
        outvars=list(outvars),
        effects=effects,
        debug_info=info,
    )
    return jaxpr.replace(jaxpr=made) if body is not jaxpr else made
