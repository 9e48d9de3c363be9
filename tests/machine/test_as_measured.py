"""What chips reach by micro-benchmarks, and compilers with sets of flags."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from autoshard.cost.kernels import kernel_seconds
from autoshard.cost.roofline import op_seconds
from autoshard.machine.as_measured import REACHED, TYPICAL, as_measured
from autoshard.machine.compiler import with_flags
from autoshard.machine.file import MachineError
from autoshard.machine.load import load, preset_text
from autoshard.machine.names import parse_name
from autoshard.program.kernels.records import Arithmetic, KernelWork


def test_products_take_what_was_measured():
    chip = as_measured(load("v7x-64")).chip
    for size, share in REACHED["TPU7x device"].products:
        seconds = float(op_seconds(chip, 2 * size**3, 0.0)) - chip.launch_seconds
        assert 2 * size**3 / seconds / chip.matmul_flops("bfloat16") == pytest.approx(share)
    between = (
        np.asarray(op_seconds(chip, np.array([2 * 3000.0**3]), np.zeros(1))) - chip.launch_seconds
    )
    assert 0.589 < 2 * 3000.0**3 / between[0] / chip.matmul_flops("bfloat16") < 0.774
    assert pickle.loads(pickle.dumps(chip)) == chip


def test_presets_stay_as_compilers_tell_and_others_are_left_alone():
    assert load("v7x-64").chip.product_shares == ()
    machine = load("mi300x-8")
    assert as_measured(machine) is machine


def test_attention_takes_what_its_kernels_were_measured_to():
    chip = as_measured(load("h100-8")).chip
    peak = chip.matmul_flops("bfloat16")
    assert peak == load("h100-8").chip.matmul_flops("bfloat16")
    work = KernelWork("k", (1,), Arithmetic(1e15, exponentials=1.0), "bfloat16", 1.0, False, ())
    seconds = kernel_seconds(chip, work, np.ones(1))[0] - chip.launch_seconds
    assert 1e15 / seconds / peak == pytest.approx(0.505, rel=1e-4)
    older = as_measured(load("h100-8"), "flash-1").chip
    assert 1e15 / (kernel_seconds(older, work, np.ones(1))[0]) / peak == pytest.approx(
        0.158, rel=1e-3
    )
    products = KernelWork("k", (1,), Arithmetic(1e15), "float8_e4m3fn", 1.0, False, ())
    narrow = op_seconds(chip, 1e15, 0.0, "float8_e4m3fn")
    assert kernel_seconds(chip, products, np.ones(1))[0] == narrow  # attention alone is so slow
    assert 1e15 / narrow / chip.peak_flops["float8"] == pytest.approx(0.803 * TYPICAL, rel=1e-3)
    shares = 1e15 / narrow / load("h100-8").chip.peak_flops["float8"]
    assert shares == pytest.approx(0.709 * TYPICAL, rel=1e-3)
    best = as_measured(load("h100-8"), best=True).chip
    assert best.matmul_efficiency == pytest.approx(0.803)
    assert best.matmul_flops("float8") * 0.803 == pytest.approx(0.709 * 1.979e15)
    seconds = kernel_seconds(best, work, np.ones(1))[0] - best.launch_seconds
    assert 1e15 / seconds / peak == pytest.approx(0.505, rel=1e-4)


def test_flags_of_recipes_hide_collectives_and_are_told_to_the_compiler():
    compiler = load("v5p-8").chip.compiler
    recipe = with_flags(compiler, "recipe")
    assert (compiler.hides_collectives, recipe.hides_collectives) == (False, True)
    assert compiler.options == {}
    assert recipe.options["xla_enable_async_all_gather"] is True
    assert str(recipe) == "xla:tpu with recipe flags"
    told = with_flags(load("h100-8").chip.compiler, "recipe")
    assert told.options["xla_gpu_enable_while_loop_double_buffering"] is True
    with pytest.raises(ValueError, match="xla:gpu has no flags 'racing'; it has default, recipe"):
        with_flags(load("h100-8").chip.compiler, "racing")


def test_a_name_says_the_flags_of_its_compiler(tmp_path):
    machine, own = load("h100-64@recipe"), load("h100-64")
    assert (machine.name, machine.family, machine.chips) == ("h100-64@recipe", "h100", 64)
    assert machine.chip.compiler == with_flags(own.chip.compiler, "recipe")
    assert not load("a100-8@recipe").chip.compiler.hides_collectives
    assert load("h100@recipe", chips=8).chips == 8
    file = tmp_path / "mine.toml"
    file.write_text("chips = 8\n" + preset_text(parse_name("h100-8")))
    assert load(f"{file}@recipe").chip.compiler.flags == "recipe"
    with pytest.raises(MachineError, match="h100-64@racing: xla:gpu has no flags 'racing'"):
        load("h100-64@racing")
    with pytest.raises(MachineError, match="no machine 'h999-64'"):
        load("h999-64@recipe")
