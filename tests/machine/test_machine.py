"""Machines: every preset, the grammar of names, and files with faults."""

import copy
import math
import pickle

import pytest

from autoshard.files.errors import shown
from autoshard.machine.chip import Chip
from autoshard.machine.file import MachineError
from autoshard.machine.load import load, presets
from autoshard.machine.machine import submachine
from autoshard.machine.network import Switch, Torus

FAMILIES = presets()


def test_the_presets():
    assert FAMILIES == (
        "a100", "b200", "b300", "gb200-nvl72", "gb300-nvl72", "h100", "h200", "mi300x",
        "v4", "v5e", "v5p", "v6e", "v7x",
    )  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chips", [1, 2, 4, 8, 16, 64, 256])
def test_every_preset_in_every_common_size(family, chips):
    if family.endswith("-nvl72") and chips == 256:
        chips = 288
    machine = load(f"{family}-{chips}")
    assert machine.chips == chips == math.prod(level.chips for level in machine.network)
    assert machine.family == family
    assert 0 <= machine.overlap <= 1
    assert 0 < machine.chip.usable_bytes < machine.chip.memory_bytes
    assert machine.chip.name in str(machine)
    assert machine.sources


@pytest.mark.parametrize("family", FAMILIES)
def test_published_rates_are_of_the_right_magnitude(family):
    chip = load(f"{family}-8").chip
    assert 1e14 < chip.matmul_flops("bfloat16") < 1e16
    assert chip.matmul_flops("float8_e4m3fn") >= chip.vector_flops
    assert chip.matmul_flops("float32") <= chip.matmul_flops("bfloat16")
    assert 100 < chip.matmul_flops("bfloat16") / chip.memory_bandwidth < 700
    assert chip.vector_flops < chip.matmul_flops("bfloat16")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_of_a_preset_has_its_source_or_says_that_it_is_assumed(family):
    from importlib import resources

    text = (resources.files("autoshard") / "machine" / "presets" / f"{family}.toml").read_text()
    explained = 0
    for line, above in zip(text.splitlines()[1:], text.splitlines(), strict=False):
        name, _, value = line.partition("=")
        if value and value.strip()[0].isdigit():
            explained += 1
            inherited = (
                "[chip.peak_flops]" in text.split(line)[0]
                and "[[network]]" not in (text.split(line)[0])
            )
            assert (
                "#" in line
                or above.startswith("#")
                or inherited
                or name.strip()
                in (
                    "rank",
                    "size",
                )
            ), line
    assert explained > 12


@pytest.mark.parametrize(
    ("name", "dimensions", "wraps"),
    [
        ("v5p-8", (2, 2, 2), (False, False, False)),
        ("v5p-32", (2, 4, 4), (False, False, False)),
        ("v5p-64", (4, 4, 4), (True, True, True)),
        ("v5p-256", (4, 8, 8), (True, True, True)),
        ("v5p-512", (8, 8, 8), (True, True, True)),
        ("v5p-6144", (16, 16, 24), (True, True, True)),
        ("v4-4x4x8", (4, 4, 8), (True, True, True)),
        ("v5e-16", (4, 4), (False, False)),
        ("v5e-128", (8, 16), (False, True)),
        ("v6e-64", (8, 8), (False, False)),
        ("v6e-256", (16, 16), (True, True)),
    ],
)
def test_tori_come_in_the_shapes_of_the_hardware(name, dimensions, wraps):
    (torus,) = load(name).network
    assert isinstance(torus, Torus)
    assert (torus.dimensions, torus.wraps) == (dimensions, wraps)


def test_networks_nest():
    assert [level.chips for level in load("h100-64").network] == [8, 8]
    assert [level.chips for level in load("h100-8").network] == [8]
    assert [level.chips for level in load("h100-4").network] == [4]
    assert [level.chips for level in load("h100-12").network] == [6, 2]
    assert [level.chips for level in load("2xh100-64").network] == [8, 16]
    assert [level.chips for level in load("gb200-nvl72-72").network] == [72]
    assert [level.chips for level in load("gb200-nvl72-128").network] == [64, 2]
    assert [level.chips for level in load("2xv5p-64").network] == [64, 2]
    assert [level.chips for level in load("v7x-4x4x4").network] == [2, 64]
    assert load("tpu7x-128").network == load("v7x-128").network


