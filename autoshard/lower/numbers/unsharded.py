"""The numbers of a lowered step beside those of the unsharded one, both in double precision.

What differs by more than a tolerance is held to what rounding can make there
(`autoshard.lower.numbers.rounding`) before it counts. Where the plan cuts dimensions of which
slices are read or written, both run again with slices that start at, beyond and below the ends of
these dimensions (`autoshard.lower.numbers.starts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.lower.kernels.ruled import on_cpu
from autoshard.lower.numbers.double import NotWidenedError, wide, widened
from autoshard.lower.numbers.numeric import TOLERANCES, Difference, compare_outputs
from autoshard.lower.numbers.rounding import Nudge, deviations
from autoshard.lower.numbers.starts import arguments_at_ends
from autoshard.lower.spmd import Lowered
from autoshard.program.as_run.calls import run_on
from autoshard.program.bodies import equations_in
from autoshard.program.kernels.known.calls import know_kernels
from autoshard.program.state.in_place import Returning, arrays_of
from autoshard.program.trace import Program
from autoshard.program.vocabulary import RESHARDS

DOUBLE_TOLERANCE = 1e-8
DOUBLE_FLOOR = 1e-12
# Soon compiled matters more than fast code; this changes no collective. Of a product whose sum
# Python is called with, XLA:CPU makes a fusion for a library that it then refuses itself.
_QUICK_ON_CPU = compat.known_flags(
    {
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_experimental_ynn_fusion_type": "",
    }
)

Run = Callable[[Sequence[Any]], Any]
"""A compiled function of a tuple of arguments, which it places itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What a function returns on one device, to hold several lowered steps to.

    Attributes:
      arguments: with which it was called, in double precision where it could be widened.
      outputs: of the function.
      double: whether it ran in double precision.
      run: the function.
      nudged: the function with rounding made larger; None where it did not run in double precision.
    """

    arguments: Sequence[Any]
    outputs: Any
    double: bool
    run: Run = field(repr=False)
    nudged: Callable[[Nudge], Run] | None = field(repr=False)

    def at(self, arguments: Sequence[Any]) -> Reference:
        """The same function with other arguments of the same shapes."""
        with jax.set_mesh(None), jax.enable_x64(self.double):
            given = wide(arguments) if self.double else arguments
            return replace(self, arguments=given, outputs=self.run(given))

    def rounding(self) -> dict[str, np.ndarray] | None:
        """By path of a leaf, what rounding may change; None where this is not known."""
        nudged = self.nudged
        if nudged is None:
            return None
        with jax.enable_x64(True):
            return deviations(self.outputs, lambda nudge: nudged(nudge)(self.arguments))


def reference(fn: Callable[..., Any], concrete: Sequence[Any], *, device: Any = None) -> Reference:
    """`fn(*concrete)` on one device (default: the first), in double precision if that can be.

    Rounding neither hides an error nor feigns one there (`autoshard.lower.numbers.double`); steps
    with opaque operations run as they are.
    """
    device = jax.local_devices()[0] if device is None else device
    fn, concrete = Returning(fn, concrete), arrays_of(concrete)
    try:
        plain = widened(fn, *concrete)
    except NotWidenedError:
        return _plain_reference(fn, concrete, device)
    with jax.set_mesh(None), jax.enable_x64(True):
        arguments, run = wide(concrete), _on_one(plain, device)
        return Reference(
            arguments,
            run(arguments),
            double=True,
            run=run,
            nudged=lambda nudge: _on_one(widened(fn, *concrete, nudge=nudge), device),
        )


def _plain_reference(fn: Callable[..., Any], concrete: Sequence[Any], device: Any) -> Reference:
    fn, concrete = Returning(fn, concrete), arrays_of(concrete)
    if device.platform == "cpu":
        fn = _with_interpreted_kernels(fn, concrete)
    run = _on_one(fn, device)
    return Reference(concrete, run(concrete), double=False, run=run, nudged=None)


def _with_interpreted_kernels(fn: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """A function whose kernels run as they can on CPU."""

    def change(closed: Any) -> Any:
        names = {one.primitive.name for one in equations_in(closed.jaxpr)}
        return on_cpu(know_kernels(closed) if compat.ON_CORES in names else closed)

    return _changed(fn, args, change)


def _on_platforms(
    fn: Callable[..., Any], args: Sequence[Any], platforms: Sequence[str]
) -> Callable[..., Any]:
    """A function that computes, on any device, what it does on these platforms."""
    if not platforms:
        return fn
    return _changed(fn, args, lambda closed: run_on(closed, platforms))


def _changed(
    fn: Callable[..., Any], args: Sequence[Any], change: Callable[[Any], Any]
) -> Callable[..., Any]:
    """A function with `change` made to its closed jaxpr."""
    with compat.traced_without_gpu():
        closed, out = jax.make_jaxpr(fn, return_shape=True)(*args)
    closed = compat.in_lax(closed)
    changed = change(closed)
    if changed is closed:
        return fn
    tree, step = jax.tree.structure(out), jaxpr_as_fun(changed)
    return lambda *given: jax.tree.unflatten(tree, step(*jax.tree.leaves(given)))


def numeric_differences(
    lowered: Lowered,
    fn: Callable[..., Any],
    concrete: Sequence[Any],
    *,
    expected: Reference | None = None,
) -> list[Difference]:
    """Level 2: where the lowered step and `fn` differ on `concrete` arguments.

    Under `jax.distributed` every process calls it with the same arguments. Steps that cannot be
    widened to double precision are held to the tolerance of their types. `expected` is
    `reference(fn, concrete)`, where that is known.
    """
    program = lowered.program
    # One device has none of the meshes that a step names.
    if program.explicit or program.shard_maps:
        fn, concrete = _of_no_mesh(program), jax.tree.map(_on_host, concrete)
    elif any(op.primitive in (*RESHARDS, "device_put") for op in program.ops):
        fn = _unsaid(fn)
    with compat.no_other_mesh(lowered.mesh):
        return _differences(lowered, fn, concrete, expected)


def _of_no_mesh(program: Program) -> Callable[..., Any]:
    """A step that was written for a mesh, as it was traced, without types and maps over parts."""
    step = jaxpr_as_fun(compat.without_reshards(program.jaxpr))

    def run(*arguments: Any) -> Any:
        return jax.tree.unflatten(program.out_tree, step(*jax.tree.leaves(arguments)))

    return run


def _unsaid(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function without its constraints."""

    def run(*arguments: Any) -> Any:
        closed, out = jax.make_jaxpr(fn, return_shape=True)(*arguments)
        step = jaxpr_as_fun(compat.without_reshards(closed))
        return jax.tree.unflatten(jax.tree.structure(out), step(*jax.tree.leaves(arguments)))

    return run


