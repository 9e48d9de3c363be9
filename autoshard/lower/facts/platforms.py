"""For which platforms a step can be lowered.

What calls Python is lowered for a device that is there. What Shardy makes of a step does not depend
on the platform, so it is read from the first for which everything in the step has a lowering.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from autoshard import compat
from autoshard.lower.parts.cut import LoweringError
from autoshard.program.graph import Op, Program
from autoshard.program.vocabulary import CALLS_PYTHON

_PLATFORMS = ("tpu", "cpu", "cuda")


def calls_of_python(program: Program) -> list[Op]:
    """The ops that call Python code."""
    return [op for op in program.ops if op.primitive in CALLS_PYTHON]


def calls_of_code(program: Program) -> list[Op]:
    """The ops that call Python code or kernels, which not all platforms can."""
    opaque = (*CALLS_PYTHON, *compat.KERNELS, compat.RULED)
    return [op for op in program.ops if op.primitive in opaque]


def without_lowering(program: Program, *platforms: str) -> list[Op]:
    """The first op of every primitive that JAX can lower for none of `platforms`."""
    first = {op.primitive: op for op in reversed(program.ops) if not op.boundary}
    return [
        op
        for name, op in sorted(first.items())
        if not any(compat.has_lowering(name, one) for one in platforms)
    ]


def platform_to_read(program: Program) -> str:
    """The platform for which a step is lowered to be read, and not to be run."""
    fitting = (one for one in _PLATFORMS if not without_lowering(program, one))
    return next(fitting, _PLATFORMS[0])


def check_platforms(program: Program, platforms: Sequence[str]) -> None:
    """Refuse to lower calls of Python for a platform that has no device here.

    Raises:
      LoweringError: all of them are named, with their lines.
    """
    here = jax.default_backend()
    absent = [one for one in platforms if one != here]
    calls = calls_of_python(program)
    if calls and absent:
        raise LoweringError(
            f"the step calls Python, which JAX lowers for a device that is there, and {absent[0]} "
            f"is not (JAX sees {here}):\n"
            + "\n".join(f"  {op}" for op in calls)
            + "\ntake these calls out of the step where it is compiled without devices, for "
            "example with a flag of the function that makes it"
        )
