"""cuDNN's attention: how it may be cut, and what it costs, traced where there is no GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard import compat
from autoshard.program.kernels.records import Arithmetic

BATCH, LENGTH, HEADS, KV_HEADS, WIDTH = 2, 512, 8, 4, 64


def traced(*, grad: bool, bias: tuple[int, ...] = (), **options: Any) -> Any:
    """The op of cuDNN: forward, or backward."""
    shapes = [(BATCH, LENGTH, n, WIDTH) for n in (HEADS, KV_HEADS, KV_HEADS)]
    shapes += [bias] if bias else []

    def attend(*operands: Any) -> Any:
        out = jax.nn.dot_product_attention(*operands, implementation="cudnn", **options)
        return jnp.sum(out.astype(jnp.float32)) if grad else out

    step = jax.grad(attend, argnums=tuple(range(len(shapes)))) if grad else attend
    operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    ops = autoshard.trace(step, *operands).ops
    return [op for op in ops if op.primitive in compat.FUSED_ATTENTION][-1]


def cuttable(op: Any) -> dict[str, str]:
    """Dimensions of operands and results that some factor cuts, by a letter for each factor."""
    kinds = [one.kind.name for one in op.rule.factors]
    passing = [k for k, kind in enumerate(kinds) if kind == "PASS"]
    letter = dict(zip(sorted(passing), "abcdefg", strict=False))
    letter |= {k: "r" for k, kind in enumerate(kinds) if kind == "RING"}
    tensors = (*op.rule.operands, *op.rule.results)
    shown = ["".join(letter.get(k, "-") for d in one for k in d) for one in tensors]
    count = len(op.rule.operands)
    return {"operands": " ".join(shown[:count]), "results": " ".join(shown[count:])}


def test_batch_and_heads_are_cut_and_positions_as_a_ring() -> None:
    """Heads of queries in groups, whose keys they share: `a` batch, `b` head, `c` of its group.

    Under a causal mask the ring exchanges halves, which stay whole.
    """
    forward = cuttable(traced(grad=False, is_causal=True))
    assert forward["operands"] == "ar-bc- ar-b- ar-b- - - - - - - -"
    assert forward["results"] == "ar-bc-"
    backward = cuttable(traced(grad=True, is_causal=True))
    assert backward["operands"] == "ar-b-- ar-b- ar-b- - - - - - - - ab-r- ar-b-- ar-b--"
    assert backward["results"] == "ar-b-- ar-b- ar-b-"
    assert cuttable(traced(grad=False))["operands"] == "arbc- arb- arb- - - - - - - -"


def test_a_window_keeps_positions_whole() -> None:
    for grad in (False, True):
        op = traced(grad=grad, is_causal=True, local_window_size=(127, 0))
        assert op.kernel.rings == ()
        assert "r" not in cuttable(op)["operands"]


@pytest.mark.parametrize(
    ("bias", "kept", "results"),
    [
        ((BATCH, HEADS, LENGTH, LENGTH), "ab---", "a-b-- a-b- a-b- ab---"),
        ((1, HEADS, LENGTH, LENGTH), "-a---", "--a-- --a- --a- -a---"),
        ((BATCH, 1, LENGTH, LENGTH), "a---", "a---- a--- a--- a---"),
        ((1, 1, LENGTH, LENGTH), "----", "----- ---- ---- ----"),
    ],
)
def test_the_gradient_of_a_bias_of_all_is_a_sum_that_no_part_has(
    bias: tuple[int, ...], kept: str, results: str
) -> None:
    found = cuttable(traced(grad=True, bias=bias))
    assert found["operands"].split()[3] == kept
    assert found["results"] == results


def test_scores_that_masks_hide_are_skipped_by_tiles() -> None:
    """Of four tiles a side: ten of sixteen are causal, seven of them within a window."""
    scores = BATCH * HEADS * LENGTH**2

    def work(**options: Any) -> Arithmetic:
        return traced(**options).kernel.arithmetic

    assert work(grad=False) == Arithmetic(4.0 * WIDTH * scores, 4.0 * scores, scores)
    assert work(grad=True) == Arithmetic(10.0 * WIDTH * scores, 5.0 * scores, scores)
    causal = work(grad=False, is_causal=True)
    assert causal.products == 4.0 * WIDTH * scores * 10 / 16
    window = work(grad=False, is_causal=True, local_window_size=(127, 0))
    assert window.products == 4.0 * WIDTH * scores * 7 / 16


def test_lengths_that_data_decides_are_counted_whole_and_said() -> None:
    lengths = jnp.array([512, 8], jnp.int32)
    op = traced(grad=False, query_seq_lengths=lengths, key_value_seq_lengths=lengths)
    assert op.kernel.guessed
    assert cuttable(op)["operands"] == "a-bc- a-b- a-b- - a a - - - -"
