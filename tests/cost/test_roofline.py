"""The roofline: the larger of two times, never nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.roofline import op_seconds
from autoshard.machine.load import load, presets

WORK = st.floats(0, 1e16)
CHIPS = st.sampled_from([load(f"{family}-8").chip for family in presets()])
DTYPES = st.sampled_from(["bfloat16", "float32", "int8", "float8_e4m3fn", "int32", "bool"])


@given(CHIPS, WORK, WORK, DTYPES, st.sampled_from(["matrix", "vector"]))
def test_never_free_and_no_faster_than_either_roof(chip, flops, size, dtype, unit):
    seconds = op_seconds(chip, flops, size, dtype, unit=unit)
    assert isinstance(seconds, float)
    assert seconds > 0
    assert seconds >= size / chip.memory_bandwidth
    peak = chip.matmul_flops(dtype) if unit == "matrix" else chip.vector_flops
    assert seconds >= flops / peak
    assert op_seconds(chip, 2 * flops, size, dtype, unit=unit) >= seconds
    assert op_seconds(chip, flops, 2 * size, dtype, unit=unit) >= seconds


@given(CHIPS)
def test_arrays_are_priced_one_by_one(chip):
    flops, size = np.array([0.0, 1e12, 1e9]), np.array([1e6, 1e6, 1e9])
    assert op_seconds(chip, flops, size).tolist() == [
        op_seconds(chip, f, b) for f, b in zip(flops, size, strict=True)
    ]


def test_critical_batch_of_the_scaling_book():
    """A matmul on v5e is compute-bound from about 240 tokens (chapter 1), at full efficiency."""
    chip = load("v5e-1").chip
    assert chip.matmul_flops("bfloat16") / chip.memory_bandwidth == pytest.approx(240, rel=0.01)


def test_default_precision_of_float32():
    tpu, gpu = load("v5p-8").chip, load("h100-8").chip
    assert tpu.matmul_flops("float32") == tpu.matmul_flops("bfloat16")
    assert gpu.matmul_flops("float32") == gpu.matmul_flops("bfloat16") / 2


def test_faulty_work_is_refused():
    chip = load("v5p-8").chip
    with pytest.raises(ValueError, match="no unit 'tensor'; use 'matrix' or 'vector'"):
        op_seconds(chip, 1, 1, unit="tensor")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="work of -1 FLOP and 0 bytes; give counts of 0 or more"):
        op_seconds(chip, -1, 0)
