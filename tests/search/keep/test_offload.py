"""Stacks on the host: chosen where nothing else fits, and not where memory is ample."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from autoshard.lower.compiler_options import compiler_options
from autoshard.lower.spmd import lower
from autoshard.machine.load import load
from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import Plan
from autoshard.plan.written import TraceOptions
from autoshard.program.graph import REWRITES
from autoshard.program.keep import find_residuals
from autoshard.program.rewritten import resaved
from autoshard.program.trace import trace
from autoshard.search.keep.offload import alone, emptied, offloaded, on_host
from autoshard.search.keep.priced import Rates
from autoshard.search.keep.proposals import Proposal
from autoshard.search.search import InfeasibleError, search
from tests.helpers import toy_machine
from tests.search.keep.stacked import stacked_arguments

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


def wide(params, x):
    def layer(x, weights):
        return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None

    return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, params)[0] ** 2)


def weights(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((LAYERS, *shape), jnp.float32)


WRITTEN = (
    jax.grad(wide),
    {"up": weights(2048, 8192), "down": weights(8192, 2048)},
    jax.ShapeDtypeStruct((65536, 2048), jnp.float32),
)


def scanned_layers():
    """Layers whose products take longer than what they are given takes to the host."""
    return trace(*WRITTEN)


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


@pytest.mark.parametrize(
    ("remat", "repair"),
    [
        ("respect", "a smaller batch, or save less (--remat search, --remat offload)"),
        ("search", "a smaller batch, or the memory of the host (--remat offload)"),
        ("offload", "take more chips or a smaller batch"),
    ],
)
def test_what_is_proposed_where_nothing_fits_is_not_what_was_asked_for(program, remat, repair):
    machine = toy_machine(2)
    small = replace(machine, chip=replace(machine.chip, memory_bytes=0.01 * STACK))
    with pytest.raises(InfeasibleError) as caught:
        search(program, small, remat=remat, **OPTIONS)
    assert str(caught.value).endswith(repair)


def test_more_is_saved_where_it_moves_to_the_host_beside_the_forward_pass():
    step = trace(jax.grad(wide), *stacked_arguments((LAYERS,), 2048, 32, 64))
    toy = toy_machine(2)
    assert toy.host is not None
    toy = replace(toy, host=replace(toy.host, to_bandwidth=1e5, from_bandwidth=1e5))
    ample = search(step, toy, remat="search", **OPTIONS)
    limit = 0.8 * ample.estimate.peak_bytes
    device = search(step, toy, remat="search", memory_limit=limit, **OPTIONS)
    host = search(step, toy, remat="offload", memory_limit=limit, **OPTIONS)
    assert host.options["prefetch"] is True
    assert host.estimate.peak_bytes <= limit
    assert host.estimate.step_seconds < device.estimate.step_seconds
    assert sum(one.exposed_seconds for one in host.transfers) < 0.1 * host.estimate.transfer_seconds
    read = Plan.from_json(json.loads(json.dumps(host.to_json())))
    again = resaved(step, read.options["saved"], read.options["offloaded"], prefetch=True)
    assert again.fingerprint == host.fingerprint


def test_one_product_more_lies_on_the_host_of_tpus():
    step = scanned_layers()
    residuals = find_residuals(step.written)
    names = [one.name for one in residuals.values]
    (product,) = [one.name for one in residuals.values if one.primitive == "dot_general"]
    machine = load("v5e-2")
    assert machine.host is not None
    moved = 0.5 * machine.host.rate("from_host")

    def rates(others: float, dear: frozenset[str] = frozenset(names)) -> Rates:
        again = {name: 1.0 if name == product else others for name in names}
        return Rates(dict.fromkeys(names, 0.0), again, dict.fromkeys(names, moved), 0.0, dear)

    (found,) = alone(residuals, rates(0.6), (), machine)
    assert (found.offloaded, found.saved, found.prefetch) == ({product}, {product}, False)
    assert found in on_host(residuals, rates(0.6), (), machine)
    # it moves for longer than the rest takes, is cheap to compute again, or is saved already
    assert alone(residuals, rates(0.4), (), machine) == []
    assert alone(residuals, rates(0.6, frozenset()), (), machine) == []
    assert alone(residuals, rates(0.6), [product], machine) == []
    # XLA:GPU fetches a turn early
    assert alone(residuals, rates(0.6), (), load("h100-2")) == []


def test_what_is_fetched_a_turn_early_is_there_where_it_is_read():
    machine = load("h100-2")
    step = scanned_layers()
    names = find_residuals(step.written).saved_as_written()
    steps = [resaved(step, names, ["carry"], prefetch=early) for early in (False, True)]
    late, early = (search(one, machine, **OPTIONS) for one in steps)
    moved = late.estimate.transfer_seconds
    assert early.estimate.transfer_seconds == pytest.approx(moved)
    gained = late.estimate.scheduled_seconds - early.estimate.scheduled_seconds
    assert gained > 0.3 * moved


def test_xla_is_told_of_the_bytes_that_lie_on_the_host():
    machine, step = load("h100-2"), scanned_layers()
    names = find_residuals(step.written).saved_as_written()
    plans = [search(resaved(step, names, away), machine, **OPTIONS) for away in ([], ["carry"])]
    nothing, host = (lower(plan, *WRITTEN).compiler_options for plan in plans)
    assert nothing == {}
    (factor,) = host.values()
    limit = plans[1].memory_limit
    arguments = sum(one.bytes for one in map(step.values.__getitem__, step.inputs))
    assert 100 * (limit + plans[1].estimate.host_bytes) <= factor * (0.8 * limit - arguments / 2)
    assert list(host) == ["xla_gpu_memory_limit_slop_factor"]
    endless = replace(plans[1], memory_limit=float("inf"))
    assert lower(endless, *WRITTEN).compiler_options == {}


def test_xla_is_told_of_memory_that_is_nearly_full():
    program = scanned_layers()
    plan = search(program, load("h100-2"), **OPTIONS)
    needed = needed_bytes(plan.estimate)
    mesh = jax.sharding.AbstractMesh((2,), ("x",))
    halves = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    given = needed // 4
    arguments = [(jax.ShapeDtypeStruct((2 * given,), jnp.uint8), halves)]
    roomy = replace(plan, memory_limit=2.0 * needed)
    assert compiler_options(roomy, program, arguments) == {}
    full = replace(plan, memory_limit=1.01 * needed)
    (factor,) = compiler_options(full, program, arguments).values()
    allowed = factor / 100 * (0.8 * full.memory_limit - given)
    assert needed - given <= full.memory_limit - given <= allowed
    assert allowed < 1.02 * (full.memory_limit - given)
    assert compiler_options(replace(full, belief="xla:tpu"), program, arguments) == {}


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


def test_where_nothing_fits_all_stacks_are_offered_the_leanest_choice_first(program):
    residuals = find_residuals(program.written)
    names = frozenset(one.name for one in residuals.values)
    large, host = Proposal("everything", names), toy_machine(2).host
    offered = emptied(residuals, [large], host, 2)
    assert [one.title.split(",")[0] for one in offered] == ["nothing", "everything"]
    for one in offered:
        assert one.offloaded == frozenset(residuals.stacks(one.saved))
    assert emptied(residuals, [large], replace(host, memory_bytes=1.5 * STACK), 2) == offered[:1]
    assert emptied(residuals, [large], None, 2) == []


def test_where_as_few_stacks_as_it_takes_leave_too_little_room_all_are_tried(
    program, monkeypatch: pytest.MonkeyPatch
):
    """As where what a layer needs beside its stacks is not known yet."""
    monkeypatch.setattr("autoshard.search.keep.search.offloaded", lambda *_: [])
    tight = search(program, toy_machine(2), remat="offload", memory_limit=0.45 * STACK, **OPTIONS)
    assert "carry" in tight.options["offloaded"]
    assert tight.estimate.peak_bytes <= 0.45 * STACK
