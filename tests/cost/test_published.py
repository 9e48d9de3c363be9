"""Collectives on machines at their full rates, against published worked problems."""

import dataclasses
from dataclasses import replace

import pytest

from autoshard.cost.collective import MeshTopology
from autoshard.machine.load import load
from autoshard.machine.network import Torus


def ideal(name, **changes):
    """A machine at its full rates and without latencies."""
    machine = load(name)
    network = tuple(
        dataclasses.replace(
            level,
            efficiency=1.0,
            **(
                {"hop_seconds": 0.0}
                if isinstance(level, Torus)
                else {"latency_seconds": 0.0, "start_seconds": 0.0}
            ),
            **changes,
        )
        for level in machine.network
    )
    chip = dataclasses.replace(machine.chip, launch_seconds=1e-30)
    return dataclasses.replace(machine, network=network, chip=chip)


class TestPublished:
    """Worked problems of https://jax-ml.github.io/scaling-book, chapters 3 and 12."""

    def test_pop_quiz_all_gather_on_a_line_of_v5e(self):
        machine = dataclasses.replace(
            ideal("v5e-32", link_bandwidth=4.5e10), name="v5e 4x8 at the book's 45 GB/s"
        )
        topology = MeshTopology(machine, (8, 4))
        seconds = topology.collective_seconds("all_gather", (1,), 2048 * 8192 * 2)
        assert seconds == pytest.approx(560e-6, rel=0.01)

    def test_a_ring_takes_bytes_over_twice_the_link(self):
        topology = MeshTopology(ideal("v5p-4096"), (16, 16, 16))
        assert topology.collective_seconds("all_gather", (0,), 1e9) == pytest.approx(
            1e9 / 2e11 * 15 / 16
        )

    def test_several_axes_add_their_bandwidth(self):
        topology = MeshTopology(ideal("v5p-4096"), (16, 16, 16))
        assert topology.collective_seconds("all_gather", (0, 1), 1e9) == pytest.approx(
            1e9 / 4e11 * 255 / 256
        )

    def test_all_to_all_is_a_quarter_of_an_all_gather(self):
        topology = MeshTopology(ideal("v5p-4096"), (16, 16, 16))
        whole = 1e9
        assert topology.collective_seconds("all_to_all", (0,), whole / 16) == pytest.approx(
            whole / 2e11 / 4
        )

    def test_pop_quiz_all_gather_within_an_h100_host(self):
        topology = MeshTopology(ideal("h100-8"), (8,))
        seconds = topology.collective_seconds("all_gather", (0,), 2 * 1024 * 16384)
        assert seconds == pytest.approx(65e-6, rel=0.01)

    def test_across_hosts_every_gpu_drives_its_own_card(self):
        machine = ideal("h100-256")
        inner, outer = machine.network
        pipelined = replace(machine, network=(inner, replace(outer, pipelined=1.0)))
        rate = MeshTopology(pipelined, (32, 8)).rate("all_gather", (0, 1))
        assert 1 / rate.seconds_per_byte == pytest.approx(413e9, rel=0.001)

    def test_one_level_after_the_other_takes_the_sum(self):
        machine = ideal("h100-256")
        inner, outer = machine.network
        in_turn = replace(machine, network=(inner, replace(outer, pipelined=0.0)))
        topology = MeshTopology(in_turn, (32, 8))
        whole = topology.rate("all_gather", (0, 1)).seconds_per_byte
        across = topology.rate("all_gather", (0,)).seconds_per_byte / 8
        within = topology.rate("all_gather", (1,)).seconds_per_byte
        assert whole == pytest.approx(across + within)

    def test_all_to_all_across_hosts_falls_to_the_card(self):
        topology = MeshTopology(ideal("h100-16"), (2, 8))
        local = 1e9
        assert topology.collective_seconds("all_to_all", (0, 1), local) == pytest.approx(
            local * (2 - 1) / 2 / 50e9
        )

    def test_pairs_with_wires_of_their_own_share_nothing(self):
        two = MeshTopology(ideal("mi300x-8"), (4, 2)).rate("all_gather", (1,))
        eight = MeshTopology(ideal("mi300x-8"), (8,)).rate("all_gather", (0,))
        assert two.seconds_per_byte == pytest.approx(1 / 2 / 64e9)
        assert eight.seconds_per_byte == pytest.approx(7 / 8 / 448e9)
