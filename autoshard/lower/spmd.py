"""Lower a plan to one JAX program with Shardy annotations.

    lowered = autoshard.lower(plan, step, params, batch)
    step_on_mesh = lowered.jit()                   # a jax.jit function on the plan's mesh
    params = jax.device_put(params, lowered.in_shardings[0])
    loss, params = step_on_mesh(params, batch)

The result needs nothing of autoshard at run time: `in_shardings` and `out_shardings` are pytrees of
`NamedSharding`, `fn` is a traced function with sharding constraints in it, `mlir_text` and
`export` give the module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from autoshard import compat
from autoshard.lower.compiler_options import compiler_options
from autoshard.lower.explicit import manual_step
from autoshard.lower.facts.platforms import calls_of_code, check_platforms, platform_to_read
from autoshard.lower.interpret import Interpreter, LoweringError, Readable
from autoshard.lower.placed import placed
from autoshard.plan.plan import Plan
from autoshard.plan.same_program import for_program
from autoshard.plan.types.plan_check import check_plan
from autoshard.program.graph import REWRITES
from autoshard.program.rules.kept import read_rules
from autoshard.program.state.constants import hold, holds_constants, release
from autoshard.program.state.ties import spans
from autoshard.program.state.write import write_back
from autoshard.program.trace import Program, trace
from autoshard.units import counted

__all__ = ["Lowered", "LoweringError", "lower", "make_mesh"]


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A step with its plan written in.

    Attributes:
      plan, program: what was lowered.
      mesh: a `Mesh` of devices, or an `AbstractMesh` where there are not as many; of Explicit axes
        if the step was written for such.
      fn: the step as a function of the same arguments, to be jitted; it may be differentiated. Of a
        step that changes its arguments in place it takes arrays for `jax.Ref`s, and returns what
        changes as `autoshard.program.state.in_place.Returning` does.
      in_shardings, out_shardings: pytrees of `NamedSharding` shaped like the arguments (a tuple)
        and the result.
      in_shapes: the arguments as `jax.ShapeDtypeStruct`s.
      readable: `fn` with opaque calls in place of kernels and calls of Python, which need devices.
    """

    plan: Plan
    program: Program
    mesh: Any
    fn: Callable[..., Any]
    in_shardings: Any
    out_shardings: Any
    in_shapes: Any = field(repr=False)
    readable: Callable[..., Any] | None = field(default=None, repr=False)

    def jit(self, **options: Any) -> Any:
        """`jax.jit` of the step on the plan's mesh, donating what the plan's step donates.

        What the step changes in place is changed by a call of this too, and given back by none of
        its results. `options` go to `jax.jit`, and override the plan's shardings and donation.
        """
        if self.program.changed:
            return InPlace(self, options)
        step = self.functional(**options)
        trees = (self.program.in_tree, self.program.out_tree)
        return Releasing(step) if any(map(holds_constants, trees)) else step

    def functional(self, **options: Any) -> Any:
        """`jax.jit` of `fn` on the plan's mesh, as `jit` otherwise."""
        return jax.jit(self.fn, **{**self.defaults, **options})

    @property
    def defaults(self) -> dict[str, Any]:
        """The options of `jax.jit` that are the plan's."""
        donated = [
            number
            for number, span in enumerate(spans(self.in_shapes))
            if span and self.program.donated.issuperset(span)
        ]
        return {
            "in_shardings": self.in_shardings,
            "out_shardings": self.out_shardings,
            "donate_argnums": tuple(donated),
            "compiler_options": self.compiler_options or None,
        }

    @property
    def compiler_options(self) -> dict[str, bool | int | str]:
        """What XLA is told besides its defaults (`autoshard.lower.compiler_options`)."""
        arguments = zip(
            jax.tree.leaves(self.in_shapes), jax.tree.leaves(self.in_shardings), strict=True
        )
        return compiler_options(self.plan, self.program, arguments)

    @property
    def in_abstract(self) -> Any:
        """The arguments as `jax.ShapeDtypeStruct`s with their shardings, to restore into.

        A checkpoint's reader that takes abstract arrays (Orbax) gives every device its own part.
        """

        def laid_out(one: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)

        return release(jax.tree.map(laid_out, self.in_shapes, self.in_shardings))

    def shard(self, *arguments: Any) -> Any:
        """Lay out the first arguments of the step as planned; one alone is returned by itself.

        An array that stands twice among them is copied where the step would overwrite it. What is
        no array may be another than was planned for, as the functions of an optimizer made anew.

        Raises:
          TypeError: the step has fewer arguments, or one with arrays at other places.
        """
        if len(arguments) > len(self.in_shardings):
            raise TypeError(
                f"{self.program.name} takes {counted(len(self.in_shardings), 'argument')}, not "
                f"{len(arguments)}; leave out the others, or search for a plan of a step with them"
            )
        arguments = hold(arguments)
        wanted = jax.tree.leaves(self.in_shardings[: len(arguments)])
        leaves, tree = jax.tree.flatten(arguments)
        if tree != jax.tree.structure(self.in_shapes[: len(arguments)]):
            _check_paths(self.program, arguments, self.program.input_paths[: len(wanted)])
        donated = [k for k in self.program.donated if k < len(leaves)]
        given = release(jax.tree.unflatten(tree, placed(leaves, wanted, donated)))
        return given[0] if len(given) == 1 else given

    def lower(self, *, platforms: Sequence[str] | None = None) -> Any:
        """The `jax.stages.Lowered` of the step; needs no devices when `platforms` are given.

        Raises:
          LoweringError: it calls Python, and a platform has no device here.
        """
        check_platforms(self.program, platforms or ())
        return self._lowered(platforms)

    def to_read(self) -> Any:
        """The `jax.stages.Lowered` of the step, to be read and not to be run; needs no devices."""
        one = self if self.readable is None else replace(self, fn=self.readable, readable=None)
        return one._lowered((platform_to_read(self.program),))

    def _lowered(self, platforms: Sequence[str] | None) -> Any:
        given = None if platforms is None else tuple(platforms)
        with compat.no_other_mesh(self.mesh):
            return self.functional().trace(*self.in_shapes).lower(lowering_platforms=given)

    def mlir_text(self, *, platform: str = "tpu") -> str:
        """The StableHLO module with Shardy annotations, as text."""
        return self.lower(platforms=(platform,)).as_text()

    def export(self, *, platforms: Sequence[str] = ("tpu",)) -> bytes:
        """`jax.export` bytes of the step for `platforms`.

        Rows of ragged products that go to their groups are sent by a call (`ragged_all_to_all`) of
        which JAX does not promise that other versions read it.
        """
        from jax import export

        ragged = any(op.groups > 1 for op in self.program.ops)
        checks = [export.DisabledSafetyCheck.custom_call("ragged_all_to_all")] if ragged else []
        with compat.no_other_mesh(self.mesh):
            step = self.functional()
            made = export.export(step, platforms=tuple(platforms), disabled_checks=checks)
            exported = made(*self.in_shapes)
        return bytes(exported.serialize())


