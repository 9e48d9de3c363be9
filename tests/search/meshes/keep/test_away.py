"""Stacks of stages on the host: chosen where they pay, counted apart, and run as planned."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import pytest

from autoshard.lower.mpmd.cut.saving import Staged, bare
from autoshard.lower.mpmd.instructions import Merged, Run, Unit
from autoshard.lower.mpmd.partition import trace_step
from autoshard.lower.mpmd.runtime import Controller
from autoshard.lower.numbers.double import wide, widened
from autoshard.lower.numbers.numeric import compare_outputs
from autoshard.machine.cluster import Cluster, load_cluster
from autoshard.machine.load import load
from autoshard.models import training
from autoshard.plan.plan import PlanError
from autoshard.search.meshes.keep.away import Away, base_of, offered, sent
from autoshard.search.meshes.keep.promising import LEAST, best_of
from autoshard.search.meshes.keep.titles import WRITTEN, different, known_titles, titled
from autoshard.search.meshes.lower import lower_plan
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.problem import MemoryShortageError, schedule_problem
from autoshard.search.meshes.report import format_pipeline
from autoshard.search.meshes.search import search_meshes
from autoshard.solve.schedule.optimise import solve
from autoshard.solve.schedule.timeline import peak
from tests.lower.mpmd.runs import FLOOR
from tests.search.meshes.chains import chains
from tests.search.meshes.test_keep import AMPLE, FOUR, in_double

SCARCE = 17e6
"""Bytes of a device: what layers are given has no room for as many microbatches as there are
meshes."""


@pytest.fixture(scope="module")
def deep():
    """Four layers a stage in double precision, and its arguments."""
    step = chains(8, rows=4096, layers=16)
    args = training.sample(step.args, 0, {})
    with jax.enable_x64(True):
        return widened(step.fn, *args), wide(args), step.options


@pytest.fixture(scope="module")
def hosted(deep) -> PipelinePlan:
    return searched(deep, SCARCE, "offload")


def with_hosts(found: Cluster, host_bytes: float) -> Cluster:
    """The cluster with so much of the hosts' memory for each device."""
    meshes = []
    for mesh in found.meshes:
        assert mesh.host is not None
        host = replace(mesh.host, memory_bytes=host_bytes * mesh.host.chips)
        meshes.append(replace(mesh, host=host))
    return replace(found, meshes=tuple(meshes))


def searched(step, limit: float, remat, on: Cluster | None = None) -> PipelinePlan:
    with jax.enable_x64(True):
        return search_meshes(
            {8: step},
            load_cluster(FOUR) if on is None else on,
            compare=False,
            time_limit=60,
            remat=remat,
            modes=("fused",),
            stages=(4,),
            memory_limit=limit,
            gap=0.02,
        )


def test_ample_memory_needs_no_host():
    plan = searched(in_double(), AMPLE, "offload")
    assert plan.host_kept == ()
    assert plan.host_bytes == (0.0,) * 4
    assert not any(one.offloaded for one in plan.saves)
    assert Away.CHEAPEST.value in plan.notes[0]
    assert plan.step_seconds <= searched(in_double(), AMPLE, "search").step_seconds


def test_scarce_memory_sends_stacks_to_the_host_and_runs_as_planned(deep, hosted, tmp_path):
    assert hosted.step_seconds < 0.9 * searched(deep, SCARCE, "search").step_seconds
    path = tmp_path / "plan.json"
    hosted.save(path)
    plan = PipelinePlan.load(path)
    assert plan.saves == hosted.saves
    assert plan.host_bytes == hosted.host_bytes
    assert plan.host_limit == tuple(m.host.bytes_per_chip for m in load_cluster(FOUR).meshes)
    assert all(most <= SCARCE for most in plan.peak_bytes)
    sends = [bool(one.offloaded) for one in plan.saves]
    assert any(sends)
    assert [bool(kept) for kept in plan.host_kept] == sends
    text = format_pipeline(plan)
    assert "on the host" in text
    fn, args, options = deep
    with jax.enable_x64(True):
        lowered = lower_plan(plan, fn, *args, **options)
        params, batch = args
        expected = jax.jit(fn)(jax.tree.map(lambda leaf: leaf + 0, params), batch)
        controller = _Counting(lowered)
        result = controller.step((params, batch))
        assert compare_outputs(expected, lowered.whole(result), floor=FLOOR) == []
    # What waits on the host are the stacks that were planned, as many at once as the order keeps.
    assert controller.most == [round(one) for one in plan.host_bytes]


