"""Shardings in types (Explicit mesh axes), taken out of a jaxpr that was traced with them.

On a mesh with Explicit axes every array's type says how it lies over these, and JAX works out the
types of all arrays from those of the arguments. A plan decides that anew. So what the user says is
kept as equations of `reshard`, and all that follows from it is dropped:

    y:f32[8@data,4] = dot_general[out_sharding=P('data', None)] x w
 -> z:f32[8,4] = dot_general x w; y:f32[8,4] = reshard[dst_sharding=P('data', None)] z

An equation of `reshard` speaks of the Explicit axes of its mesh alone, and says in `asked_by` what
the user wrote. Nobody binds it. What differentiation transposed asks for nothing: it is typed after
what it is the cotangent of.

https://docs.jax.dev/en/latest/notebooks/explicit-sharding.html
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autoshard.compat.jaxprs import is_literal
from autoshard.compat.memory_spaces import host_shape, in_host

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, NamedSharding

RESHARD = "reshard"
_MADE_ANYWHERE = frozenset({"iota", "broadcast_in_dim"})
"""What is computed of nothing or copied, in whatever layout; JAX itself types most of these."""


def explicit_sharding(leaf: Any) -> NamedSharding | None:
    """The sharding in the type of an argument, or None where nobody gave it one."""
    from jax.sharding import NamedSharding

    sharding = getattr(leaf, "sharding", None)
    typed = isinstance(sharding, NamedSharding) and _explicit(sharding.mesh)
    return sharding if typed else None


def said_axes(mesh: Any) -> frozenset[str]:
    """The axes that shardings in types speak of."""
    return frozenset(_explicit(mesh))


def without_types(closed: Any) -> tuple[Any, bool]:
    """A closed jaxpr of the same equations whose types say nothing of meshes.

    Returns also whether they spoke of Explicit axes. Types on Auto axes say nothing, but bind what
    is computed with them to their mesh.
    """
    meshes = [mesh for mesh in _meshes(closed.jaxpr) if not mesh.empty]
    if not meshes:
        return closed, False
    return _Untyped().closed(closed), any(map(_explicit, meshes))


def without_reshards(closed: Any) -> Any:
    """A closed jaxpr in which nothing is said of shardings, so that it runs on any one device."""
    return _Untyped(reshards=False).closed(closed)


def no_other_mesh(mesh: Any) -> Any:
    """A context in which arrays may lie on `mesh`, whatever mesh is set around it.

    Args:
      mesh: a `Mesh` or an `AbstractMesh`.
    """
    import jax

    return jax.set_mesh(None) if _is_other(mesh) else contextlib.nullcontext()


def traced_on(mesh: Any) -> Any:
    """A context in which a step is traced with types on `mesh`, whatever mesh is set around it.

    As `no_other_mesh`, of which JAX has none inside of `jax.jit`.
    """
    import jax

    if not _is_other(mesh):
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(getattr(mesh, "abstract_mesh", mesh))


def _is_other(mesh: Any) -> bool:
    """Whether a mesh is set that is not this one."""
    import jax

    around = jax.sharding.get_abstract_mesh()
    kinds = mesh.axis_sizes, mesh.axis_names, mesh.axis_types
    return not around.empty and (around.axis_sizes, around.axis_names, around.axis_types) != kinds


def _explicit(mesh: Any) -> tuple[str, ...]:
    from jax.sharding import AxisType

    kinds = getattr(mesh, "axis_types", None) or ()
    pairs = zip(mesh.axis_names, kinds, strict=True)
    return tuple(name for name, kind in pairs if kind == AxisType.Explicit)


def _meshes(jaxpr: Any) -> Iterator[Any]:
    """The meshes of all types in a jaxpr."""
    import jax

    equations = [atom for one in jaxpr.eqns for atom in (*one.invars, *one.outvars)]
    for atom in (*jaxpr.invars, *jaxpr.constvars, *equations):
        sharding = getattr(atom.aval, "sharding", None)
        if sharding is not None:
            yield sharding.mesh
    for one in jaxpr.eqns:
        for body in jax.tree.leaves(list(one.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(body):
                yield from _meshes(getattr(body, "jaxpr", body))


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def _kinds_of(mesh: Any, said: Any) -> AbstractMesh:
    """The mesh on which all axes but those that are said are Auto."""
    from jax.sharding import AbstractMesh, AxisType

    kinds = [AxisType.Explicit if name in said else AxisType.Auto for name in mesh.axis_names]
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=tuple(kinds))


class _Untyped:
    """Copies jaxprs, each once; with equations of `reshard`, or without."""

    def __init__(self, *, reshards: bool = True) -> None:
        self.reshards = reshards
        self.known: dict[int, tuple[Any, Any]] = {}

    def closed(self, closed: Any) -> Any:
        return closed.replace(jaxpr=self.jaxpr(closed.jaxpr))

    def jaxpr(self, jaxpr: Any) -> Any:
        if id(jaxpr) not in self.known:
            self.known[id(jaxpr)] = jaxpr, _Body(self).copy(jaxpr)
        return self.known[id(jaxpr)][1]

    def parameter(self, value: Any) -> Any:
        """A parameter of an equation, with the jaxprs in it copied."""
        if _is_jaxpr(value):
            return self.closed(value) if hasattr(value, "consts") else self.jaxpr(value)
        if isinstance(value, tuple | list) and any(map(_is_jaxpr, value)):
            copies = map(self.parameter, value)
            return type(value)(*copies) if hasattr(value, "_fields") else type(value)(copies)
        return value


class _Body:
    """Copies the equations of one jaxpr."""

    def __init__(self, whole: _Untyped) -> None:
        self.whole = whole
        self.variables: dict[Any, Any] = {}

    def copy(self, jaxpr: Any) -> Any:
        inputs = {
            "invars": [self.variable(var) for var in jaxpr.invars],
            "constvars": [self.variable(var) for var in jaxpr.constvars],
        }
        equations = [new for one in jaxpr.eqns for new in self.copies(one)]
        outputs = [self.variable(var) for var in jaxpr.outvars]
        effects = self.effects(jaxpr.effects)
        return jaxpr.replace(**inputs, eqns=equations, outvars=outputs, effects=effects)

    def effects(self, effects: Any) -> Any:
        """What is done, with the variables of the copy where it is done to an input."""
        return {
            one.replace(input=self.variable(one.input)) if hasattr(one, "input") else one
            for one in effects
        }

    def variable(self, var: Any) -> Any:
        from jax._src import core

        if is_literal(var):
            return core.Literal(plain_constant(var.val), _untyped(var.aval))
        if type(var).__name__ == "DropVar":
            return core.DropVar(_untyped(var.aval))
        if var not in self.variables:
            self.variables[var] = core.Var(_untyped(var.aval))
        return self.variables[var]

    def copies(self, equation: Any) -> list[Any]:
        """The equation, and one of `reshard` behind it if the user says how its result lies."""
        from jax._src import core, mesh, named_sharding
        from jax.sharding import NamedSharding

        name, params = equation.primitive.name, dict(equation.params)
        if self._is_dropped(equation):
            read = map(self.variable, equation.invars)
            self.variables.update(zip(equation.outvars, read, strict=True))
            return []
        if not self.whole.reshards and "in_shardings" in params:
            for key in ("in_shardings", "out_shardings"):
                params[key] = (named_sharding.UNSPECIFIED,) * len(params[key])
        operands = [self.variable(var) for var in equation.invars]
        results = [self.variable(var) for var in equation.outvars]
        with equation.ctx.manager, mesh.use_abstract_mesh(mesh.empty_abstract_mesh):
            context = core.JaxprEqnContext()
        effects = self.effects(equation.effects)
        copied = equation.replace(ctx=context, invars=operands, outvars=results, effects=effects)
        if name == RESHARD:
            return [_reshard(copied, params["dst_sharding"], RESHARD)]
        if name == "sharding_constraint":
            sharding = params["sharding"]
            if not isinstance(sharding, NamedSharding) or not _explicit(sharding.mesh):
                return [copied]
            # It speaks of the other axes.
            said = frozenset(sharding.mesh.axis_names) - said_axes(sharding.mesh)
            sharding = NamedSharding(_kinds_of(sharding.mesh, said), sharding.spec)
            return [_reshard(copied, sharding, "with_sharding_constraint")]
        if name == "shard_map":
            return [copied]
        if name == "device_put":
            return [one for k in range(len(results)) for one in _placed(copied, k)]
        asked = None
        for key in ("out_sharding", "sharding"):
            sharding = params.get(key)
            if isinstance(sharding, NamedSharding):
                params[key] = None
                asked = sharding if said_axes(sharding.mesh) else None
        params = {key: self.whole.parameter(value) for key, value in params.items()}
        transposed = "transpose" in str(equation.source_info.name_stack)
        if asked is None or name in _MADE_ANYWHERE or transposed or len(results) != 1:
            return [copied.replace(params=params)]
        inner = core.Var(_untyped(equation.outvars[0].aval))
        made = copied.replace(params=params, outvars=[inner])
        return [made, _reshard(copied.replace(invars=[inner]), asked, "out_sharding")]

    def _is_dropped(self, equation: Any) -> bool:
        """Whether an equation says where its operands lie, and nothing that is kept.

        A `reshard` that enters Auto mode says nothing.
        """
        from jax.sharding import NamedSharding

        name, params = equation.primitive.name, equation.params
        if name == RESHARD:
            return not (self.whole.reshards and _explicit(params["dst_sharding"].mesh))
        if self.whole.reshards:
            return False
        placed = name == "device_put" and any(
            isinstance(device, NamedSharding) for device in params["devices"]
        )
        return placed or name == "sharding_constraint"


def _reshard(equation: Any, sharding: Any, asked_by: str) -> Any:
    """An equation of `reshard` in the place of another one."""
    from jax._src import pjit

    params: Mapping[str, Any] = {"dst_sharding": sharding, "asked_by": asked_by}
    return equation.replace(primitive=pjit.reshard_p, params=params, effects=frozenset())


def _placed(equation: Any, place: int) -> list[Any]:
    """One array of a `device_put`: a sharding that it names is asked for, a memory is entered."""
    import jax
    from jax._src import core
    from jax.sharding import NamedSharding

    lists = {key: (equation.params[key][place],) for key in ("devices", "srcs", "copy_semantics")}
    made = equation.replace(
        params={**equation.params, **lists},
        invars=[equation.invars[place]],
        outvars=[equation.outvars[place]],
    )
    (given,) = lists["devices"]
    if not isinstance(given, NamedSharding):
        return [made]
    shape = jax.ShapeDtypeStruct(made.invars[0].aval.shape, made.invars[0].aval.dtype)
    sharding = NamedSharding(given.mesh, given.spec)
    if _explicit(given.mesh):
        asked = _reshard(made, sharding, "device_put")
    else:
        traced = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(shape)
        (one,) = traced.jaxpr.eqns
        asked = made.replace(primitive=one.primitive, params=one.params, effects=one.effects)
    if given.memory_kind is None:
        return [asked]
    space = core.mem_kind_to_space(given.memory_kind)
    entered = made.replace(params={**made.params, "devices": (space,)})
    if in_host(made.invars[0].aval):  # nothing is resharded there
        inner = core.Var(made.outvars[0].aval)
        return [entered.replace(outvars=[inner]), asked.replace(invars=[inner])]
    inner = core.Var(made.invars[0].aval)
    return [asked.replace(outvars=[inner]), entered.replace(invars=[inner])]


def _untyped(aval: Any) -> Any:
    """An abstract value that says nothing of its sharding."""
    if hasattr(aval, "inner_aval"):  # of a Ref, as kernels have
        return aval.update(inner_aval=_untyped(aval.inner_aval))
    sharding = getattr(aval, "sharding", None)
    if sharding is None or sharding.mesh.empty:
        return aval
    if aval.mat.varying:
        aval = aval.update(manual_axis_type=aval.mat.update(varying=frozenset()))
    return aval.update(sharding=None)


def without_mesh(parameter: Any) -> Any:
    """A parameter of an equation whose jaxprs say nothing of meshes."""
    return _Untyped(reshards=False).parameter(parameter)


def plain_aval(aval: Any, shape: Sequence[int] | None = None) -> Any:
    """An abstract array that says nothing of meshes, or such a one of another `shape`."""
    from jax._src import core

    shape = tuple(aval.shape if shape is None else shape)
    if in_host(aval):
        return host_shape(shape, aval.dtype, weak_type=aval.weak_type)
    weak = bool(getattr(aval, "weak_type", False))
    return core.ShapedArray(shape, aval.dtype, weak_type=weak)


def plain_constant(value: Any) -> Any:
    """A literal or a constant of a body, whose type says nothing of meshes either."""
    import numpy as np
    from jax._src.literals import TypedNdArray

    if not isinstance(value, TypedNdArray):
        return value
    return TypedNdArray(np.asarray(value), plain_aval(value.aval))