class Releasing:
    """A jitted step whose arguments and results hold what is not an array of JAX."""

    def __init__(self, jitted: Any) -> None:
        self.jitted = jitted

    def __call__(self, *arguments: Any) -> Any:
        return release(self.jitted(*hold(arguments)))

    def trace(self, *arguments: Any) -> Any:
        """As of `jax.jit`."""
        return self.jitted.trace(*hold(arguments))

    def lower(self, *arguments: Any, **options: Any) -> Any:
        """As of `jax.jit`."""
        return self.jitted.lower(*hold(arguments), **options)


class InPlace:
    """A jitted step that changes its arguments as the step does that was planned.

    Objects get other arrays, and `jax.Ref`s other contents. Buffers of what changes are donated.
    Arguments may lie anywhere, and an array may stand twice among them.
    """

    def __init__(self, lowered: Lowered, options: Mapping[str, Any]) -> None:
        program = lowered.program
        self.lowered = lowered
        self.trees = {program.in_tree}
        self.objects = [pair for pair in program.changed if pair[0] not in program.refs]
        self.results = program.out_tree.num_leaves - len(program.changed)
        into, out = (jax.tree.leaves(of) for of in (lowered.in_shardings, lowered.out_shardings))
        if given := options.keys() & {"in_shardings", "out_shardings", "donate_argnums"}:
            raise TypeError(
                f"{program.name} changes its arguments in place, so that its plan alone says "
                f"{', '.join(sorted(given))}; give others to `functional`"
            )
        self.into = into
        self.jitted = jax.jit(
            self._flat,
            in_shardings=tuple(into),
            out_shardings=(out[: self.results], [out[k] for _, k in self.objects]),
            # JAX writes into the buffer of a Ref by itself.
            donate_argnums=tuple(program.donated - program.refs),
            **{"compiler_options": lowered.compiler_options or None, **options},
        )

    def __call__(self, *arguments: Any) -> Any:
        program = self.lowered.program
        arguments = hold(arguments)
        flat, tree = jax.tree.flatten(arguments)
        if tree not in self.trees:
            _check_paths(program, arguments, program.input_paths)
            self.trees.add(tree)
        given = placed(flat, self.into, program.donated - program.refs)
        results, arrays = self.jitted(*given)
        positions = [position for position, _ in self.objects]
        write_back(arguments, dict(zip(positions, arrays, strict=True)))
        return release(jax.tree.unflatten(program.out_tree.children()[0], results))

    def _flat(self, *flat: Any) -> Any:
        program = self.lowered.program
        arrays = [leaf[...] if k in program.refs else leaf for k, leaf in enumerate(flat)]
        results = jax.tree.leaves(self.lowered.fn(*jax.tree.unflatten(program.in_tree, arrays)))
        for given, out in program.changed:
            if given in program.refs:
                flat[given][...] = results[out]
        return results[: self.results], [results[out] for _, out in self.objects]


def _check_paths(program: Program, arguments: Any, known: Sequence[str]) -> None:
    """Raises TypeError unless arguments have their arrays at the places of those planned for."""
    found = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(arguments)]
    if found != list(known):
        odd = [f"{path} is missing" for path in known if path not in found]
        odd += [f"{path} is new" for path in found if path not in known]
        raise TypeError(
            f"{program.name} was planned for other arguments: {', '.join(odd)}; search for a plan "
            "of these"
        )


