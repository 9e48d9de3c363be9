"""Names of machines: clouds', vendors' and schedulers' words for what we call otherwise."""

import pytest

from autoshard.machine.file import MachineError, read
from autoshard.machine.load import load, preset_text
from autoshard.machine.names import google_name, machine_types, parse_name, two_meanings


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("v5p:4x4x4", "v5p-4x4x4"),
        ("v5p-128-cores", "v5p-64"),
        ("v4-32-cores", "v4-16"),
        ("v5e-16-chips", "v5e-16"),
        ("v6e-16-cores", "v6e-16"),
        ("v7x-64-chips", "v7x-128"),
        ("v7x-128-cores", "v7x-128"),
        ("tpu7x-128", "v7x-128"),
        ("TPU-v5p-64", "v5p-64"),
        ("2xtpu-v5p-64", "2xv5p-64"),
        ("v5litepod-16", "v5e-16"),
        ("2xv5litepod-256", "2xv5e-256"),
        ("8xH100", "h100-8"),
        ("gpu:h100:8", "h100-8"),
        ("gres/gpu:a100:4(S:0-1)", "a100-4"),
        ("16xgpu:h200:8", "h200-128"),
        ("4x8xH100", "h100-32"),
        ("4 gpu:h100:8", "h100-32"),
        ("4xgpu:a100:4", "4xa100-4"),
        ("gres/gpu:h100=8", "h100-8"),
        ("4xgpu:nvidia_h100_80gb_hbm3:8(S:0-1)", "h100-32"),
        ("8xA100-SXM4-80GB", "a100-8"),
        ("18xgpu:gb200:4", "gb200-nvl72-72"),
        ("18x4xGB200", "gb200-nvl72-72"),
        ("18xa4x-highgpu-4g", "gb200-nvl72-72"),
        ("16xct5p-hightpu-4t", "v5p-64"),
        ("2xct6e-standard-8t", "2xv6e-8"),
        ("trillium-256", "v6e-256"),
        ("tpu v5p-64", "v5p-64"),
        ("gb200-nvl72", "gb200-nvl72-72"),
        ("2xgb200-nvl72", "gb200-nvl72-144"),
        ("dgx-h100", "h100-8"),
        ("4xdgx-b200", "b200-32"),
        ("8xstandard_ND96isr_H100_v5", "h100-64"),
    ],
)
def test_names_of_others_are_machines_of_ours(name, ours):
    found, wanted = load(name), load(ours)
    assert found.network == wanted.network
    assert (found.chip, found.family, found.overlap) == (wanted.chip, wanted.family, wanted.overlap)
    assert found.name == name


def test_a_machine_type_has_its_own_network_between_hosts():
    high, mega, preset = load("4xa3-highgpu-8g"), load("4xa3-megagpu-8g"), load("h100-32")
    assert high.network[0] == mega.network[0] == preset.network[0]
    between = [machine.network[1].chip_bandwidth for machine in (high, mega, preset)]
    assert between == [1.25e10, 2.5e10, 5e10]
    assert machine_types()["a3-highgpu-8g"].source in high.sources
    assert high.chip == preset.chip


def test_nodes_of_four_gpus_are_joined_as_four():
    """Twice as many on NVLink would be another machine, of which more would be said to fit."""
    for name in ("4xgpu:a100:4", "4x4xA100", "4xa100-4"):
        machine = load(name)
        assert [level.chips for level in machine.network] == [4, 4]
    assert [level.chips for level in load("2xa3-highgpu-4g").network] == [4, 2]


def test_a_chip_of_another_memory_is_named_as_its_maker_does():
    small = load("p4d.24xlarge").chip
    for name in ("8xA100-40GB", "a100-40gb-16", "2xgpu:nvidia_a100-sxm4-40gb:8", "4x8xa100-40gb"):
        assert load(name).chip == small
    assert load("a100-40gb", chips=4).network[0].chips == 4


def test_flags_of_the_compiler_change_nothing_of_a_name():
    assert parse_name("4xa3-megagpu-8g@recipe") == parse_name("4xa3-megagpu-8g")
    assert two_meanings("v5p-64@recipe") == two_meanings("v5p-64")


def test_a_machine_type_may_have_another_chip():
    small, large = load("p4d.24xlarge"), load("p4de.24xlarge")
    assert (small.chip.memory_bytes, large.chip.memory_bytes) == (40 * 2**30, 80 * 2**30)
    assert small.chip.peak_flops == large.chip.peak_flops


@pytest.mark.parametrize("name", machine_types())
def test_the_file_of_a_machine_type_is_a_machine_file(name):
    named = parse_name(f"2x{name}")
    file = read(preset_text(named), where=name)
    host = machine_types()[name]
    assert load(f"2x{name}").chips == 2 * host.chips
    assert host.source in file.sources
    if host.between is not None:
        assert file.levels[-1].chip_bandwidth == host.between


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5p-3-cores", "v5p-3-cores: a v5p chip has 2 cores; give a multiple"),
        ("4xv5e", "how many chips? write for example v5e-64"),
        ("a3-megagpu-8h", "did you mean a3-megagpu-8g"),
        ("h100-8-cubes", "no machine 'h100-8-cubes'"),
        ("gpu:h101:8", "did you mean h100"),
        ("GB200", "how many chips? write for example gb200-nvl72-64"),
        ("A100-SXM4-80GB", "how many chips? write for example a100-64"),
        ("8xH100-PCIe", "no machine '8xH100-PCIe'"),
        ("8xgpu:nvidia_h100_nvl:4", "no machine '8xgpu:nvidia_h100_nvl:4'"),
        ("2x2xv6e-256", "no machine '2x2xv6e-256'"),
        ("99999999999999999999xH100", "too many chips"),
    ],
)
def test_what_a_name_cannot_say(name, message):
    with pytest.raises(MachineError) as caught:
        load(name)
    assert message in str(caught.value)


def test_a_name_that_means_two_things_says_both():
    assert two_meanings("2xv4-32") == (
        "2xv4-32 is 32 chips a slice here, which Google calls 2xv4-64; Google's 2xv4-32 is "
        "2xv4-32-cores here"
    )
    assert two_meanings("v5-8").startswith("v5-8 is 8 chips here, which Google calls v5p-16")
    clear = ["v5p-128-cores", "v5p:4x4x4", "v5p-4x4x4", "v5e-64", "v7x-64", "h100-64", "my.toml"]
    assert [two_meanings(name) for name in clear] == [None] * len(clear)


@pytest.mark.parametrize("name", ["v4-64", "v5p-64", "v5e-64", "v6e-64", "v7x-64"])
def test_the_name_that_google_gives_is_the_same_machine(name):
    machine = load(name)
    theirs = google_name(machine.family, machine.chips)
    cores = f"{theirs}-cores" if two_meanings(theirs) else theirs
    assert load(cores).network == machine.network
    assert google_name("h100", 64) == ""
