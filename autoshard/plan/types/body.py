"""Type the body of a `shard_map`: what every device may have of its own, and what is equal on all.

    types = autoshard.check_types(body, mesh, in_specs, out_specs, *args)
    print(types)

Every value of the body is typed over every mesh axis (`autoshard.plan.types.axis_type`): inputs are
varying over the axes of their spec and invariant over the others, and

    op(I, ...) -> I      op(V, I or R, ...) -> V      op(R, ...) -> R       linear_op(P) -> P
    P + P -> P           P * R -> P                   all else with P: settle it first

Collectives change types by the table of `autoshard.plan.types.transitions`. An output must be
invariant over every axis that its spec does not name, or devices would disagree on it.

JAX checks the same while it traces a `shard_map`, and stops at the first fault. What it refuses is
refused here, with all other faults of the body. One thing more is refused: results of a branch that
each device chooses for itself, or of a loop that each runs a number of times of its own, vary,
whatever is in it; JAX does not look at the condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from autoshard import compat
from autoshard.plan.types.axis_type import Kind
from autoshard.plan.types.body_rules import RULES, Mixed, ordinary
from autoshard.program.layout import short_dtype
from autoshard.program.vocabulary import INLINED
from autoshard.units import counted

Type = tuple[Kind, ...]


class BodyTypeError(TypeError):
    """A `shard_map` body that does not type-check; every fault is listed."""


@dataclass(frozen=True, slots=True)
class BodyTypes:
    """The types of a body.

    Attributes:
      axes: names of the mesh axes.
      inputs, outputs: per flat input and output its kind over every axis.
      texts: the outputs as `f32[4, 8]{V: x}`, invariant left out.
    """

    axes: tuple[str, ...]
    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]
    texts: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(f"output {n}: {text}" for n, text in enumerate(self.texts))


def check_types(
    body: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any, *args: Any
) -> BodyTypes:
    """Type `jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)`.

    Args:
      body: the function that runs on every device.
      mesh: a `jax.sharding.Mesh` or `AbstractMesh`; no device is used, and all its axes count as
        `Auto`.
      in_specs, out_specs: as for `jax.shard_map`.
      *args: the global arguments, as arrays or `jax.ShapeDtypeStruct`s.

    Raises:
      BodyTypeError: with every fault, its source line, the types and the missing call.
      Exception: what `body` itself raises when it is traced.
    """

    names = tuple(mesh.axis_names)
    sizes = tuple(mesh.shape[name] for name in names)
    abstract = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), args)

    def trace(check: bool) -> Any:
        mapped = jax.shard_map(
            body, mesh=abstract, in_specs=in_specs, out_specs=out_specs, check_vma=check
        )
        closed = jax.make_jaxpr(mapped)(*shapes)
        return next(e for e in closed.jaxpr.eqns if e.primitive.name == "shard_map")

    refusal = None
    try:
        equation = trace(True)
    except Exception as error:
        refusal = error
        try:
            equation = trace(False)  # to find all other faults as well
        except Exception as again:
            if str(again) == str(error):
                raise  # no matter of types
            # Casts to partial or replicate cannot be traced unchecked: JAX's word is the last.
            raise BodyTypeError(_heading(body, [_as_fault(error)])) from error
    walk = _Walk(names)
    params = equation.params
    jaxpr = getattr(params["jaxpr"], "jaxpr", params["jaxpr"])
    inputs = [walk.entering(spec) for spec in params["in_specs"]]
    outputs = walk.run(jaxpr, (), inputs)
    for number, (kinds, spec) in enumerate(zip(outputs, params["out_specs"], strict=True)):
        walk.leaving(number, jaxpr.outvars[number].aval, kinds, spec)
    if refusal is not None and not (walk.faults and "out_specs" in str(refusal)):
        walk.faults.insert(0, _as_fault(refusal))
    if walk.faults:
        raise BodyTypeError(_heading(body, walk.faults)) from refusal
    texts = tuple(
        walk.text(var.aval, kinds) for var, kinds in zip(jaxpr.outvars, outputs, strict=True)
    )
    return BodyTypes(walk.axes, tuple(inputs), tuple(outputs), texts)


def _as_fault(error: Exception) -> str:
    """The first paragraph of what JAX says, with the user's line."""
    where = compat.user_line_of_error(error).rpartition("/")[2]
    return f"{where or 'while tracing'}: {' '.join(str(error).split(chr(10) * 2)[0].split())}"


def _heading(body: Callable[..., Any], faults: Sequence[str]) -> str:
    count = len(faults)
    name = getattr(body, "__name__", type(body).__name__)
    heading = f"the body {name} does not type-check ({counted(count, 'fault')}):"
    return "\n  - ".join([heading, *faults])


