"""The arrays that a user's code reads and makes while it is traced, by function and frame."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.compat.jaxprs import called_jaxpr_of, is_literal
from autoshard.compat.layout_primitives import PRODUCTS, Read, bind_reading, run_reading
from autoshard.compat.process_wide import no_user_lines, replaced
from autoshard.compat.source_lines import OWN_FOLDER


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
        from jax._src import core, source_info_util

        no_user_lines(OWN_FOLDER)  # `bind` is not a line of the user's
        self.reset, self.original = source_info_util.reset_name_stack, core.Primitive.bind
        self.thread = threading.get_ident()
        self.entered = contextlib.ExitStack()
        self.entered.enter_context(
            replaced(bind=self._bound, trace=self._trace_each, reset_name_stack=self._traced_anew)
        )
        self.entered.enter_context(self.fresh)

    def __exit__(self, *error: Any) -> None:
        self.entered.__exit__(*error)

    def _trace_each(self, trace: Any, function: Any, *facts: Any) -> Any:
        """A function that `jax.checkpoint` traces, given its arguments as told."""
        import jax

        def called(*args: Any, **kwargs: Any) -> Any:  # traces are kept by function
            arrays, tree = jax.tree.flatten((args, kwargs))
            args, kwargs = jax.tree.unflatten(tree, self._given(function, arrays))
            return function(*args, **kwargs)

        return trace(called, *facts)

    def _bound(self, original: Any, primitive: Any, *operands: Any, **parameters: Any) -> Any:
        if self._elsewhere() or _changes_nothing(primitive.name, operands, parameters):
            return original(primitive, *operands, **parameters)
        return self._bind(primitive, operands, parameters)

    @contextlib.contextmanager
    def _traced_anew(self) -> Any:
        """Stands for the context in which JAX traces a function by itself."""
        before, frames = self.around, self._frames()
        first = next((k for k, one in enumerate(frames) if one.user), 0)
        called = frames if in_checkpoint(frames[:first]) else ()
        self.around = Standing(called, self._scope())
        try:
            with self.reset():
                yield
        finally:
            self.around = before

    def _bind(self, primitive: Any, operands: Sequence[Any], parameters: Mapping[str, Any]) -> Any:
        """The results of an operation of user code, or of a call that JAX replaces by its body."""
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
            bound = functools.partial(self.original, primitive, **parameters)
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

    def _elsewhere(self) -> bool:
        """Whether this is not user code."""
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
            if code.co_filename.startswith(OWN_FOLDER):
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
