"""Model fusion: which results reach memory, and what each kernel reads.

An elementwise result stays out of memory if every reader is an op of the same region that can
recompute it, and recomputing moves fewer bytes than writing and reading it. A result of `b` bytes,
computed from values of `s` bytes and read by `k` ops, is fused where

    k s  +  (k - 1) e  <=  s + b + k b

Here `e` is the number of bytes that memory could move while its transcendental functions are
computed once more. So the backward pass recomputes an activation function from its argument, which
stays live, while a residual stream with many readers is written. XLA's own fusion weighs similar
costs. XLA:GPU computes a function that decomposes into dozens of instructions (`LONG`) only once:
if several kernels read the result, it is written.

Nothing is fused across an `optimization_barrier`, which does nothing itself.

Kernels that read the same arrays run as one, see `autoshard.xla.fusion_siblings`. A product reads
the array that its result is added to, see `autoshard.xla.fusion_accumulate`.

`FusionRules` looks up the compiler's habits by name, once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.machine.chip import Chip
from autoshard.machine.compiler import LAWS, Compiler
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op, Program, Value
from autoshard.program.strategies import is_layout_determined
from autoshard.program.vocabulary import ALGORITHMS, BARRIER, SCATTERS, TRANSFERS, UPDATES
from autoshard.xla.fusion_accumulate import find_accumulated
from autoshard.xla.fusion_functions import NONE, Functions, FusedFunctions
from autoshard.xla.fusion_siblings import Joined, at_hand

FUSING_REDUCTIONS = frozenset(
    {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"}
)
REDUCING = frozenset({*FUSING_REDUCTIONS, "argmax", "argmin", "reduce"})
"""These and reductions with several results: they compute elementwise operands likewise."""
WRITTEN = frozenset({*UPDATES, *ALGORITHMS, *TRANSFERS, "fft"})
"""Ops whose results no later kernel can recompute elementwise, whatever their rule says."""

TAKING_PARTS = frozenset({"slice", "dynamic_slice"})
"""Ops whose kernel reads no more of an array than it makes."""

LONG = frozenset({"erfc"})
"""Functions whose result XLA:GPU writes if it has several readers. Observed for exact GELU, in
float32 and bfloat16 on H100 and A100. XLA:TPU recomputes them in float32."""


@dataclass(frozen=True, slots=True)
class FusionRules:
    """What a compiler fuses. Each field is one of its habits.

    Attributes:
      into_elementwise, into_reductions, into_scattered: which ops compute their
        operands inside their own kernel: elementwise ops, reductions, lookups (their table),
        scatters (their updates). XLA:TPU writes tables first; this is not modelled here.
      over_barriers: whether a barrier is fused like an op that does nothing.
      pads: whether a pad runs in the kernels that read it.
      anew: whether several readers may each recompute what they read.
      functions_anew, exponentials_anew: whether they may also do so where the value contains
        transcendental functions, or exponentials.
      by_bytes: whether they recompute only where that moves fewer bytes.
      counts_functions: whether transcendental functions take time in this comparison.
      long_written: whether the result of a long function with several readers is written.
      siblings, reductions_join: whether elementwise kernels, and reductions, are merged with
        kernels that read the same arrays.
    """

    into_elementwise: bool
    into_reductions: bool
    into_scattered: bool
    over_barriers: bool
    pads: bool
    anew: bool
    functions_anew: bool
    exponentials_anew: bool
    by_bytes: bool
    counts_functions: bool
    long_written: bool
    siblings: bool
    reductions_join: bool

    @classmethod
    def of(cls, compiler: Compiler) -> FusionRules:
        has, denies = compiler.has, compiler.denies
        return cls(
            into_elementwise=not denies("gpu.elementwise-chain"),
            into_reductions=not denies(
                "gpu.rows-compute-operands", "tpu.elementwise-into-reductions"
            ),
            into_scattered=has("gpu.scatters-compute-updates"),
            over_barriers=denies("gpu.nothing-over-barriers", "tpu.barriers-part-kernels"),
            pads=has("tpu.pads-run-in-readers"),
            anew=not denies("gpu.cheap-computed-anew", "tpu.made-anew-for-two-products"),
            functions_anew=not denies("tpu.activations-made-anew"),
            exponentials_anew=not denies("tpu.exponentials-made-anew-backward"),
            by_bytes=not denies("gpu.dear-written", "tpu.written-for-many-readers"),
            counts_functions=not denies("gpu.functions-are-multiples"),
            long_written=has("gpu.long-functions-written")
            or denies("tpu.long-functions-made-anew"),
            siblings=not denies("gpu.siblings-run-as-one", "tpu.optimizers-in-one-kernel"),
            reductions_join=not denies(
                "gpu.reductions-join-siblings", "tpu.reductions-of-one-array-together"
            ),
        )

    def is_elementwise(self, op: Op) -> bool:
        """Whether an op fuses with its neighbours: it keeps the layout and reduces nothing."""
        apart = op.boundary or is_matrix_op(op.primitive) or op.primitive in WRITTEN
        if apart or (op.primitive == BARRIER and not self.over_barriers):
            return False
        if op.primitive == "pad" and self.pads:
            return True
        # One place of a cut dimension is looked up, and summed; any other slice is read in place.
        return op.primitive == "dynamic_slice" or is_layout_determined(op.rule)

    def computes(self, op: Op, position: int, elementwise: bool) -> bool:
        """Whether the op recomputes its elementwise operand at `position` in its own kernel."""
        if elementwise:
            return self.into_elementwise
        if op.primitive in REDUCING:
            return self.into_reductions
        if op.primitive == "gather":
            return position == 0
        scattered = op.primitive in SCATTERS and position == len(op.inputs) - 1
        return self.into_scattered and scattered

    def may_make_anew(self, functions: Collection[str]) -> bool:
        """Whether several readers may each recompute a value that contains `functions`."""
        if not self.anew or (functions and not self.functions_anew):
            return False
        return self.exponentials_anew or "exp" not in functions


@dataclass(frozen=True, slots=True)
class Fusion:
    """The fusion of a program.

    Attributes:
      elementwise: per op, whether it fuses with its neighbours.
      materialised: per value, whether it is written to memory.
      fetched: per op and operand, the bytes of whole values that are read from memory for it. That
        is the operand itself or, if the operand is fused, what its producer reads. A source that
        two operands share counts for the first operand; a source that several ops of one kernel
        share counts for the first op.
      exponentials: per op, the transcendental work of its kernel including what is fused into it,
        see `autoshard.program.flops`; 0 where the op itself is fused.
      sources: per value, the values read from memory when it is read: itself if it is written. Of
        what a slice is fused into, the part that it takes is fetched.
      joined: maps an op whose results the kernel of an earlier op writes to the kernel's first op.
      accumulated: maps an addition to the product that computes it, see
        `autoshard.xla.fusion_accumulate`.
    """

    elementwise: tuple[bool, ...]
    materialised: tuple[bool, ...]
    fetched: tuple[tuple[int, ...], ...]
    exponentials: tuple[float, ...]
    sources: tuple[frozenset[int], ...]
    joined: Mapping[int, int]
    accumulated: Mapping[int, int]


def fuse(
    program: Program,
    chip: Chip | None = None,
    into_products: Collection[int] = (),
    *,
    written: Collection[int] = (),
    unwritten: Collection[int] = (),
) -> Fusion:
    """Return what is fused. If `chip` is given, its cost of recomputation decides too.

    Args:
      program, chip: the step, and the chip it runs on.
      into_products: values that products may recompute too, as elementwise ops do. A value that is
        resharded before a product reads it cannot be one of them.
      written: values that are written in any case.
      unwritten: products that are not written, because their readers compute them.
    """
    compiler = LAWS if chip is None else chip.compiler
    rules = FusionRules.of(compiler)
    readers = program.consumers()
    accumulated = find_accumulated(program, readers, compiler)
    summed = [v for op in accumulated for v in (*program.ops[op].inputs, *program.ops[op].outputs)]
    products = {*accumulated.values(), *(program.values[value].producer for value in unwritten)}
    walk = _Walk(
        program,
        rules,
        0.0 if chip is None or not rules.counts_functions else chip.exponential_bytes,
        readers,
        tuple(rules.is_elementwise(op) for op in program.ops),
        frozenset(products),
        frozenset((*written, *summed)),
        frozenset(into_products),
    )
    for value in program.values:
        walk.add(value)
    there = at_hand(program, walk.joining(accumulated), walk.sources)
    return Fusion(
        walk.elementwise,
        tuple(walk.materialised),
        tuple(walk.fetched(op, there.get(op.index)) for op in program.ops),
        tuple(walk.exponentials(op) for op in program.ops),
        tuple(walk.sources),
        {index: kernel.first for index, kernel in there.items()},
        accumulated,
    )


@dataclass(slots=True)
class _Walk:
    """One walk over the values of a program that finds the materialised ones.

    Attributes:
      anew_bytes: bytes that memory could move while one exponential is computed.
      products: ops that are not elementwise but whose results are not written either.
      written: values that are written in any case.
      into_products: values that products recompute.
      inside: per value, the transcendental ops that are fused into it.
      reads: per value, the bytes read from memory when it is read, by source and by the slice
        through which it is read: the source itself if it is read whole.
    """

    program: Program
    rules: FusionRules
    anew_bytes: float
    readers: Sequence[Sequence[tuple[int, int]]]
    elementwise: tuple[bool, ...]
    products: frozenset[int]
    written: frozenset[int]
    into_products: frozenset[int]
    materialised: list[bool] = field(default_factory=list)
    sources: list[frozenset[int]] = field(default_factory=list)
    reads: list[Mapping[tuple[int, int], int]] = field(default_factory=list)
    inside: FusedFunctions = field(init=False)

    def __post_init__(self) -> None:
        self.inside = FusedFunctions(self.program)

    def add(self, value: Value) -> None:
        """Decide whether a value is written; its operands must have been decided before."""
        self.materialised.append(not value.free)
        self.sources.append(frozenset() if value.free else frozenset((value.index,)))
        self.reads.append({} if value.free else {(value.index, value.index): value.bytes})
        self.inside.of_value.append(NONE)
        if value.producer < 0:
            return
        maker = self.program.ops[value.producer]
        if maker.index in self.products:
            self._fuse(value, maker)
        fuses = self.elementwise[maker.index] and not value.free
        if not fuses or not self._can_be_fused(value, maker):
            return
        computed = self.inside.of(maker)
        if self._is_made_anew(value, maker, computed):
            self._fuse(value, maker)
            self.inside.of_value[-1] = computed

    def _fuse(self, value: Value, maker: Op) -> None:
        """Note that the last value added is not written."""
        self.materialised[-1], self.sources[-1] = False, self._read_by(maker)
        self.reads[-1] = self._parts_read_by(value, maker)

    def _parts_read_by(self, value: Value, maker: Op) -> dict[tuple[int, int], int]:
        """Return what a kernel that computes `value` reads, as in `reads`."""
        found: dict[tuple[int, int], int] = {}
        for operand in maker.inputs:
            found.update(self.reads[operand] if operand >= 0 else {})
        if maker.primitive not in TAKING_PARTS:
            return found
        return {(source, value.index): min(b, value.bytes) for (source, _), b in found.items()}

    def _bytes(self, parts: Mapping[tuple[int, int], int]) -> dict[int, int]:
        """Return the bytes that these parts take by source: at most the whole of each."""
        found: dict[int, int] = {}
        for (source, _), size in parts.items():
            found[source] = min(found.get(source, 0) + size, self.program.values[source].bytes)
        return found

    def _read_by(self, op: Op) -> frozenset[int]:
        """Return the values that a kernel of `op` reads from memory."""
        return frozenset[int]().union(*(self.sources[i] for i in op.inputs if i >= 0))

    def _can_be_fused(self, value: Value, maker: Op) -> bool:
        """Whether every reader of an elementwise result can compute it."""
        ops, uses = self.program.ops, self.readers[value.index]
        if not uses or value.index in self.written:
            return False
        if self.rules.long_written and len(uses) > 1 and maker.primitive in LONG:
            return False
        return all(
            ops[reader].region == maker.region and self._computes(ops[reader], position, value)
            for reader, position in uses
        )

    def _computes(self, reader: Op, position: int, value: Value) -> bool:
        if reader.primitive == "dot_general":
            pads = self.rules.pads and self.program.ops[value.producer].primitive == "pad"
            return pads or value.index in self.into_products
        return self.rules.computes(reader, position, self.elementwise[reader.index])

    def _is_made_anew(self, value: Value, maker: Op, computed: Functions) -> bool:
        """Whether every reader recomputes the value instead of reading it from memory."""
        again = len(self.readers[value.index]) - 1
        if not again:
            return True
        if not self.rules.may_make_anew(computed.names):
            return False
        if not self.rules.by_bytes:
            return True
        once = sum(self._bytes(self._parts_read_by(value, maker)).values())
        anew = self.anew_bytes * self.inside.exponentials(computed)
        return (again + 1) * once + again * anew <= once + (2 + again) * value.bytes

    def joining(self, accumulated: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        """Return the iteration shape of each kernel that may be merged with others, by op."""
        rules, found = self.rules, {}
        for op in self.program.ops:
            reduces = op.primitive in FUSING_REDUCTIONS
            joins = rules.reductions_join if reduces else rules.siblings
            kernel = reduces or self.elementwise[op.index]
            if kernel and joins and self._launches(op) and op.index not in accumulated:
                (domain, *_) = op.inputs if reduces else op.outputs
                found[op.index] = self.program.values[domain].shape
        return found

    def fetched(self, op: Op, kernel: Joined | None) -> tuple[int, ...]:
        """Return the bytes read for every operand of an op, given the kernel that it joins."""
        seen, sizes = set(kernel.holds if kernel is not None else ()), []
        parts: dict[tuple[int, int], int] = {}
        before = 0
        for value in op.inputs:
            read = self.reads[value] if value >= 0 else {}
            parts.update({key: size for key, size in read.items() if key[0] not in seen})
            now = sum(self._bytes(parts).values())
            sizes.append(now - before)
            before = now
        return tuple(sizes)

    def exponentials(self, op: Op) -> float:
        """Return the transcendental work of an op's kernel; 0 if the op is not a kernel."""
        return self.inside.exponentials(self.inside.of(op)) if self._launches(op) else 0.0

    def _launches(self, op: Op) -> bool:
        return any(self.materialised[o] for o in op.outputs)