def _differences(
    lowered: Lowered, fn: Callable[..., Any], concrete: Sequence[Any], expected: Reference | None
) -> list[Difference]:
    device = lowered.mesh.local_devices[0]
    fn, concrete = Returning(fn, concrete, lowered.program.refs), arrays_of(concrete)
    fn = _on_platforms(fn, concrete, lowered.program.options.get("platforms", ()))
    known = reference(fn, concrete, device=device) if expected is None else expected
    try:
        sharded = widened(lowered.fn, *concrete) if known.double else lowered.fn
    except NotWidenedError:
        sharded, known = lowered.fn, _plain_reference(fn, concrete, device)
    run = _on_mesh(sharded, lowered, device)
    differences = _held(lowered, run, known)
    for place, arguments in arguments_at_ends(lowered.program, lowered.plan, concrete):
        differences += [
            replace(one, reason=f"{one.reason}, where slices start {place} of a dimension")
            for one in _held(lowered, run, known.at(arguments))
        ]
    return differences


def _held(lowered: Lowered, run: Run, known: Reference) -> list[Difference]:
    """Where a lowered step differs from the reference, with the reference's arguments."""
    if not known.double:
        actual = run(known.arguments)
        return compare_outputs(known.outputs, actual, tolerances=_tolerances(lowered))
    with jax.enable_x64(True):
        actual = run(known.arguments)

        def compared(rounding: dict[str, np.ndarray] | None) -> list[Difference]:
            return compare_outputs(
                known.outputs,
                actual,
                tolerances={"float64": DOUBLE_TOLERANCE, "complex128": DOUBLE_TOLERANCE},
                floor=DOUBLE_FLOOR,
                rounding=rounding,
            )

        return compared(known.rounding()) if compared(None) else []


def _on_one(fn: Callable[..., Any], device: Any) -> Run:
    """A function compiled for one device."""
    jitted = jax.jit(fn, compiler_options=_options(device))

    def run(arguments: Sequence[Any]) -> Any:
        with jax.set_mesh(None):
            return jitted(*jax.device_put(tuple(arguments), device))

    return run


def _on_mesh(fn: Callable[..., Any], lowered: Lowered, device: Any) -> Run:
    """A lowered step, or that step in double precision, compiled for the plan's mesh."""
    into, out = lowered.in_shardings, lowered.out_shardings
    jitted = jax.jit(fn, in_shardings=into, out_shardings=out, compiler_options=_options(device))
    # From the host: JAX compiles a program to cut an array that lies on a device.
    return lambda arguments: jitted(*jax.device_put(jax.tree.map(_on_host, tuple(arguments)), into))


def _options(device: Any) -> dict[str, Any]:
    return _QUICK_ON_CPU if device.platform == "cpu" else {}


def _on_host(array: Any) -> Any:
    whole = isinstance(array, jax.Array) and array.is_fully_addressable
    return np.asarray(array) if whole and not _is_key(array) else array


def _is_key(array: jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _tolerances(lowered: Lowered) -> dict[str, float]:
    """Tolerances by dtype: a program that computes in a short type is held to that type's."""
    floats = {value.dtype for value in lowered.program.values if value.dtype in TOLERANCES}
    loosest = max((TOLERANCES[name] for name in floats), default=0.0)
    return dict.fromkeys(floats, loosest)
