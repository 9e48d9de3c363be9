"""Attention without a mask: its kinds agree, and a step of the vision transformer takes each."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

import autoshard
from autoshard import compat
from autoshard.models import whole_attention
from autoshard.models.find import ProgramError, find
from autoshard.models.providers import Target
from tests.models.gradients import gradients


@pytest.mark.parametrize("length", [128, 196])
def test_the_kernel_of_tpus_gives_what_scores_written_out_do(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where lanes are filled up, too: what was added is seen by no token."""
    make = splash_attention_kernel.make_splash_mha
    monkeypatch.setattr(splash_attention_kernel, "make_splash_mha", partial(make, interpret=True))
    rng = np.random.default_rng(0)
    given = [jnp.asarray(rng.standard_normal((2, length, 2, 64)), jnp.float32) for _ in range(3)]
    found, expected = (
        gradients(one, given) for one in (whole_attention.splash, whole_attention.plain)
    )
    for here, there in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(here, there, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("kind", "kernels"), [("plain", 0), ("splash", 4), ("cudnn", 3)])
def test_every_kind_is_a_setting_of_the_vision_transformer(kind: str, kernels: int) -> None:
    """Forward, forward again under `checkpoint`, and one or two kernels backward."""
    found = find(f"vit-l16,layers=2,attention={kind}")
    program = autoshard.trace(found.fn, *found.args)
    assert sum(op.primitive in compat.KERNELS for op in program.ops) == kernels


@pytest.mark.parametrize(("platform", "kind"), [("tpu", "splash"), ("cuda", "cudnn")])
def test_flash_is_the_kernel_of_the_machine(platform: str, kind: str) -> None:
    found = find("vit-l16:tiny,attention=flash", machine=Target(8, (platform,)))
    assert found.reference == f"vit-l16:tiny,attention={kind}"


def test_other_kinds_are_refused_by_name() -> None:
    message = "attention is 'blocked'; it must be one of plain, splash, cudnn, flash"
    with pytest.raises(ProgramError, match=re.escape(message)):
        find("vit-l16,attention=blocked")
