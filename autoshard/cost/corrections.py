"""What a compiler taught of one program: factors on the prices of its parts.

The cost laws know the program's operations, and not what a compiler makes of them: transposes
before a product, tensors that are written where they could be fused, kernels far from the peak.
Such things belong to a program and its compiler, and hardly change with the sharding, so they are
learned from compiled plans (`autoshard.study.residuals`) and kept as a factor per **part**:

    part      the operations of one scope and pass, and in it one of two units:
              ("transpose(jvp(layers))/attention", "vector")

and as the shares of a collective's seconds that add to the step: of those that can run beside
compute, and of all others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autoshard.program.flops import is_matrix_op
from autoshard.program.trace import Op

Unit = Literal["matrix", "vector"]
Part = tuple[str, Unit]

_STRUCTURE = frozenset(
    {"while", "body", "cond", "closed_call", "eval_jaxpr", "checkpoint", "remat", "pjit"}
)
_NAME = re.compile(r"[\w().\[\]\-#]+")


@dataclass(frozen=True, slots=True)
class Corrections:
    """Factors on the prices of one program.

    Attributes:
      factors: by part, what its roofline seconds are multiplied with.
      otherwise: the factor of every other part.
      hidden: share of a collective's seconds that adds to the step where it can run beside
        compute; None: what the machine's overlap leaves.
      waited: share of every other collective's.
    """

    factors: Mapping[Part, float] = field(default_factory=dict)
    otherwise: float = 1.0
    hidden: float | None = None
    waited: float = 1.0

    def factor(self, op: Op) -> float:
        """What the roofline seconds of `op` are multiplied with."""
        return self.factors.get(part_of(op), self.otherwise) if self.factors else self.otherwise

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "factors": [[*part, factor] for part, factor in self.factors.items()],
            "otherwise": self.otherwise,
            "hidden": self.hidden,
            "waited": self.waited,
        }


NONE = Corrections()


def part_of(op: Op) -> Part:
    """The part that an operation of a program belongs to."""
    return scope_key(op.scope), "matrix" if is_matrix_op(op.primitive) else "vector"


def scope_key(scope: str) -> str:
    """A name stack as program and compiler both have it.

    Without loops, calls and the names of einsums; numbers, as of unrolled layers, are `#`.

    >>> scope_key("jit(step)/jvp(layer_3)/while/body/closed_call/attention/bsd,dnh->bsnh")
    'jvp(layer_#)/attention'
    """
    kept = (
        piece
        for piece in scope.split("/")
        if piece not in _STRUCTURE and not piece.startswith("jit(") and _NAME.fullmatch(piece)
    )
    return re.sub(r"\d+", "#", "/".join(kept))