@dataclass
class _Walk:
    """One walk over a body, which collects its faults."""

    axes: tuple[str, ...]
    faults: list[str] = field(default_factory=list)

    # -- ends ------------------------------------------------------------------------------

    def entering(self, spec: Any) -> Type:
        named = _axes_of(spec)
        partial, reduced = getattr(spec, "unreduced", ()), getattr(spec, "reduced", ())
        return tuple(
            Kind.VARYING
            if axis in named
            else Kind.PARTIAL
            if axis in partial
            else Kind.REPLICATE
            if axis in reduced
            else Kind.INVARIANT
            for axis in self.axes
        )

    def leaving(self, number: int, aval: Any, kinds: Type, spec: Any) -> None:
        wanted = self.entering(spec)
        for axis, kind, need in zip(self.axes, kinds, wanted, strict=True):
            if need is Kind.VARYING or kind is need:
                continue
            if kind is Kind.VARYING:
                call = (
                    f"jax.lax.psum(output, {axis!r}) where a sum is meant, "
                    f'jax.lax.all_gather(output, {axis!r}, to="invarying") where the parts are, '
                    f"or {axis!r} in its spec"
                )
            elif kind is Kind.PARTIAL:
                call = f"jax.lax.psum(output, {axis!r})"
            else:
                call = f"{axis!r} in its spec"
            self.faults.append(
                f"output {number} is {self.text(aval, kinds)}, but its spec {spec} says that it is "
                f"{need} over {axis}; missing {call}"
            )

    def text(self, aval: Any, kinds: Type) -> str:
        """A type as it is printed; `I` is left out."""
        dims = ", ".join(map(str, getattr(aval, "shape", ())))
        dtype = short_dtype(str(getattr(aval, "dtype", "token")))
        groups: dict[str, list[str]] = {}
        for axis, kind in zip(self.axes, kinds, strict=True):
            if kind is not Kind.INVARIANT:
                groups.setdefault(str(kind), []).append(axis)
        notes = "; ".join(f"{kind}: {', '.join(axes)}" for kind, axes in groups.items())
        return f"{dtype}[{dims}]" + (f"{{{notes}}}" if notes else "")

    # -- the walk --------------------------------------------------------------------------

    def run(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Type]) -> list[Type]:
        """The types of a jaxpr's results for those of its arguments."""
        whole = (Kind.INVARIANT,) * len(self.axes)
        known: dict[Any, Type] = dict.fromkeys(jaxpr.constvars, whole)
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Type:
            return whole if compat.is_literal(atom) else known[atom]

        for equation in jaxpr.eqns:
            kinds = [read(atom) for atom in equation.invars]
            results = self._equation(equation, kinds)
            known.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, kinds: list[Type]) -> list[Type]:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            return self._scan(params, kinds)
        if name == "while":
            return self._while(params, kinds)
        if name == "cond":
            branches = [self.run(b.jaxpr, b.consts, kinds[1:]) for b in params["branches"]]
            joined = [_join(types) for types in zip(*branches, strict=True)]
            return [self._chosen_by(kinds[0], kind) for kind in joined]
        if name in INLINED:
            body, consts = compat.called_jaxpr(equation)
            return self.run(body, consts, kinds)
        if name == "optimization_barrier":
            return kinds
        results = []
        columns = list(zip(*kinds, strict=True)) or [()] * len(self.axes)
        for axis, over in zip(self.axes, columns, strict=True):
            try:
                rule = RULES.get(name)
                kind = ordinary(equation, over) if rule is None else rule(equation, over, axis)
            except Mixed as mixed:
                self.faults.append(self._fault(equation, kinds, axis, mixed))
                kind = Kind.VARYING if Kind.VARYING in over else Kind.INVARIANT
            results.append(kind)
        return [tuple(results)] * len(equation.outvars)

    def _fault(self, equation: Any, kinds: list[Type], axis: str, mixed: Mixed) -> str:
        line = compat.source_line(equation) or "no source line"
        operands = ", ".join(
            self.text(atom.aval, kind) for atom, kind in zip(equation.invars, kinds, strict=True)
        )
        return f"{equation.primitive.name} ({line}) of {operands}: over {axis}, {mixed}"

    def _chosen_by(self, condition: Type, kinds: Type) -> Type:
        """The type of what a device has after a choice of its own."""
        return tuple(
            Kind.VARYING if chosen is Kind.VARYING and kind is Kind.INVARIANT else kind
            for chosen, kind in zip(condition, kinds, strict=True)
        )

    def _scan(self, params: Any, kinds: list[Type]) -> list[Type]:
        consts, carries = compat.scan_counts(params)
        body = params["jaxpr"]

        def once(carry: list[Type]) -> list[Type]:
            given = [*kinds[:consts], *carry, *kinds[consts + carries :]]
            return self._quietly(body, given)[:carries]

        carry = _settle(once, kinds[consts : consts + carries])
        results = self.run(
            body.jaxpr, body.consts, [*kinds[:consts], *carry, *kinds[consts + carries :]]
        )
        return [*carry, *results[carries:]]

    def _while(self, params: Any, kinds: list[Type]) -> list[Type]:
        first, second = params["cond_nconsts"], params["body_nconsts"]
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]

        def once(carry: list[Type]) -> list[Type]:
            (condition,) = self._quietly(cond, [*kinds[:first], *carry])
            after = self._quietly(body, [*kinds[first : first + second], *carry])
            return [self._chosen_by(condition, kind) for kind in after]

        carry = _settle(once, kinds[first + second :])
        self.run(cond.jaxpr, cond.consts, [*kinds[:first], *carry])
        self.run(body.jaxpr, body.consts, [*kinds[first : first + second], *carry])
        return carry

    def _quietly(self, closed: Any, kinds: list[Type]) -> list[Type]:
        """`run`, whose faults are told when the types of the loop are known."""
        return _Walk(self.axes).run(closed.jaxpr, closed.consts, kinds)


def _settle(once: Callable[[list[Type]], list[Type]], carry: list[Type]) -> list[Type]:
    """A loop's carry, varying where it varies at the end of any iteration."""
    while True:
        after = [_join(pair) for pair in zip(carry, once(carry), strict=True)]
        if after == carry:
            return carry
        carry = after


def _join(types: Sequence[Type]) -> Type:
    """What a value is that may be of any of `types`."""
    return tuple(
        kinds[0] if len(set(kinds)) == 1 else Kind.VARYING for kinds in zip(*types, strict=True)
    )


def _axes_of(spec: Any) -> set[str]:
    entries = (entry if isinstance(entry, tuple) else (entry,) for entry in spec)
    return {axis for entry in entries for axis in entry if axis is not None}
