"""One rule for an equation that lowers to several ops.

Shardy gives each StableHLO op a rule. Ops of one equation share inner values, and a dimension of a
shared value is made of factors of its producer and of factors of its user, which must therefore be
the same ones. So every meeting of a producer and a user unites them (`rule_factors`). Where the two
see a dimension differently (`ij` here, `k` of the same size there), the coarser factor is split:
`k` becomes `ij` wherever it stands. Where no common split exists (6 as 2x3 and as 3x2), both sides
need replication.

A united factor has the hardest kind among its uses. Three more things are decided afterwards:

* A reduction leaves partial values. They may flow to the equation's results only through ops that
  commute with the combination (a sum through scaling and reshaping, a maximum through clamping);
  otherwise the factor needs replication. An equation must not return it both ways.
* A passed-through factor that operands have and no result has would lose data: replication.
* A factor that would split two dimensions of one tensor: replication.

Constants, iotas and what is computed from them alone are copied per use, so they tie nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.compat import LoweredModule, LoweredOp
from autoshard.program.rules.factors import Factors
from autoshard.program.rules.partial import commutes, constant_values, operator_of
from autoshard.program.rules.record import Factor, FactorKind, Rule, factor_name

# chlo ops that act on each element alone; Shardy has no rules for this dialect.
_ELEMENTWISE_CHLO = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan", "square"),
        *("erf", "erf_inv", "erfc", "lgamma", "digamma", "polygamma", "zeta", "bessel_i1e"),
        *("conj", "is_inf", "is_neg_inf", "is_pos_inf", "next_after"),
    }
)

_HARDEST_FIRST = (
    FactorKind.REPLICATE,
    FactorKind.PERMUTE,
    FactorKind.BLOCKED,
    FactorKind.REDUCE,
    FactorKind.PASS,
)
# Of a custom call Shardy knows little but the shapes. A generator makes one stream of numbers, of
# which no device can compute a part alone.
_UNTRUSTED = frozenset({"stablehlo.custom_call", "stablehlo.rng_bit_generator"})
_SOURCES = frozenset({"stablehlo.constant", "stablehlo.iota"})


def join_rules(module: LoweredModule) -> list[Rule]:
    """The rule of every equation in `module`, joined from the rules of its ops."""
    return _Join(module).rules()


class _Join:
    """The factors of one module's values, and the passes over them in the order they run."""

    def __init__(self, module: LoweredModule) -> None:
        self.module = module
        self.factors = Factors()
        self.ops = _live(module)
        self.free = _free_values(self.ops)
        self.constants = constant_values(self.ops)
        # Per value and dimension, the factors of its producer (or of the argument itself).
        self.dimensions: dict[int, list[list[int]]] = {}
        # Per op, the reduction factors of its rule.
        self.reductions: list[tuple[int, ...]] = []
        self.tensors: list[list[list[int]]] = []
        # Per value, the factors over which it is only a partial result, with their operators.
        self.partial: dict[int, dict[int, str]] = {}
        self.used = {value for op in self.ops for value in op.operands}
        self.used.update(value for values in module.outputs for value in values)

    # -- passes ----------------------------------------------------------------------------

    def rules(self) -> list[Rule]:
        for argument in (value for values in self.module.arguments for value in values):
            self.dimensions[argument] = self.fresh(argument)
        for op in self.ops:
            self.join(op)
        self.refuse_repeated_factors()
        self.follow_partial_values()
        return [self.rule(equation) for equation in range(len(self.module.arguments))]

    def fresh(self, value: int, kind: FactorKind = FactorKind.PASS) -> list[list[int]]:
        return [[self.factors.new(size, kind)] for size in self.module.shapes[value]]

    def join(self, op: LoweredOp) -> None:
        """Brings the factors of `op`'s rule together with those of its operands."""
        operands, results, reductions = self.factors_of(op)
        self.reductions.append(reductions)
        for value, dimensions in zip(op.operands, operands, strict=True):
            self.tensors.append(dimensions)
            if value in self.free:
                continue
            sizes = self.module.shapes[value]
            for known, used, size in zip(self.dimensions[value], dimensions, sizes, strict=True):
                self.factors.meet(known, used, size)
        for value, dimensions in zip(op.results, results, strict=True):
            self.dimensions[value] = dimensions

    def factors_of(
        self, op: LoweredOp
    ) -> tuple[list[list[list[int]]], list[list[list[int]]], tuple[int, ...]]:
        """New factors for one op: of its operands, of its results, and those it reduces."""
        if _trusted(op):
            rule = Rule.parse(op.rule or "")
            kept = {i for tensor in rule.results for dimension in tensor for i in dimension}
            new = [self.factors.new(factor.size, factor.kind) for factor in rule.factors]
            for index, factor in enumerate(rule.factors):
                if index not in kept and factor.kind is not FactorKind.REDUCE and factor.size > 1:
                    self.factors.replicate([new[index]])
            operands, results = (
                [[[new[i] for i in dimension] for dimension in tensor] for tensor in side]
                for side in (rule.operands, rule.results)
            )
            reduced = [new[i] for i, f in enumerate(rule.factors) if f.kind is FactorKind.REDUCE]
            return operands, results, tuple(reduced)
        if op.name == "stablehlo.optimization_barrier":
            operands = [self.fresh(value) for value in op.operands]
            return operands, operands, ()
        if op.name.startswith("chlo.") and op.name[5:] in _ELEMENTWISE_CHLO:
            same = self.fresh(op.results[0])
            return [same for _ in op.operands], [same], ()
        kind = FactorKind.PASS if op.name in _SOURCES else FactorKind.REPLICATE
        return (
            [self.fresh(value, kind) for value in op.operands],
            [self.fresh(value, kind) for value in op.results],
            (),
        )

    def refuse_repeated_factors(self) -> None:
        for tensor in (*self.tensors, *self.dimensions.values()):
            seen: set[int] = set()
            for leaf in (leaf for dimension in tensor for leaf in self.factors.leaves(dimension)):
                if leaf in seen and self.factors.size[leaf] > 1:
                    self.factors.replicate([leaf])
                seen.add(leaf)

    def follow_partial_values(self) -> None:
        """Fills `self.partial`; factors whose partial values cannot be followed are replicated."""
        for op, reductions in zip(self.ops, self.reductions, strict=True):
            partial: dict[int, str] = {}
            incoming = [self.partial.get(value, {}) for value in op.operands]
            for leaf, operator in {k: v for part in incoming for k, v in part.items()}.items():
                carriers = [leaf in part for part in incoming]
                if commutes(op, operator, carriers, self.constants):
                    partial[leaf] = operator
                else:
                    self.factors.replicate([leaf])
            operator = operator_of(op)
            for leaf in self.factors.leaves(reductions):
                if operator is None or partial.get(leaf, operator) != operator:
                    self.factors.replicate([leaf])
                else:
                    partial[leaf] = operator
            values = (*op.results, *(v for v in op.operands if v not in self.free))
            incoming_leaves = {leaf for part in incoming for leaf in part}
            for value in values if partial else ():
                reduced = partial if value in op.results else incoming_leaves
                leaves = {leaf for d in self.dimensions[value] for leaf in self.factors.leaves(d)}
                self.factors.replicate([leaf for leaf in leaves if leaf in reduced])
            for value in op.results:
                self.partial[value] = partial

    # -- results ---------------------------------------------------------------------------

    def rule(self, equation: int) -> Rule:
        arguments, outputs = self.module.arguments[equation], self.module.outputs[equation]
        operands = [self.tensor(self.dimensions[value]) for value in arguments]
        # A free result is a copy of its own.
        results = [
            self.tensor(self.fresh(value) if value in self.free else self.dimensions[value])
            for value in outputs
        ]
        in_results = {leaf for tensor in results for d in tensor for leaf in d}
        in_used_operands = {
            leaf
            for value, tensor in zip(arguments, operands, strict=True)
            if value in self.used
            for d in tensor
            for leaf in d
        }
        partial = [self.partial.get(value, {}) for value in outputs]
        sizes = self.sizes_in([*arguments, *outputs], [*operands, *results])
        order: dict[int, int] = {}
        factors: list[Factor] = []
        for leaf in (leaf for tensor in (*results, *operands) for d in tensor for leaf in d):
            if leaf in order:
                continue
            kinds = self.factors.kinds[leaf]
            kind = next(kind for kind in _HARDEST_FIRST if kind in kinds)
            operator = None
            if kind is FactorKind.REDUCE:
                operators = {values.get(leaf) for values in partial}
                operator = operators.pop() if len(operators) == 1 else None
                if operator is None or leaf in in_results:
                    kind, operator = FactorKind.REPLICATE, None
            elif (
                leaf in in_used_operands and leaf not in in_results and self.factors.size[leaf] > 1
            ):
                kind = FactorKind.REPLICATE
            order[leaf] = len(factors)
            factors.append(Factor(factor_name(len(factors)), sizes[leaf], kind, operator))
        read, made = (
            tuple(tuple(tuple(order[leaf] for leaf in d) for d in tensor) for tensor in side)
            for side in (operands, results)
        )
        return Rule(tuple(factors), read, made)

    def sizes_in(self, values: Sequence[int], tensors: Sequence[list[list[int]]]) -> dict[int, int]:
        """The size of each factor, as the dimensions that it makes up have it.

        Where a factor stands for dimensions of several sizes it gets the smallest of them, and must
        not be split as if they were one dimension.
        """
        seen: dict[int, list[int]] = {}
        for value, tensor in zip(values, tensors, strict=True):
            for size, leaves in zip(self.module.shapes[value], tensor, strict=True):
                if len(leaves) == 1:
                    seen.setdefault(leaves[0], []).append(size)
                elif math.prod(self.factors.size[leaf] for leaf in leaves) != size:
                    self.factors.replicate(leaves)
        for leaf, sizes in seen.items():
            if len(set(sizes)) > 1 and FactorKind.PERMUTE not in self.factors.kinds[leaf]:
                self.factors.replicate([leaf])
        alone = {leaf: min(sizes) for leaf, sizes in seen.items()}
        return {
            leaf: alone.get(leaf, self.factors.size[leaf])
            for tensor in tensors
            for leaves in tensor
            for leaf in leaves
        }

    def tensor(self, dimensions: Sequence[Sequence[int]]) -> list[list[int]]:
        """The leaves of each dimension; a factor's second use in the tensor becomes a new one."""
        seen: set[int] = set()
        tensor: list[list[int]] = []
        for leaves in map(self.factors.leaves, dimensions):
            tensor.append(
                [
                    self.factors.new(self.factors.size[leaf], FactorKind.REPLICATE)
                    if leaf in seen
                    else leaf
                    for leaf in leaves
                ]
            )
            seen.update(leaves)
        return tensor


def _trusted(op: LoweredOp) -> bool:
    """Whether `op` has a rule from Shardy that tells the truth."""
    return op.rule is not None and op.name not in _UNTRUSTED


def _live(module: LoweredModule) -> tuple[LoweredOp, ...]:
    """The ops that some output depends on, in order."""
    needed = {value for values in module.outputs for value in values}
    live: list[LoweredOp] = []
    for op in reversed(module.ops):
        if not needed.isdisjoint(op.results):
            needed.update(op.operands)
            live.append(op)
    return tuple(reversed(live))


def _free_values(ops: Sequence[LoweredOp]) -> set[int]:
    """The values that are computed from constants and iotas alone."""
    free: set[int] = set()
    for op in ops:
        if op.name in _SOURCES or (_trusted(op) and free.issuperset(op.operands)):
            free.update(op.results)
    return free
