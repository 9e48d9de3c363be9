"""The table of primitives whose rule is written here and not asked from Shardy, with the reasons.

An override is a last resort: Shardy has no rule for what the primitive lowers to, or one that is
not true of it (checked by the tests, which perturb parts of the operands and see which parts of the
results change). Each entry builds the rule of one equation from its shapes and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.core import JaxprEqn

from autoshard import compat
from autoshard.compat.row_exchange import ROW_EXCHANGE
from autoshard.program.kernels.rule import kernel_rule
from autoshard.program.rules.attention import attention_rule
from autoshard.program.rules.ragged import ragged_rule, row_exchange_rule
from autoshard.program.rules.record import FactorKind, Rule
from autoshard.program.rules.windows import convolution, pooling
from autoshard.program.vocabulary import SCATTERS


@dataclass(frozen=True, slots=True)
class Override:
    """A hand-written rule: why Shardy is not asked, and the rule of an equation."""

    reason: str
    rule: Callable[[JaxprEqn], Rule]


@dataclass(frozen=True, slots=True)
class Amendment:
    """A correction of Shardy's rule: what is wrong about it, and the rule that is put instead."""

    reason: str
    rule: Callable[[JaxprEqn, Rule], Rule]


def _build(
    equation: JaxprEqn,
    operands: Sequence[Sequence[Hashable]],
    results: Sequence[Sequence[Hashable]],
    *,
    replicate: Sequence[Hashable] = (),
    summed: Sequence[Hashable] = (),
) -> Rule:
    """The rule with one label per dimension, the same label where dimensions go together."""
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {}
    atoms = (*equation.invars, *equation.outvars)
    for labels, atom in zip((*operands, *results), atoms, strict=True):
        for label, size in zip(labels, _shape(atom), strict=True):
            if label in replicate:
                factors[label] = size, FactorKind.REPLICATE, None
            elif label in summed:
                factors[label] = size, FactorKind.REDUCE, "sum"
            else:
                factors[label] = size, FactorKind.PASS, None
    return Rule.build(_single(operands), _single(results), factors)


def _single(tensors: Sequence[Sequence[Hashable]]) -> list[list[list[Hashable]]]:
    return [[[label] for label in tensor] for tensor in tensors]


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(getattr(atom.aval, "shape", ()))


def _unique(equation: JaxprEqn) -> tuple[list[list[Any]], list[list[Any]]]:
    """Labels that differ for every dimension of every operand and result."""
    operands, results = (
        [[(side, n, d) for d in range(len(_shape(atom)))] for n, atom in enumerate(atoms)]
        for side, atoms in (("operand", equation.invars), ("result", equation.outvars))
    )
    return operands, results


def each_moved(equation: JaxprEqn) -> Rule:
    """Every operand comes out as it went in."""
    tensors = [[(k, d) for d in range(len(_shape(atom)))] for k, atom in enumerate(equation.invars)]
    return _build(equation, tensors, tensors)


def elementwise(equation: JaxprEqn) -> Rule:
    """Each element of the result depends on that element of every operand.

    An operand of smaller rank has the leading dimensions only: scalars, and keys of a batch.
    """
    rank = len(_shape(equation.outvars[0]))
    operands = [list(range(len(_shape(atom)))) for atom in equation.invars]
    return _build(equation, operands, [list(range(rank))])


def alike(equation: JaxprEqn) -> Rule:
    """Every operand and result is cut as all the others are."""
    rank = len(_shape(equation.outvars[0]))
    tensor = list(range(rank))
    return _build(equation, [tensor] * len(equation.invars), [tensor] * len(equation.outvars))


def replicated(equation: JaxprEqn) -> Rule:
    """Nothing may be split."""
    operands, results = _unique(equation)
    everything = [label for tensor in (*operands, *results) for label in tensor]
    return _build(equation, operands, results, replicate=everything)