def inside(unit: Unit | Merged) -> int:
    """Bytes on the host that one program of several tasks makes and reads itself."""
    parts = unit.parts if isinstance(unit, Merged) else ()
    nodes = [node for part in parts for node in part.unit.nodes]
    made = [out.aval for node in nodes if node.equation for out in node.equation.outvars]
    there = [aval for aval in made if aval.memory_space == jax.memory.Space.Host]
    return sum(aval.size * aval.dtype.itemsize for aval in there)


class _Counting(Controller):
    """A controller that counts the bytes of arrays on the host, by mesh."""

    def __init__(self, lowered) -> None:
        super().__init__(lowered)
        self.most = [0] * len(lowered.meshes)
        self.units = lowered.script.units

    def do(self, one) -> None:
        super().do(one)
        now = [0] * len(self.most)
        for slot, array in self.slots.items():
            if array.sharding.memory_kind == "pinned_host":
                now[slot.mesh] += array.nbytes
        if isinstance(one, Run):
            unit = self.units[one.unit]
            now[unit.mesh] += inside(unit)
        self.most = [max(pair) for pair in zip(self.most, now, strict=True)]


def test_orders_keep_within_the_memory_of_the_hosts():
    step, on, placement = chains(6, rows=64), load_cluster("2 x h100-1"), (0, 1)
    partition = trace_step(step.fn, *step.args, **step.options).cut((4, 4))
    prices = [replace(price(2e-3, 1000.0, 100.0), seconds={"F": 2e-3, "BW": 1e-3})] * 2

    def problem(room: float, away: float = 0.0):
        hosts = with_hosts(on, room)
        there = [replace(one, host_resident_bytes=away) for one in prices]
        return schedule_problem(partition, there, placement, hosts, [1e6, 1e6], "fused")

    def most(room: float, away: float = 0.0) -> list[int]:
        instance = problem(room, away)
        order = solve(instance, time_limit=5).order
        return [peak(instance, tasks) // instance.memory_forward[0] for tasks in order]

    assert problem(600.0) == problem(1e9)  # six microbatches have room
    assert max(most(600.0)) > 2
    assert max(most(250.0)) == 2
    assert most(199.0) == [1, 1]
    assert most(299.0, away=100.0) == [1, 1]
    with pytest.raises(MemoryShortageError) as caught:
        problem(99.0)
    assert str(caught.value).splitlines()[1] == (
        "  * mesh 0 (h100-1) has 99 B of its hosts for each device; of its stages 0 a microbatch "
        "keeps 100 B there"
    )


def test_damaged_host_bytes_are_named(hosted):
    plan = hosted
    data = json.loads(json.dumps(plan.to_json()))
    assert PipelinePlan.from_json(data).host_bytes == plan.host_bytes
    with pytest.raises(PlanError, match="host_limit has 1 entry; with this host_kept it has 4"):
        PipelinePlan.from_json(data | {"host_limit": [1.0]})
    with pytest.raises(PlanError, match="host_kept has 1 entry for 4 stages"):
        PipelinePlan.from_json(data | {"host_kept": [1.0]})
    earlier = {key: one for key, one in data.items() if not key.startswith("host_")}
    assert PipelinePlan.from_json(earlier).host_bytes == (0.0,) * 4


def test_without_a_table_of_the_host_nothing_is_sent_there():
    found = load_cluster(FOUR)
    hostless = replace(found, meshes=tuple(replace(one, host=None) for one in found.meshes))
    plan = searched(in_double(), AMPLE, "offload", hostless)
    assert plan.notes[1] == (
        "all stacks stay on the devices: of the memory of hosts the file of h100-1 says nothing (a "
        "table [host])"
    )


@pytest.fixture(scope="module")
def staged() -> Staged:
    step = chains(2, rows=4096)
    found = []

    def look(one):
        found.append(one)
        return titled(one, [WRITTEN] * 2, load("h100-1"))

    trace_step(step.fn, *step.args, **step.options).cut((4, 4), saved=look)
    return found[0]


def test_titles_say_what_lies_on_the_host(staged):
    machine = load("h100-1")
    titles = known_titles(staged, machine)
    for title in (*titles, *offered(titles, LEAST)):
        base, away = base_of(title)
        assert title == (base + away.value if away else base)
        (choice, _) = titled(staged, [title] * 2, machine)
        residuals = staged.residuals[0]
        if away is None:
            assert not choice.offloaded
            continue
        assert choice.prefetch == bool(choice.offloaded)
        names = residuals.saved_as_written()
        if choice.names is not None:
            names = {name for name in residuals.homes if bare(name) in choice.names}
        stacks = {bare(name): size for name, size in residuals.stacks(names).items()}
        assert choice.offloaded <= set(stacks)
        assert away is not Away.EVERY or choice.offloaded == set(stacks)
    assert WRITTEN + Away.EVERY.value in offered(titles, LEAST)
    away = different(staged, offered(titles, LEAST), machine, known=titles)
    assert len(set(away)) == len(away)


def test_no_more_is_offered_than_moves_beside_the_forward_pass(staged):
    machine = load("h100-1")
    host, residuals = machine.host, staged.residuals[0]
    assert host is not None
    everything = frozenset(one.name for one in residuals.values)
    before: frozenset[str] = frozenset()
    for speed in (0.0, 1.0, 10.0, 1e6):
        link = replace(host, to_bandwidth=speed * host.to_bandwidth)
        saved, away = sent(residuals, Away.BESIDE, everything, replace(machine, host=link))
        assert saved == everything
        assert len(away) >= len(before)
        before = away
        cheapest, moved = sent(residuals, Away.CHEAPEST, frozenset(), replace(machine, host=link))
        assert moved <= set(residuals.stacks(cheapest))
    assert before == set(residuals.stacks(everything))
    assert sent(residuals, Away.EVERY, everything, replace(machine, host=None))[1] == frozenset()


def price(seconds: float, kept: float, there: float = 0.0) -> StagePrice:
    one = StagePrice.__new__(StagePrice)
    values = {
        "mesh": None, "seconds": {"F": seconds}, "update_seconds": 0.0, "resident_bytes": 0.0,
        "workspace_bytes": 0.0, "kept_bytes": kept, "handed_bytes": 0.0, "peak_bytes": 0.0,
        "specs": (), "plan": None, "host_bytes": there, "host_resident_bytes": 0.0,
    }  # fmt: skip
    for name, value in values.items():
        object.__setattr__(one, name, value)
    return one


def test_choices_that_another_one_beats_are_left_out():
    prices = {
        "lean": price(3.0, 10.0),
        "rich": price(1.0, 100.0),
        "as rich, slower": price(2.0, 99.0),
        "on the host": price(1.5, 20.0, 80.0),
        "on the host, slower": price(2.5, 20.0, 70.0),
    }
    assert best_of(prices, 1) == ["rich", "on the host", "lean"]
    # Hosts with too little room count, too.
    few = best_of(prices, 1, room=60.0)
    assert few == ["rich", "on the host", "on the host, slower", "lean"]
    assert best_of(prices, 1, known=["as rich, slower"])[1:3] == ["on the host", "as rich, slower"]


def test_bytes_on_the_host_are_those_of_the_order(hosted):
    plan = hosted
    for mesh, tasks in enumerate(plan.order):
        here, most = 0, 0
        for task in tasks:
            here += 1 if task.kind == "F" else -1
            most = max(most, here)
        assert plan.host_bytes[mesh] == pytest.approx(most * plan.host_kept[mesh])
        assert peak(plan.instance, tasks) == most * plan.instance.memory_forward[mesh]
