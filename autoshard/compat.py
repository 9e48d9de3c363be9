"""The only home of private parts of jax and jaxlib.

Everything else in this package uses JAX's public API. Each function here is small, so that a new
JAX release is met in this file alone. One section per concern: jaxprs, Shardy's rules, Shardy's
collectives, compiling.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# -- jaxprs ------------------------------------------------------------------------------------


def drop_dead_code(closed: Any) -> Any:
    """`closed` without the equations and constants that no result needs; its inputs all stay."""
    from jax._src.interpreters import partial_eval

    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), True)
    atoms = [atom for equation in jaxpr.eqns for atom in equation.invars]
    used = {atom for atom in (*atoms, *jaxpr.outvars) if not is_literal(atom)}
    kept = [pair for pair in zip(jaxpr.constvars, closed.consts, strict=True) if pair[0] in used]
    return closed.replace(
        jaxpr=jaxpr.replace(constvars=[var for var, _ in kept]),
        consts=[constant for _, constant in kept],
    )


def is_literal(atom: Any) -> bool:
    """Whether an operand of an equation is a literal and not a variable."""
    return hasattr(atom, "val")


def is_tracer(array: Any) -> bool:
    """Whether an array is of a trace that is still going on."""
    from jax.core import Tracer

    return isinstance(array, Tracer)


def called_jaxpr(equation: Any) -> tuple[Any, Sequence[Any]]:
    """The jaxpr that a call (`jit`, `checkpoint`, `custom_jvp_call`, …) runs, and its constants."""
    return called_jaxpr_of(equation.params)


def called_jaxpr_of(parameters: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    """Like `called_jaxpr`, of the parameters of a call."""
    body = parameters.get("jaxpr", parameters.get("call_jaxpr"))
    if hasattr(body, "consts"):
        return body.jaxpr, body.consts
    return body, ()


def closed(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """A jaxpr with its constants as one closed jaxpr."""
    from jax.extend.core import ClosedJaxpr

    return ClosedJaxpr(jaxpr, list(consts))


def array_facts(aval: Any) -> tuple[tuple[int, ...], str, int]:
    """(shape, dtype name, bytes per element) of an abstract value; typed PRNG keys by their data.

    Values that are not arrays (tokens, effects) count as empty scalars.
    """
    shape = tuple(int(n) for n in getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return shape, "token", 0
    return shape, str(dtype), int(dtype.itemsize)


def source_line(equation: Any) -> str:
    """`file.py:12` of the user's line that made `equation`, or an empty string."""
    from jax._src import source_info_util

    frame = source_info_util.user_frame(equation.source_info.traceback)
    if frame is None:
        return ""
    return f"{frame.file_name.rsplit('/', 1)[-1]}:{frame.start_line}"


def user_line_of_error(error: BaseException) -> str:
    """`file.py:12` of the innermost frame of `error` outside of JAX and of this package."""
    import os
    import traceback

    here = os.path.dirname(os.path.abspath(__file__))
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = os.path.abspath(frame.filename)
        inside = path.startswith(os.path.join(here, "models"))
        library = "site-packages" in path or (path.startswith(here) and not inside)
        if not library:
            found = f"{frame.filename}:{frame.lineno}"
    return found


def equation_scope(equation: Any) -> Any:
    """A context in which new equations keep the scope and the source line of `equation`."""
    from jax._src import source_info_util

    info = equation.source_info
    stack = source_info_util.current_name_stack() + info.name_stack
    return source_info_util.user_context(info.traceback, name_stack=stack)


def equation_context(equation: Any) -> Any:
    """Like `equation_scope`, with the settings of JAX under which `equation` was made."""
    context = contextlib.ExitStack()
    context.enter_context(equation_scope(equation))
    context.enter_context(equation.ctx.manager)
    return context