def test_a_size_may_be_given_apart():
    assert load("v5p", chips=64).network == load("v5p-64").network
    assert load("v5p-8", chips=64).chips == 64


def refusal(name, **options):
    with pytest.raises(MachineError) as caught:
        load(name, **options)
    return str(caught.value)


def test_unknown_names_propose_near_ones():
    assert refusal("h10-8") == (
        "no machine 'h10-8'\n"
        "  did you mean h100?\n"
        f"  presets, each with a number of chips: {', '.join(FAMILIES)}\n"
        "  or hosts of a machine type, such as 4xa3-megagpu-8g: see `autoshard machines`\n"
        "  or give the path of a .toml file of the same form"
    )
    assert "how many chips? write for example v5p-64" in refusal("v5p")
    assert "no machine '???'" in refusal("???")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("v5p64", "v5p-64"),
        ("h100_8", "h100-8"),
        ("H100 16", "h100-16"),
        ("gb200-nvl7272", "gb200-nvl72-72"),
        ("v5ex4", "v5e-4"),
    ],
)
def test_a_name_whose_number_is_not_set_apart(name, meant):
    assert refusal(name).startswith(f"no machine {name!r}\n  did you mean {meant}?\n")


def test_shapes_that_do_not_exist_propose_near_ones():
    assert refusal("v5p-100") == (
        "v5p-100: the hardware does not come as 100 chips in 3 dimensions; "
        "nearest: 2x4x4 (32), 4x4x4 (64), 4x4x8 (128)"
    )
    assert "does not come as 3x4x4 in 3 dimensions" in refusal("v5p-3x4x4")
    assert "does not come as 4x4 in 3 dimensions" in refusal("v5p-4x4")
    assert "does not come as 512 chips in 2 dimensions" in refusal("v5e-512")
    assert refusal("h100-4x4") == "h100-4x4: h100 has no torus to shape; give a number of chips"
    assert "11 chips do not spread evenly over NVLink units of 8" in refusal("h100-11")
    assert "a machine has at least one chip" in refusal("h100-0")


def test_parts_of_a_machine():
    part = submachine(load("v5p-64"), 32)
    assert part.network[0].dimensions == (2, 4, 4)  # type: ignore[union-attr]
    assert part.network[0].wraps == (False, True, True)  # type: ignore[union-attr]
    assert [level.chips for level in submachine(load("h100-64"), 16).network] == [8, 2]
    assert [level.chips for level in submachine(load("h100-64"), 4).network] == [4]
    assert [level.chips for level in submachine(load("2xv5p-64"), 64).network] == [64]
    with pytest.raises(MachineError, match="has no part of 48 chips"):
        submachine(load("v5p-64"), 48)


GOOD = """
name = "mine"
overlap = 0.5
topology = "4x2"
[chip]
name = "Chip"
memory_bytes = 16e9
memory_bandwidth = 1e12
reserve_bytes = 0
vector_flops = 1e12
launch_seconds = 1e-6
matmul_efficiency = 1.0
memory_efficiency = 1.0
[chip.peak_flops]
bfloat16 = 1e14
[[network]]
kind = "torus"
rank = 2
link_bandwidth = 1e10
hop_seconds = 0
efficiency = 1
wraps = [true, false]
"""


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    machine = load(path)
    assert machine.name == "mine"
    assert machine.network == (Torus((4, 2), (True, False), 1e10, 0, 1),)
    assert load(path, chips=16).network[0].chips == 16
    path.write_text(GOOD.replace('topology = "4x2"\n', ""))
    with pytest.raises(MachineError, match="neither `chips` nor `topology`"):
        load(path)
    with pytest.raises(MachineError, match="no machine file"):
        load("nowhere.toml")
    path.write_text("name =")
    with pytest.raises(MachineError, match="is not TOML"):
        load(path)


