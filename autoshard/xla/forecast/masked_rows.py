"""How long XLA:GPU keeps rows that it writes once per group, for ragged products.

The price of a ragged product counts what it writes for itself (`autoshard.cost.ragged`). In a
compiled step that is less and more than one product's:

* Products that read the same rows share them. The gradient of matrices reads them as `[g, m, k]`,
  a product of rows as `[m, g, k]`; where there are both, the second is a transpose of the first.
* Rows of one shape are written by one kernel, when the first of them is read and the last one is
  there, but for those that are computed from what a product makes of others. As observed, rows of
  the forward pass are written apart where it is in one computation with the backward pass: outside
  of loops, or in a loop of one turn.
* A product for gradients frees more than it makes, so that it runs as soon as its rows are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from autoshard.cost.ragged import group_shards, masked_bytes, rows_read, writes_rows
from autoshard.cost.row_exchange import exchanging
from autoshard.cost.step_prices import StepPrices
from autoshard.plan.memory_events import passing
from autoshard.program.graph import Program
from autoshard.xla.forecast.planned_collectives import Decided


@dataclass(slots=True)
class Written:
    """Rows that are written once per group, and the ops that read them.

    Attributes:
      value: the rows.
      kernel: what rows have in common that one kernel writes: region, sizes, bytes.
      bytes: per device, of all groups.
      gradients, products: the ops that read them in either order.
    """

    value: int
    kernel: tuple[int, int, float]
    bytes: float
    gradients: list[int] = field(default_factory=list)
    products: list[int] = field(default_factory=list)


def masked_rows(now: StepPrices, decided: Decided) -> Iterator[tuple[int, float]]:
    """Yield the memory events of such rows, beyond what their ops were counted to need."""
    found: dict[tuple[object, ...], Written] = {}
    when = now.dataflow.when
    for op in now.program.ops:
        if decided.decisions.assignment[op.index] is None or not writes_rows(now, op):
            continue
        strategy = decided.chosen(op)
        if exchanging(op, strategy, now.mesh_shape)[0] > 1:
            continue  # of a window, within the loop over windows
        counted = float(masked_bytes(now, op, strategy)[0]) * now.scratch_factor
        yield from passing(when[op.index], -counted)
        shards, sizes = float(group_shards(now, op, strategy)[0]), op.inputs[2]
        for position, value in enumerate(op.inputs[: rows_read(op)]):
            if value < 0:
                continue
            layout = strategy.reads[position]
            rows = float(now.local_bytes(value, layout)[0]) * now.scratch_factor
            size = rows * op.groups / shards
            key = value, sizes, shards, tuple(layout[0].tolist()), op.region
            one = found.setdefault(key, Written(value, (op.region, sizes, size), size))
            (one.gradients if rows_read(op) > 1 else one.products).append(op.index)
    starts = list(_starts(now, list(found.values())))
    ready: dict[int, int] = {}
    for start, one in starts:
        ready |= {op: max(start, ready.get(op, start)) for op in one.gradients}
    for start, one in starts:
        if one.products:
            at = [when[op] for op in one.products]
            yield min(at), one.bytes
            yield max(at) + 1, -one.bytes
        if one.gradients:
            yield start, one.bytes
            yield max(ready[op] for op in one.gradients) + 1, -one.bytes


def _starts(now: StepPrices, found: list[Written]) -> Iterator[tuple[int, Written]]:
    """Yield the point at which rows are written in the order of gradients, for all of them."""
    program, when = now.program, now.dataflow.when
    for _, alike in groupby(sorted(found, key=lambda one: one.kernel), lambda one: one.kernel):
        kernels: list[list[Written]] = []
        for one in sorted(alike, key=lambda one: (not _is_forward(program, one), one.value)):
            joined = (k for k in kernels if not _depend(program, one, k))
            kernel = None if _is_forward(program, one) else next(joined, None)
            if kernel is None:
                kernels.append([one])
            else:
                kernel.append(one)
        for kernel in kernels:
            inside = program.regions[kernel[0].kernel[0]].start
            made = (program.values[one.value].producer for one in kernel)
            first = (when[op] for one in kernel for op in (*one.gradients, *one.products))
            ready = [when[op] + 1 for op in made if op >= inside]
            start = max([*ready, min(first)])
            for one in kernel:
                yield start, one


def _is_forward(program: Program, rows: Written) -> bool:
    """Whether rows are of the forward pass, and it is in one computation with the backward pass."""
    producer = program.values[rows.value].producer
    region = program.regions[rows.kernel[0]]
    outer = program.regions[region.parent].trips if region.parent >= 0 else region.trips
    if region.trips != outer or producer < 0:
        return False
    op = program.ops[producer]
    return op.primitive == "scan_slice" or op.recomputed or not op.backward


def _depend(program: Program, new: Written, kernel: list[Written]) -> bool:
    """Whether rows are computed from what is made of others, or those from what is made of them."""
    for one in kernel:
        if _is_forward(program, one):
            return True
        for rows, others in ((new, one), (one, new)):
            if _comes_from(program, rows.value, {*others.gradients, *others.products}):
                return True
    return False


def _comes_from(program: Program, value: int, ops: set[int]) -> bool:
    """Whether a value is computed from the results of one of these ops."""
    earliest, seen, left = min(ops), set[int](), [program.values[value].producer]
    while left:
        op = left.pop()
        if op < earliest or op in seen:
            continue
        if op in ops:
            return True
        seen.add(op)
        left += [program.values[one].producer for one in program.ops[op].inputs if one >= 0]
    return False