def bind_equation(equation: Any, operands: Sequence[Any], **changed: Any) -> list[Any]:
    """Apply the primitive of `equation` to new operands, with some of its parameters changed."""
    parameters = equation.primitive.get_bind_params({**equation.params, **changed})
    results = equation.primitive.bind(*operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def bind_reading(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Like `bind_equation`; some of the operands may be `Read`s."""
    if any(isinstance(one, Read) for one in operands):
        return [run_reading(lambda *arrays: bind_equation(equation, arrays), operands)]
    return bind_equation(equation, operands)


def with_derivative_of(equation: Any, primal: Any) -> Any:
    """`primal` with the derivative rule that a `custom_jvp` or `custom_vjp` equation carries.

    `primal` may take more operands than the equation; these depend on the others, and the rule does
    without them.
    """
    import jax

    count = len(equation.invars)

    def original(*operands: Any) -> list[Any]:
        return bind_equation(equation, operands[:count])

    if equation.primitive.name == "custom_jvp_call":
        function = jax.custom_jvp(primal)
        function.defjvp(
            lambda primals, tangents: jax.jvp(original, primals[:count], tangents[:count])
        )
        return function
    function = jax.custom_vjp(primal)
    function.defvjp(
        lambda *operands: jax.vjp(original, *operands), lambda pull, cotangents: pull(cotangents)
    )
    return function


def laid_out(array: Any, first: Any, again: Any, cotangent: Any) -> Any:
    """`first(array)`, but `again(array)` where `checkpoint` computes it a second time.

    The cotangent goes through `cotangent`. All return an array like the one that they are given.
    """
    import jax

    shape = shape_struct(jax.typeof(array))
    bodies = [jax.make_jaxpr(one)(shape) for one in (first, again, cotangent)]
    primitive, _ = _laid_out_primitives()
    return primitive.bind(array, call_jaxpr=bodies[0], again=bodies[1], back=bodies[2])


@functools.lru_cache(maxsize=1)
def _laid_out_primitives() -> tuple[Any, Any]:
    """The primitive behind `laid_out`, and that of its tangents.

    `checkpoint` splits a function into what is known and what the backward pass computes; a rule of
    the primitive's own leaves `call_jaxpr` in the one and `again` in the other.
    """
    import jax
    from jax.extend.core import Primitive, jaxpr_as_fun
    from jax.interpreters import ad, batching, mlir, partial_eval

    values, tangents = Primitive("laid_out"), Primitive("laid_out_tangent")

    def run(*arrays: Any, call_jaxpr: Any, **_: Any) -> Any:
        return jaxpr_as_fun(call_jaxpr)(*arrays)[0]

    def differentiated(primals: Any, given: Any, **bodies: Any) -> Any:
        (tangent,) = given
        if not isinstance(tangent, ad.Zero):
            as_it_comes = jax.make_jaxpr(lambda x: x)(shape_struct(jax.typeof(tangent)))
            tangent = tangents.bind(tangent, call_jaxpr=as_it_comes, back=bodies["back"])
        return values.bind(*primals, **bodies), tangent

    def pushed(primals: Any, given: Any, **bodies: Any) -> Any:
        first, *others = primals
        terms = []
        if not isinstance(given[0], ad.Zero):
            terms.append(tangents.bind(given[0], *others, **bodies))
        if not all(isinstance(one, ad.Zero) for one in given[1:]):
            moved = [ad.instantiate_zeros(one) for one in given[1:]]
            terms.append(
                jax.jvp(lambda *rest: run(first, *rest, **bodies), others, tuple(moved))[1]
            )
        return tangents.bind(*primals, **bodies), functools.reduce(ad.add_tangents, terms)

    def pulled(cotangent: Any, tangent: Any, *others: Any, back: Any, **_: Any) -> Any:
        if isinstance(cotangent, ad.Zero):
            return [ad.Zero(tangent.aval), *(None for _ in others)]
        return [jaxpr_as_fun(back)(cotangent, *others)[0], *(None for _ in others)]

    def split(_: Any, unknown: Any, instantiated: Any, equation: Any) -> Any:
        if unknown[0]:
            return None, equation, [True], [True], []
        again = equation.params["again"]
        known = equation.replace(params={**equation.params, "again": equation.params["call_jaxpr"]})
        staged = equation.replace(params={**equation.params, "call_jaxpr": again})
        return known, staged, [False], [True], [] if instantiated[0] else [equation.invars[0]]

    for primitive in (values, tangents):

        def batched(arrays: Any, dimensions: Any, primitive: Any = primitive, **bodies: Any) -> Any:
            axes: list[Any] = list(dimensions)
            count = next(a.shape[d] for a, d in zip(arrays, axes, strict=True) if d is not None)
            array, *others = arrays
            if axes[0] is None:
                array, axes[0] = jax.numpy.broadcast_to(array, (count, *array.shape)), 0
            shapes = [shape_struct(jax.typeof(one)) for one in (array, *others)]
            result = jax.eval_shape(
                jax.vmap(jaxpr_as_fun(bodies["call_jaxpr"]), axes, axes[0]), *shapes
            )
            many = {}
            for name, body in bodies.items():
                given = result if name == "back" else shapes[:1]
                mapped = jax.vmap(jaxpr_as_fun(body), axes, axes[0])
                many[name] = jax.make_jaxpr(mapped)(*given, *shapes[1:])
            return primitive.bind(array, *others, **many), axes[0]

        primitive.def_impl(run)
        mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=False))
        batching.primitive_batchers[primitive] = batched
    values.def_abstract_eval(lambda array, **_: array)
    tangents.def_abstract_eval(lambda *_, call_jaxpr, **__: call_jaxpr.out_avals[0])
    ad.primitive_jvps[values] = differentiated
    ad.primitive_jvps[tangents] = pushed
    ad.primitive_transposes[tangents] = pulled
    partial_eval.partial_eval_jaxpr_custom_rules[values] = split
    return values, tangents


def _as_made_at(traceback: Any, closed: Any) -> Any:
    """A closed jaxpr of the lines of a traceback; that it is transposed is for others to say."""
    from jax._src import source_info_util

    def plain(equation: Any) -> Any:
        info = equation.source_info
        parts = (one for one in info.name_stack.stack if isinstance(one, source_info_util.Scope))
        stack = source_info_util.NameStack(tuple(parts))
        return equation.replace(source_info=info.replace(name_stack=stack, traceback=traceback))

    jaxpr = closed.jaxpr
    return closed.replace(jaxpr=jaxpr.replace(eqns=[plain(one) for one in jaxpr.eqns]))


def _unchanged(array: Any) -> Any:
    return array


REMAT = frozenset({"remat", "remat2", "checkpoint"})
"""Primitives of `jax.checkpoint`."""
PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
"""Primitives that are linear in each operand, so that their derivatives read the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """An operand that a product and its derivatives read each in a way of their own.

    Attributes:
      array: the operand.
      first: from it, what the product reads.
      again: what it reads where `checkpoint` computes it again.
      cotangent: from the cotangent of the operand, what is gone on with.
      gradient: from the operand, what the gradients of the others are computed from.
      given: from the cotangent of the result, what the gradient of the operand is computed from.
    """

    array: Any
    first: Callable[[Any], Any] = _unchanged
    again: Callable[[Any], Any] = _unchanged
    cotangent: Callable[[Any], Any] = _unchanged
    gradient: Callable[[Any], Any] = _unchanged
    given: Callable[[Any], Any] = _unchanged

    def then(self, first: Any, again: Any, cotangent: Any, gradient: Any, given: Any) -> Read:
        """Read so, with further functions for each."""
        return Read(
            self.array,
            lambda x: first(self.first(x)),
            lambda x: again(self.again(x)),
            lambda x: self.cotangent(cotangent(x)),
            lambda x: gradient(self.gradient(x)),
            lambda x: self.given(given(x)),
        )


def run_reading(product: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """`product(*operands)`, where some of the operands are `Read`s.

    Args:
      product: linear in each operand; returns an array, or a list of one.
      operands: arrays, or `Read`s of arrays.
    """
    import jax
    from jax._src import source_info_util

    reads = [one if isinstance(one, Read) else Read(one) for one in operands]
    _, tangents = _laid_out_primitives()
    traceback = source_info_util.current().traceback

    def run(*arrays: Any) -> Any:
        return jax.tree.leaves(product(*arrays))[0]

    def plain(*arrays: Any) -> Any:
        pairs = zip(operands, reads, arrays, strict=True)
        return run(
            *(
                laid_out(array, read.first, read.again, _unchanged) if one is read else array
                for one, read, array in pairs
            )
        )

    def differentiated(primals: Any, moved: Any) -> Any:
        result, terms = plain(*primals), []
        for number, tangent in enumerate(moved):
            if isinstance(tangent, jax.custom_derivatives.SymbolicZero):
                continue
            before, (own, *after) = primals[:number], primals[number:]
            others = [*before, *after]
            along, back = both_ways(number, shape_struct(jax.typeof(own)))
            shapes = [shape_struct(jax.typeof(one)) for one in others]
            cotangent = shape_struct(jax.typeof(result))
            bodies = {
                "call_jaxpr": jax.make_jaxpr(along)(shape_struct(jax.typeof(tangent)), *shapes),
                "back": _as_made_at(traceback, jax.make_jaxpr(back)(cotangent, *shapes)),
            }
            terms.append(tangents.bind(tangent, *others, **bodies))
        return result, functools.reduce(jax.lax.add, terms)

    def both_ways(number: int, shape: Any) -> tuple[Any, Any]:
        """From the tangent of an operand to that of the result, and back from the cotangent."""
        read, around = reads[number], [*reads[:number], *reads[number + 1 :]]

        def along(tangent: Any, *others: Any) -> Any:
            return run(*others[:number], tangent, *others[number:])

        def back(cotangent: Any, *others: Any) -> Any:
            seen = [one.gradient(x) for one, x in zip(around, others, strict=True)]
            pull = jax.linear_transpose(lambda tangent: along(tangent, *seen), shape)
            return read.cotangent(pull(read.given(cotangent))[0])

        return along, back

    called = jax.custom_jvp(plain)
    called.defjvp(differentiated, symbolic_zeros=True)
    return called(*(one.array for one in reads))


def shape_struct(aval: Any, shape: Sequence[int] | None = None) -> Any:
    """A `ShapeDtypeStruct` of an abstract value, weak type included, or one of another `shape`."""
    import jax

    return jax.ShapeDtypeStruct(
        aval.shape if shape is None else tuple(shape),
        aval.dtype,
        weak_type=bool(getattr(aval, "weak_type", False)),
    )


def bind_checkpoint(equation: Any, operands: Sequence[Any], body: Any) -> list[Any]:
    """Apply an equation of `jax.checkpoint` to operands, with another closed jaxpr in it."""
    from jax._src.interpreters import partial_eval

    jaxpr = partial_eval.convert_constvars_jaxpr(body.jaxpr)
    kept = equation.params["prevent_cse"]
    if isinstance(kept, tuple):
        kept = (False,) * len(body.consts) + kept  # as `jax.checkpoint` itself has it
    return bind_equation(equation, [*body.consts, *operands], jaxpr=jaxpr, prevent_cse=kept)


# -- what user code computes -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """A function that is being called.

    Attributes:
      file, function, line: where it stands.
      place: of the call, in the code of the function.
      user: whether the code is the user's, and not that of JAX or of Python itself.
    """

    file: str
    function: str
    line: int
    place: int
    user: bool


def in_checkpoint(frames: Sequence[Frame]) -> bool:
    """Whether these frames of JAX, between two of the user's, are those of `jax.checkpoint`."""
    called = [one for one in frames if not one.file.endswith("traceback_util.py")]
    return bool(called) and called[-1].function == "checkpoint.<locals>.fun_remat"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an operation stands.

    Attributes:
      frames: the functions that are being called, innermost first.
      scope: `jax.named_scope`s around it, those around a function that is traced by itself
        included; a transformation that is under way is one of them: `jvp()`.
    """

    frames: tuple[Frame, ...]
    scope: tuple[str, ...]


ARGUMENT = "argument"
"""Stands for the primitive of what `jax.checkpoint` gives to the function that it is called on."""
Change = Callable[[str, Standing, list[Any]], list[Any]]


def arrays_of_user_code(*, reads: Change, makes: Change, within: str) -> Any:
    """A context in which what operations of user code read and make goes through functions.

    Each is given the primitive's name (`add()` of a call that JAX replaces by its body, but
    `einsum/dot_general` of an operation in one that holds a product and others, and `ARGUMENT` of
    what enters a function that `jax.checkpoint` is called on, at its top), where it stands
    (with the frames up to the first one of the file `within`) and the operands or results,
    and returns those to go on with. What differentiation, vectorisation and the rules of JAX make
    of an operation is not user code: arrays are changed before they are differentiated, and what
    JAX derives from the changed program follows. What JAX traced before is not taken from its
    caches, and what `jax.checkpoint` is called on is traced in every call.
    """
    return _UserCode(reads, makes, within)


_SAME = {"broadcast_in_dim": "shape", "reshape": "new_sizes", "convert_element_type": "new_dtype"}
"""What operations make that return what they are given where that is so already."""


def _changes_nothing(name: str, operands: Sequence[Any], parameters: Mapping[str, Any]) -> bool:
    """Whether JAX leaves an operation out, or a call in the place of which nothing stands."""
    if parameters.get("inline"):
        return not parameters["jaxpr"].jaxpr.eqns
    if name not in _SAME or not hasattr(operands[0], "aval"):
        return False
    kind = operands[0].aval
    return parameters[_SAME[name]] == (kind.dtype if name == "convert_element_type" else kind.shape)


class _UserCode:
    """See `arrays_of_user_code`."""

    def __init__(self, reads: Change, makes: Change, within: str) -> None:
        from jax.experimental.xla_metadata import set_xla_metadata

        self.reads, self.makes, self.within = reads, makes, within
        self.inside = False
        self.around = Standing((), ())  # where the trace that is under way began
        self.frames: dict[tuple[int, int], tuple[Any, Frame]] = {}
        # Part of the key of JAX's caches of traced functions.
        self.fresh = set_xla_metadata(traced=str(id(self)))

    def __enter__(self) -> None:
        import jax
        from jax._src import ad_checkpoint, core, source_info_util

        self.trace = trace = ad_checkpoint._trace_to_jaxpr

        def trace_each(function: Any, *facts: Any) -> Any:
            def called(*args: Any, **kwargs: Any) -> Any:  # traces are kept by function
                arrays, tree = jax.tree.flatten((args, kwargs))
                args, kwargs = jax.tree.unflatten(tree, self._given(function, arrays))
                return function(*args, **kwargs)

            return trace(called, *facts)

        replaced: Any = ad_checkpoint
        replaced._trace_to_jaxpr = trace_each
        self.reset = reset = source_info_util.reset_name_stack

        @contextlib.contextmanager
        def traced_anew() -> Any:
            before, frames = self.around, self._frames()
            first = next((k for k, one in enumerate(frames) if one.user), 0)
            called = frames if in_checkpoint(frames[:first]) else ()
            self.around = Standing(called, self._scope())
            try:
                with reset():
                    yield
            finally:
                self.around = before

        source_info_util.reset_name_stack = traced_anew
        if source_info_util.is_user_filename(__file__):  # `bind` below is no line of the user's
            source_info_util.register_exclusion(__file__)
        self.original = original = core.Primitive.bind
        self.thread = threading.get_ident()

        def bind(primitive: Any, *operands: Any, **parameters: Any) -> Any:
            if self._elsewhere() or _changes_nothing(primitive.name, operands, parameters):
                return original(primitive, *operands, **parameters)
            self.inside = True
            try:
                name, standing = primitive.name, Standing(self._frames(), self._scope())
                if parameters.get("inline"):
                    body = parameters["jaxpr"].jaxpr.eqns
                    name = f"{str(parameters['name']).strip('_')}()"
                    name = body[0].primitive.name if len(body) == 1 else name
                    if len(body) > 1 and any(one.primitive.name in PRODUCTS for one in body):
                        return self._within(parameters, standing, operands)
                read = self.reads(name, standing, list(operands))
                bound = functools.partial(original, primitive, **parameters)
                if any(isinstance(one, Read) for one in read):
                    result = run_reading(bound, read)
                    results = [result] if primitive.multiple_results else result
                else:
                    results = bound(*read)
                if primitive.multiple_results:
                    return self.makes(name, standing, list(results))
                return self.makes(name, standing, [results])[0]
            finally:
                self.inside = False

        primitives: Any = core.Primitive
        primitives.bind = bind
        self.fresh.__enter__()

    def __exit__(self, *error: Any) -> None:
        from jax._src import ad_checkpoint, core, source_info_util

        self.fresh.__exit__(*error)
        replaced: Any = ad_checkpoint
        replaced._trace_to_jaxpr = self.trace
        source_info_util.reset_name_stack = self.reset
        primitives: Any = core.Primitive
        primitives.bind = self.original

    def _elsewhere(self) -> bool:
        """Whether this is no user code."""
        from jax._src import source_info_util

        known = source_info_util._source_info_context.context.traceback is not None
        return self.inside or known or threading.get_ident() != self.thread

    def _given(self, function: Any, arrays: list[Any]) -> list[Any]:
        """What a function that `jax.checkpoint` is called on goes on with as its arguments."""
        from jax._src import source_info_util

        while isinstance(function, functools.partial):
            function = function.func
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is None or not source_info_util.is_user_filename(code.co_filename):
            return arrays
        if self._elsewhere():
            return arrays
        self.inside = True
        try:
            top = Frame(code.co_filename, code.co_qualname, code.co_firstlineno, 0, True)
            return self.makes(ARGUMENT, Standing((top, *self._frames()), self._scope()), arrays)
        finally:
            self.inside = False

    def _within(self, parameters: Any, standing: Standing, operands: Sequence[Any]) -> list[Any]:
        """The results of a call that JAX replaces by its body, operation by operation."""
        from jax._src import source_info_util

        jaxpr, consts = called_jaxpr_of(parameters)
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, operands, strict=True))
        for one in jaxpr.eqns:
            name = f"{str(parameters['name']).strip('_')}/{one.primitive.name}"
            arrays = [a.val if is_literal(a) else known[a] for a in one.invars]
            stack = source_info_util.current_name_stack() + one.source_info.name_stack
            with source_info_util.user_context(None, name_stack=stack):  # the line is the caller's
                here = Standing(standing.frames, self._scope())
                results = bind_reading(one, self.reads(name, here, arrays))
                known.update(zip(one.outvars, self.makes(name, here, results), strict=True))
        return [a.val if is_literal(a) else known[a] for a in jaxpr.outvars]

    def _scope(self) -> tuple[str, ...]:
        from jax._src import source_info_util

        found = list(self.around.scope)
        for one in source_info_util.current_name_stack().stack:
            transform = isinstance(one, source_info_util.Transform)
            found += [f"{one.name}()"] if transform else one.name.split("/")
        return tuple(found)

    def _frames(self) -> tuple[Frame, ...]:
        from jax._src import source_info_util
        from jaxlib._jax import Traceback

        codes, places = Traceback.get_traceback().raw_frames()
        found = []
        for code, place in zip(codes, places, strict=True):
            if code.co_filename == self.within:
                break
            if code.co_filename == __file__:
                continue
            key = id(code), place
            if key not in self.frames:
                file = code.co_filename
                user = source_info_util.is_user_filename(file)
                line = Traceback.code_addr2location(code, place)[0]
                # The code is kept, so that its number stays its own.
                self.frames[key] = code, Frame(file, code.co_qualname, line, place, user)
            found.append(self.frames[key][1])
        return (*found, *self.around.frames)


# -- Shardy's rules ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoweredOp:
    """One StableHLO op: `operands` and `results` are indices of values in its `LoweredModule`.

    `rule` is the text of Shardy's rule, if it has one; `operator` the combination that the op's
    region computes, if that is a single one (`sum`, `max`, …); `splat` the value of a scalar
    constant.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: str | None = None
    operator: str | None = None
    splat: float | None = None


@dataclass(frozen=True, slots=True)
class LoweredModule:
    """Equations lowered together: all ops in order, with calls inlined.

    `shapes[v]` is the shape of value `v`; `arguments[e]` and `outputs[e]` are the values that
    stand for the operands and the results of equation `e`.
    """

    ops: tuple[LoweredOp, ...]
    shapes: tuple[tuple[int, ...], ...]
    arguments: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]


_REGION_OPERATORS = {
    "stablehlo.add": "sum",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
    "stablehlo.multiply": "prod",
}
_OPS_WITH_COMBINER = frozenset({"stablehlo.reduce", "stablehlo.scatter"})


def lower_equations(equations: Sequence[Any], platform: str) -> LoweredModule:
    """Lowers `equations`, each on arguments of its own, in one module; no device is needed.

    Raises whatever the lowering of one of them raises.
    """
    import jax
    from jaxlib.mlir import ir, passmanager

    structs = [
        jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)
        for equation in equations
        for atom in equation.invars
    ]

    def bind_all(*arguments: Any) -> list[Any]:
        results: list[Any] = []
        rest = iter(arguments)
        for equation in equations:
            operands = [next(rest) for _ in equation.invars]
            parameters = equation.primitive.get_bind_params(equation.params)
            with jax.threefry_partitionable(partitionable_random_bits(equation)):
                out = equation.primitive.bind(*operands, **parameters)
            results.extend(out if equation.primitive.multiple_results else [out])
        return results

    lowered = jax.jit(bind_all, keep_unused=True).trace(*structs)
    module: Any = lowered.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")
    with module.context:
        passes = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
        passmanager.PassManager.parse(passes).run(module.operation)
        functions = {
            ir.StringAttr(function.attributes["sym_name"]).value: function
            for function in module.body.operations
            if function.operation.name == "func.func"
        }
        reader = _ModuleReader(ir, functions)
        entry = functions["main"].regions[0].blocks[0]
        arguments = [reader.value(argument) for argument in entry.arguments]
        results = reader.block(entry, dict(zip(entry.arguments, arguments, strict=True)))
    operand_counts = [len(equation.invars) for equation in equations]
    result_counts = [len(equation.outvars) for equation in equations]
    return LoweredModule(
        tuple(reader.ops),
        tuple(reader.shapes),
        _chunks(arguments, operand_counts),
        _chunks(results, result_counts),
    )


