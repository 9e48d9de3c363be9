"""Machine files that are written load as the machine that they were written for."""

from __future__ import annotations

import dataclasses

import pytest

from autoshard.machine.as_measured import as_measured
from autoshard.machine.compiler import with_flags
from autoshard.machine.file import MachineError
from autoshard.machine.load import load, parse, presets
from autoshard.machine.machine import Machine, submachine
from autoshard.machine.network import Torus
from autoshard.study.calibrate.machine_toml import file_of, machine_toml
from autoshard.study.calibrate.parameters import parameters, with_values


def same(first: Machine, second: Machine) -> bool:
    """Equal but for the names."""
    renamed = dataclasses.replace(second, name=first.name, family=first.family)
    return first == renamed and first.sources == second.sources


@pytest.mark.parametrize("family", presets())
@pytest.mark.parametrize("size", ["1", "4", "8", "64"])
@pytest.mark.parametrize("slices", ["", "2x"])
def test_every_preset_is_read_back(family, size, slices):
    name = f"{slices}{family}-{size}"
    try:
        machine = load(name)
    except MachineError:
        assert family == "gb200-nvl72"
        return
    third = 1 / 3
    values = {p: 0.9 * third if p.kind != "seconds" else 1e-6 * third for p in parameters(machine)}
    machine = with_values(machine, values)
    for base in (file_of(name, machine), None):
        text = machine_toml(machine, name="again", base=base)
        assert same(machine, parse(text, where="again"))


def test_comments_stay_and_notes_replace_them():
    machine = load("h100-64")
    notes = {"network[1].efficiency": "fitted", "overlap": "fitted too"}
    text = machine_toml(machine, name="mine", notes=notes, base=file_of("h100-64", machine))
    lines = text.split("\n")
    assert lines[0].startswith("# NVIDIA H100 SXM")
    assert lines[1] == 'name = "mine"'
    assert "overlap = 0.5                   # fitted too" in lines
    assert "efficiency = 0.85               # fitted" in lines
    assert "chips = 64" in lines
    assert any("370 of 450 GB/s in the largest" in line for line in lines)
    assert "calibrate it" not in text
    assert "protocol overhead" not in text
    assert "# Dense rates (the data sheet's figures with sparsity, halved)." in text
    assert "bfloat16 = 9.89e14              # " not in text


def test_levels_that_a_small_machine_lacks_are_kept():
    machine = load("h100-8")
    text = machine_toml(machine, name="mine", base=file_of("h100-8", machine))
    assert parse(text, where="mine", chips=64).network == load("h100-64").network


def test_slices_of_a_torus():
    machine = load("2xv5p-64")
    text = machine_toml(machine, name="two", base=file_of("2xv5p-64", machine))
    assert "chips = 64\nslices = 2" in text
    assert parse(text, where="two").chips == 128


def test_parts_of_a_torus_without_its_rings():
    part = submachine(load("v5p-64"), 16)
    assert same(part, parse(machine_toml(part, name="part"), where="part"))


def test_strings_are_quoted():
    chip = dataclasses.replace(load("h100-8").chip, name='a "b"\\c\n\x7f')
    machine = dataclasses.replace(load("h100-8"), chip=chip, sources=("#1", "é"))
    assert same(machine, parse(machine_toml(machine, name="x y"), where="x y"))


@pytest.mark.parametrize("base", [None, file_of("v5p-8", load("v5p-8"))])
def test_flags_of_the_compiler_are_kept(base):
    machine = load("v5p-8")
    chip = dataclasses.replace(machine.chip, compiler=with_flags(machine.chip.compiler, "recipe"))
    machine = dataclasses.replace(machine, chip=chip)
    text = machine_toml(machine, name="again", base=base)
    assert 'flags = "recipe"' in text
    assert same(machine, parse(text, where="again"))
    with pytest.raises(MachineError, match=r"compiler\.flags is 'racing'; xla:tpu has def"):
        parse(text.replace("recipe", "racing"), where="again")


def test_machines_that_no_file_can_say():
    torus = Torus((4, 4), (True, True), 1e11, 1e-6, 0.9)
    machine = dataclasses.replace(
        load("h100-8"), network=(torus, dataclasses.replace(torus, dimensions=(2, 2)))
    )
    with pytest.raises(MachineError, match="no machine file"):
        machine_toml(machine, name="x")
    with pytest.raises(MachineError, match="no network level 'NVLink'"):
        machine_toml(load("h100-8"), name="x", base=file_of("v5p-8", load("v5p-8")))
    with pytest.raises(MachineError, match="none says what products reach by their size"):
        machine_toml(as_measured(load("v7x-64")), name="x")
