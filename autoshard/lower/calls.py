"""Bodies of calls: walked over in place, or traced by JAX on their own.

`checkpoint` before differentiation, and functions with a derivative rule of their own, stay what
they are. JAX traces their bodies when it wants to, so that a body is a function of its operands and
of the resharded copies that it reads, which are made outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from autoshard import compat
from autoshard.lower.walk import Walk
from autoshard.program.flatten import op_count


class Calls(Walk):
    """The walk into what is called."""

    def _call(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        body, consts = compat.called_jaxpr(equation)
        return self._walk(body, consts, [a for a, _ in operands], [v for _, v in operands])

    def _remat(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """A checkpointed body: behind a barrier once differentiated, under `checkpoint` before."""
        body, consts = compat.called_jaxpr(equation)
        arrays, values = [a for a, _ in operands], [v for _, v in operands]
        if equation.params["differentiated"]:
            if equation.params["prevent_cse"]:
                arrays = self._barrier(arrays, values)
            return self._inside(body, consts, arrays, values)
        function, found, shared = self._separate(body, consts, values, arrays)
        prevent_cse, policy = equation.params["prevent_cse"], equation.params["policy"]
        run = jax.checkpoint(function, prevent_cse=prevent_cse, policy=policy)
        return self._remember(run(*arrays, *shared), found)

    def _barrier(self, arrays: Sequence[Any], values: Sequence[int]) -> list[Any]:
        """`arrays` behind a barrier, but for those that are free to be computed anywhere."""
        bound = [k for k, v in enumerate(values) if v >= 0 and not self.program.values[v].free]
        behind = list(arrays)
        if bound:
            barred = jax.lax.optimization_barrier(tuple(arrays[k] for k in bound))
            for k, array in zip(bound, barred, strict=True):
                stored = self.decisions.stored[values[k]]
                assert stored is not None
                behind[k] = self._constrain(array, stored)
        return behind

    def _custom(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """A function with a derivative rule of its own: our body, the user's rule."""
        body, consts = compat.called_jaxpr(equation)
        arrays, values = [a for a, _ in operands], [v for _, v in operands]
        primal, found, shared = self._separate(body, consts, values, arrays)
        results = compat.with_derivative_of(equation, primal)(*arrays, *shared)
        return self._remember(results, found)

    def _separate(
        self, body: Any, consts: Sequence[Any], values: Sequence[int], arrays: Sequence[Any]
    ) -> tuple[Callable[..., list[Any]], list[int], list[Any]]:
        """A body that JAX traces on its own, as a function of its operands and of shared copies.

        Returns the function, a list that it fills with the values of its results, and the resharded
        copies that the body reads: they are made outside, where others read them too.
        """
        start, stop = self.cursor, self.cursor + op_count(body)
        found: list[int] = []
        keys: list[tuple[int, bool]] = []
        for value, array in dict(zip(values, arrays, strict=True)).items():
            for use in self.readers[value] if value >= 0 else ():
                key = (value, self._is_anew(value, use.phase))
                inside = start <= use.op < stop and key not in keys
                if inside and self._reads_copy(self.program.ops[use.op], use.position):
                    keys.append(key)
                    self._copy(value, array, anew=key[1])
        shared = [self.copies[key] for key in keys]

        def function(*inner: Any) -> list[Any]:
            self.cursor = start
            copies = dict(zip(keys, inner[len(arrays) :], strict=True))
            results = self._inside(body, consts, inner[: len(arrays)], values, copies=copies)
            found[:] = [value for _, value in results]
            return [array for array, _ in results]

        return function, found, shared

    def _remember(self, results: Sequence[Any], values: Sequence[int]) -> list[tuple[Any, int]]:
        for array, value in zip(results, values, strict=True):
            if value >= 0:
                self.arrays[value] = array
        return list(zip(results, values, strict=True))

    def _inside(
        self,
        body: Any,
        consts: Sequence[Any],
        arrays: Sequence[Any],
        values: Sequence[int],
        *,
        copies: dict[tuple[int, bool], Any] | None = None,
    ) -> list[tuple[Any, int]]:
        """Walk an inlined body whose arguments are new arrays of known values.

        Resharded copies are shared with the outside, unless the body is traced on its own: then it
        knows only the `copies` given, and the outside none of its own.
        """
        keep = copies is None
        saved, outside = dict(self.arrays), self.copies
        if copies is not None:
            self.copies = copies
        for value, array in zip(values, arrays, strict=True):
            if value >= 0:
                self.arrays[value] = array
        results = self._walk(body, consts, arrays, values)
        if keep:
            for value in values:
                if value >= 0:
                    self.arrays[value] = saved[value]
        else:
            self.arrays, self.copies = saved, outside
        return results