def _chunks(items: Sequence[int], counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    rest = iter(items)
    return tuple(tuple(next(rest) for _ in range(count)) for count in counts)


class _ModuleReader:
    """Copies the functions of an MLIR module into plain records, inlining calls."""

    def __init__(self, ir: Any, functions: dict[str, Any]) -> None:
        self.ir = ir
        self.functions = functions
        self.ops: list[LoweredOp] = []
        self.shapes: list[tuple[int, ...]] = []

    def value(self, value: Any) -> int:
        is_tensor = isinstance(value.type, self.ir.RankedTensorType)
        self.shapes.append(tuple(value.type.shape) if is_tensor else ())
        return len(self.shapes) - 1

    def block(self, block: Any, values: dict[Any, int]) -> list[int]:
        """Reads the ops of a function's `block`; `values` has its arguments; its results."""
        key, prefix = "sdy.sharding_rule", "#sdy.op_sharding_rule<"
        for view in block.operations:
            op = view.operation
            name, attributes = op.name, op.attributes
            # A value captured from outside (only regions do that) is not among the values.
            operands = [values[operand] for operand in op.operands if operand in values]
            if name == "func.return":
                return operands
            if name == "func.call":
                callee = self.functions[self.ir.FlatSymbolRefAttr(attributes["callee"]).value]
                body = callee.regions[0].blocks[0]
                inner = self.block(body, dict(zip(body.arguments, operands, strict=True)))
                values.update(zip(op.results, inner, strict=True))
                continue
            results = [self.value(result) for result in op.results]
            values.update(zip(op.results, results, strict=True))
            rule = str(attributes[key])[len(prefix) : -1] if key in attributes else None
            operator = self.combiner(op) if name in _OPS_WITH_COMBINER else None
            splat = self.splat(attributes["value"]) if name == "stablehlo.constant" else None
            self.ops.append(LoweredOp(name, tuple(operands), tuple(results), rule, operator, splat))
        raise AssertionError("a function without func.return")

    def combiner(self, op: Any) -> str | None:
        """The operator of a region of one binary op on the region's two arguments."""
        block = op.regions[0].blocks[0]
        inner = [view.operation for view in block.operations]
        if len(inner) != 2 or set(inner[0].operands) != set(block.arguments):
            return None
        return _REGION_OPERATORS.get(inner[0].name)

    def splat(self, attribute: Any) -> float | None:
        if not isinstance(attribute, self.ir.DenseElementsAttr) or not attribute.is_splat:
            return None
        scalar = attribute.get_splat_value()
        return float(scalar.value) if hasattr(scalar, "value") else None


def parse_sharding_rule(text: str, **options: Any) -> Any:
    """The `SdyShardingRule` that `text` spells in the grammar of JAX's `custom_partitioning`."""
    from jax._src.custom_partitioning_sharding_rule import str_to_sdy_sharding_rule

    return str_to_sdy_sharding_rule(text, **options)


# -- Shardy's collectives ----------------------------------------------------------------------

_COLLECTIVE_PIPELINES = (
    "builtin.module(sdy-propagation-pipeline)",
    "builtin.module(func.func(sdy-sharding-constraint-to-reshard,"
    "sdy-insert-explicit-reshards{enable-full-version=true}))",
    "builtin.module(func.func(sdy-reshard-to-collectives))",
)


def with_explicit_collectives(module: Any) -> Any:
    """A copy of a lowered module in which Shardy has made every collective an operation.

    Jaxlib's `inline` pass leaves `func.call`s as they are, so the copy still has calls. What JAX
    lowers is not verified again after every pass, which would take twice as long as the passes.
    """
    copy = module.operation.clone()
    make_collectives_explicit(copy)
    return copy


def make_collectives_explicit(module: Any) -> None:
    """Have Shardy make every collective of a module an operation, in the module itself."""
    from jaxlib.mlir import passmanager

    for pipeline in _COLLECTIVE_PIPELINES:
        passes = passmanager.PassManager.parse(pipeline, module.context)
        passes.enable_verifier(False)
        passes.run(module.operation)


def shardy_mesh_axes(attribute: Any) -> tuple[tuple[str, int], ...]:
    """(name, size) of every axis of a `sdy.mesh` attribute, in mesh order."""
    from jaxlib.mlir.dialects import sdy

    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(attribute).axes)
    return tuple((axis.name, axis.size) for axis in axes)


