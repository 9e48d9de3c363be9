"""Masks that compute each block once are those of the library, and kernels are told the same."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

from autoshard.compat import causal_mask, local_mask

CASES = [
    (causal_mask(512, 512), masks.CausalMask((512, 512))),
    (causal_mask(256, 1024), masks.CausalMask((256, 1024))),
    (local_mask(512, 512, 100), masks.LocalMask((512, 512), (100, 0), 0)),
    (local_mask(1024, 512, 384), masks.LocalMask((1024, 512), (384, 0), 0)),
]


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_any_part_of_a_mask_is_that_of_the_library(ours: Any, theirs: Any) -> None:
    cuts = (slice(None), slice(0, 128), slice(128, 256), slice(100, 137), slice(255, 256))
    for places in itertools.product(cuts, cuts):
        np.testing.assert_array_equal(ours[places], theirs[places])


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_kernels_are_told_the_same(ours: Any, theirs: Any) -> None:
    for process in (info.process_mask, info.process_mask_dkv):
        found, expected = (
            process(masks.MultiHeadMask([mask] * 2), (128, 128), head_shards=1, q_seq_shards=1)
            for mask in (ours, theirs)
        )
        for one, other in zip(found[0], expected[0], strict=True):
            np.testing.assert_equal(one, other)


def test_masks_of_other_windows_are_other_masks() -> None:
    assert local_mask(512, 512, 100) != local_mask(512, 512, 200)
    assert causal_mask(512, 512) == causal_mask(512, 512)
    assert hash(causal_mask(512, 512)) == hash(causal_mask(512, 512))