def called_out(equation: JaxprEqn) -> Rule:
    """Nothing may be split of what Python code sees, unless it is called with each part."""
    if not equation.params.get("partitioned"):
        return replicated(equation)
    return _build(equation, *_unique(equation))


def along(parameter: str) -> Callable[[JaxprEqn], Rule]:
    """Batched over all dimensions but the one that `parameter` names, which stays whole."""

    def rule(equation: JaxprEqn) -> Rule:
        rank = len(_shape(equation.invars[0]))
        whole = equation.params[parameter] % rank

        def labels(side: str, atoms: Sequence[Any]) -> list[list[Hashable]]:
            # Where the dimension changes its size (top_k), it is two factors.
            return [
                [
                    d if d != whole or size == _shape(equation.invars[0])[d] else (side, d)
                    for d, size in enumerate(_shape(atom))
                ]
                for atom in atoms
            ]

        operands, results = labels("operand", equation.invars), labels("result", equation.outvars)
        whole_labels = (whole, ("operand", whole), ("result", whole))
        return _build(equation, operands, results, replicate=whole_labels)

    return rule


def batched(core_rank: int) -> Callable[[JaxprEqn], Rule]:
    """Linear algebra: leading dimensions are a batch, the rest (of the matrices) stays whole.

    `core_rank` is the number of dimensions of the first operand that are not batch.
    """

    def rule(equation: JaxprEqn) -> Rule:
        batch_rank = len(_shape(equation.invars[0])) - core_rank
        operands, results = _unique(equation)
        for tensor in (*operands, *results):
            tensor[:batch_rank] = range(min(batch_rank, len(tensor)))
        core = [label for t in (*operands, *results) for label in t if isinstance(label, tuple)]
        return _build(equation, operands, results, replicate=core)

    return rule


def transformed(equation: JaxprEqn) -> Rule:
    """A batch of Fourier transforms over the last dimensions."""
    return batched(len(equation.params["fft_lengths"]))(equation)


def partial_update(equation: JaxprEqn, rule: Rule) -> Rule:
    """`dynamic_update_slice`: a sharded dimension can be updated in place by one element alone."""
    operand, update = _shape(equation.invars[0]), _shape(equation.invars[1])
    kinds = {
        index: FactorKind.PASS if part == 1 else FactorKind.REPLICATE
        for dimension, (size, part) in enumerate(zip(operand, update, strict=True))
        if part < size
        for index in rule.operands[0][dimension]
    }
    factors = tuple(
        replace(factor, kind=kinds.get(index, factor.kind))
        for index, factor in enumerate(rule.factors)
    )
    return replace(rule, factors=factors)


def single_places(equation: JaxprEqn, rule: Rule) -> Rule:
    """A scatter whose windows have one place in a dimension: as where they have no such dimension.

    The lowering writes it so (`autoshard.lower.looked_up`).
    """
    numbers = equation.params["dimension_numbers"]
    operand, updates = _shape(equation.invars[0]), _shape(equation.invars[2])
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windowed = [d for d in range(len(operand)) if d not in gone]
    single = {
        index
        for d, window in zip(windowed, numbers.update_window_dims, strict=True)
        if d in numbers.scatter_dims_to_operand_dims and updates[window] == 1 < operand[d]
        for index in rule.operands[0][d]
    }
    factors = tuple(
        replace(factor, kind=FactorKind.PASS, operator=None) if index in single else factor
        for index, factor in enumerate(rule.factors)
    )
    return replace(rule, factors=factors)


def single_place(equation: JaxprEqn, rule: Rule) -> Rule:
    """A dynamic slice of one place of a dimension: of the devices' parts one has it, others zeros.

    The lowering writes it as a gather (`autoshard.lower.looked_up`).
    """
    operand, sizes = _shape(equation.invars[0]), equation.params["slice_sizes"]
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {
        index: (factor.size, factor.kind, factor.operator)
        for index, factor in enumerate(rule.factors)
    }
    first: list[Sequence[Hashable]] = list(rule.operands[0])
    for d, size in enumerate(operand):
        if sizes[d] == 1 < size:
            first[d] = [("place", d)]
            factors["place", d] = size, FactorKind.REDUCE, "sum"
    return Rule.build([first, *rule.operands[1:]], rule.results, factors)


