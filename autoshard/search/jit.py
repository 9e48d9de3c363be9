"""A `jax.jit` that plans: where the arrays lie is searched at the first call with their shapes.

    @autoshard.jit(machine="h100-8", donate_argnums=0)
    def step(params, batch): ...

    loss, params = step(params, batch)       # traced, planned, lowered, compiled; then run
    loss, params = step(params, batch)       # run
    step.planned(params, batch).plan         # what was decided, and how far it is from the best

Each combination of shapes, dtypes, tree structures and static arguments has a plan of its own;
weak types share that of strong ones where the step is the same otherwise.
Plans are kept in the user's cache folder, by the program, the machine and what was asked, so that a
program that starts again plans nothing anew. Arguments that lie elsewhere are laid out as planned;
what a step returns already lies where the next one reads it. A step is compiled once.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax

from autoshard.files.cache import cache_folder
from autoshard.lower.placed import placed
from autoshard.lower.spmd import InPlace, Lowered, Releasing, lower
from autoshard.machine.load import load, presets
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan, PlanError
from autoshard.program.fingerprint import alike_but_for_weak_types
from autoshard.program.state.constants import as_arrays, hold
from autoshard.program.trace import Program, trace, with_arrays
from autoshard.search.meshes.devices import this_machine
from autoshard.search.options import SearchOptions
from autoshard.search.search import candidates
from autoshard.units import format_bytes, format_gap, format_seconds

_LOG = logging.getLogger("autoshard")


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step that is planned for arguments of one kind.

    Attributes:
      lowered: the plan, written into the step.
      run: the `jax.jit` function; it takes what is not static.
      wanted: where the leaves of its arguments lie, in order.
    """

    lowered: Lowered
    run: Any
    wanted: tuple[Any, ...]

    def __call__(self, *dynamic: Any) -> Any:
        """Run the step on arguments that lie anywhere."""
        if isinstance(self.run, InPlace):  # it lays out by itself, and keeps the objects
            return self.run(*dynamic)
        given = hold(dynamic) if isinstance(self.run, Releasing) else dynamic
        leaves, tree = jax.tree.flatten(given)
        laid = placed(leaves, self.wanted, self.lowered.program.donated)
        return self.run(*jax.tree.unflatten(tree, laid))


