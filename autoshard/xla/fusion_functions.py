"""Keep which transcendental ops are fused into each value, in memory linear in the program.

Every value has one node at most. A node names the nodes of what is fused into its value; what they
hold is counted once, however many paths lead there. A value with one node behind it and no
transcendental op of its own shares that node, so that long chains of cheap ops add nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autoshard.program.flops import TRANSCENDENTAL
from autoshard.program.graph import Op, Program


@dataclass(frozen=True, slots=True, eq=False)
class Functions:
    """The transcendental ops in a kernel.

    Attributes:
      op: the op of this node; -1 if the node only joins others.
      before: the nodes fused into it.
      names: the primitives of all ops, here and before.
    """

    op: int = -1
    before: tuple[Functions, ...] = ()
    names: frozenset[str] = frozenset()

    def ops(self) -> set[int]:
        """Return all ops, each once."""
        seen: set[Functions] = {self}
        waiting: list[Functions] = [self]
        while waiting:
            fresh = set(waiting.pop().before) - seen
            seen |= fresh
            waiting += fresh
        return {node.op for node in seen} - {-1}


NONE = Functions()


@dataclass(slots=True)
class FusedFunctions:
    """By value, the transcendental ops that are fused into it."""

    program: Program
    of_value: list[Functions] = field(default_factory=list)

    def of(self, op: Op) -> Functions:
        """Return the ops that a kernel of `op` computes: its own, and those fused into it."""
        before = tuple(dict.fromkeys(self.of_value[i] for i in op.inputs if i >= 0))
        before = tuple(one for one in before if one is not NONE)
        own = op.primitive in TRANSCENDENTAL
        if not own and len(before) < 2:
            return before[0] if before else NONE
        names = frozenset((op.primitive,) if own else ()).union(*(one.names for one in before))
        return Functions(op.index if own else -1, before, names)

    def exponentials(self, functions: Functions) -> float:
        """Return the work of these ops, in exponentials of one element."""
        ops = (self.program.ops[index] for index in sorted(functions.ops()))
        return sum(
            TRANSCENDENTAL[op.primitive] * math.prod(self.program.values[op.outputs[0]].shape)
            for op in ops
        )
