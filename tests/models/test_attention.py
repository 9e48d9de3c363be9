"""Attention of the built-ins: its kinds agree, and a machine's kernel is found."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard import compat, models
from autoshard.models import attention
from autoshard.models.find import ProgramError, find, is_builtin, size_names, without_settings
from autoshard.models.providers import Target
from tests.models.gradients import gradients

LENGTH = 256
CPU = re.escape("attention='flash' stands for a kernel of TPUs or GPUs, and this is for cpu")


def operands(kind: type) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    shapes = [(2, LENGTH, heads, 16) for heads in (4, 2, 2)]
    return [jnp.asarray(rng.standard_normal(shape), kind) for shape in shapes]


def test_keys_in_blocks_give_what_all_keys_at_once_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCK", 64)
    given = operands(np.float32)
    found, expected = (gradients(one, given) for one in (attention.blocked, attention.plain))
    for here, there in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(here, there, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "kernels"),
    [("plain", 0), ("blocked", 0), ("splash", 4), ("cudnn", 3)],
)
def test_every_kind_is_a_setting_of_the_built_ins(kind: str, kernels: int) -> None:
    """Forward, forward again under `checkpoint`, and one or two kernels backward."""
    for name in ("llama3-8b", "mixtral-8x7b"):
        found = find(f"{name}:tiny,sequence=128,attention={kind}")
        program = autoshard.trace(found.fn, *found.args)
        assert sum(op.primitive in compat.KERNELS for op in program.ops) == kernels


def test_flash_is_the_kernel_of_the_machine() -> None:
    reference = "llama3-8b:tiny,sequence=128,attention=flash"
    on_tpu, on_gpu = (find(reference, machine=Target(8, (one,))) for one in ("tpu", "cuda"))
    assert on_tpu.reference == "llama3-8b:tiny,sequence=128,attention=splash"
    assert on_gpu.reference == "llama3-8b:tiny,sequence=128,attention=cudnn"
    with pytest.raises(ProgramError, match=CPU):
        find(reference)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "llama3-8b,attention=fast",
            "attention is 'fast'; it must be one of plain, blocked, splash, cudnn, flash",
        ),
        (
            "llama3-8b-decode,attention=cudnn",
            "attention is 'cudnn'; decoding has 'plain' attention alone",
        ),
        (
            "llama3-8b:tiny,attention=splash",
            "splash attention takes blocks of 128 positions, which do not divide a sequence of 16; "
            "choose a sequence that they do",
        ),
        (
            "mixtral-8x7b,moe=dense",
            "moe is 'dense'; it must be one of capacity, dropless",
        ),
        (
            "llama3-8b,zzz=4",
            "'llama3-8b': llama() got an unexpected keyword argument 'zzz'; the sizes are those "
            "of its factory",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused(reference: str, message: str) -> None:
    with pytest.raises(ProgramError) as refused:
        find(reference)
    assert str(refused.value) == message


def test_sizes_and_settings_stand_behind_the_name() -> None:
    found = find("llama3-8b:tiny,batch=4,scan=false,microbatches=none", {"layers": 1})
    expected = models.tiny("llama3-8b", batch=4, scan=False, layers=1)
    assert jax.tree.structure(found.args) == jax.tree.structure(expected.args)
    assert jax.tree.leaves(found.args) == jax.tree.leaves(expected.args)
    reference = "llama3-8b,sequence=8192,attention=flash"
    assert is_builtin(reference)
    assert size_names(reference) == models.sizes("llama3-8b")
    assert without_settings("a,b.py:step,rate=1e-3,kind=x") == "a,b.py:step"