def shardy_layout(attribute: Any) -> tuple[Any, tuple[tuple[Any, ...], ...]]:
    """(mesh name or mesh attribute, axes of each dimension) of a `sdy.sharding` attribute.

    An axis is (name, None), or (name, (product of the sizes before it, size)) for a sub-axis.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    sharding = sdy.TensorShardingAttr(attribute)
    dimensions = []
    for dimension in sharding.dimension_shardings:
        axes = []
        for entry in sdy.DimensionShardingAttr(dimension).axes:
            axis = sdy.AxisRefAttr(entry)
            part = axis.sub_axis_info
            if part is not None:
                part = sdy.SubAxisInfoAttr(part)
                part = (part.pre_size, part.size)
            axes.append((axis.name, part))
        dimensions.append(tuple(axes))
    mesh = sharding.mesh_or_ref
    if isinstance(mesh, ir.FlatSymbolRefAttr):
        mesh = mesh.value
    return mesh, tuple(dimensions)


def shardy_sharding_of(value: Any) -> Any | None:
    """The `sdy.sharding` attribute that an MLIR value carries, or None for a replicated value."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    owner = value.owner
    if not isinstance(owner, ir.Block):
        attributes = owner.attributes
        if "out_sharding" in attributes:
            return attributes["out_sharding"]
        number = ir.OpResult(value).result_number
        return _sharding_of_number(attributes, number, sdy)
    number = ir.BlockArgument(value).arg_number
    parent = owner.owner
    if parent.operation.name == "func.func":
        if "arg_attrs" not in parent.attributes:
            return None
        facts = ir.DictAttr(ir.ArrayAttr(parent.attributes["arg_attrs"])[number])
        return facts["sdy.sharding"] if "sdy.sharding" in facts else None  # noqa: SIM401
    return _sharding_of_number(parent.attributes, number, sdy)