def test_all_faults_of_a_file_at_once(tmp_path):
    path = tmp_path / "bad.toml"
    text = GOOD.replace("memory_bandwidth", "memory_bandwith").replace(
        "overlap = 0.5", "overlap = 2"
    )
    text = text.replace("vector_flops = 1e12\n", "").replace("1e14", "-1").replace("1e-6", '"1 us"')
    text = text.replace("wraps = [true, false]", "wraps = [1, true, true]").replace(
        "rank = 2", "rank = true"
    )
    path.write_text(text + '[[network]]\nkind = "ring"\n')
    message = refusal(path)
    assert message == (
        f"{path} has 10 faults:\n"
        "  * overlap is 2; it must be from 0 to 1\n"
        "  * chip.memory_bandwith is not a key; did you mean memory_bandwidth?\n"
        "  * chip.peak_flops.bfloat16 is -1; it must be positive\n"
        "  * chip.vector_flops is missing; write a number\n"
        "  * chip.memory_bandwidth is missing; write a number\n"
        "  * chip.launch_seconds is '1 us'; write a number\n"
        "  * network[0].rank is true; write an integer\n"
        "  * network[0].wraps[0] is 1; write a boolean\n"
        "  * network[0].wraps has 3 entries for rank True\n"
        "  * network[1].kind is 'ring'; write 'torus' or 'switch'"
    )


def test_dtypes_the_matrix_unit_does_not_know_run_on_the_vector_unit():
    chip = load("v5p-8").chip
    assert isinstance(chip, Chip)
    assert chip.matmul_flops("int32") == chip.vector_flops
    assert chip.matmul_flops("uint8") == chip.matmul_flops("int8")
    assert chip.matmul_flops("float8_e5m2") == chip.peak_flops["float8"]


@pytest.mark.parametrize("family", FAMILIES)
def test_machines_can_be_pickled_copied_and_hashed(family):
    machine = load(f"{family}-8")
    assert pickle.loads(pickle.dumps(machine)) == machine == copy.deepcopy(machine)
    assert hash(machine) == hash(load(f"{family}-8"))


def test_records_cannot_be_changed():
    machine = load("h100-8")
    with pytest.raises(TypeError):
        machine.chip.peak_flops["bfloat16"] = 1.0  # type: ignore[index]
    with pytest.raises(AttributeError):
        machine.overlap = 1.0  # type: ignore[misc]
    assert isinstance(machine.network[0], Switch)


@pytest.mark.parametrize(
    "name",
    ["v5e-" + "9" * 5000, "9" * 400 + "xv5e-8", "v5p-999999999999x4x4", "h100-1048584", "v5e-1e6"],
)
def test_machines_that_are_too_large_are_refused_at_once(name):
    message = refusal(name)
    assert message.splitlines()[0] in (
        f"{shown(name)} has too many chips; a machine has 1,048,576 at most",
        f"no machine {shown(name)}",
    )
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("size = 8", "size = 8e12", "network[0].size is 8000000000000.0; write an integer"),
        (
            "size = 8",
            "size = 8000000000000",
            "network[0].size is 8000000000000; it must be at most 1.04858e+06",
        ),
        ("latency_seconds = 1e-6", "latency_seconds = 1e99", "is 1e+99; it must be at most 1e+30"),
        ("overlap = 0.8", "overlap = nan", "overlap is nan; it must be finite"),
        ("overlap = 0.8", "overlap = " + "[" * 5000 + "]" * 5000, "nested more than 100 deep"),
    ],
)
def test_bounds_are_checked_where_the_file_is_read(tmp_path, before, after, fault):
    path = tmp_path / "mine.toml"
    text = SWITCHED.replace(before, after)
    assert text != SWITCHED
    path.write_text(text)
    assert fault in refusal(str(path))


SWITCHED = """\
name = "mine"
overlap = 0.8
chips = 8
[chip]
name = "mine"
vector_flops = 4e12
memory_bytes = 16e9
memory_bandwidth = 8e11
reserve_bytes = 0
launch_seconds = 1e-6
matmul_efficiency = 0.8
memory_efficiency = 0.9
peak_flops = { float32 = 1e14 }
[[network]]
kind = "switch"
size = 8
chip_bandwidth = 1e11
latency_seconds = 1e-6
efficiency = 0.8
"""
