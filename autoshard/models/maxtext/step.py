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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding

from autoshard import compat
from autoshard.models.maxtext.config import module, quiet
from autoshard.models.providers import ProgramError, Target
from autoshard.program.bodies import call_in_place, replaced

CONSTRAINTS = ("aside", "keep")


@dataclass(frozen=True)
class StandIn:
    """What a mesh, and MaxText, ask of a device that is not there."""

    platform: str
    id: int
    device_kind: str = "stand-in"
    process_index: int = 0


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
    names = tuple(config.mesh_axes)
    sizes = _mesh_sizes(config, target) if keep else (1,) * len(names)
    devices = [StandIn(target.hardware, number) for number in range(math.prod(sizes))]
    mesh = jax.sharding.Mesh(np.array(devices, dtype=object).reshape(sizes), names)
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
            args = jax.tree.map(_without_sharding, tuple(shaped))
            with rules:
                traced = jax.jit(own).trace(*args)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        what = f"MaxText cannot build the step of {config.model_name}"
        raise ProgramError(f"{what}: {why}") from error
    closed, count = _constrained(traced.jaxpr, mesh.abstract_mesh if keep else None)
    run, tree = jaxpr_as_fun(closed), jax.tree.structure(traced.out_info)

    def step(state: Any, batch: Any) -> Any:
        return jax.tree.unflatten(tree, run(*jax.tree.leaves((state, batch))))

    long = ",".join(f"{name}={size}" for name, size in mesh.shape.items() if size > 1)
    note = (
        f"the {count} constraints of MaxText's logical axis rules are demands on its own mesh, "
        f"({long}): give --mesh {long} to keep to them"
        if keep
        else f"{count} constraints of MaxText's logical axis rules are set aside; constraints=keep "
        "among the program's settings makes them demands"
    )
    options = {"donate_argnums": donate, "notes": (note,)}
    if not keep:
        return step, args, options
    given = jax.tree.map(lambda one: NamedSharding(mesh.abstract_mesh, one.spec), shardings)
    return jax.jit(step, in_shardings=given), args, options


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


def _mesh_sizes(config: Any, target: Target) -> tuple[int, ...]:
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


def _without_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))
