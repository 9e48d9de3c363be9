"""Every construct: a case in which it changes the plan, and one in which it conflicts.

How strong it is, and barriers: `test_strengths`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.problem.requirements.records import LogicalRules
from autoshard.program.select import RequirementError
from autoshard.program.trace import trace
from autoshard.search.search import InfeasibleError
from tests.newer_jax import needs_shard_alike, shard_alike
from tests.problem.requirements.programs import array, kept, kinds, plan_of, spec

UP, DOWN, INPUTS, TARGETS = "[0]['up']", "[0]['down']", "[1]['inputs']", "[1]['targets']"
OTHER_MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def test_a_pin_is_kept_to_the_letter(program, free):
    plan = plan_of(program, "pin weights.up [model, data]")
    assert spec(free, UP) != ("model", "data") == spec(plan, UP)
    assert spec(plan, "[1]['up']", "outputs") == ("model", "data")  # state keeps its layout
    assert plan.estimate.step_seconds >= free.estimate.step_seconds


def test_a_closed_dimension_is_whole(program, free):
    assert spec(free, DOWN)[0] is not None
    assert spec(plan_of(program, "pin weights.* [None, ?]"), DOWN)[:1] in ((), (None,))


def test_two_pins_of_one_value_conflict(program):
    with pytest.raises(InfeasibleError):
        plan_of(program, "pin weights.up [model, data]", "pin weights.up [data, ?]")


def test_an_open_dimension_may_be_cut_further_behind_its_axes(program):
    for text in ("[data?, ?]", '[{"data", ?}, {?}]'):
        plan = plan_of(program, f"pin weights.up {text}")
        assert spec(plan, UP)[0] in ("data", ("data", "model"))
    plan = plan_of(program, "pin weights.up [model?, ?]")
    assert spec(plan, UP)[0] == "model"  # data would stand before it


def test_an_open_dimension_conflicts_with_a_closed_one(program):
    with pytest.raises(InfeasibleError):
        plan_of(program, "pin weights.up [data?, ?]", "pin weights.up [None, ?]")


def test_replicated_axes_cut_nothing(program, free):
    plan = plan_of(program, "replicate weights.** over model")
    assert "model" in str(free.specs["inputs"][UP])
    assert "model" not in str(plan.specs["inputs"][UP]) + str(plan.specs["inputs"][DOWN])
    with pytest.raises(InfeasibleError):
        plan_of(program, "replicate weights.** over model", "pin weights.up [?, model]")


def test_tied_values_have_one_layout(program):
    pinned = "pin batch.inputs [model, data]"
    assert spec(plan_of(program, pinned), TARGETS) != ("model", "data")
    plan = plan_of(program, pinned, "tie batch.inputs with batch.targets")
    assert spec(plan, TARGETS) == ("model", "data")
    with pytest.raises(InfeasibleError):
        plan_of(
            program,
            pinned,
            "tie batch.inputs with batch.targets",
            "pin batch.targets [data, model]",
        )


def test_what_is_forbidden_is_nowhere(program, free):
    layout = "[None, (data, model)]"
    assert spec(free, UP) == (None, ("data", "model"))
    plan = plan_of(program, f"forbid weights.up {layout}")
    assert spec(plan, UP) != (None, ("data", "model"))
    with pytest.raises(InfeasibleError):
        plan_of(program, f"forbid weights.up {layout}", f"pin weights.up {layout}")


def test_forbidding_every_layout_conflicts_alone(program):
    with pytest.raises(InfeasibleError):
        plan_of(program, "forbid weights.up [...]")


def test_memory(program, free):
    plan = plan_of(program, f"limit memory {free.estimate.peak_bytes}")
    assert plan.estimate.peak_bytes <= free.estimate.peak_bytes
    with pytest.raises(InfeasibleError):
        plan_of(program, "limit memory 100KiB")


def test_the_number_of_collectives(program, free):
    assert sum(kinds(free).values()) > 2
    two = plan_of(program, "limit collectives count 2")
    assert sum(kinds(two).values()) <= 2
    none = plan_of(program, "limit all_gather count 0")
    assert "all_gather" in kinds(free)
    assert "all_gather" not in kinds(none)
    for plan in (two, none):
        assert plan.estimate.step_seconds > free.estimate.step_seconds
    with pytest.raises(InfeasibleError):
        plan_of(program, "limit collectives count 0", "pin batch.* [data, ...]")


def test_collectives_in_a_scope(program, free):
    def inside(plan, scope):
        return sum(m.count for m in plan.moves if scope in m.scope and m.kind != "all_slice")

    assert inside(free, "mlp") > 0
    plan = plan_of(program, "limit collectives in mlp count 0")
    assert inside(plan, "mlp") == 0
    assert sum(kinds(plan).values()) > 0
    assert plan.estimate.step_seconds > free.estimate.step_seconds
    one = plan_of(program, "limit collectives in mlp over model bytes 64KiB")
    assert sum(m.bytes * m.count for m in one.moves if "model" in m.axes and "mlp" in m.scope) <= (
        64 * 1024
    )
    with pytest.raises(InfeasibleError) as refused:
        plan_of(program, "limit collectives in mlp count 0", "pin batch.inputs [?, model]")
    assert "limit collectives in mlp count 0" in str(refused.value)
    with pytest.raises(RequirementError, match="has no scope 'mpl'; did you mean mlp"):
        plan_of(program, "limit collectives in mpl count 0")


def test_one_of_the_layers_may_be_limited_alone():
    """Layers that are asked different things are decided apart."""

    def step(weights, x):
        for number, (up, down) in enumerate(weights):
            with jax.named_scope(f"layer_{number}"):
                x = jnp.tanh(x @ up) @ down
        return x

    weights = [(array(256, 1024), array(1024, 256)) for _ in range(3)]
    layered = trace(step, weights, array(64, 256))
    pinned = ("pin weights[*][0] [None, model]", "pin weights[*][1] [model, None]")
    every = plan_of(layered, *pinned)
    alone = plan_of(layered, *pinned, "limit all_reduce in layer_1 count 0")
    summed = [{m.scope for m in p.moves if m.kind == "all_reduce"} for p in (every, alone)]
    assert summed[0] >= {"layer_0", "layer_1"}
    assert "layer_0" in summed[1]
    assert "layer_1" not in summed[1]


def test_the_bytes_over_an_axis(program, free):
    def over(plan):
        return sum(m.bytes * m.count for m in plan.moves if "model" in m.axes)

    most = over(free) // 2
    plan = plan_of(program, f"limit collectives over model bytes {most}")
    assert over(plan) <= most < over(free)
    assert plan.estimate.step_seconds > free.estimate.step_seconds
    with pytest.raises(InfeasibleError):
        plan_of(
            program,
            "limit collectives over model bytes 0",
            "pin batch.inputs [?, model]",
            "pin weights.up [None, data]",
        )


def test_logical_rules_in(program):
    names = {
        "weights.up": ("embed", "mlp"),
        "weights.down": ("mlp", "embed"),
        "batch.inputs": ("batch", "embed"),
    }
    rules = {"embed": ("data",), "mlp": ("model",), "batch": ("data",)}
    plan = plan_of(program, LogicalRules(names, rules))
    assert (spec(plan, UP), spec(plan, DOWN)) == (("data", "model"), ("model", "data"))
    assert spec(plan, INPUTS) == ("data",)  # embed finds data taken
    with pytest.raises(InfeasibleError):
        plan_of(program, LogicalRules(names, rules), "pin weights.down [data, model]")


def test_logical_rules_out(program):
    """Rules are found that a plan follows; given, they make a plan that is as fast."""
    names = {
        "weights.up": ("embed", "mlp"),
        "weights.down": ("mlp", "embed"),
        "batch.inputs": ("batch", "embed"),
        "batch.targets": ("batch", None),
    }
    plan = plan_of(program, LogicalRules(names), "pin batch.inputs [data, model]")
    (found, _) = plan.requirements
    rules = {name: tuple(axes) for name, axes in found["rules"].items()}
    assert rules["batch"] == ("data",)
    assert "model" in rules["embed"]
    assert spec(plan, TARGETS) == ("data",)
    again = plan_of(program, LogicalRules(names, rules))
    assert again.estimate.step_seconds == pytest.approx(plan.estimate.step_seconds)
    with pytest.raises(InfeasibleError):  # one name would need two rules
        plan_of(
            program,
            LogicalRules(names),
            "pin weights.up [data, model]",
            "pin weights.down [data, model]",
        )
    soft = plan_of(
        program,
        LogicalRules(names, priority=0),
        "pin weights.up [data, model]",
        "pin weights.down [data, model]",
    )
    assert kept(soft) == [False, True, True]


def constrained(spec):
    def step(x, w):
        y = jax.lax.with_sharding_constraint(x @ w, NamedSharding(OTHER_MESH, spec))
        return jnp.tanh(y)

    return step


def test_constraints_of_the_program_are_requirements():
    arguments = array(64, 128), array(128, 32)
    unconstrained = PartitionSpec.UNCONSTRAINED
    program = trace(constrained(PartitionSpec("model", unconstrained)), *arguments)
    pinned = "pin x [data, None]", "pin w [None, model]"
    plan = plan_of(program, *pinned)
    (one, *_) = plan.requirements
    assert one["kept"]
    assert one["source"].startswith("with_sharding_constraint at test_constructs.py:")
    value = next(op for op in program.ops if op.primitive == "sharding_constraint").outputs[0]
    stored = plan.decisions.stored[value]
    assert stored is not None
    assert stored[1] == 0  # the second axis, model, on the first dimension
    free = plan_of(program, *pinned, constraints=False)
    assert len(free.requirements) == 2
    stored = free.decisions.stored[value]
    assert stored is not None
    assert stored[1] != 0
    assert free.estimate.step_seconds < plan.estimate.step_seconds
    line = one["source"].rpartition(":")[2]
    with pytest.raises(InfeasibleError, match=r"with_sharding_constraint at test_constructs\.py"):
        plan_of(program, f"pin line test_constructs.py:{line}:sharding_constraint [data, ?]")


def test_shardings_of_a_jit_are_requirements():
    def step(x, w):
        return jnp.tanh(x @ w)

    sharding = NamedSharding(OTHER_MESH, PartitionSpec(None, "model"))
    jitted = jax.jit(step, in_shardings=(sharding, None), out_shardings=sharding)
    program = trace(jitted, array(64, 128), array(128, 32))
    plan = plan_of(program)
    assert spec(plan, "[0]") == spec(plan, "", "outputs") == (None, "model")
    with pytest.raises(InfeasibleError):
        plan_of(program, "replicate x over model")


@needs_shard_alike
def test_shard_alike_is_a_tie():
    def step(x, y):
        a, b = shard_alike(x, y)
        return a + 1, b * 2

    arguments = array(64, 128), array(64, 128)
    program = trace(step, *arguments)
    pinned = "pin x [model, data]", "pin y [data, model]"
    plan = plan_of(program, *pinned)
    a, b = next(op for op in program.ops if op.primitive == "shard_alike").outputs
    assert plan.decisions.stored[a] == plan.decisions.stored[b]
    assert kinds(plan)  # one of the two has to move
    assert not kinds(plan_of(trace(lambda x, y: (x + 1, y * 2), *arguments), *pinned))
    with pytest.raises(InfeasibleError, match="limit collectives count 0"):
        plan_of(program, *pinned, "limit collectives count 0")


def test_a_constraint_on_another_mesh_is_refused_with_the_repair():
    program = trace(constrained(PartitionSpec("model", None)), array(64, 128), array(128, 32))
    with pytest.raises(RequirementError, match=r"has no axis model"):
        plan_of(program, mesh={"x": 8})
    with pytest.raises(RequirementError, match="--mesh data=2,model=4, or --ignore-constraints"):
        plan_of(program, mesh=None)


def test_limits_need_no_mesh(program):
    plan = plan_of(program, "limit all_gather count 0", "limit memory 1GiB", mesh=None)
    assert "all_gather" not in kinds(plan)
    assert plan.mesh.names[0] == "x"


def test_a_constraint_that_is_met_costs_nothing_and_shardy_makes_its_plan():
    from autoshard.lower.spmd import lower
    from autoshard.lower.verify import verify_collectives

    def plain(x, w):
        return jnp.tanh(x @ w)

    arguments = array(64, 128), array(128, 32)
    pins = "pin x [data, None]", "pin w [None, model]"
    with_it = constrained(PartitionSpec("data", "model"))
    plan = plan_of(trace(with_it, *arguments), *pins)
    without = plan_of(trace(plain, *arguments), *pins)
    assert plan.estimate.step_seconds == without.estimate.step_seconds
    moved = plan_of(trace(constrained(PartitionSpec("model", None)), *arguments), *pins)
    assert moved.moves
    step = constrained(PartitionSpec("model", None))
    assert verify_collectives(lower(moved, step, *arguments)).agrees


def test_found_logical_rules_are_the_best_of_all(program):
    names = {"weights.up": ("embed", "mlp"), "weights.down": ("mlp", "embed")}
    pinned = "pin batch.* [data, model]"
    plan = plan_of(program, LogicalRules(names), pinned)
    options = [(), ("data",), ("model",), ("data", "model")]
    best = min(
        plan_of(program, LogicalRules(names, {"embed": a, "mlp": b}), pinned).estimate.step_seconds
        for a in options
        for b in options
    )
    assert plan.estimate.step_seconds == pytest.approx(best, rel=1e-9)


def test_a_baseline_says_which_requirement_it_breaks(program):
    """And not that it lacked memory; where it lacks that, it says so."""

    def notes(*asked):
        return {row.name: row.note for row in plan_of(program, *asked, baselines=True).baselines}

    for asked in ("pin weights.up [model, data]", "limit collectives count 2"):
        found = notes(asked)
        assert found["FSDP"] == f"breaks {asked}"
        assert set(found.values()).isdisjoint({"does not fit the memory limit"})
    assert notes("limit memory 1MiB")["FSDP"] == "does not fit the memory limit"
