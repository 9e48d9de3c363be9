"""Stacks on the host: chosen where nothing else fits, and not where memory is ample."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from autoshard.plan.plan import Plan
from autoshard.plan.written import TraceOptions
from autoshard.program.graph import REWRITES
from autoshard.program.keep import find_residuals
from autoshard.program.rewritten import resaved
from autoshard.program.trace import trace
from autoshard.search.keep.offload import offloaded
from autoshard.search.keep.proposals import Proposal
from autoshard.search.search import InfeasibleError, search
from tests.helpers import toy_machine

LAYERS, BATCH, WIDTH = 6, 512, 8
STACK = LAYERS * BATCH * WIDTH * 4


@pytest.fixture(scope="module")
def program():
    """Full recomputation: what a layer is given is all that is on a stack."""

    def layer(x, weight):
        return x + jnp.tanh(x @ weight), None

    def loss(weights, x):
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2)

    shapes = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    return trace(jax.grad(loss), shapes, jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32))


OPTIONS = {"mesh": {"x": 2}, "baselines": False, "time_limit": 20.0}


def test_it_is_chosen_where_nothing_else_fits_and_not_in_ample_memory(program):
    machine = toy_machine(2)
    ample = search(program, machine, remat="offload", **OPTIONS)
    assert not ample.transfers
    assert ample.estimate.host_bytes == 0
    limit = 0.45 * STACK
    with pytest.raises(InfeasibleError):
        search(program, machine, remat="search", memory_limit=limit, **OPTIONS)
    tight = search(program, machine, remat="offload", memory_limit=limit, **OPTIONS)
    away = tight.options["offloaded"]
    assert "carry" in away
    assert tight.estimate.peak_bytes <= limit
    assert tight.estimate.host_bytes == len(away) * STACK / 2
    assert any("wait for the backward pass on the host: carry (" in note for note in tight.notes)
    read = Plan.from_json(json.loads(json.dumps(tight.to_json())))
    assert read.options == tight.options
    assert {*REWRITES} <= {*TraceOptions.__annotations__}
    again = resaved(program, read.options["saved"], read.options["offloaded"])
    assert again.fingerprint == read.fingerprint
    kinds = {(one.kind, one.count) for one in tight.transfers}
    assert kinds == {("to_host", LAYERS), ("from_host", LAYERS)}


def test_what_hosts_cannot_hold_is_refused(program):
    machine = toy_machine(2)
    host = machine.host
    assert host is not None
    small = replace(machine, host=replace(host, memory_bytes=host.chips * 1024.0))
    with pytest.raises(InfeasibleError) as error:
        search(resaved(program, None, ["carry"]), small, **OPTIONS)
    assert str(error.value) == (
        "no plan was found that fits the memory of the hosts of toy: what loss keeps there "
        "takes 48.0 KiB per device, of 1.00 KiB (2.00 KiB for 2 chips); keep less there, or take "
        "more chips"
    )


def test_as_few_stacks_as_it_takes_are_offered(program):
    residuals, host = find_residuals(program.written), toy_machine().host
    everything = Proposal("everything", frozenset(one.name for one in residuals.values))
    sizes = residuals.stacks(everything.saved)
    for part in (0.0, 0.3, 0.6, 0.9):
        free = part * sum(sizes.values())
        found = offloaded(residuals, [everything], host, 1, free)[0]
        left = [size for name, size in sizes.items() if name not in found.offloaded]
        assert sum(left) <= free
        assert sum(left) + min(sizes[name] for name in found.offloaded) > free
    assert offloaded(residuals, [everything], None, 1, 0.0) == []
