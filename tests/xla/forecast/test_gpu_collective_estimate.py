"""What XLA:GPU reckons collectives between hosts to take, beside what it says itself."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.compiler import cache
from autoshard.compiler.compiled import compile_plan
from autoshard.compiler.hlo.schedule import read_schedule
from autoshard.compiler.target import why_missing
from autoshard.cost.collective import MeshTopology
from autoshard.machine.load import load
from autoshard.xla.forecast.gpu_collective_estimate import UNKNOWN_SECONDS, between_hosts


@pytest.mark.parametrize(
    ("mesh", "axes", "kind", "size", "microseconds"),
    [
        ((64,), (0,), "all_gather", 2**31, 8712.1),
        ((8, 8), (0,), "all_gather", 6291456, 224.2),
        ((16, 4), (0,), "all_gather", 2**27, 1873.6),
        ((4, 16), (0,), "all_gather", 2**27, 5000.0),
    ],
)
def test_figures_that_compiled_schedules_hold(
    mesh: tuple[int, ...], axes: tuple[int, ...], kind: str, size: float, microseconds: float
) -> None:
    """Of Llama-3 8B train steps on `h100-64`."""
    found = between_hosts(MeshTopology(load("h100-64"), mesh), kind, axes, size)
    assert found is not None
    assert 1e6 * found.seconds == pytest.approx(microseconds, rel=0.005)
    assert found.fixed <= found.seconds


def test_groups_that_do_not_divide_a_hosts_chips_are_unknown() -> None:
    found = between_hosts(MeshTopology(load("h100-64"), (4, 16)), "all_gather", (0,), 1.0)
    assert found is not None
    assert found.seconds == UNKNOWN_SECONDS


def test_within_a_host_on_a_torus_and_of_all_to_alls_nothing_is_said() -> None:
    cluster = MeshTopology(load("h100-64"), (8, 8))
    assert between_hosts(cluster, "all_gather", (1,), 1e6) is None
    assert between_hosts(cluster, "all_to_all", (0,), 1e6) is None
    assert between_hosts(MeshTopology(load("v5p-64"), (64,)), "all_gather", (0,), 1e6) is None


@pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")
@pytest.mark.parametrize("chips", ["h100-16", "b200-16"])
def test_the_compiler_says_the_same(chips: str, tmp_path: Path) -> None:
    machine = autoshard.load_machine(chips)
    square = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    plan = autoshard.search(
        autoshard.trace(jnp.tanh, square),
        machine,
        mesh={"x": 16},
        requirements=["pin x [x, None]", "pin result [None, None]"],
        time_limit=10.0,
    )
    assert [move.kind for move in plan.moves] == ["all_gather"]
    compiled = compile_plan(autoshard.lower(plan, jnp.tanh, square), machine, cache=tmp_path)
    answer = cache.load(tmp_path, compiled.key)
    assert answer is not None
    computations = read_schedule(answer.schedule).computations.values()
    starts = {name: at for one in computations for name, at in one.starts.items()}
    begin, end = (
        next(at for name, at in starts.items() if name.startswith(f"all-gather-{part}"))
        for part in ("start", "done")
    )
    found = between_hosts(MeshTopology(machine, (16,)), "all_gather", (0,), 8192 * 8192 * 2)
    assert found is not None
    assert end - begin == pytest.approx(found.seconds, rel=0.01)
