"""A step on several meshes beside the step on one device, in double precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from autoshard.lower.mpmd.place import LoweredMpmd
from autoshard.lower.numbers.double import wide, widened
from autoshard.lower.numbers.numeric import Difference, compare_outputs
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch
from autoshard.models import training
from autoshard.search.meshes.lower_step import lower_mpmd

# Where the gradient is zero but for rounding (biases of keys), AdamW divides small by small.
FLOOR = 1e-9
BOUNDS = {"tokens": 32, "targets": 32, "labels": 8, "images": 2}


def eager(chips: int = 4) -> Machine:
    """A machine on which nothing has a fixed cost, so that sharding pays for tiny arrays, too."""
    machine = load("h100", chips=chips)
    network = tuple(
        replace(level, latency_seconds=0.0, start_seconds=0.0)
        if isinstance(level, Switch)
        else level
        for level in machine.network
    )
    return replace(machine, chip=replace(machine.chip, launch_seconds=1e-12), network=network)


def meshes_of(*sizes: int) -> list[Mesh]:
    """Meshes of so many devices each, one after another."""
    devices, meshes, start = jax.devices(), [], 0
    for size in sizes:
        chosen = np.array(devices[start : start + size])
        meshes.append(Mesh(chosen, ("data",), axis_types=(AxisType.Auto,)))
        start += size
    return meshes


def lowered_and_differences(
    step: Any, meshes: list[Mesh], *, steps: int = 3, **options: Any
) -> tuple[LoweredMpmd, list[Difference]]:
    """The lowered step; where losses and state differ after each of `steps` optimizer steps."""
    options = {"machine": eager(), **options}
    args = training.sample(step.args, 0, BOUNDS)
    with jax.enable_x64(True):
        fn, args = widened(step.fn, *args), wide(args)
        donate = step.options["donate_argnums"]
        lowered = lower_mpmd(fn, *args, meshes=meshes, donate_argnums=donate, **options)
        (*state, batch), plain = args, jax.jit(fn)
        expected, differences = jax.tree.map(lambda leaf: leaf + 0, state), []
        for _ in range(steps):
            loss, *state = lowered.run(*state, batch)
            right, *expected = plain(*expected, batch)
            actual = lowered.whole((loss, state))
            differences += compare_outputs((right, expected), actual, floor=FLOOR)
    return lowered, differences