def lower(
    plan: Plan,
    fn: Callable[..., Any],
    *args: Any,
    devices: Sequence[Any] | None = None,
    explicit: bool = False,
) -> Lowered:
    """Write `plan` into `fn`.

    Args:
      plan: a plan made for `fn` with arguments of these shapes.
      fn: the same step that was traced.
      *args: pytrees of arrays or `jax.ShapeDtypeStruct`s.
      devices: devices of the mesh in row-major order, those of a deviceless topology included; by
        default the devices that JAX sees if there are as many as the mesh needs, else none (an
        abstract mesh, enough to lower and export).
      explicit: write the step out for one device, as a `jax.shard_map` that calls every planned
        collective (`autoshard.lower.explicit`), rather than as annotations for Shardy. It cannot be
        differentiated through derivative rules of the user's own.

    Raises:
      PlanError: the plan is for another program.
      PlanTypeError: the plan does not type-check; every fault is listed.
      LoweringError: once it is traced, if the plan shards an op that the compiler cannot cut, or
        that cannot be written out for one device.
      ValueError: the number of devices is not that of the mesh.
    """
    program = trace(fn, *args, **_trace_options(plan))
    plan = for_program(plan, program)
    check_plan(program, plan)
    auto = make_mesh(plan, devices)
    mesh = make_mesh(plan, devices, AxisType.Explicit) if program.explicit else auto
    flat_in = _shardings(program, program.inputs, mesh, plan.specs["inputs"])
    flat_out = _shardings(program, program.outputs, mesh, plan.specs["outputs"])

    def planned(*flat: Any, interpreter: type[Interpreter] = Interpreter) -> list[Any]:
        if explicit:
            return manual_step(program, plan, auto)(*flat)
        return interpreter(program, plan, auto).run(*flat)

    step = _on_trees(program, planned, mesh, flat_out)
    readable = None
    if calls_of_code(program) and not explicit:
        readable = _on_trees(program, partial(planned, interpreter=Readable), mesh, flat_out)
    shapes = [compat.shape_struct(var.aval) for var in program.jaxpr.jaxpr.invars]
    return Lowered(
        plan=plan,
        program=program,
        mesh=mesh,
        fn=step,
        in_shardings=jax.tree.unflatten(program.in_tree, flat_in),
        out_shardings=jax.tree.unflatten(program.out_tree, flat_out),
        in_shapes=jax.tree.unflatten(program.in_tree, shapes),
        readable=readable,
    )


def _shardings(
    program: Program, values: Sequence[int], mesh: Any, specs: Mapping[str, PartitionSpec]
) -> list[NamedSharding]:
    """Those of inputs or outputs, with the memory kind of what lies in the host's memory."""
    found = []
    for value in map(program.values.__getitem__, values):
        kind = {"memory_kind": compat.HOST_KIND} if value.host else {}
        found.append(NamedSharding(mesh, specs[value.path], **kind))
    return found


def _on_trees(
    program: Program, planned: Callable[..., Any], mesh: Any, flat_out: Any
) -> Callable[..., Any]:
    """A planned step on flat arguments, as a function of the user's."""

    def step(*arguments: Any) -> Any:
        flat, tree = jax.tree.flatten(hold(arguments))
        if tree != program.in_tree:
            raise TypeError(
                f"{program.name} was planned for arguments {program.in_tree}, but got {tree}; give "
                "arguments of this structure, or search for a plan of the new one"
            )
        if not program.explicit:
            return jax.tree.unflatten(program.out_tree, planned(*flat))
        run: Any = jax.sharding.auto_axes(planned, out_sharding=flat_out)
        with compat.traced_on(mesh):
            return jax.tree.unflatten(program.out_tree, run(*flat))

    step.__name__ = program.name
    return step


def make_mesh(plan: Plan, devices: Sequence[Any] | None, kind: AxisType = AxisType.Auto) -> Any:
    """The plan's mesh over `devices`, of axes of one kind; see `lower`."""
    sizes, names = plan.mesh.sizes, plan.mesh.names
    needed = math.prod(sizes)
    kinds = (kind,) * len(sizes)
    if devices is None:
        found = jax.devices()
        if len(found) != needed:
            return AbstractMesh(sizes, names, axis_types=kinds)
        devices = found
    if len(devices) != needed:
        raise ValueError(
            f"the plan's mesh ({plan.mesh}) needs {counted(needed, 'device')}, but "
            f"{len(devices)} were given; "
            f"give {needed}, or search for a plan on a machine of {len(devices)}"
        )
    return Mesh(np.array(devices, dtype=object).reshape(sizes), names, axis_types=kinds)


def _trace_options(plan: Plan) -> dict[str, Any]:
    keys = ("donate_argnums", "trip_counts", *REWRITES)
    options = {key: plan.options[key] for key in keys if key in plan.options}
    rules = read_rules(plan.options.get("user_rules", {}))
    return {**options, "user_rules": rules} if rules else options