def _families() -> list[tuple[str, Callable[[JaxprEqn], Rule], str]]:
    """The overrides, family by family: reason, builder, primitives."""
    return [
        (
            "lowers to loops, of which nothing is known, but acts on each element alone",
            elementwise,
            "igamma igammac igamma_grad_a random_gamma regularized_incomplete_beta",
        ),
        (
            "lowers to a window as long as the dimension, for which Shardy says that neighbours' "
            "parts suffice",
            along("axis"),
            "cumsum cumprod cummax cummin cumlogsumexp",
        ),
        ("chlo.top_k has no rule in Shardy", along("axis"), "top_k"),
        ("lowers to one custom call for each of its two values", alike, "shard_alike"),
        ("is of types alone, and never lowered", elementwise, compat.RESHARD),
        (
            "lowers to a custom call, of which Shardy knows nothing; a part of what says nothing "
            "says nothing either, and XLA's partitioner makes the part alone",
            elementwise,
            "empty",
        ),
        (
            "lowers to a custom call, of which Shardy knows nothing, where a memory is named",
            each_moved,
            "device_put",
        ),
        (
            "Shardy's rule of the custom call forgets the searched dimension",
            along("reduction_dimension"),
            "approx_top_k",
        ),
        (
            "custom calls and loops over the matrix; matrices of a batch are independent",
            batched(2),
            "lu eigh eig svd qr householder_product ormqr cholesky_update schur hessenberg "
            "tridiagonal",
        ),
        ("as above, but its first operand is a vector", batched(1), "tridiagonal_solve"),
        (
            "Python code that sees whole arrays, or each device's part if it is told to",
            called_out,
            "pure_callback io_callback debug_callback debug_print",
        ),
        (
            "what is not transformed is a batch, which XLA's partitioner gathers all the same "
            "(https://github.com/jax-ml/jax/issues/15680): each device is told to transform its "
            "part (`autoshard.lower.parts.in_parts`)",
            transformed,
            "fft",
        ),
        (
            "a call of cuDNN; JAX's own rule says nothing of keys, and less of the backward pass",
            attention_rule,
            " ".join(sorted(compat.FUSED_ATTENTION)),
        ),
        ("its grid, blocks and index maps say how it may be cut", kernel_rule, compat.PALLAS),
        ("chlo.ragged_dot has no rule in Shardy", ragged_rule, "ragged_dot_general"),
        ("Shardy sees the gather that it is on one device", row_exchange_rule, ROW_EXCHANGE),
    ]


OVERRIDES: Mapping[str, Override] = {
    primitive: Override(reason, build)
    for reason, build, primitives in _families()
    for primitive in primitives.split()
}

AMENDMENTS: Mapping[str, Amendment] = {
    "dynamic_update_slice": Amendment(
        "a dimension passes through for Shardy, or is permuted from jaxlib 0.11 on; XLA's "
        "partitioner gathers it if the update is longer than one element, and else passes it on",
        partial_update,
    ),
    "dynamic_slice": Amendment(
        "XLA's partitioner gathers what it slices; one place of a dimension can be looked up as a "
        "gather does",
        single_place,
    ),
    **dict.fromkeys(
        sorted(SCATTERS),
        Amendment(
            "windows of one place keep their dimension whole, though it can be left out of them",
            single_places,
        ),
    ),
    "conv_general_dilated": Amendment(
        "windows that tile the dimension need no neighbours; a kernel's gradient is no plain sum",
        convolution,
    ),
    **dict.fromkeys(
        ("reduce_window_max", "reduce_window_min", "reduce_window_sum"),
        Amendment("windows that tile the dimension need no neighbours", pooling),
    ),
}
