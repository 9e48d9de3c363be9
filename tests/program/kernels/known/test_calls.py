"""Bare calls of library kernels get rules, in whatever form they are called."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import compat
from autoshard.program.rules.record import FactorKind
from autoshard.program.trace import trace
from tests.program.kernels.known.functions import (
    CALLS,
    GROUPED,
    PAGED,
    RAGGED,
    array,
    decode,
    products,
    ragged,
)


def cut(fn: Any, *arrays: Any, **options: Any) -> list[tuple[str, list[int]]]:
    """The calls with rules of a step: names, and the sizes of the factors that may be cut."""
    found = []
    for op in trace(fn, *arrays, **options).ops:
        if op.primitive == compat.RULED:
            assert op.kernel is not None
            sizes = [one.size for one in op.rule.factors if one.kind is not FactorKind.REPLICATE]
            found.append((op.kernel.name, [size for size in sizes if size > 1]))
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gmm", [("gmm", [4, 2, 2, 8])]),
        ("tgmm", [("gmm", [4, 2, 2, 8]), ("tgmm", [8, 2, 2, 4])]),
        ("paged_attention", [("paged_attention", [4, 2, 4])]),
        ("ragged_paged_attention", [("ragged_paged_attention", [32, 2])]),
    ],
)
def test_bare_calls_may_be_cut_by_rows_groups_sequences_and_heads(name: str, expected: Any) -> None:
    fn, arrays = CALLS[name]
    assert cut(fn, *arrays) == expected


@pytest.mark.parametrize(
    ("fn", "arrays"),
    [
        (partial(products, transpose_rhs=True), GROUPED),
        (partial(products, preferred_element_type=jnp.bfloat16), GROUPED),
        (lambda *given: products(*given[:3], group_offset=given[3]), (*GROUPED, jnp.int32(0))),
        (jax.checkpoint(products), GROUPED),
        (partial(decode, megacore_mode="batch"), PAGED),
        (partial(decode, megacore_mode="kv_head"), PAGED),
        (partial(decode, inline_seq_dim=False), PAGED),
        (partial(decode, attn_logits_soft_cap=30.0), PAGED),
        (partial(decode, mask_value=-1e9), PAGED),
        (partial(ragged, sm_scale=0.125), RAGGED),
        (partial(ragged, sm_scale=0.125, sliding_window=24), RAGGED),
        (partial(ragged, sm_scale=0.125, soft_cap=30.0), RAGGED),
    ],
)
def test_options_are_read_off_a_call(fn: Any, arrays: Any) -> None:
    assert len(cut(fn, *arrays)) == 1


def test_calls_in_a_form_that_the_table_does_not_know_stay() -> None:
    assert not cut(
        lambda *given: products(*given[:3], existing_out=given[3]), *GROUPED, array(256, 256)
    )
    assert not cut(
        jax.vmap(products, (None, 0, None)), GROUPED[0], array(2, 8, 256, 256), GROUPED[2]
    )


@pytest.mark.parametrize(("parts", "expected"), [(1, [4, 2, 2, 8]), (2, [2, 2, 2, 2, 8])])
def test_calls_in_a_shard_map_of_the_users_are_known(parts: int, expected: list[int]) -> None:
    """With a factor more for its parts, if there are several."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:parts]), ("x",))
    rows, matrices, sizes = GROUPED
    given = rows, matrices, jnp.concatenate([sizes // parts] * parts)
    mapped = jax.shard_map(
        lambda *one: products(*one),
        mesh=mesh,
        in_specs=(jax.P("x"), jax.P(), jax.P("x")),
        out_specs=jax.P("x"),
        check_vma=False,
    )
    assert cut(mapped, *given) == [("gmm", expected)]


@pytest.mark.parametrize(("offset", "known"), [(None, 2), (0, 2), (4, 1)])
def test_what_is_computed_ahead_of_a_loop_is_no_operand(offset: int | None, known: int) -> None:
    """A call of other groups than the first is one that the table does not know."""

    def loss(stack: Any, rows: Any) -> Any:
        def layer(rows: Any, matrices: Any) -> tuple[Any, None]:
            sizes = jnp.full(8, jnp.sum(rows > 0) // 512, jnp.int32)
            first = {} if offset is None else {"group_offset": jnp.int32(offset)}
            return products(rows, matrices, sizes, **first), None

        return jnp.sum(jax.lax.scan(layer, rows, stack)[0] ** 2)

    names = [name for name, _ in cut(jax.grad(loss), array(2, 8, 256, 256), GROUPED[0])]
    assert names == ["gmm"] * known + ["tgmm"]


@pytest.mark.parametrize("parts", [1, 2])
def test_what_the_parts_of_a_shard_map_compute_ahead_of_a_loop_is_none_either(parts: int) -> None:
    """It leaves one `shard_map` for the next, cut by all axes of the mesh; all parts are alike."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:parts]), ("x",))

    def layer(rows: Any, matrices: Any) -> tuple[Any, None]:
        sizes = jnp.full(8, jnp.sum(rows > 0) // 512, jnp.int32)
        return products(rows, matrices, sizes), None

    def loss(stack: Any, rows: Any) -> Any:
        specs = {"in_specs": (jax.P("x"), jax.P()), "out_specs": (jax.P("x"), None)}
        mapped = jax.shard_map(layer, mesh=mesh, check_vma=False, **specs)
        return jnp.sum(jax.lax.scan(mapped, rows, stack)[0] ** 2)

    names = [name for name, _ in cut(jax.grad(loss), array(2, 8, 256, 256), GROUPED[0])]
    assert names == ["gmm", "gmm", "tgmm"]


def test_a_rule_of_the_user_goes_first() -> None:
    rule = "grid, lanes m, k n, a b -> a b"
    assert not cut(products, *GROUPED, user_rules={"gmm": rule})


def test_a_function_of_the_same_name_is_another_one() -> None:
    @jax.jit
    def gmm(lhs: Any, rhs: Any, group_sizes: Any) -> Any:
        return lhs @ rhs[0] * group_sizes[0]

    assert not cut(gmm, *GROUPED)
