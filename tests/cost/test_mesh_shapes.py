"""Which meshes are searched, and that a fine mesh holds every plan of a coarser one."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.cost.mesh_shapes import candidate_meshes
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.evaluate import evaluate
from autoshard.search.mesh_axes import split_axis
from autoshard.search.search import search
from tests.helpers import MESHES, case, random_plan, toy_machine
from tests.random_programs import random_program


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (load("v5p-64"), ((4, 4, 4), (2, 4, 8), (4, 8, 2), (2, 2, 16))),
        (load("h100-8"), ((2, 2, 2),)),
        (load("v5e-16"), ((2, 2, 4),)),
        (load("h100-1"), ((1,),)),
        (toy_machine(7), ((7,),)),
        (toy_machine(13), ((13,),)),
        (toy_machine(6), ((2, 3),)),
    ],
    ids=lambda item: f"{item.name}{item.chips}" if isinstance(item, Machine) else "",
)
def test_candidates(machine: Machine, expected: tuple[tuple[int, ...], ...]) -> None:
    """On a switch the order of axes is nothing; on a torus it says which links an axis has."""
    assert candidate_meshes(machine) == expected


@pytest.mark.parametrize("name", ["v5p-64", "h100-8", "h100-64", "v5e-16"])
def test_every_factoring_is_a_merger_of_a_candidate(name: str) -> None:
    """Up to the order of axes: no mesh of at most three axes is forgotten."""
    machine = load(name)
    found = candidate_meshes(machine)

    def mergers(shape: tuple[int, ...]) -> set[tuple[int, ...]]:
        every = {tuple(sorted(shape))}
        for first in range(len(shape)):
            for second in range(first + 1, len(shape)):
                rest = [size for k, size in enumerate(shape) if k not in (first, second)]
                every |= mergers((shape[first] * shape[second], *rest))
        return every

    reached = set().union(*(mergers(shape) for shape in found))
    wanted = {
        tuple(sorted((a, b, machine.chips // a // b)))
        for a in range(1, machine.chips + 1)
        for b in range(1, machine.chips + 1)
        if machine.chips % (a * b) == 0
    }
    assert {tuple(size for size in shape if size > 1) for shape in wanted} <= {
        tuple(size for size in shape if size > 1) for shape in reached
    }


def test_the_mesh_most_like_the_network_comes_first() -> None:
    assert candidate_meshes(load("v5p-64"))[0] == (4, 4, 4)


@pytest.mark.parametrize("machine", ["v5p-8", "h100-8", "v5e-8", "toy"])
def test_plans_of_a_coarse_mesh_cost_the_same_on_a_finer_one(machine: str) -> None:
    """Split decisions keep every seconds and bytes, whatever the network."""
    chips = toy_machine(8) if machine == "toy" else load(machine)
    checked = moved = 0
    for seed in range(12):
        fn, args, options = random_program(seed)
        args = tuple(type(arg)(tuple(8 for _ in arg.shape), jnp.float32) for arg in args)
        try:
            coarse = case(fn, *args, mesh={"x": 8}, machine=chips, fold=False, **options)
        except (TypeError, ValueError):  # a program that needs its odd sizes
            continue
        for fine_mesh, axes in ((MESHES["2x4"], (0,)), (MESHES["2x2x2"], (0, 1))):
            fine = case(fn, *args, mesh=fine_mesh, machine=chips, fold=False, **options)
            plan = random_plan(coarse, seed)
            decisions = plan.decisions
            for axis in axes:
                decisions = split_axis(decisions, axis)
            again = evaluate(fine.built.prices, decisions, fine.mesh.names)
            assert again.estimate.peak_bytes == plan.estimate.peak_bytes
            assert again.estimate.compute_seconds == pytest.approx(
                plan.estimate.compute_seconds, rel=1e-9
            )
            assert again.estimate.step_seconds <= plan.estimate.step_seconds * (1 + 1e-6) + 1e-11
            checked += 1
            moved += plan.estimate.collective_seconds > 0
    assert checked >= 8
    assert moved >= 4


def test_a_finer_mesh_is_never_worse() -> None:
    """Solved exactly, what a refinement adds can only help."""
    better = 0
    for seed in range(200, 230):
        fn, args, options = random_program(seed)
        args = tuple(
            type(arg)(tuple(size if size % 2 else 4 for size in arg.shape), jnp.float32)
            for arg in args
        )
        try:
            given = case(fn, *args, mesh={"x": 4}, machine=toy_machine(4), fold=False, **options)
            coarse, fine = (
                search(given.program, toy_machine(4), mesh=mesh, gap=0.0, baselines=False)
                for mesh in ({"x": 4}, {"x": 2, "y": 2})
            )
        except (TypeError, ValueError):
            continue
        assert fine.estimate.step_seconds <= coarse.estimate.step_seconds * (1 + 1e-6)
        better += fine.estimate.step_seconds < coarse.estimate.step_seconds * (1 - 1e-6)
    assert better >= 1


def test_one_chip_needs_no_collective() -> None:
    plan = search(
        case(lambda a, b: a @ b, np.ones((4, 4)), np.ones((4, 4)), mesh={"x": 1},
             machine=load("h100-1")).program,
        "h100-1",
    )  # fmt: skip
    assert plan.mesh.sizes == (1,)
    assert plan.moves == ()
