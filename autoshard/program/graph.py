"""The records of a traced program: values, ops, regions, and the graph of them.

See `autoshard.program` for what they mean and how they are made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard.program.kernels.records import KernelWork
from autoshard.program.layout import short_dtype
from autoshard.program.rules.ask_shardy import Rule
from autoshard.units import counted


@dataclass(frozen=True, slots=True)
class Value:
    """One array: `shape`, `dtype`, the op that makes it (-1: an input or a constant).

    It lies in the memory of the chips, or in that of their `host`.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    producer: int
    trips: int
    path: str = ""
    free: bool = False
    host: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the whole (unsharded) array."""
        return math.prod(self.shape) * self.itemsize

    def __str__(self) -> str:
        short = short_dtype(self.dtype)
        return f"{short}{'<host>' * self.host}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Op:
    """One equation or boundary op. `inputs` holds -1 where the operand is a literal.

    An op of the backward pass is `recomputed` when it makes a value of the forward pass again (of
    `jax.checkpoint`). A ragged product has `groups`, see `autoshard.program.ragged`; a Pallas call
    is a `kernel`.
    """

    index: int
    primitive: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    rule: Rule
    scope: str
    line: str
    backward: bool
    recomputed: bool
    trips: int
    region: int
    flops: float
    boundary: bool = False
    weight: float = 1.0
    literal_shapes: tuple[tuple[int, ...], ...] = ()
    groups: int = 1
    kernel: KernelWork | None = None

    @property
    def product_flops(self) -> float:
        """FLOP of a matrix op on the matrix units: of a kernel, of its products alone."""
        return self.flops if self.kernel is None else self.kernel.arithmetic.products

    def __str__(self) -> str:
        return f"{self.primitive} at {self.scope or '(top)'} ({self.line or 'no source line'})"


def is_free(op: Op, values: Sequence[Value]) -> bool:
    """Whether an op makes free values alone, so that a plan decides nothing of it.

    An op without results has an effect instead, and reads what it is given in a planned layout.
    """
    return bool(op.outputs) and all(values[output].free for output in op.outputs)


@dataclass(frozen=True, slots=True)
class Region:
    """A loop or branch: ops `start <= index < stop`, run `trips` times in all."""

    index: int
    parent: int
    start: int
    stop: int
    trips: int
    kind: str


REWRITES = (
    "saved", "offloaded", "prefetch", "microbatches", "early_casts", "late_sums", "early_pads",
    "parts", "host", "platforms",
)  # fmt: skip
"""Options of a trace by which the step is another than the function's own."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A step as a graph; see the module docstring. `ties` pairs positions of inputs and outputs.

    `outline` is what of it a plan needs (`autoshard.program.fingerprint`), and `fingerprint` is
    made of that. `argument_names` are those of the function's parameters, by position. `dead_ops`
    of what the function computes are left out, since no result depends on them. `explicit` says
    whether it was written for Explicit mesh axes, and `argument_shardings` how its flat inputs lie
    over these. `shard_maps` says whether the function calls `jax.shard_map`; the bodies of such
    calls are ops of the program as all others are. `changed` pairs the flat inputs that the step
    changes in place with the results that take their places, and `refs` are the inputs that are
    `jax.Ref`s; see `autoshard.program.state`. `jaxpr` is what is planned, and `written` what the
    user wrote, in microbatches if it was told to (`autoshard.program.microbatches`); it may save
    other values for its backward pass (`autoshard.program.keep`).
    `user_rules` are those that it was traced with. `facts` keeps what `autoshard.xla.analyse` found
    for each chip.
    """

    name: str
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    regions: tuple[Region, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ties: tuple[tuple[int, int], ...]
    carries: tuple[tuple[int, int], ...]
    donated: frozenset[int]
    options: Mapping[str, Any]
    constant_bytes: int
    fingerprint: str
    jaxpr: Any = field(repr=False)
    written: Any = field(repr=False)
    in_tree: Any = field(repr=False)
    out_tree: Any = field(repr=False)
    outline: tuple[str, ...] = field(default=(), repr=False)
    argument_names: tuple[str, ...] = ()
    dead_ops: int = 0
    explicit: bool = False
    shard_maps: bool = False
    argument_shardings: tuple[Any, ...] = ()
    changed: tuple[tuple[int, int], ...] = ()
    refs: frozenset[int] = frozenset()
    user_rules: Mapping[str, Any] = field(default_factory=dict, repr=False)
    facts: dict[Any, Any] = field(init=False, default_factory=dict, repr=False)

    @property
    def input_paths(self) -> tuple[str, ...]:
        """Tree path of every flat input, such as `[0]['layers']['wq']`."""
        return tuple(self.values[i].path for i in self.inputs)

    @property
    def output_paths(self) -> tuple[str, ...]:
        """Tree path of every flat output."""
        return tuple(self.values[i].path for i in self.outputs)

    def consumers(self) -> list[list[tuple[int, int]]]:
        """For every value the list of (op index, operand position) that read it."""
        result: list[list[tuple[int, int]]] = [[] for _ in self.values]
        for op in self.ops:
            for position, value in enumerate(op.inputs):
                if value >= 0:
                    result[value].append((op.index, position))
        return result

    def __str__(self) -> str:
        state = len(self.ties)
        size = sum(self.values[i].bytes for i in self.inputs)
        return (
            f"program {self.name}: {counted(len(self.ops), 'op')}, "
            f"{counted(len(self.values), 'value')}, "
            f"{counted(len(self.inputs), 'input')} ({size / 2**30:.2f} GiB, {state} of "
            "them state), "
            f"{counted(len(self.regions) - 1, 'region')}"
        )

    def __repr__(self) -> str:
        return f"<{self}>"
