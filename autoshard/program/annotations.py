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
or its operand (`exp in`). A key stands for all arrays that it fits, or, with a number behind it
(`attention:exp float32[4,8] #2`), for one of them, in the order of the function. What
`jax.checkpoint` is called on in the function is a part of it, in the scope of the call. What the
function is given is an `:argument`, as it is used everywhere in it.

Both are differentiated like what they stand in; see `autoshard annotate` for what to write there.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from autoshard import compat
from autoshard.near import did_you_mean

for _file in (__file__, compat.OWN_FOLDER):  # the line of an array is the user's, which calls these
    compat.no_user_lines(_file)
_KEY = re.compile(r"(.*?)(?::([\w-]+))?( in)? (\w+)\[([\d, ]*)\](?: #(\d+))?")


class LayoutsError(ValueError):
    """Keys that are none, or that fit no array of the function, or none that a product reads."""


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
      sharding: as `jax.lax.with_sharding_constraint` takes it; None: as it comes; a list: each in
        turn.
      cotangent: of the array's cotangent; None: as it comes; by default alike, lists reversed.
      again: of the array where `jax.checkpoint` computes it again; None: as it comes; by default
        alike.
    """
    again = sharding if again is ... else again
    if cotangent is ... or not jnp.issubdtype(array.dtype, jnp.inexact):  # these have none
        cotangent = _reversed(sharding)
    if sharding == again and cotangent == _reversed(sharding):
        return _laid(array, sharding)
    ways = (functools.partial(_laid, sharding=one) for one in (sharding, again, cotangent))
    return compat.laid_out(array, *ways)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a product reads an operand, and how what is computed in its derivatives does.

    Said of operands of `dot_general` and `conv_general_dilated`, in `laid_out`. None: as it comes.

    Attributes:
      sharding: as the product reads it, like that of `constrain`.
      cotangent: of the operand's own cotangent; by default alike.
      again: where `jax.checkpoint` computes the product again; by default alike.
      gradient: where the cotangent of the other operand is computed from it; by default as again.
      given: of the result's cotangent where the operand's own is computed from it.
    """

    sharding: Any
    cotangent: Any = ...
    again: Any = ...
    gradient: Any = ...
    given: Any = None

    def __call__(self, operand: Any, *, scope: str = "") -> Any:
        """An operand, or one of which something is said already, to be read so."""
        again = self.sharding if self.again is ... else self.again
        said = (
            self.sharding,
            again,
            _reversed(self.sharding) if self.cotangent is ... else self.cotangent,
            again if self.gradient is ... else self.gradient,
            self.given,
        )
        before = operand if isinstance(operand, compat.Read) else compat.Read(operand)
        return before.then(*(functools.partial(_laid, sharding=one, scope=scope) for one in said))


def _laid(array: Any, sharding: Any, scope: str = "") -> Any:
    if scope:
        with jax.named_scope(scope):
            return _laid(array, sharding)
    if isinstance(sharding, list):
        return functools.reduce(_laid, sharding, array)
    return array if sharding is None else jax.lax.with_sharding_constraint(array, sharding)


def _reversed(sharding: Any) -> Any:
    return sharding[::-1] if isinstance(sharding, list) else sharding


@dataclass(frozen=True, slots=True)
class Key:
    """Which arrays of a function are meant.

    Attributes:
      scope: the last parts of the scope.
      primitive: of the operation in it, or `argument`; empty: what leaves or enters the scope is
        meant.
      read: whether it is read, and not made, there.
      dtype, shape: of the array.
      number: which one of those that fit is meant, from 1; 0: all of them.
    """

    scope: tuple[str, ...]
    primitive: str
    read: bool
    dtype: str
    shape: tuple[int, ...]
    number: int = 0

    def holds(self, scope: tuple[str, ...], primitive: str) -> bool:
        """Whether an operation is meant, by its scope: one of those that are inside, perhaps."""
        count = len(self.scope)
        if self.primitive:
            return primitive == self.primitive and scope[len(scope) - count :] == self.scope
        return any(scope[at : at + count] == self.scope for at in range(len(scope) - count + 1))

    def __str__(self) -> str:
        primitive = f":{self.primitive}" if self.primitive else ""
        shape = ",".join(map(str, self.shape))
        number = f" #{self.number}" if self.number else ""
        return f"{'/'.join(self.scope)}{primitive}{' in' * self.read} {self.dtype}[{shape}]{number}"


def parse_key(text: str) -> Key:
    """The key that is written so. Raises LayoutsError."""
    found = _KEY.fullmatch(text)
    if found is None or not (found[1] or found[2]):
        raise LayoutsError(
            f"{text!r} is not a key: write `scope float32[8,16]`, `scope in float32[8,16]` for "
            "what is read there, or `scope:primitive float32[8,16]`"
        )
    scope, primitive, read, dtype, shape, number = found.groups()
    sizes = tuple(int(size) for size in shape.split(",")) if shape.strip() else ()
    parts = scope_parts(scope)
    return Key(parts, primitive or "", read is not None, dtype, sizes, int(number or 0))


def scope_parts(scope: str) -> tuple[str, ...]:
    """The parts of a scope as JAX writes it."""
    return tuple(part for part in scope.split("/") if part)


