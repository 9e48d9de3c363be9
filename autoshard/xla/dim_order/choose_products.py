"""Choose the dimension orders of products so that nothing large is transposed between them.

JAX writes a `dot_general` as batch, left, right. A compiler that keeps this order may have to
transpose the result, element by element, for the next op. The common case is the scores of
attention with grouped queries:

    scores[b, k, s, q, g] = keys[b, s, k, h] queries[b, q, k, g, h]     as `jnp.einsum` writes it
    out[b, k, h, g, q]    = values[b, s, k, h] shares[b, k, g, q, s]    wants s innermost

Computed as `[b, k, g, q, s]`, the scores have an order that all later ops can read. Where a result
would be transposed without whole memory transactions, this module chooses the orders of its product
and of the products that read it. It minimises the bytes that transpositions move, those of the
operands included. A transposition counts as a copy. Some kernels could write their result
transposed instead, but kernels that reduce whole rows, such as softmaxes, cannot.

The orders are chosen on the unsharded program: the arrays of one device are smaller, but have the
same dimension order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.program.dim_order import (
    ProductOrder,
    Transposition,
    Transpositions,
    as_written,
    is_coalesced,
    large_of,
    possible_orders,
    transposed_bytes,
)
from autoshard.program.graph import Op, Program
from autoshard.xla.dim_order.walk import ANY, SCATTERED, OrderRules, Orders

Chosen = dict[int, ProductOrder]
"""The orders of products, by op index, where they differ from JAX's own form."""

_Orders = tuple[ProductOrder | None, ...]


def product_orders(
    program: Program, elementwise: Sequence[bool], transaction: float, rules: OrderRules = ANY
) -> Mapping[int, ProductOrder]:
    """Return the orders of products, by op index, where they should differ from JAX's own form.

    Args:
      program: the step.
      elementwise: per op, whether it fuses with its neighbours.
      transaction: bytes of a memory transaction.
      rules: the compiler's rules, see `autoshard.xla.dim_order.walk.Orders`.
    """
    cost = _Cost(program, transaction)
    chosen: Chosen = {}
    tried = set[int]()
    while True:
        walk = Orders(program, elementwise, chosen, rules)
        stakes = cost.stakes(walk, walk.run())
        cones = list(_cones(program, stakes.keys() - tried))
        if not cones:
            ops = program.ops
            return {k: order for k, order in chosen.items() if order != as_written(ops[k].rule)}
        dearest = max(cones, key=lambda cone: sum(stakes[op.index] for op in cone.sources))
        answer = _chosen(dearest, walk, chosen, cost)
        for cone in cones:
            if cone.alike == dearest.alike:
                tried.update(op.index for op in cone.sources)
                pairs = zip(cone.products, answer, strict=True)
                chosen.update({op.index: order for op, order in pairs if order is not None})


@dataclass(frozen=True, slots=True)
class _Cost:
    """Counts the bytes that transpositions move in the unsharded program."""

    program: Program
    transaction: float

    def of(self, found: Transpositions) -> float:
        """Return the bytes that all given transpositions move."""
        return sum(
            self._bytes(self.program.ops[index], one)
            for index, here in found.of_op.items()
            for one in here
        )

    def stakes(self, walk: Orders, found: Transpositions) -> Counter[int]:
        """Return, by product, the bytes transposed element by element in what derives from it."""
        stakes: Counter[int] = Counter()
        for index, here in found.of_op.items():
            op = self.program.ops[index]
            for one in here:
                shape = self.program.values[op.inputs[one.position]].shape
                lies, wanted = (large_of(order, shape) for order in (one.lies, one.wanted[0]))
                if not one.jumps or is_coalesced(shape, lies, wanted):
                    continue
                met = op.inputs if _carries(op) else (op.inputs[one.position],)
                roots = {walk.roots[value] for value in met if value >= 0}
                for maker in {self.program.values[root].producer for root in roots}:
                    if maker >= 0 and self.program.ops[maker].primitive == "dot_general":
                        stakes[maker] += int(self._bytes(op, one))
        return stakes

    def _bytes(self, op: Op, one: Transposition) -> float:
        value = self.program.values[op.inputs[one.position]]
        copied = replace(one, copy=True)
        moved = transposed_bytes(copied, 0.0, value.shape, value.itemsize, self.transaction)[0]
        return op.trips * moved


