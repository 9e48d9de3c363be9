"""A traced step as a flat graph of values and ops, ready for decisions.

`trace` turns a function into its jaxpr and lays it out flat: calls (`jit`, `custom_jvp`,
`custom_vjp`, `checkpoint`) are inlined, and the bodies of `scan`, `while` and `cond` stand in
place, between *boundary ops* that carry values across the edge of the region:

    enter       a closed-over value becomes visible inside the region (no data is moved)
    carry       the initial value of a loop's carry, which has one layout at entry and at exit
    scan_slice  one iteration's part of a scanned input
    scan_stack  its inverse, for a scanned output
    yield       the carry at the end of an iteration
    join        one result out of `cond`'s branches
    return      a result of the step, as it is handed back to the caller

Every op knows its scope, its source line, whether it belongs to the backward pass and how often
it runs (`trips`). Values that depend on constants and iotas alone are *free*: they are computed
wherever they are needed, in whatever layout, so they tie nothing together. So are values of no
elements, whatever they come from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from autoshard import compat
from autoshard.program.as_run.calls import run_in_order
from autoshard.program.as_run.planned import as_planned
from autoshard.program.bodies import all_equations
from autoshard.program.flatten import op_count
from autoshard.program.graph import Op, Program, Region, Value
from autoshard.program.kernels.known.calls import know_kernels
from autoshard.program.rewritten import (
    cast_early,
    divided,
    in_parts,
    laid_out,
    of_platforms,
    pad_early,
    saving,
    sum_late,
)
from autoshard.program.rules.choose import UserRules, refuse_for_bodies
from autoshard.program.rules.kept import heard, rules_option
from autoshard.program.shard_maps.collectives import CollectiveError
from autoshard.program.shard_maps.in_place import run_shard_maps, shard_maps_in
from autoshard.program.state.constants import hold
from autoshard.program.state.in_place import InPlaceError, Returning, is_ref
from autoshard.program.state.on_host import comes_back, held_where_named
from autoshard.program.state.ties import (
    TraceError,
    argument_names,
    donated_of,
    donated_positions,
    ties_of,
)
from autoshard.program.trip_counts import TripCounts, checked

__all__ = [
    "Op",
    "Program",
    "Region",
    "TraceError",
    "Value",
    "trace",
]


def trace(
    fn: Callable[..., Any],
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    trip_counts: TripCounts = (),
    user_rules: UserRules | None = None,
    saved: Collection[str] | None = None,
    offloaded: Collection[str] = (),
    prefetch: bool = False,
    microbatches: int = 1,
    early_casts: bool = False,
    late_sums: Sequence[int] = (),
    early_pads: bool = False,
    parts: Mapping[str, Sequence[int]] = MappingProxyType({}),
    host: Sequence[str] = (),
    platforms: Sequence[str] = (),
    name: str | None = None,
) -> Program:
    """Trace `fn(*args)` to a `Program`.

    Args:
      fn: any function that JAX can trace.
      *args: pytrees of arrays or `jax.ShapeDtypeStruct`s; no device and no data is needed. What
        else they hold, as functions in modules, stays as it is
        (`autoshard.program.state.constants`).
      donate_argnums: positions of arguments that the step may overwrite (state).
      trip_counts: how often each `while` loop runs: one number for all, a sequence in program
        order, or a mapping from a loop's place in this order (from 0), or from a part of its scope,
        to the number. Loops from one literal to another need none; others are counted once without
        one, with a warning.
      user_rules: sharding rules of opaque ops (Pallas, FFI), by name; several for a name that
        stands for ops of several signatures. A plan keeps them, and of functions what they said.
      saved: names of the forward values to save for the backward pass, which computes all others
        again (`autoshard.program.keep`); by default, what the function itself saves.
      offloaded: names of stacks of loops that wait for the backward pass in the memory of the host
        (`autoshard.program.keep.Residuals.stacks`).
      prefetch: whether they move a turn late to the host and come a turn early, so that a transfer
        has a whole turn to run beside, for two more turns' parts on the device.
      microbatches: how many equal parts of the batch the step works on, one after another
        (`autoshard.program.microbatches`).
      early_casts: cast before loops what they cast turn by turn (`program.keep.early_casts`).
      late_sums: sum parts of what loops sum in their turns, and these after them: into how many
        parts the first summed dimension is cut, the second, and so on (`program.keep.late_sums`).
      early_pads: pad what products read in place of what they make (`program.keep.early_pads`).
      parts: loops that run in parts, which may save other values: by a loop's name
        (`autoshard.program.keep.Residuals.loops`), the turns at which further parts begin.
      host: arguments to hold in the memory of the host, and to fetch where they are read: `state`,
        `state.mu` (`autoshard.program.state.on_host`).
      platforms: on which the step runs, as JAX calls them (`tpu`, `cuda`): of what
        `lax.platform_dependent` chooses from, the program holds what runs there. A search says so
        for its machine.
      name: of the program in reports, by default the function's.

    Raises:
      TraceError: `fn` does not trace (the message names the user's source line), there are no such
        values to save or parts of loops, or it cannot be cut into microbatches (the op is named).
      autoshard.program.rules.ask_shardy.NoRuleError: an op has no sharding rule, or a rule is given
        for a `shard_map`, which needs none.
    """
    compat.warn_if_untested()
    user_rules = heard(user_rules or {})
    donate = donated_positions(donate_argnums, len(args))
    abstract = jax.tree.map(_abstract, args := with_arrays(hold(args), fn))
    step = Returning(fn, args)
    traced = _traced(step, abstract)
    ties = ties_of(abstract, traced.out_info, donate, step.changed, step.returned)
    leaves, tree = jax.tree.flatten(abstract)
    there = comes_back(traced.jaxpr, leaves, ties)
    if any(a is not b for a, b in zip(leaves, there, strict=True)):
        abstract, step = jax.tree.unflatten(tree, there), Returning(fn, args)
        traced = _traced(step, abstract)
    _check_closed_over(traced.jaxpr, len(leaves), fn)
    untyped, explicit = compat.without_types(_in_lax(traced.jaxpr, step))
    opened = _opened(untyped := know_kernels(run_in_order(untyped), user_rules))
    refuse_for_bodies(maps := shard_maps_in(untyped), all_equations(opened.jaxpr), user_rules)
    as_written, names = as_planned(opened), argument_names(fn, len(args))
    as_written, kept = held_where_named(as_written, host, ties, _paths(abstract), names)
    as_written, there = of_platforms(as_written, platforms)
    in_turns, cut = in_parts(as_written, microbatches, ties, user_rules, trip_counts)
    keeps, otherwise = (saved, offloaded, prefetch), (early_casts, late_sums, early_pads, parts)
    written, closed, told = _kept_as_told(in_turns, otherwise, keeps, trip_counts)
    made = laid_out(closed, _paths(abstract), _paths(traced.out_info), trip_counts, user_rules)
    return Program(
        name=name or _name_of(fn),
        ties=ties,
        donated=donated_of(abstract, donate, step.changed),
        options={**_options(donate, trip_counts, user_rules), **kept, **there, **cut, **told},
        jaxpr=closed,
        written=written,
        user_rules=user_rules,
        in_tree=jax.tree.structure(abstract),
        out_tree=jax.tree.structure(traced.out_info),
        argument_names=names,
        dead_ops=op_count(opened.jaxpr) - op_count(compat.drop_dead_code(opened).jaxpr),
        explicit=explicit,
        shard_maps=bool(maps),
        argument_shardings=tuple(map(compat.explicit_sharding, jax.tree.leaves(args))),
        changed=step.changed,
        refs=step.refs,
        **made,
    )


def _kept_as_told(
    written: Any,
    otherwise: tuple[bool, Sequence[int], bool, Mapping[str, Sequence[int]]],
    keeps: tuple[Collection[str] | None, Collection[str], bool],
    trip_counts: TripCounts,
) -> tuple[Any, Any, dict[str, Any]]:
    """A step with casts, sums and pads elsewhere, with loops in parts, the same that saves what is
    told, and how the options of a trace say all of these."""
    early_casts, late_sums, early_pads, parts = otherwise
    written, cast = cast_early(written, early_casts)
    written, summed = sum_late(written, late_sums)
    written, padded = pad_early(written, early_pads)
    written, apart = divided(written, parts, trip_counts)
    closed, told = saving(written, *keeps)
    return written, closed, {**cast, **summed, **padded, **apart, **told}


def with_arrays(args: Any, fn: Callable[..., Any]) -> Any:
    """Arguments whose leaves JAX can trace. Raises TraceError for others."""
    faults, of_torch = [], False
    for path, leaf in jax.tree.leaves_with_path(args):
        try:
            _abstract(leaf)
        except TypeError:
            words = " ".join(repr(leaf).split())
            faults.append(f"  {jax.tree_util.keystr(path)} is {type(leaf).__name__} {words:.60}")
            of_torch |= _made_by(leaf, "torch")
    if faults:
        repair = (
            "tensors of PyTorch become arrays by torchax: extract_jax makes of a module its arrays "
            "and a function of JAX, interop.jax_view of a step and its tensors the same of JAX "
            "(docs/start/torchax.md)"
            if of_torch
            else "make it a static field of its class (metadata, aux_data), or close over it"
        )
        raise TraceError(
            "\n".join([f"{_name_of(fn)} is given what is not an array of JAX:", *faults, repair])
        )
    return args


def _made_by(value: Any, package: str) -> bool:
    """Whether a value is of a class that a package has, or of one derived from such a class."""
    return any(one.__module__.split(".")[0] == package for one in type(value).__mro__)


def _nothing(fn: Returning, args: Any) -> str:
    """Which arguments are None, and how they may have come to be; empty where none is."""
    leaves = jax.tree.leaves_with_path(args, is_leaf=lambda leaf: leaf is None)
    paths = [path for path, leaf in leaves if leaf is None]
    if not paths:
        return ""
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return (
        f"\n{fn.place(paths[0])}{more} is None; an optimizer's state of a model of shapes is empty "
        "where only arrays are asked for: make model and state in one eval_shape"
    )


def _of_framework(fn: Callable[..., Any], why: str) -> str:
    """What a model of Keras or PyTorch lacks as a step; empty for anything else."""
    if _made_by(getattr(fn, "__self__", None), "keras"):
        return (
            f"\n{_name_of(fn)} is a method of a Keras model, whose variables would be constants of "
            "the step: write a step of its stateless_call and its optimizer's stateless_apply, "
            "which take the variables as arguments (docs/start/keras.md has one)"
        )
    if _made_by(fn, "torch") or ("must be Tensor" in why and "Tracer" in why):
        return (
            "\na module of PyTorch takes tensors, not arrays: torchax.extract_jax makes of it its "
            "arrays and a function of JAX (docs/start/torchax.md)"
        )
    return ""


def _traced(fn: Returning, abstract: Any) -> Any:
    """What JAX makes of the function. Raises TraceError."""
    try:
        with compat.traced_without_gpu():
            return jax.jit(fn).trace(*abstract)
    except InPlaceError as error:
        raise TraceError(str(error)) from error
    except (Exception, SystemExit) as error:
        where = compat.user_line_of_error(error) or compat.library_line_of_error(error)
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, RecursionError):
            limit = sys.getrecursionlimit()
            why = (
                f"it nests deeper than the {limit} calls that Python allows within each other; "
                f"allow more of them: sys.setrecursionlimit({10 * limit})"
            )
        raise TraceError(
            f"{_name_of(fn.fn)} does not trace{' at ' + where if where else ''}: {why}"
            f"{fn.hint()}{_nothing(fn, abstract) if 'NoneType' in why else ''}"
            f"{_of_framework(fn.fn, why)}"
        ) from error


def _in_lax(closed: Any, fn: Returning) -> Any:
    """What JAX traced, in primitives of `jax.lax`. Raises TraceError."""
    try:
        return compat.in_lax(closed)
    except TypeError as error:
        raise TraceError(f"{_name_of(fn.fn)} has {error}") from error


def _opened(closed: Any) -> Any:
    """What JAX traced, with what each `shard_map` runs in place of it. Raises TraceError."""
    try:
        return run_shard_maps(compat.without_refs(closed))
    except CollectiveError as error:
        raise TraceError(str(error)) from error


def _check_closed_over(closed: Any, arguments: int, fn: Callable[..., Any]) -> None:
    """Refuse Refs that are not arguments, and values of another trace. Raises TraceError."""
    if left := closed.in_avals[: len(closed.in_avals) - arguments]:
        raise TraceError(
            f"{_name_of(fn)} reads what is traced outside of it: {', '.join(map(str, left))}. "
            "What it calls keeps a value between calls (a random key, a counter), or it closes "
            "over a value of a function that is being traced; pass such values as arguments, and "
            "return those that change"
        )
    if closed_over := [constant for constant in closed.consts if is_ref(constant)]:
        raise TraceError(
            f"{_name_of(fn)} reads or changes Refs that are not arguments of it: "
            f"{', '.join(str(jax.typeof(one)) for one in closed_over)}; pass them as arguments, so "
            "that a plan can say how they lie"
        )


def _paths(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _options(
    donate: tuple[int, ...], trip_counts: TripCounts, user_rules: UserRules
) -> dict[str, Any]:
    """What `trace` was told, in the form in which a plan keeps it."""
    options: dict[str, Any] = {}
    if donate:
        options["donate_argnums"] = list(donate)
    counts = checked(trip_counts)
    if counts or isinstance(counts, int):
        options["trip_counts"] = counts
    return {**options, **rules_option(user_rules)}


def _abstract(leaf: Any) -> Any:
    struct = isinstance(leaf, jax.ShapeDtypeStruct) or compat.is_type(leaf)
    aval = leaf if struct else jax.typeof(leaf)
    if compat.given_in_host(leaf):
        return compat.host_shape(aval.shape, aval.dtype, weak_type=aval.weak_type)
    typed = compat.explicit_sharding(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=typed)


def _name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