def laid_out(
    fn: Callable[..., Any], layouts: Mapping[str, Any], *, strict: bool = True
) -> Callable[..., Any]:
    """`fn` in which arrays are laid out as said.

    Args:
      fn: a function of arrays and pytrees of them; what else it takes stays as it is.
      layouts: by key, a sharding as `constrain` takes it, or a function from the array to the
        array: `lambda x: autoshard.constrain(x, P("x"), cotangent=None)`; what a product reads may
        have a `Reading`.
      strict: whether each key must fit an array in every call; False: some fit in other calls, of
        arrays of other shapes.

    Raises:
      LayoutsError: a key is none; once `fn` is called, if keys fit no array of it, or a `Reading`
        is said of what no product reads.
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
        name = getattr(fn, "__name__", "the function")
        closed = compat.in_lax(closed)
        written = _Written(wanted, name)
        given = written.given(closed.jaxpr, arrays)
        results = written.run(closed.jaxpr, closed.consts, given)
        unused = [key for key in wanted if written.seen[key] < max(key.number, 1)]
        if strict and unused:
            raise LayoutsError(_unused(unused, closed.jaxpr, name))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return changed


class _Written:
    """Runs a function with layouts written into it.

    Attributes:
      wanted: what is said, by key.
      name: of the function.
      seen: how many arrays each key has fit.
    """

    def __init__(self, wanted: Mapping[Key, Any], name: str) -> None:
        self.wanted, self.name = wanted, name
        self.seen: Counter[Key] = Counter()

    def given(self, jaxpr: Any, arrays: Sequence[Any]) -> list[Any]:
        """The arguments of the function."""
        keys = [key for key in self.wanted if key.primitive == compat.ARGUMENT and not key.scope]
        said = zip(jaxpr.invars, arrays, strict=True)
        return [self.laid(array, _typed(keys, var)) for var, array in said]

    def run(
        self,
        jaxpr: Any,
        consts: Sequence[Any],
        arrays: Sequence[Any],
        around: tuple[str, ...] = (),
        outside: frozenset[Key] = frozenset(),
    ) -> list[Any]:
        """The results of a jaxpr that is called in a scope; `outside` are the keys of the call."""
        environment: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        environment.update(zip(jaxpr.invars, arrays, strict=True))
        scopes = [around + scope_parts(str(one.source_info.name_stack)) for one in jaxpr.eqns]
        holding = [
            frozenset(key for key in self.wanted if key.holds(scope, one.primitive.name))
            for scope, one in zip(scopes, jaxpr.eqns, strict=True)
        ]
        makers = {var: number for number, one in enumerate(jaxpr.eqns) for var in one.outvars}
        readers: dict[Any, list[frozenset[Key]]] = defaultdict(list)
        for number, one in enumerate(jaxpr.eqns):
            for atom in one.invars:
                if not compat.is_literal(atom):
                    readers[atom].append(holding[number])
        for atom in jaxpr.outvars:
            if not compat.is_literal(atom):
                readers[atom].append(outside)
        for number, one in enumerate(jaxpr.eqns):
            here = holding[number]
            operands = []
            with compat.equation_context(one):
                for atom in one.invars:
                    if compat.is_literal(atom):
                        operands.append(atom.val)
                        continue
                    before = holding[makers[atom]] if atom in makers else outside
                    enters = {k for k in here if k.read and (k.primitive or k not in before)}
                    typed = _typed(enters, atom)
                    operands.append(self.laid(environment[atom], typed, one.primitive.name))
                if one.primitive.name in compat.REMAT:
                    results = self._again(one, operands, scopes[number], here)
                else:
                    results = compat.bind_reading(one, operands)
                for var, array in zip(one.outvars, results, strict=True):
                    after = readers[var]
                    leaves = {
                        k
                        for k in here
                        if not k.read and (k.primitive or any(k not in keys for keys in after))
                    }
                    environment[var] = self.laid(array, _typed(leaves, var))
        return [
            atom.val if compat.is_literal(atom) else environment[atom] for atom in jaxpr.outvars
        ]

    def _again(
        self, call: Any, operands: Sequence[Any], scope: tuple[str, ...], here: frozenset[Key]
    ) -> list[Any]:
        """The results of a call of `jax.checkpoint`, with layouts written into what it calls."""
        body = call.params["jaxpr"]
        shapes = [compat.shape_struct(var.aval) for var in body.invars]
        closed = jax.make_jaxpr(lambda *arrays: self.run(body, (), arrays, scope, here))(*shapes)
        return compat.bind_checkpoint(call, operands, closed)

    def laid(self, array: Any, keys: Iterable[Key], primitive: str = "") -> Any:
        """An array as is said of it by those of the keys that are about it."""
        readings = []
        for key in self.wanted:
            if key in keys:
                self.seen[key] += 1
                if key.number not in {0, self.seen[key]}:
                    continue
                how = self.wanted[key]
                if isinstance(how, Reading):
                    if primitive not in compat.PRODUCTS:
                        raise LayoutsError(_not_a_product(key, primitive, self.name))
                    readings.append(how)
                    continue
                array = how(array) if callable(how) else constrain(array, how)
        for how in readings:
            array = how(array)
        return array


def _typed(keys: Iterable[Key], var: Any) -> set[Key]:
    """Those of the type of a variable."""
    shape, dtype, _ = compat.array_facts(var.aval)
    return {key for key in keys if (key.shape, key.dtype) == (shape, dtype)}


def _not_a_product(key: Key, primitive: str, name: str) -> str:
    where = f"is read by `{primitive}`" if primitive else "is not read there"
    products = " and ".join(sorted(compat.PRODUCTS))
    return (
        f"{str(key)!r} in {name} has a Reading, but {where}: only operands of {products} have one; "
        "give it a sharding, or a function that calls autoshard.constrain"
    )


def _unused(unused: Sequence[Key], jaxpr: Any, name: str) -> str:
    """What is said of keys that fit no array, with those that nearly do."""
    given = [compat.array_facts(var.aval) for var in jaxpr.invars]
    known = {str(Key((), compat.ARGUMENT, False, one[1], one[0])): None for one in given}
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
        asked = did_you_mean(key, map(repr, known))
        lines.append(f"  - {key!r}{f': {asked}' if asked else ''}")
    return "\n".join(lines)