@dataclass(frozen=True, slots=True)
class _Cone:
    """Products whose results meet in one op, and the products that read what derives from them.

    Attributes:
      sources: the products whose results meet.
      products: the sources, and the products that read what derives from them.
      ops: the products, the ops that propagate their orders, and the readers, in program order.
      alike: a key that is equal for cones in which the same orders are best.
    """

    sources: tuple[Op, ...]
    products: tuple[Op, ...]
    ops: tuple[Op, ...]
    alike: Hashable


def _cones(program: Program, sources: Collection[int]) -> Iterator[_Cone]:
    """Yield the sources in groups whose results meet in an op that propagates orders."""
    parent = {index: index for index in sources}

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    flows = _Flow(program, sources)
    for op in program.ops:
        for index in flows.met[op.index][1:]:
            parent[root(index)] = root(flows.met[op.index][0])
    members: dict[int, list[int]] = defaultdict(list)
    for index in sorted(sources):
        members[root(index)].append(index)
    readers = {
        op.index
        for index in sources
        for op in flows.ops[index]
        if op.primitive == "dot_general" and op.index not in sources
    }
    behind = _Flow(program, readers)
    for ours in members.values():
        ops = {op.index: op for index in ours for op in flows.ops[index]}
        read = [op.index for op in ops.values() if op.index in readers]
        ops.update({op.index: op for index in read for op in behind.ops[index]})
        products = sorted({*ours, *read})
        inside = tuple(ops[index] for index in sorted(ops))
        places = tuple(number for number, op in enumerate(inside) if op.index in ours)
        yield _Cone(
            tuple(program.ops[index] for index in ours),
            tuple(program.ops[index] for index in products),
            inside,
            (_wiring(inside), places),
        )


class _Flow:
    """The ops in which the orders of some products' results matter.

    Attributes:
      ops: by product, the product itself, the ops that propagate its order, and the readers.
      met: by op that propagates orders, the products whose results it reads.
    """

    def __init__(self, program: Program, products: Collection[int]) -> None:
        self.ops: dict[int, list[Op]] = defaultdict(list)
        self.met: dict[int, list[int]] = defaultdict(list)
        held: dict[int, tuple[int, ...]] = {}  # the products that a value derives from
        for op in program.ops:
            read = tuple(dict.fromkeys(p for v in op.inputs for p in held.get(v, ())))
            for index in read:
                self.ops[index].append(op)
            if op.index in products:
                self.ops[op.index].append(op)
                held[op.outputs[0]] = (op.index,)
            elif read and _carries(op):
                self.met[op.index] = list(read)
                held.update(dict.fromkeys(op.outputs, read))


def _carries(op: Op) -> bool:
    return not op.boundary and op.primitive != "dot_general" and op.primitive not in SCATTERED


def _wiring(ops: Sequence[Op]) -> Hashable:
    """Return a key for what some ops do and for the data flow among them."""
    places = {output: number for number, op in enumerate(ops) for output in op.outputs}
    return tuple(
        (op.primitive, op.rule, op.trips, tuple(places.get(v) for v in op.inputs)) for op in ops
    )


def _chosen(cone: _Cone, walk: Orders, chosen: Chosen, cost: _Cost) -> list[ProductOrder | None]:
    """Return the order of each product of a cone, found by coordinate descent.

    Each source in turn is tried in every order. For each trial, the other products take their best
    response. The search stops when no trial moves fewer bytes.
    """
    known: dict[_Orders, float] = {}
    possible = [tuple(possible_orders(op.rule)) for op in cone.products]

    def bytes_of(orders: _Orders) -> float:
        if orders not in known:
            told = dict(chosen)
            for op, order in zip(cone.products, orders, strict=True):
                if order is not None:
                    told[op.index] = order
            known[orders] = cost.of(walk.anew(told).run(cone.ops))
        return known[orders]

    def answered(orders: _Orders, fixed: int) -> _Orders:
        for number, ways in enumerate(possible):
            if number != fixed:
                trials = [(*orders[:number], way, *orders[number + 1 :]) for way in ways]
                orders = min([orders, *trials], key=bytes_of)
        return orders

    best: _Orders = tuple(chosen.get(op.index) for op in cone.products)
    while True:
        before = best
        for number, op in enumerate(cone.products):
            if op in cone.sources:
                for way in possible[number]:
                    trial = answered((*best[:number], way, *best[number + 1 :]), number)
                    best = min(best, trial, key=bytes_of)
        if best == before:
            return list(best)