def _sharding_of_number(attributes: Any, number: int, sdy: Any) -> Any | None:
    if "sdy.sharding" not in attributes:
        return None
    shardings = list(sdy.TensorShardingPerValueAttr(attributes["sdy.sharding"]).shardings)
    return shardings[number] if number < len(shardings) else None


def elements(kind: Any) -> int:
    """How many elements a value of an MLIR type has; 0 for one that is no array."""
    return math.prod(getattr(kind, "shape", ())) if getattr(kind, "has_static_shape", False) else 0


def is_block_argument(value: Any) -> int | None:
    """The number of an MLIR value among its block's arguments, or None for an op's result."""
    from jaxlib.mlir import ir

    return ir.BlockArgument(value).arg_number if isinstance(value.owner, ir.Block) else None


def splat_integer(attribute: Any) -> int | None:
    """The integer of a constant's scalar value, or None where it is not one integer."""
    from jaxlib.mlir import ir

    try:
        dense = ir.DenseElementsAttr(attribute)
        return int(ir.IntegerAttr(dense.get_splat_value()).value) if dense.is_splat else None
    except ValueError:
        return None


def location_frames(location: Any) -> tuple[str, tuple[tuple[str, int], ...]]:
    """(name stack, frames as (file name, line), innermost first) of an MLIR location."""
    from jaxlib.mlir import ir

    name = location.name_str if isinstance(location, ir.NameLoc) else ""
    frames: list[tuple[str, int]] = []
    pending = [location]
    while pending:
        here = pending.pop()
        if isinstance(here, ir.NameLoc):
            pending.append(here.child_loc)
        elif isinstance(here, ir.CallSiteLoc):
            pending.extend((here.caller, here.callee))
        elif isinstance(here, ir.FileLineColLoc):
            frames.append((here.filename, here.start_line))
        elif isinstance(here, ir.FusedLoc):
            pending.extend(reversed(list(here.locations)))
    return name, tuple(frames)


