"""From MaxText's configuration to its train step and abstract arguments.

MaxText asks its mesh for the platform of a device, to choose kernels and where they are
interpreted. So the mesh here is of stand-ins that say a platform and can do nothing else. It has
one device, unless the constraints are kept: then it has the sizes that the configuration says, and
the constraints are demands on axes of these names.

The step is traced once. What is returned runs its equations, without the constraints or with them
on an abstract mesh, so that no stand-in is left in it.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType, NamedSharding

from autoshard import compat
from autoshard.models.maxtext.config import module, quiet, unknown_words
from autoshard.models.maxtext.splits import AxisUse
from autoshard.models.providers import ProgramError, Target
from autoshard.program.bodies import all_equations, call_in_place, replaced

CONSTRAINTS = ("aside", "keep")


@dataclass(frozen=True)
class StandIn:
    """What a mesh, and MaxText, ask of a device that is not there."""

    platform: str
    id: int
    device_kind: str
    process_index: int = 0
    num_cores: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class TracedStep:
    """MaxText's step on a mesh of stand-ins.

    Attributes:
      closed: the step as a jaxpr, with constraints on that mesh.
      args: `(state, batch)`, abstract.
      results: the tree of what it returns.
      donated: positions of arguments that are given up.
      shardings: of the arguments, as MaxText gives them to `jax.jit`.
      mesh: of the stand-ins.
    """

    closed: Any
    args: tuple[Any, ...]
    results: Any
    donated: Any
    shardings: Any
    mesh: jax.sharding.Mesh


def train_step(
    config: Any, target: Target, *, keep: bool
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The step of a configuration, its arguments `(state, batch)`, and how it is traced.

    Args:
      config: MaxText's.
      target: the devices.
      keep: the constraints of the step, and the shardings of its state and batch.

    Raises:
      ProgramError: MaxText cannot build it.
    """
    if keep and _is_explicit(config):
        raise ProgramError(
            "constraints=keep and --as maxtext go with shard_mode=auto: with shard_mode=explicit "
            "MaxText writes layouts into types, which are set aside"
        )
    sizes = mesh_sizes(config, target) if keep else (1,) * len(config.mesh_axes)
    built = traced_step(config, target, sizes)
    mesh = built.mesh
    closed, count = _constrained(built.closed, mesh.abstract_mesh if keep else None)
    run = jaxpr_as_fun(closed)

    def step(state: Any, batch: Any) -> Any:
        return jax.tree.unflatten(built.results, run(*jax.tree.leaves((state, batch))))

    long = ",".join(f"{name}={size}" for name, size in mesh.shape.items() if size > 1)
    note = (
        f"the {count} constraints of MaxText's logical axis rules are demands on its own mesh, "
        f"({long}): give --mesh {long} to keep to them"
        if keep
        else f"{count} constraints of MaxText's logical axis rules are set aside; constraints=keep "
        "among the program's settings makes them demands"
    )
    if _is_explicit(config):
        note = "the layouts in MaxText's types (shard_mode=explicit) are set aside"
    options = {"donate_argnums": built.donated, "notes": (note,)}
    if not keep:
        return step, built.args, options
    given = jax.tree.map(lambda one: NamedSharding(mesh.abstract_mesh, one.spec), built.shardings)
    return jax.jit(step, in_shardings=given), built.args, options


def traced_step(config: Any, target: Target, sizes: Sequence[int]) -> TracedStep:
    """MaxText's step on a mesh of these sizes. Raises ProgramError: MaxText cannot build it."""
    mesh = stand_in_mesh(config, target, sizes)
    told = io.StringIO()
    compiled = module("maxtext.trainers.pre_train.train_compile")
    utils, sharding = module("maxtext.utils.maxtext_utils"), module("maxtext.utils.sharding")
    train = module("maxtext.trainers.pre_train.train")
    try:
        with quiet(told), jax.default_prng_impl("unsafe_rbg"):
            shaped, _, states, _, model = compiled.get_shaped_inputs(mesh, config)
            parameters, states = sharding.maybe_update_params_sharding_with_opt(config, states)
            batch = sharding.get_input_data_sharding(config, mesh)
            own, shardings, _, _, donate = utils.get_functional_train_with_signature(
                train.train_step, batch, states, model, config, parameters
            )
            rules = compiled.axis_rules(config.logical_axis_rules)
            args = jax.tree.map(without_sharding, tuple(shaped))
            with rules, _for_other_devices(), _its_mesh(config, mesh):
                traced = jax.jit(own).trace(*args)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        what = f"MaxText cannot build the step of {config.model_name}"
        words = unknown_words(config)
        unknown = "".join(f"; its base.yml does not name {one}" for one in words)
        raise ProgramError(f"{what}: {why}{unknown}") from error
    results = jax.tree.structure(traced.out_info)
    return TracedStep(traced.jaxpr, args, results, donate, shardings, mesh)


