"""What is believed of a compiler, as data.

A **habit** is one sentence about what XLA:GPU or XLA:TPU does that no law of physics says: what it
fuses, in which order it runs kernels, what it copies, which collectives it joins. Each has a
source, the versions with which it was seen, and a **probe** where one could be made: a small
program, a machine and what to read off the compiled module. The compiler is the judge:

    holds      the probe's program compiles, and the module says what the habit claims
    lost       it says otherwise, as is known of the installed release (`machine.compiler.LOST`)
    broken     it says otherwise, or has again what is believed to be lost
    no probe   nobody asked

`autoshard bench habits` asks the installed compilers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autoshard.machine.compiler import lost


class Kernel(Protocol):
    """What runs as one: an instruction of a scheduled computation, with all fused into it."""

    @property
    def name(self) -> str: ...

    @property
    def opcode(self) -> str:
        """The instruction's own: ``fusion``, ``custom-call``, ``copy``, ``all-gather-start``..."""
        ...

    @property
    def opcodes(self) -> frozenset[str]:
        """Its own, and those of everything inside of it (nested fusions and wrapped calls too)."""
        ...

    @property
    def writes(self) -> tuple[str, ...]:
        """Types of its results, as ``bf16[8,128]``."""
        ...

    @property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        """Of each result, its dimensions from outermost to innermost in memory."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """Types of its operands."""
        ...

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of what makes its operands, in its computation; through bitcasts and tuples."""
        ...

    @property
    def inside(self) -> str:
        """The text of everything inside of it, a line each; empty where there is nothing."""
        ...

    @property
    def text(self) -> str:
        """The instruction with its attributes, as the module prints it."""
        ...

    @property
    def depth(self) -> int:
        """How many loops it stands in."""
        ...

    @property
    def position(self) -> int:
        """Its place in the order of execution; what stands in a loop's body comes at the loop."""
        ...


class Built(Protocol):
    """A compiled program, as far as probes read it. Shapes are those on one device."""

    @property
    def peak_bytes(self) -> int: ...

    @property
    def temporary_bytes(self) -> int: ...

    @property
    def step_seconds(self) -> float:
        """By the compiler's own timeline or cycles."""
        ...

    def seconds_of(self, kernel: Kernel) -> float:
        """By the compiler's own timeline; of a collective, from its begin to its end."""
        ...

    def kernels(self, *opcodes: str, writes: str = "", reads: str = "") -> Sequence[Kernel]:
        """Those in which all of `opcodes` stand, in order; that write or read a type like this one.

        `writes` and `reads` match whole types, with ``*`` for any part: ``bf16[*]``, ``*[8,1024]``.
        """
        ...

    def collectives(self, kind: str = "") -> Sequence[Kernel]:
        """Collectives (begins of asynchronous ones), as ``all-gather``, in order of execution."""
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """A small program for a machine, and what to read off what the compiler makes of it.

    Attributes:
      build: makes the step and its abstract arguments (`jax.ShapeDtypeStruct`s).
      machine: a preset, as ``h100-8``.
      mesh: axis sizes, whose product is the number of the machine's chips.
      inputs: a `PartitionSpec` as a tuple for every flat argument; () replicates.
      outputs: likewise of every flat result.
      donated: positions of the arguments that the step may write over.
      flags: of the compiler, see `autoshard.machine.compiler.FLAGS`.
      reading: whether the compiled module does what the habit claims.
    """

    build: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    machine: str
    mesh: Mapping[str, int]
    inputs: tuple[tuple[Any, ...], ...]
    outputs: tuple[tuple[Any, ...], ...]
    reading: Callable[[Built], bool]
    donated: tuple[int, ...] = ()
    flags: str = "default"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a habit stays that buys little of the errors of steps and peaks.

    Attributes:
      kind: one of `REASONS_TO_KEEP`.
      why: one sentence: what goes wrong without it.
    """

    kind: str
    why: str


REASONS_TO_KEEP: Mapping[str, str] = {
    "memory": "a plan would be said to fit that does not",
    "collectives": "others run than were planned, or with other bytes",
    "promise": "a plan would be chosen for seconds that it does not keep",
    "bound": "it says where the rule of another habit ends, or begins",
    "shared": "the other compiler follows the same rule, where it is worth it",
    "unsettled": "predictions of the plans in which it acts are wrong by more for other reasons",
    "unmeasured": "no plan that was compiled has what it is about",
}
"""Kinds of reasons, and what each says."""


@dataclass(frozen=True, slots=True)
class Habit:
    """One belief about a compiler.

    Attributes:
      name: ``gpu.gathers-along-first-dimension``.
      compiler: ``xla:gpu`` or ``xla:tpu``.
      claim: one sentence.
      source: a file of the public XLA sources, or ``observed``.
      seen: versions of the compiler's package with which the probe agreed.
      probe: how to ask the compiler; None where nobody knows how.
      chips: the chips that it is about, where not all.
      kept_for: why it stays, where `benchmarks/HABITS.md` does not say that it buys anything.
    """

    name: str
    compiler: str
    claim: str
    source: str
    seen: tuple[str, ...] = ()
    probe: Probe | None = None
    chips: tuple[str, ...] = ()
    kept_for: Reason | None = None


def seen(habit: str, releases: Mapping[str, str]) -> tuple[str, ...]:
    """Packages with which a habit was seen, of those probed, by their jaxlib's release."""
    return tuple(package for release, package in releases.items() if not lost(habit, release))
