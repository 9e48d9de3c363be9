"""Layouts written into a function: of an array where it stands, or of all in a function at once.

`constrain` is `jax.lax.with_sharding_constraint` that may say something else of the cotangent, and
of the array where `jax.checkpoint` computes it again:

    x = autoshard.constrain(x, P("data"), cotangent=P(None, "model"), again=P("model"))

`laid_out` says it of several arrays of a function, by the operations that make or read them:

    layer = autoshard.laid_out(
        layer,
        {
            "experts/bgtec,bgtd->ebgcd bfloat16[8,4,2,16,64]": P(None, "data"),
            "experts/ebgcd,edf->ebgcf in bfloat16[8,4,2,16,64]": P("model", "data"),
            "attention:exp float32[4,8,2,64,64]": P("data", "model"),
        },
    )

A **key** is a scope (`jax.named_scope`; its last parts are enough) and the type of an array: one
that is made in the scope and read outside of it, or, with `in`, made outside and read in it. An
`einsum` is in a scope of its own. With a primitive behind the scope, it is the primitive's result,
or its operand (`exp in`). A key stands for all arrays that it fits.

Both are differentiated like what they stand in; see `autoshard annotate` for what to write there.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.source_info_util import register_exclusion

from autoshard import compat

for _file in (__file__, compat.__file__):  # the line of an array is the user's, which calls these
    register_exclusion(_file)
_KEY = re.compile(r"(.*?)(?::([\w-]+))?( in)? (\w+)\[([\d, ]*)\]")


class LayoutsError(ValueError):
    """Keys that are none, or that fit no array of the function."""


def constrain(
    array: Any,
    sharding: Any,
    *,
    cotangent: Any = ...,
    again: Any = ...,
) -> Any:
    """An array that is laid out as said.

    Args:
      array: of any shape.
      sharding: as `jax.lax.with_sharding_constraint` takes it; None: as it comes.
      cotangent: of the array's cotangent; None: as it comes; by default alike.
      again: of the array where `jax.checkpoint` computes it again; None: as it comes; by default
        alike.
    """
    cotangent, again = (sharding if one is ... else one for one in (cotangent, again))
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        cotangent = sharding  # it has none
    if sharding == cotangent == again:
        return _laid(array, sharding)
    ways = (functools.partial(_laid, sharding=one) for one in (sharding, again, cotangent))
    return compat.laid_out(array, *ways)


def _laid(array: Any, sharding: Any) -> Any:
    return array if sharding is None else jax.lax.with_sharding_constraint(array, sharding)


@dataclass(frozen=True, slots=True)
class Key:
    """Which arrays of a function are meant.

    Attributes:
      scope: the last parts of the scope.
      primitive: of the operation in it; empty: what leaves or enters the scope is meant.
      read: whether it is read, and not made, there.
      dtype, shape: of the array.
    """

    scope: tuple[str, ...]
    primitive: str
    read: bool
    dtype: str
    shape: tuple[int, ...]

    def holds(self, scope: tuple[str, ...], primitive: str) -> bool:
        """Whether an operation is meant, by its scope: one of those that are inside, perhaps."""
        count = len(self.scope)
        if self.primitive:
            return primitive == self.primitive and scope[len(scope) - count :] == self.scope
        return any(scope[at : at + count] == self.scope for at in range(len(scope) - count + 1))

    def __str__(self) -> str:
        primitive = f":{self.primitive}" if self.primitive else ""
        shape = ",".join(map(str, self.shape))
        return f"{'/'.join(self.scope)}{primitive}{' in' * self.read} {self.dtype}[{shape}]"


def parse_key(text: str) -> Key:
    """The key that is written so. Raises LayoutsError."""
    found = _KEY.fullmatch(text)
    if found is None or not (found[1] or found[2]):
        raise LayoutsError(
            f"{text!r} is no key: write `scope float32[8,16]`, `scope in float32[8,16]` for what "
            "is read there, or `scope:primitive float32[8,16]`"
        )
    scope, primitive, read, dtype, shape = found.groups()
    sizes = tuple(int(size) for size in shape.split(",")) if shape.strip() else ()
    return Key(scope_parts(scope), primitive or "", read is not None, dtype, sizes)


def scope_parts(scope: str) -> tuple[str, ...]:
    """The parts of a scope as JAX writes it."""
    return tuple(part for part in scope.split("/") if part)


def laid_out(fn: Callable[..., Any], layouts: Mapping[str, Any]) -> Callable[..., Any]:
    """`fn` in which arrays are laid out as said.

    Args:
      fn: a function of arrays and pytrees of them; what else it takes stays as it is.
      layouts: by key, a sharding as `constrain` takes it, or a function from the array to the
        array: `lambda x: autoshard.constrain(x, P("x"), cotangent=None)`.

    Raises:
      LayoutsError: a key is none; once `fn` is called, if keys fit no array of it.
    """
    wanted = {parse_key(text): how for text, how in layouts.items()}

    @functools.wraps(fn)
    def changed(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        dynamic = [number for number, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]

        def flat(*arrays: Any) -> Any:
            given = list(leaves)
            for number, array in zip(dynamic, arrays, strict=True):
                given[number] = array
            inner_args, inner_kwargs = jax.tree.unflatten(tree, given)
            return fn(*inner_args, **inner_kwargs)

        arrays = [leaves[number] for number in dynamic]
        closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*arrays)
        results = _run(closed, arrays, wanted, getattr(fn, "__name__", "the function"))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return changed


def _run(closed: Any, arrays: list[Any], wanted: Mapping[Key, Any], name: str) -> list[Any]:
    """The results of a jaxpr on `arrays`, with layouts written into it."""
    jaxpr = closed.jaxpr
    environment: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    environment.update(zip(jaxpr.invars, arrays, strict=True))
    holding = [
        frozenset(
            key
            for key in wanted
            if key.holds(scope_parts(str(one.source_info.name_stack)), one.primitive.name)
        )
        for one in jaxpr.eqns
    ]
    makers = {var: number for number, one in enumerate(jaxpr.eqns) for var in one.outvars}
    readers: dict[Any, list[frozenset[Key]]] = defaultdict(list)
    for number, one in enumerate(jaxpr.eqns):
        for atom in one.invars:
            if not compat.is_literal(atom):
                readers[atom].append(holding[number])
    for atom in jaxpr.outvars:
        if not compat.is_literal(atom):
            readers[atom].append(frozenset())
    used: set[Key] = set()

    def laid(array: Any, keys: Iterable[Key]) -> Any:
        for key in wanted:
            if key in keys:
                used.add(key)
                how = wanted[key]
                array = how(array) if callable(how) else constrain(array, how)
        return array

    for number, one in enumerate(jaxpr.eqns):
        here = holding[number]
        operands = []
        with compat.equation_context(one):
            for atom in one.invars:
                if compat.is_literal(atom):
                    operands.append(atom.val)
                    continue
                before = holding[makers[atom]] if atom in makers else frozenset[Key]()
                enters = {k for k in here if k.read and (k.primitive or k not in before)}
                operands.append(laid(environment[atom], _typed(enters, atom)))
            results = compat.bind_equation(one, operands)
            for var, array in zip(one.outvars, results, strict=True):
                after = readers[var]
                leaves = {
                    k
                    for k in here
                    if not k.read and (k.primitive or any(k not in keys for keys in after))
                }
                environment[var] = laid(array, _typed(leaves, var))
    unused = [key for key in wanted if key not in used]
    if unused:
        raise LayoutsError(_unused(unused, jaxpr, name))
    return [atom.val if compat.is_literal(atom) else environment[atom] for atom in jaxpr.outvars]


def _typed(keys: Iterable[Key], var: Any) -> set[Key]:
    """Those of the type of a variable."""
    shape, dtype, _ = compat.array_facts(var.aval)
    return {key for key in keys if (key.shape, key.dtype) == (shape, dtype)}


def _unused(unused: Sequence[Key], jaxpr: Any, name: str) -> str:
    """What is said of keys that fit no array, with those that nearly do."""
    known: dict[str, None] = {}
    for one in jaxpr.eqns:
        scope = scope_parts(str(one.source_info.name_stack))
        for read, atoms in ((False, one.outvars), (True, one.invars)):
            for atom in atoms:
                shape, dtype, _ = compat.array_facts(atom.aval)
                for primitive in ("", one.primitive.name):
                    if scope or primitive:
                        known[str(Key(scope, primitive, read, dtype, shape))] = None
    lines = [f"these keys fit no array of {name}:"]
    for key in map(str, unused):
        near = difflib.get_close_matches(key, known, n=2, cutoff=0.4)
        meant = f": did you mean {' or '.join(map(repr, near))}?" if near else ""
        lines.append(f"  - {key!r}{meant}")
    return "\n".join(lines)