def partitionable_random_bits(equation: Any) -> bool:
    """Whether `equation` was traced so that each random number is computed from its index alone."""
    return bool(getattr(equation.ctx, "threefry_partitionable", True))


# -- compiling ---------------------------------------------------------------------------------


def module_bytecode(lowered: Any) -> bytes:
    """The StableHLO module of a `jax.stages.Lowered` as MLIR bytecode, source lines included."""
    import io

    buffer = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(buffer)
    return buffer.getvalue()


def stablehlo_of_hlo(proto: bytes, donated: Sequence[int]) -> Any:
    """The StableHLO module of a serialized `HloModuleProto`, its shardings included.

    The compiler moves what a loop does not change out of its carry and then has a sharding too many
    for it; so those of loops are laid on the values that enter the carry.

    Args:
      proto: of a module that is sharded by GSPMD's annotations.
      donated: positions of arguments whose memory results may take.
    """
    import importlib

    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    xla: Any = importlib.import_module("jaxlib._jax")

    def pin(operation: Any, shardings: Sequence[str]) -> None:
        for position, text in enumerate(shardings):
            value = operation.operands[position]
            with ir.InsertionPoint(operation), ir.Location.unknown():
                pinned: Any = stablehlo.CustomCallOp([value.type], [value], "Sharding")
            pinned.operation.attributes["mhlo.sharding"] = ir.StringAttr.get(text)
            operation.operands[position] = pinned.result

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.while" and "mhlo.sharding" in operation.attributes:
            text = ir.StringAttr(operation.attributes["mhlo.sharding"]).value
            del operation.attributes["mhlo.sharding"]
            shardings = re.findall(r"\{[^{}]*\}", text)
            pin(operation, shardings)
            body = operation.regions[1].blocks[0]
            pin(body.operations[len(body.operations) - 1].operation, shardings)
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context():
        module = ir.Module.parse(xla.mlir.hlo_to_stablehlo(proto))
        module.operation.walk(visit)
        operations: Any = module.body.operations
        (entry,) = (one for one in operations if ir.StringAttr(one.name).value == "main")
        attributes = [{named.name: named.attr for named in one} for one in entry.arg_attrs]
        for position in donated:
            attributes[position]["jax.buffer_donor"] = ir.BoolAttr.get(True)
        entry.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes])
    return module


