"""Shardings by hand: logical names of dimensions, and rules that lay the names on mesh axes.

The models name the dimensions of an activation where people pin it, and list those of their
parameters and data by the name of the leaf:

    x = constrain(x, "batch", "norm_length", "embed")
    axes = LogicalAxes(
        parameters={"wq": ("embed", "heads", "head_size"), ...},
        data={"tokens": ("batch", "length"), ...},
    )

Rules say on which mesh axes a name lies; a name without a rule is replicated:

    rules = Rules(
        mesh={"fsdp": 16, "tensor": 4},
        parameters={"embed": "fsdp", "heads": "tensor"},
        activations={"batch": "fsdp", "heads": "tensor"},
    )
    lowered = lower(step, axes, rules, platforms=("cuda",))

This is the way of Flax (https://flax.readthedocs.io/en/latest/guides/parallel_programming) and of
MaxText (https://github.com/AI-Hypercomputer/maxtext), which call it logical axis rules. An axis
that an earlier dimension of the same array has taken is left out. Without rules `constrain` returns
its argument and leaves no trace in the jaxpr. Rules hold inside of `with active(rules)`, for the
context (`contextvars`) that entered it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from autoshard.models.training import Step
from autoshard.units import counted

__all__ = ["LogicalAxes", "Rules", "RulesError", "active", "constrain", "lower", "shardings"]

Names = tuple[str, ...]


class RulesError(ValueError):
    """Rules that do not suit a step; the message names every array that they do not suit."""


@dataclass(frozen=True, slots=True)
class LogicalAxes:
    """The logical names of a step's arguments, by the name of the leaf in its tree.

    Attributes:
      parameters: of weights; optimizer state has leaves of the same names. A leaf with one
        dimension more is stacked, and its first dimension is called "layers".
      data: of what a step reads besides.
    """

    parameters: Mapping[str, Names]
    data: Mapping[str, Names]


@dataclass(frozen=True, slots=True)
class Rules:
    """On which mesh axes logical names lie.

    Attributes:
      mesh: axes and their sizes, major to minor.
      parameters: of weights and optimizer state: from a logical name to an axis, or several, major
        to minor.
      activations: likewise, of data and of what `constrain` is asked for.
      constrains: whether `constrain` does anything; else parameters and data are all that is said.

    Raises:
      RulesError: a rule names an axis that the mesh does not have.
    """

    mesh: Mapping[str, int]
    parameters: Mapping[str, str | Names]
    activations: Mapping[str, str | Names]
    constrains: bool = True

    def __post_init__(self) -> None:
        strange = [
            f"  {name}: {axis}"
            for table in (self.parameters, self.activations)
            for name, axes in table.items()
            for axis in _tuple(axes)
            if axis not in self.mesh
        ]
        if strange:
            raise RulesError(
                "\n".join([f"rules name axes that the mesh {_shape(self.mesh)} has not:", *strange])
            )

    def make_mesh(self, devices: Sequence[Any] | None = None) -> Mesh | AbstractMesh:
        """The mesh of devices in row-major order, or of none."""
        sizes, names = tuple(self.mesh.values()), tuple(self.mesh)
        kinds = (AxisType.Auto,) * len(sizes)
        if devices is None:
            return AbstractMesh(sizes, names, axis_types=kinds)
        return Mesh(np.array(devices, dtype=object).reshape(sizes), names, axis_types=kinds)

    def spec(
        self, table: Mapping[str, str | Names], names: Sequence[str], shape: Sequence[int]
    ) -> PartitionSpec:
        """The layout of an array with these dimensions, by one of the tables.

        Raises:
          RulesError: a dimension does not divide; all of them are named.
        """
        taken: set[str] = set()
        parts, faults = [], []
        for name, size in zip(names, shape, strict=True):
            axes = tuple(axis for axis in _tuple(table.get(name, ())) if axis not in taken)
            taken.update(axes)
            count = math.prod(self.mesh[axis] for axis in axes)
            if size % count:
                cut = _shape({axis: self.mesh[axis] for axis in axes})
                faults.append(f"{name} of {size} does not divide over {cut}")
            parts.append(axes or None)
        if faults:
            raise RulesError("; ".join(faults))
        return PartitionSpec(*parts)


# -- activations -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Active:
    rules: Rules
    mesh: Mesh | AbstractMesh
    faults: dict[str, None] = field(default_factory=dict)


_ACTIVE: ContextVar[_Active | None] = ContextVar("autoshard.models.annotate", default=None)


@contextmanager
def active(rules: Rules, mesh: Mesh | AbstractMesh | None = None) -> Iterator[None]:
    """Let `constrain` follow `rules` in what is traced inside.

    JAX keeps traces by function: trace a function of its own, as `lower` does.

    Args:
      rules: which are followed.
      mesh: as `rules.make_mesh` gives it; by default without devices.

    Raises:
      RulesError: on leaving, where dimensions did not divide; all of them are named.
    """
    here = _Active(rules, rules.make_mesh() if mesh is None else mesh)
    token = _ACTIVE.set(here)
    try:
        yield
    finally:
        _ACTIVE.reset(token)
    if here.faults:
        raise RulesError(_bullets("the rules do not divide these activations:", here.faults))


def constrain(x: jax.Array, *names: str) -> jax.Array:
    """`x`, laid out by the active rules; `x` itself where there are none.

    Args:
      x: an array of any shape.
      names: the logical name of every dimension.

    Raises:
      ValueError: there are not as many names as dimensions.
    """
    here = _ACTIVE.get()
    if here is None or not here.rules.constrains:
        return x
    if len(names) != x.ndim:
        raise ValueError(
            f"{x.aval} has {counted(x.ndim, 'dimension')}, but {counted(len(names), 'name')}: "
            f"{names}; give one for each"
        )
    try:
        spec = here.rules.spec(here.rules.activations, names, x.shape)
    except RulesError as fault:
        here.faults[f"{x.shape} ({', '.join(names)}): {fault}"] = None
        return x
    return lax.with_sharding_constraint(x, NamedSharding(here.mesh, spec))


# -- arguments and results -------------------------------------------------------------------------


def shardings(
    tree: Any, axes: LogicalAxes, rules: Rules, mesh: Mesh | AbstractMesh | None = None
) -> Any:
    """Shardings for a pytree of arguments or results, each leaf by its name.

    Scalars are replicated. The mesh is by default one without devices.

    Raises:
      RulesError: a leaf has no names, or a dimension does not divide; all of them are named.
    """
    mesh = rules.make_mesh() if mesh is None else mesh
    faults: dict[str, None] = {}

    def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        where = jax.tree_util.keystr(path)
        try:
            return NamedSharding(mesh, _leaf_spec(path, leaf.shape, axes, rules))
        except RulesError as fault:
            faults[f"{where} {tuple(leaf.shape)}: {fault}"] = None
            return NamedSharding(mesh, PartitionSpec())

    found = jax.tree_util.tree_map_with_path(one, tree)
    if faults:
        raise RulesError(_bullets("the rules do not suit these arrays:", faults))
    return found


def lower(
    step: Step,
    axes: LogicalAxes,
    rules: Rules,
    *,
    platforms: Sequence[str] | None = None,
    devices: Sequence[Any] | None = None,
) -> Any:
    """The `jax.stages.Lowered` of a step under rules; results lie as arguments of the same name.

    Args:
      step: a built-in.
      axes: its logical names, as `autoshard.models.logical_axes` gives them.
      rules: where the names lie.
      platforms: what it is lowered for, such as ("cuda",); needed where there are no devices.
      devices: of the mesh, in row-major order; without them it can be compiled elsewhere.

    Raises:
      RulesError: the rules do not suit the step; see `shardings` and `active`.
    """
    mesh = rules.make_mesh(devices)

    @functools.wraps(step.fn)
    def annotated(*args: Any) -> Any:
        with active(rules, mesh):
            return step.fn(*args)

    given = shardings(step.args, axes, rules, mesh)
    returned = shardings(jax.eval_shape(step.fn, *step.args), axes, rules, mesh)
    jitted = jax.jit(annotated, in_shardings=given, out_shardings=returned, **step.options)
    traced = jitted.trace(*step.args)
    return traced.lower(lowering_platforms=tuple(platforms)) if platforms else traced.lower()


def _leaf_spec(
    path: tuple[Any, ...], shape: Sequence[int], axes: LogicalAxes, rules: Rules
) -> PartitionSpec:
    if not shape:
        return PartitionSpec()
    keys = (str(key.key) for key in reversed(path) if isinstance(key, jax.tree_util.DictKey))
    name = next(keys, "")
    if name in axes.data:
        return rules.spec(rules.activations, axes.data[name], shape)
    names = axes.parameters.get(name)
    if names is not None and len(shape) == len(names) + 1:
        names = ("layers", *names)
    if names is None or len(names) != len(shape):
        known = "no logical names" if names is None else f"the names {', '.join(names)}"
        raise RulesError(f"{name or 'it'!r} has {known}")
    return rules.spec(rules.parameters, names, shape)


def _tuple(axes: str | Names) -> Names:
    return (axes,) if isinstance(axes, str) else axes


def _shape(mesh: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.items())


def _bullets(heading: str, faults: Mapping[str, None]) -> str:
    return "\n".join([heading, *(f"  {fault}" for fault in faults)])
