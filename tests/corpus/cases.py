"""What the corpus holds: every built-in in small on a slow machine, and some at their real size.

On a real chip the best plan for a small program replicates everything. So the small ones are for
the toy machine of `tests.helpers`, on which every bit of sharding pays, with XLA:TPU.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from autoshard import models
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.program.trace import Program, trace
from tests.helpers import toy_machine, with_compiler, with_lost_habits

TOY = "toy-8"


@dataclass(frozen=True, slots=True)
class Case:
    """A program on a machine under one mesh.

    Attributes:
      program: a built-in; `NAME:tiny` is its small version.
      machine: a preset, or `toy-8`.
      sizes: of the mesh axes, which are called x, y, z.
      arguments: of the program's factory, such as `batch`.
      memory_limit: bytes per device; None for what the chip has less its reserve.
      solved: whether the test solves it again. Then it is kept with a proof that nothing is better.
    """

    program: str
    machine: str
    sizes: tuple[int, ...]
    arguments: tuple[tuple[str, int], ...] = ()
    memory_limit: float | None = None
    solved: bool = False

    @property
    def name(self) -> str:
        """Of the file and of the test."""
        limit = "" if self.memory_limit is None else f"-{self.memory_limit / 2**10:g}KiB"
        mesh = "x".join(map(str, self.sizes))
        step = self.step.replace(":", "-").replace(",", "-").replace("=", "-")
        return f"{step}-on-{self.machine}-{mesh}{limit}"

    @property
    def step(self) -> str:
        """The program and its arguments."""
        return ",".join([self.program, *(f"{key}={value}" for key, value in self.arguments)])

    @property
    def mesh(self) -> Mapping[str, int]:
        """Names and sizes of the mesh axes."""
        return dict(zip("xyz", self.sizes, strict=False))

    @property
    def shape(self) -> MeshShape:
        """The mesh as a plan holds it."""
        return MeshShape(tuple(self.mesh), self.sizes)

    def build(self) -> tuple[Program, Machine]:
        """The traced program, and the machine."""
        toy = with_compiler(toy_machine(), name="xla:tpu")
        machine = toy if self.machine == TOY else with_lost_habits(load(self.machine))
        return _traced(self.program, self.arguments), machine


@functools.cache  # a trace takes seconds, and a case is built several times
def _traced(program: str, arguments: tuple[tuple[str, int], ...]) -> Program:
    name, _, size = program.partition(":")
    built = models.tiny(name) if size == "tiny" else models.build(name, **dict(arguments))
    return trace(built.fn, *built.args, name=program, **built.options)


SOLVED = ("mlp", "llama3-8b", "llama3-8b-decode", "gnn", "vit-l16")

CASES = (
    *(Case(f"{name}:tiny", TOY, (2, 4), solved=name in SOLVED) for name in models.names()),
    Case("mlp:tiny", TOY, (8,), solved=True),
    Case("mlp:tiny", TOY, (2, 2, 2), solved=True),
    Case("mlp:tiny", TOY, (2, 4), memory_limit=18 * 2.0**10, solved=True),
    Case("llama3-8b:tiny", TOY, (8,), memory_limit=270 * 2.0**10),
    Case("llama3-1b", "v5e-16", (4, 4), (("batch", 16), ("sequence", 2048))),
    Case("llama3-8b", "v5p-64", (8, 8)),
    Case("llama3-8b", "h100-8", (8,), (("batch", 8),)),
    Case("llama3-8b-decode", "h100-8", (2, 4)),
    Case("llama3-70b", "v5p-64", (8, 8)),
    Case("mixtral-8x7b", "b200-16", (2, 8)),
    Case("vit-l16", "h200-8", (2, 4)),
    Case("resnet50", "a100-16", (2, 8)),
    Case("vit-l16", "mi300x-8", (8,)),
    Case("gnn", "v4-8", (8,)),
    Case("mlp", "v5e-16", (4, 4)),
)
