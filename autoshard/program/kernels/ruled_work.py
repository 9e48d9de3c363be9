"""What a function of `autoshard.kernel` computes and moves.

What its user says, or else what it holds: its equations, those of loops as often as they run, of
branches the dearest, kernels by their own count. Arrays that it makes on the way stay on the chip;
operands and results are moved once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autoshard import compat
from autoshard.program.kernels.records import Arithmetic, Counts, KernelWork
from autoshard.program.kernels.work import CALLS
from autoshard.program.vocabulary import INLINED


def ruled_work(
    equation: Any, counts: Counts, of_kernel: Callable[[Any], KernelWork | None]
) -> KernelWork:
    """The work of an equation of `compat.RULED` on whole arrays.

    Args:
      equation: of the call.
      counts: what an equation without a body computes.
      of_kernel: what a kernel computes; None for other equations.
    """
    said = equation.params["rule"].said
    inside = _Inside(counts, of_kernel)
    done = inside.arithmetic(equation.params["call_jaxpr"].jaxpr)
    if said.flops is not None:
        done = replace(done, products=said.flops, elementwise=0.0, filled=())
    atoms = (*equation.invars, *equation.outvars)
    moved = sum(math.prod(one.aval.shape) * one.aval.dtype.itemsize for one in atoms)
    return KernelWork(
        name=equation.params["name"],
        grid=(),
        arithmetic=done,
        dtype=said.dtype or inside.dtype or str(equation.invars[0].aval.dtype),
        bytes=float(moved) if said.bytes is None else said.bytes,
        guessed=inside.guessed and said.flops is None,
        whole=(),
        unknown=tuple(dict.fromkeys(inside.unknown)) if said.flops is None else (),
    )


class _Inside:
    """One walk through a function; notes the type of its products, and whether data decides."""

    def __init__(self, counts: Counts, of_kernel: Callable[[Any], KernelWork | None]) -> None:
        self.counts, self.of_kernel = counts, of_kernel
        self.dtype = ""
        self.guessed = False
        self.unknown: list[str] = []

    def arithmetic(self, jaxpr: Any) -> Arithmetic:
        """What a jaxpr computes."""
        total = Arithmetic()
        for equation in jaxpr.eqns:
            total = total.plus(self._equation(equation))
        return total

    def _equation(self, equation: Any) -> Arithmetic:
        name, params = equation.primitive.name, equation.params
        work = self.of_kernel(equation)
        if work is not None:
            self.dtype, self.guessed = work.dtype, self.guessed or work.guessed
            self.unknown += work.unknown
            return work.arithmetic
        bodies = [body for body, _ in compat.bodies_of(equation)]
        if name == "cond":
            return max(map(self.arithmetic, bodies), key=lambda one: one.flops)
        if name == "while":
            self.guessed = True
            self.unknown.append("the turns of a loop, counted as one")
        if name in ("scan", "while") or name in CALLS or name in INLINED:
            turns = params["length"] if name == "scan" else 1
            total = Arithmetic()
            for body in bodies[-1:] if name not in ("scan", "while") else bodies:
                total = total.plus(self.arithmetic(body), turns)
            return total
        found = self.counts(equation)
        if found.products:
            self.dtype = str(equation.invars[0].aval.dtype)
        return found