def _for_other_devices() -> AbstractContextManager[Any]:
    """Under which tokamax, where MaxText has it, does not ask what the devices here can do."""
    tokamax = sys.modules.get("tokamax")
    return nullcontext() if tokamax is None else tokamax.config.cross_compile(True)


def _is_explicit(config: Any) -> bool:
    """Whether MaxText writes layouts into types (`shard_mode=explicit`)."""
    return getattr(config.shard_mode, "value", config.shard_mode) == "explicit"


def _its_mesh(config: Any, mesh: jax.sharding.Mesh) -> AbstractContextManager[Any]:
    """Under which a step with layouts in its types finds the mesh that these are on."""
    return jax.set_mesh(mesh) if _is_explicit(config) else nullcontext()


def stand_in_mesh(config: Any, target: Target, sizes: Sequence[int]) -> jax.sharding.Mesh:
    """MaxText's mesh, of stand-ins."""
    kind = target.kind or "stand-in"
    devices = [StandIn(target.hardware, number, kind) for number in range(math.prod(sizes))]
    array = np.array(devices, dtype=object).reshape(tuple(sizes))
    kind = AxisType.Explicit if _is_explicit(config) else AxisType.Auto
    kinds = (kind,) * len(config.mesh_axes)
    return jax.sharding.Mesh(array, tuple(config.mesh_axes), axis_types=kinds)


def without_constraints(closed: Any) -> tuple[Any, int]:
    """A step without its constraints, and how many there were."""
    return _constrained(closed, None)


def axis_use(config: Any, target: Target, axis: str) -> AxisUse:
    """What the step asks of one axis of MaxText's mesh, with two devices along it.

    Raises:
      ProgramError: MaxText cannot build the step so.
    """
    built = traced_step(config, target, [1 + (name == axis) for name in config.mesh_axes])
    layouts, code = [], []
    for equation in all_equations(built.closed.jaxpr):
        shape = equation.outvars[0].aval.shape if equation.outvars else ()
        if equation.primitive.name == "sharding_constraint":
            layouts.append((shape, _place(equation.params["sharding"].spec, axis)))
        else:
            code.append((equation.primitive.name, shape))
    given = jax.tree.leaves(jax.tree.broadcast(built.shardings, built.args))
    for one, leaf in zip(given, jax.tree.leaves(built.args), strict=True):
        layouts.append((leaf.shape, _place(one.spec, axis)))
    return AxisUse(tuple(layouts), tuple(code))


def tensor_names(config: Any, target: Target) -> frozenset[str]:
    """The names that the step gives to tensors, by which a remat policy knows them.

    Raises:
      ProgramError: MaxText cannot build the step.
    """
    built = traced_step(config, target, [1] * len(config.mesh_axes))
    equations = all_equations(built.closed.jaxpr)
    return frozenset(e.params["name"] for e in equations if e.primitive.name == "name")


def _place(spec: Any, axis: str) -> int | None:
    """The dimension that an axis cuts."""
    for at, entry in enumerate(spec):
        if entry == axis or (isinstance(entry, tuple) and axis in entry):
            return at
    return None


def _constrained(closed: Any, mesh: Any) -> tuple[Any, int]:
    """The step with its constraints on another mesh, or on None without, and how many there are."""
    count = 0

    def change(equation: Any) -> Any:
        nonlocal count
        if equation.primitive.name != "sharding_constraint":
            return equation
        count += 1
        if mesh is None:
            return call_in_place(equation, lambda _, operands: list(operands))
        named = NamedSharding(mesh, equation.params["sharding"].spec)
        return equation.replace(params={**equation.params, "sharding": named})

    return compat.closed(replaced(closed.jaxpr, change), closed.consts), count


def mesh_sizes(config: Any, target: Target) -> tuple[int, ...]:
    """The sizes of MaxText's mesh, those that are left open filled in. Raises ProgramError."""
    fill = module("maxtext.utils.max_utils").fill_unspecified_mesh_axes
    slices = config.num_slices
    try:
        inside = fill(list(config.ici_parallelism), target.devices // slices, "ICI")
        between = fill(list(config.dcn_parallelism), slices, "DCN") if slices > 1 else inside
    except (AssertionError, ValueError) as error:
        raise ProgramError(f"MaxText's mesh is not of {target.devices} devices: {error}") from error
    if slices == 1:
        return tuple(inside)
    return tuple(a * b for a, b in zip(inside, between, strict=True))


def without_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape and type of an abstract array."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))
