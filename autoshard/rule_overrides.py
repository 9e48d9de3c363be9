"""The table of primitives whose rule is written here and not asked from Shardy, with the reasons.

An override is a last resort: Shardy has no rule for what the primitive lowers to, or one that is
not true of it (checked by the tests, which perturb parts of the operands and see which parts of the
results change). Each entry builds the rule of one equation from its shapes and parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import JaxprEqn

from autoshard import compat
from autoshard.rule_record import FactorKind, Rule


@dataclass(frozen=True, slots=True)
class Override:
    """A hand-written rule: why Shardy is not asked, and the rule of an equation."""

    reason: str
    rule: Callable[[JaxprEqn], Rule]


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


def identity(equation: JaxprEqn) -> Rule:
    """Result `n` is operand `n`, unchanged."""
    labels = [[(n, d) for d in range(len(_shape(v)))] for n, v in enumerate(equation.outvars)]
    return _build(equation, labels, labels)


def elementwise(equation: JaxprEqn) -> Rule:
    """Every element of the result depends on that element of the operands; scalars are shared."""
    rank = max(len(_shape(atom)) for atom in equation.outvars)
    shape = max((_shape(atom) for atom in equation.outvars), key=len)

    def labels(n: int, atom: Any) -> list[Hashable]:
        own = _shape(atom)
        # A dimension of size 1 that is broadcast is a factor of its own.
        return [d if own[d] == shape[d] else (n, d) for d in range(rank)] if own else []

    operands = [labels(n, atom) for n, atom in enumerate(equation.invars)]
    results = [labels(-1 - n, atom) for n, atom in enumerate(equation.outvars)]
    return _build(equation, operands, results)


def replicated(equation: JaxprEqn) -> Rule:
    """Nothing may be split."""
    operands, results = _unique(equation)
    everything = [label for tensor in (*operands, *results) for label in tensor]
    return _build(equation, operands, results, replicate=everything)


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


def random_bits(equation: JaxprEqn) -> Rule:
    """The keys are a batch; each number of a key is computed from the key and its index alone."""
    key = equation.invars[0]
    operands, results = _unique(equation)
    rank = len(operands[0])
    results[0][:rank] = operands[0]
    known = "fry" in str(getattr(key.aval, "dtype", ""))
    independent = known and compat.partitionable_random_bits(equation)
    return _build(equation, operands, results, replicate=[] if independent else results[0])


def key_data(equation: JaxprEqn) -> Rule:
    """Between keys and their bits: the bits of one key stay together in the last dimension(s)."""
    operands, results = _unique(equation)
    shared = min(len(operands[0]), len(results[0]))
    operands[0][:shared] = results[0][:shared] = range(shared)
    rest = operands[0][shared:] + results[0][shared:]
    return _build(equation, operands, results, replicate=rest)


def ragged_dot(equation: JaxprEqn) -> Rule:
    """`[m, k] x [g, k, n] -> [m, n]`: rows of different groups, so `m` and `g` stay whole."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    contracting, batch = numbers.dot_dimension_numbers
    operands, results = _unique(equation)
    left, right = operands[0], operands[1]
    for kind, pairs in (("contract", contracting), ("batch", batch)):
        for n, (l, r) in enumerate(zip(*pairs, strict=True)):
            left[l] = right[r] = (kind, n)
    ragged = [left[d] for d in numbers.lhs_ragged_dimensions]
    groups = [right[d] for d in numbers.rhs_group_dimensions]
    shared = [("batch", n) for n in range(len(batch[0]))]
    free_left = [label for label in left if label[0] == "operand"]
    free_right = [label for label in right if label[0] == "operand" and label not in groups]
    result = [*shared, *free_left, *free_right]
    if len(result) != len(results[0]):  # the ragged dimension is contracted: one result per group
        return replicated(equation)
    whole = [*ragged, *groups, *operands[2]]
    summed = [("contract", n) for n in range(len(contracting[0])) if ("contract", n) not in whole]
    return _build(equation, operands, [result], replicate=whole, summed=summed)


def _table() -> dict[str, Override]:
    """The overrides, family by family: reason, builder, primitives."""
    families: list[tuple[str, Callable[[JaxprEqn], Rule], str]] = [
        (
            "no computation: it is no op, or a custom call that hides the identity",
            identity,
            "sharding_constraint reshard mesh_cast optimization_barrier copy copy_p name "
            "device_put reduce_precision stop_gradient pvary",
        ),
        (
            "lowers to loops or to chlo ops for which Shardy has no rule, but acts on elements",
            elementwise,
            "igamma igammac igamma_grad_a random_gamma_grad lgamma digamma polygamma zeta "
            "regularized_incomplete_beta bessel_i0e bessel_i1e erf erfc erf_inv nextafter",
        ),
        (
            "lowers to a window as long as the dimension, for which Shardy says that neighbours' "
            "parts suffice",
            along("axis"),
            "cumsum cumprod cummax cummin cumlogsumexp",
        ),
        ("chlo.top_k has no rule in Shardy", along("axis"), "top_k"),
        (
            "Shardy's rule of the custom call forgets the searched dimension",
            along("reduction_dimension"),
            "approx_top_k",
        ),
        (
            "custom calls, and loops over the matrix; matrices of a batch are independent",
            batched(2),
            "lu eigh eig svd geqrf geqp3 qr householder_product schur hessenberg tridiagonal "
            "lu_pivots_to_permutation triangular_sylvester symmetric_product",
        ),
        ("as above; its first operand is a vector", batched(1), "tridiagonal_solve"),
        (
            "hundreds of ops; each number is computed from its key and its index alone",
            random_bits,
            "random_bits random_split",
        ),
        (
            "hundreds of ops that act on elements",
            elementwise,
            "threefry2x32 random_fold_in random_seed random_clone random_gamma",
        ),
        ("keys have a hidden dimension", key_data, "random_wrap random_unwrap"),
        (
            "one stream of numbers: a part of it cannot be computed alone",
            replicated,
            "rng_bit_generator rng_uniform",
        ),
        (
            "Python code that sees whole arrays",
            replicated,
            "pure_callback io_callback debug_callback debug_print",
        ),
        ("chlo.ragged_dot has no rule in Shardy", ragged_dot, "ragged_dot_general"),
    ]
    return {
        primitive: Override(reason, build)
        for reason, build, primitives in families
        for primitive in primitives.split()
    }


OVERRIDES: Mapping[str, Override] = _table()