def compile_bytecode(
    bytecode: bytes, devices: Sequence[Any], options: dict[str, Any], *, deviceless: bool
) -> tuple[str, dict[str, int]]:
    """(scheduled HLO text, memory in bytes per device) of a partitioned module, compiled.

    Args:
      bytecode: of a module whose inputs and outputs all carry shardings.
      devices: of its mesh in row-major order.
      options: of the compiler.
      deviceless: whether the devices are those of a topology, onto which nothing can be loaded.
    """
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    grid = np.empty((1, len(devices)), dtype=object)
    grid[0, :] = devices
    client: Any = devices[0].client
    compile_options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=grid,
        env_options_overrides=options,
        detailed_logging=False,
        backend=client,
    )
    with mlir.make_ir_context():
        module = ir.Module.parse(bytecode)
        where = xla_client.DeviceList(tuple(devices))
        compile_it = client.compile if deviceless else client.compile_and_load
        executable = compile_it(module, executable_devices=where, compile_options=compile_options)
    stats = executable.get_compiled_memory_stats()
    memory = {
        name: int(getattr(stats, f"{name}_in_bytes"))
        for name in (
            "argument_size",
            "output_size",
            "alias_size",
            "temp_size",
            "generated_code_size",
            "peak_memory",
        )
    }
    return executable.hlo_modules()[0].to_string(), memory