class PlannedJit:
    """A function that is planned when it is called; made by `autoshard.jit`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        machine: Machine | str | None,
        devices: Sequence[Any] | None,
        donate_argnums: int | Sequence[int],
        donate_argnames: str | Sequence[str],
        static_argnums: int | Sequence[int],
        static_argnames: str | Sequence[str],
        keep: bool,
        asked: SearchOptions,
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn, self._name = fn, getattr(fn, "__name__", type(fn).__name__)
        self._signature = inspect.signature(fn)
        self._machine, self._devices = machine, devices
        self._static = self._named(static_argnums, static_argnames, "static")
        self._donated = self._named(donate_argnums, donate_argnames, "donate")
        self._keep, self._asked = keep, asked
        self._steps: dict[Hashable, _Step] = {}
        self._lowered: dict[Hashable, Lowered] = {}
        self._only: _Step | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step. Raises what `autoshard.trace`, `search` and `lower` raise, at first."""
        if self._only is not None and not kwargs:
            try:
                return self._only(*args)
            except (_OtherArgumentsError, TypeError, ValueError):
                pass  # of other shapes: seen below
        step, dynamic = self._step_of(args, kwargs)
        return step(*dynamic)

    def planned(self, *args: Any, **kwargs: Any) -> Lowered:
        """The step as planned for these arguments, or for `jax.ShapeDtypeStruct`s in their place.

        `planned(...).plan` is the plan, `.in_shardings` and `.out_shardings` where arrays lie.
        """
        return self._step_of(args, kwargs)[0].lowered

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The `jax.stages.Lowered` of the planned step, as `jax.jit(fn).lower` gives it."""
        lowered = self.planned(*args, **kwargs)
        return lowered.functional().lower(*lowered.in_shapes)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and dtypes of the results; nothing is planned."""
        return jax.eval_shape(self._fn, *args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all plans of this process; those in the cache folder stay."""
        self._steps.clear()
        self._lowered.clear()
        self._only = None

    def _named(
        self, numbers: int | Sequence[int], names: str | Sequence[str], what: str
    ) -> frozenset[str]:
        """The parameters that are meant by number or by name."""
        known = list(self._signature.parameters)
        given = [names] if isinstance(names, str) else list(names)
        for number in [numbers] if isinstance(numbers, int) else numbers:
            if not -len(known) <= number < len(known):
                raise ValueError(f"{what}_argnums holds {number}; {self._name} has {known}")
            given.append(known[number])
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"{what}_argnames holds {unknown}; {self._name} has {known}")
        return frozenset(given)

    def _step_of(self, args: Any, kwargs: Any) -> tuple[_Step, tuple[Any, ...]]:
        """The step for these arguments, planned if it is not yet, and those that are not static."""
        call = _Call.of(self._signature, args, kwargs, self._static)
        dynamic = hold(call.dynamic)
        key = _kinds(with_arrays(dynamic, self._fn), call)
        if key not in self._steps:
            lowered = self._planned_for(call)
            wanted = [_kind(leaf) for leaf in jax.tree.leaves(dynamic)]
            layouts = tuple(jax.tree.leaves(lowered.in_shardings))
            self._steps[key] = _Step(lowered, _jitted(lowered, wanted), layouts)
            alone = len(self._steps) == 1 and not self._static
            self._only = self._steps[key] if alone else None
        return self._steps[key], dynamic

    def _planned_for(self, call: _Call) -> Lowered:
        """The step planned for a call: as for strong types, where that is the same step."""
        fn, given = call.specialised(self._fn), call.dynamic
        donated = [k for k, name in enumerate(call.names) if name in self._donated]
        program = trace(fn, *given, donate_argnums=donated)
        strong = _strong(given)
        if strong is not None:
            other = trace(fn, *strong, donate_argnums=donated)
            if alike_but_for_weak_types(program, other):
                given, program = strong, other
        key = _kinds(hold(given), call)
        if key not in self._lowered:
            plan = self._plan_of(program)
            self._lowered[key] = lower(plan, fn, *given, devices=self._devices)
        return self._lowered[key]

    def _plan_of(self, program: Program) -> Plan:
        """The plan of a program: the one that was kept, or the best found now."""
        machine = self._machine_to_plan_for()
        path = _kept_at(program, machine, self._asked)
        if self._keep and path.exists():
            try:
                return Plan.load(path)
            except PlanError as error:
                _LOG.warning("planned anew, since the plan that was kept is damaged: %s", error)
        plan = candidates(program, machine, self._asked)[0]
        step, peak = plan.estimate.step_seconds, plan.estimate.peak_bytes
        _LOG.info(
            "planned %s on %s, mesh %s: %s a step, %s at the peak, gap %s",
            program.name,
            machine.name,
            plan.mesh,
            format_seconds(step),
            format_bytes(peak),
            format_gap(plan.proof.gap),
        )
        if self._keep:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                plan.save(path)
            except OSError as error:
                _LOG.warning("the plan is not kept: cannot write %s: %s", path, error.strerror)
        return plan

    def _machine_to_plan_for(self) -> Machine:
        if self._machine is None:
            return this_machine(self._devices)
        if isinstance(self._machine, str):
            if self._machine not in presets():
                return load(self._machine)
            devices = jax.devices() if self._devices is None else self._devices
            return load(f"{self._machine}-{len(devices)}")
        return self._machine


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    machine: Machine | str | None = None,
    devices: Sequence[Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    keep: bool = True,
    time_limit: float = 20.0,
    **options: Any,
) -> Any:
    """Return `fn` as a function that is planned at its first call, and jitted.

    Args:
      fn: the step; without it, a decorator is returned.
      machine: what to plan for: a `Machine`, the name of one, or the name of a preset without its
        size; by default what the devices make up (`autoshard.this_machine`).
      devices: of the mesh in row-major order; by default those that JAX sees.
      donate_argnums, donate_argnames, static_argnums, static_argnames: as of `jax.jit`.
      keep: keep plans in the user's cache folder, and use those that are there.
      time_limit: seconds for the search of one plan.
      **options: other fields of `autoshard.search.SearchOptions`, as `memory_limit`, `mesh` or
        `requirements`. Well-known schemes are not priced, unless `baselines=True`.

    Raises:
      TypeError: an option that a search does not have.
      ValueError: an argument that `fn` does not have.
    """
    if fn is None:
        given = {key: value for key, value in locals().items() if key not in ("fn", "options")}
        return functools.partial(jit, **given, **options)
    return PlannedJit(
        fn,
        machine=machine,
        devices=devices,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        keep=keep,
        asked=SearchOptions(time_limit=time_limit, **{"baselines": False, **options}),
    )


class _OtherArgumentsError(Exception):
    """A step was called with arguments of other shapes than it was planned for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """The arguments of a call: what is traced, in order, and what is static.

    Attributes:
      positional, by_name: names of the arguments that are passed so, in order; those of `*args` are
        numbered.
      values: by these names.
      static: which of them are static.
    """

    positional: tuple[str, ...]
    by_name: tuple[str, ...]
    values: Mapping[str, Any]
    static: frozenset[str]

    @classmethod
    def of(cls, signature: inspect.Signature, args: Any, kwargs: Any, static: Any) -> _Call:
        """Sort arguments by the parameters of a function. Raises TypeError as a call would."""
        positional: dict[str, Any] = {}
        by_name: dict[str, Any] = {}
        kept: set[str] = set()
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                here, found = positional, {f"{name}_{k}": one for k, one in enumerate(value)}
            elif kind is inspect.Parameter.VAR_KEYWORD:
                here, found = by_name, value
            else:
                here = by_name if kind is inspect.Parameter.KEYWORD_ONLY else positional
                found = {name: value}
            here.update(found)
            if name in static:
                kept.update(found)
        values = {**positional, **by_name}
        return cls(tuple(positional), tuple(by_name), values, frozenset(kept))

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is traced."""
        return tuple(name for name in self.values if name not in self.static)

    @property
    def dynamic(self) -> tuple[Any, ...]:
        """What is traced."""
        return as_arrays(tuple(self.values[name] for name in self.names))

    def constants(self) -> tuple[tuple[str, Any], ...]:
        """What is static, by name."""
        return tuple((name, self.values[name]) for name in sorted(self.static))

    def specialised(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` of what is traced alone, by position."""
        constants, names = dict(self.constants()), self.names

        def call(*dynamic: Any) -> Any:
            values = {**dict(zip(names, dynamic, strict=True)), **constants}
            args = [values[name] for name in self.positional]
            return fn(*args, **{name: values[name] for name in self.by_name})

        call.__name__ = getattr(fn, "__name__", type(fn).__name__)
        parameter = inspect.Parameter
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter(name, parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )
        return call


def _jitted(lowered: Lowered, wanted: Sequence[tuple[Any, ...]]) -> Any:
    """The `jax.jit` function of a planned step, which refuses arguments of other kinds."""

    def step(*arguments: Any) -> Any:
        if [_kind(leaf) for leaf in jax.tree.leaves(arguments)] != wanted:
            raise _OtherArgumentsError
        return lowered.fn(*jax.tree.map(_strengthened, arguments))

    step.__name__ = lowered.program.name
    return replace(lowered, fn=step).jit()


def _strengthened(leaf: Any) -> Any:
    """An array whose weak type is strong."""
    weak = _kind(leaf)[2]
    return jax.lax.convert_element_type(leaf, leaf.dtype) if weak else leaf


def _kinds(dynamic: Any, call: _Call) -> Hashable:
    """What a plan depends on of the arguments of a call."""
    leaves, tree = jax.tree.flatten(dynamic)
    return tree, tuple(map(_kind, leaves)), call.constants()


def _kind(leaf: Any) -> tuple[Any, ...]:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return (aval.shape, aval.dtype, getattr(aval, "weak_type", False))


def _strong(given: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Arguments with strong types in place of weak ones, as shapes; None where there are none.

    Numbers of Python stay where some leaf is not an array: they may be settings of a module.
    """
    numbers = jax.tree.structure(hold(given)) == jax.tree.structure(given)
    found = False

    def strong(leaf: Any) -> Any:
        nonlocal found
        if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and not numbers:
            return leaf
        shape, dtype, weak = _kind(leaf)
        found |= weak
        return jax.ShapeDtypeStruct(shape, dtype) if weak else leaf

    changed = jax.tree.map(strong, given)
    return changed if found else None


def _kept_at(program: Program, machine: Machine, asked: SearchOptions) -> Path:
    """Where the plan of a program for a machine is kept, by everything that it depends on."""
    from autoshard import __version__

    words = {one.name: getattr(asked, one.name) for one in fields(asked) if one.name != "progress"}
    question = (__version__, program.fingerprint, machine, words)
    return cache_folder() / "plans" / f"{hashlib.sha256(repr(question).encode()).hexdigest()}.json"