# -- Shardy:MPMD -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MpmdFragment:
    """A fragment as Shardy:MPMD knows it.

    `origins` are (name, transpose count) of the computations that it is made of.
    """

    origins: tuple[tuple[str, int], ...]
    mesh: str
    stage: int | None = None
    call_counter: int | None = None


@dataclass(frozen=True, slots=True)
class MpmdMerge:
    """A merge rule: `sources` become `target`."""

    sources: tuple[MpmdFragment, ...]
    target: MpmdFragment


def partition_mpmd(
    text: str,
    *,
    meshes: Sequence[tuple[str, Sequence[tuple[str, int]]]],
    assignment: Mapping[str, str | tuple[str, int]],
    input_meshes: Sequence[str | None],
    output_meshes: Sequence[str | None],
    order: Sequence[Sequence[MpmdFragment]] = (),
    merges: Sequence[MpmdMerge] = (),
    donated: Sequence[int] = (),
    schedule: str = "none",
    infer_transfers: bool = False,
) -> tuple[str, str]:
    """Run Shardy:MPMD's passes on a module with named computations in `@main`.

    `schedule` is one of its own ("GPipe", "1F1B", ...), or "none" to keep the order of the module.
    `order` becomes its schedule rules; the passes of jaxlib 0.10.2 do not obey them, so that the
    module itself must be in order. Returns the partitioned module, and the same as IFRT IR.
    """
    mpmd = _mpmd()
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    def info(one: MpmdFragment) -> Any:
        origins = [mpmd.FragmentOrigin(name, count) for name, count in one.origins]
        return mpmd.FragmentInfo(
            origins, stage_id=one.stage, call_counter=one.call_counter, mesh_name=one.mesh
        )

    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        result = mpmd.apply_mpmd_partitioning(
            module,
            "main",
            [(name, list(axes)) for name, axes in meshes],
            dict(assignment),
            list(input_meshes),
            list(output_meshes),
            list(donated),
            partitioning_options={
                "mpmd_pipeline_schedule": schedule,
                "mpmd_infer_transfers": infer_transfers,
            },
            fragment_merge_rules=[
                mpmd.FragmentMergeRule([info(one) for one in rule.sources], info(rule.target))
                for rule in merges
            ],
            fragment_schedule_rules=[
                mpmd.FragmentScheduleRule([info(one) for one in tasks]) for tasks in order
            ],
            phases=mpmd.PartitioningPhase.ALL,
        )
        module = result.mpmd_module
        partitioned = str(module)
        mpmd.lower_to_ifrt(module)
        return partitioned, str(module)


def _mpmd() -> Any:
    """jaxlib's module of Shardy:MPMD, which looks for jaxlib under `jax.jaxlib`."""
    import importlib
    import sys

    import jaxlib
    import jaxlib.mlir.ir
    from jaxlib.mlir.dialects import mpmd as _dialect  # noqa: F401

    sys.modules.setdefault("jax.jaxlib", jaxlib)
    for name in [name for name in sys.modules if name.startswith("jaxlib.")]:
        sys.modules.setdefault(f"jax.{name}", sys.modules[name])
    return importlib.import_module("jaxlib._sdy_mpmd")
