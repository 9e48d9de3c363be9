"""MaxText's own file: which splits are priced, what is chosen, and what the file says."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.compiler.compiled import compile_lowered
from autoshard.compiler.target import target_of, why_missing
from autoshard.machine.load import load
from autoshard.models.maxtext.express import (
    NOT_FASTER,
    Choice,
    Expression,
    Trial,
    mesh_settings,
    slices_of,
)
from autoshard.models.maxtext.flags import PricedFlags, flag_settings, priced_flags
from autoshard.models.maxtext.own_file import (
    base_settings,
    command,
    differences,
    parted,
    yaml_text,
)
from autoshard.models.maxtext.places import Places, choose, policies
from autoshard.models.maxtext.splits import AxisUse, distinct, neighbours, splits
from autoshard.models.providers import ProgramError, Target
from autoshard.plan.plan import MeshShape
from autoshard.program.trace import trace
from autoshard.search.all_shapes import InfeasibleError
from autoshard.search.options import SearchOptions
from autoshard.search.search import search
from tests.helpers import toy_machine

ORDER = ("data", "fsdp", "tensor", "expert")
BATCH, HEADS, MODEL = (64, 8, 512), (16, 4, 32), (512, 128)
USES = {
    "data": AxisUse(((BATCH, 0), (HEADS, None), (MODEL, None))),
    "fsdp": AxisUse(((BATCH, 0), (HEADS, None), (MODEL, 0))),
    "tensor": AxisUse(((BATCH, None), (HEADS, 1), (MODEL, 1))),
}


def all_splits(devices):
    return [one for axes in (1, 2, 3) for one in splits(devices, USES, ORDER, axes=axes)]


def test_axes_that_do_the_same_are_split_once():
    asked = {**USES, "expert": USES["fsdp"], "stage": AxisUse(((BATCH, None),))}
    assert distinct(asked) == {"data": (), "fsdp": ("expert",), "tensor": ()}
    other = AxisUse(USES["fsdp"].layouts, code=("ragged_all_to_all",))
    assert "expert" in distinct({**USES, "expert": other})


def test_splits_multiply_to_the_devices_and_cut_evenly():
    found = all_splits(16)
    assert all(math.prod(size for _, size in one) == 16 for one in found)
    assert all(dict(one).get("tensor", 1) <= 4 for one in found)  # there are four heads
    assert (("fsdp", 16),) in found
    assert (("data", 2), ("fsdp", 2), ("tensor", 4)) in found
    assert len(set(found)) == len(found)
    assert all_splits(6) == []  # 64 rows are not cut by three


def test_neighbours_move_a_prime_factor():
    near = neighbours((("fsdp", 4), ("tensor", 4)), USES, ORDER)
    assert (("data", 2), ("fsdp", 2), ("tensor", 4)) in near
    assert (("fsdp", 8), ("tensor", 2)) in near
    assert all(dict(one).get("tensor", 1) <= 4 for one in near)


class StandIn(Expression):
    """The search with prices that are written here, in place of MaxText's steps."""

    order, uses = ORDER, USES
    least = math.inf

    def tensors(self, choice):
        return ["query_proj", "mlpwi_0", "context"]

    def _planned(self, choice, cutoff):
        sizes, saved = dict(choice.split), choice.saved or ()
        seconds = 8 / sizes.get("fsdp", 1) + sizes.get("fsdp", 1) + sizes.get("tensor", 1) / 2
        seconds -= 0.9 * (sizes.get("data", 1) == 2) * (len(sizes) == 3)
        seconds += 0.1 * choice.microbatches * (sizes.get("fsdp", 1) < 8)
        gains = {"query_proj": 0.1, "mlpwi_0": 0.4, "context": -0.1}
        seconds -= sum(gains[one] for one in saved)
        seconds -= sum(0.9 * gains[one] for one in choice.offloaded)
        size = 800 // choice.microbatches + 100 * len(saved)
        if size > self.least:
            raise InfeasibleError(f"{choice} needs {size} bytes:\n  of 500")
        return SimpleNamespace(estimate=SimpleNamespace(step_seconds=seconds, expected_bytes=size))


def stood(machine="v5e-16", least=math.inf, settings=None, **asked):
    machine = load(machine)
    made = StandIn(
        "llama3.1-8b",
        Target.of(machine),
        settings or {},
        machine=machine,
        asked=SearchOptions(**asked),
        heard=lambda news: None,
    )
    made.least = least
    return made


def test_the_best_split_is_found_beyond_two_axes():
    search = stood()
    best = search.run()
    every = [StandIn._planned(search, Choice(one), 0) for one in all_splits(16)]
    assert best.seconds == min(one.estimate.step_seconds for one in every)
    assert len(best.choice.split) == 3
    assert search.ranked()[0] is best
    assert str(search.default()) == "fsdp=16"
    assert search.default() in search.trials


def test_what_became_of_the_choices_is_counted_and_reasons_are_said_once():
    search = stood(least=700)
    whys = {"a": f"{NOT_FASTER} 3 s a step", "b": "MaxText refuses it", "c": "MaxText refuses it"}
    tried = [Trial(Choice(((axis, 16),)), why=why) for axis, why in whys.items()]
    search.trials = {one.choice: one for one in tried}
    plan = SimpleNamespace(estimate=SimpleNamespace(step_seconds=1.0))
    search.trials[Choice(())] = Trial(Choice(()), plan)  # type: ignore[arg-type]
    assert search.counted() == (
        "4 choices priced: 1 had a plan, 1 can be no faster than what was found before them, "
        "2 cannot be planned"
    )
    assert [str(one) for one in search.unplanned()] == ["c=16: MaxText refuses it"]


def test_tensors_are_saved_while_that_helps():
    found = stood(remat="search").run()
    assert found.choice.saved == ("query_proj", "mlpwi_0")
    assert str(found.choice).endswith("saved: query_proj, mlpwi_0")
    assert len(found.choice.split) == 3
    assert stood(remat="search", least=850).run().choice.saved is None


def test_tensors_wait_on_the_host_where_that_pays():
    found = stood(remat="offload", least=900).run()
    assert str(found.choice).endswith("saved: query_proj, on the host: mlpwi_0")
    assert found.seconds < stood(remat="search", least=900).run().seconds
    search = stood(remat="offload", least=850)
    assert search.run().choice.offloaded == ("query_proj", "mlpwi_0")
    assert stood(remat="offload").run().choice.offloaded == ()


@pytest.mark.parametrize("host", [False, True])
def test_places_are_the_best_of_all(host):
    names = ["query_proj", "out_proj", "mlpwo", "context"]
    random = np.random.default_rng(7)
    every = [
        Places(*(tuple(n for n, at in zip(names, put, strict=True) if at == k) for k in (1, 2)))
        for put in itertools.product(range(3 if host else 2), repeat=len(names))
    ]
    for _ in range(50):
        gains = random.normal(0.5, 1.0, (len(names), 2))
        room = random.integers(0, 5)

        def price(places, gains=gains, room=room):
            if len(places.device) > room:
                return math.inf
            mine = [(name, 0) for name in places.device] + [(name, 1) for name in places.host]
            return 10.0 - sum(gains[names.index(name), at] for name, at in mine)

        found = choose(names, price, host=host)
        if room >= len(names):  # prices that add are the best one by one
            assert price(found) == min(map(price, every))
        assert price(found) <= min(price(one) for one in policies(names, host=host)[-1:])


def test_the_file_is_never_worse_than_the_default():
    for seed in range(20):
        search = stood(remat="offload", accumulate=(1, 2))
        prices = np.random.default_rng(seed)

        def planned(choice, cutoff, prices=prices):
            seconds = prices.exponential()
            if seconds >= cutoff or prices.random() < 0.3:
                raise InfeasibleError("none")
            return SimpleNamespace(estimate=SimpleNamespace(step_seconds=seconds, expected_bytes=1))

        search._planned = planned
        best = search.run()
        assert best.seconds == min(one.seconds for one in search.trials.values())
        assert best.seconds <= search.trials[search.default()].seconds


def test_microbatches_where_the_whole_batch_does_not_fit():
    found = stood(least=450, accumulate=(1, 2)).run()
    assert found.choice.microbatches == 2
    with pytest.raises(
        InfeasibleError, match=r"no split .* fits v5e-16:\n  fsdp=16: fsdp=16 needs"
    ):
        stood(least=100).run()


def test_an_axis_reaches_over_the_slices():
    search = stood("2xv5e-16")
    assert slices_of(search.machine) == 2
    assert slices_of(load("h100-64")) == 1
    best = search.run().choice
    assert best.between
    assert dict(best.split)[best.between] % 2 == 0
    assert str(search.default()) == "data=2 fsdp=16, data over the slices"
    said = mesh_settings(best, ORDER, 2)
    inside = [said[f"ici_{axis}_parallelism"] for axis in ORDER]
    assert math.prod(inside) == 16
    assert [said[f"dcn_{axis}_parallelism"] for axis in ORDER].count(2) == 1


def test_what_is_searched_for_cannot_be_set():
    with pytest.raises(ProgramError, match="ici_fsdp_parallelism: this is what is searched for"):
        stood(settings={"ici_fsdp_parallelism": 4})


def test_why_a_file_costs_more_is_said():
    def step(w, x):
        return jnp.tanh(x @ w).sum()

    program = trace(step, *(jax.ShapeDtypeStruct((64, 64), "float32") for _ in range(2)))
    asked = {"mesh": {"x": 8}, "baselines": False, "gap": 0.1}
    free = search(program, toy_machine(8), **asked)
    own = search(
        program, toy_machine(8), requirements=["pin w [None, None]", "pin x [None, None]"], **asked
    )
    lines = differences(free, own)
    assert "of 2 inputs are cut otherwise, as " in lines[-1]
    assert "whole instead of" in lines[-1]
    assert differences(free, free) == []


def test_the_file_is_yaml_that_maxtext_takes():
    keys = {**base_settings("llama3.1-8b"), "attention": "flash", "ici_fsdp_parallelism": 8}
    text = yaml_text({**keys, "enable_dropout": False}, ["autoshard: how", "two\nlines"])
    assert text.splitlines() == [
        "# autoshard: how",
        "# two",
        "# lines",
        'base_config: "base.yml"',
        'model_name: "llama3.1-8b"',
        'attention: "flash"',
        "ici_fsdp_parallelism: 8",
        "enable_dropout: false",
    ]
    said, aside = parted({"attention": "flash", "head_dim": 64}, {"head_dim": 128})
    assert said == {"attention": "flash"}
    assert command(aside).endswith("THIS_FILE override_model_config=True head_dim=64")
    assert base_settings("models/mine.yml")["base_config"].endswith("/models/mine.yml")


def test_a_file_says_the_flags_that_its_prices_rest_on():
    v5p, h100 = load("v5p-8"), load("h100-8")
    tpu, gpu = Target.of(v5p), Target.of(h100)
    said, (why,) = _flags(tpu, v5p)
    (words,) = said.values()
    assert all(word.startswith("--xla_tpu_") and "=" in word for word in words.split())
    assert why == "compile_xla_flags have weights gathered whole, as they are priced"
    _, (_, told) = _flags(tpu, load("v5p-8@recipe"))
    assert told.startswith("priced for v5p-8@recipe: set LIBTPU_INIT_ARGS='--xla_tpu_enable_async_")
    taken = PricedFlags("recipe", True, "they are faster")
    (words,) = _flags(gpu, h100, taken)[0].values()
    assert all(word.startswith("--xla_gpu_") and "=" in word for word in words.split())
    assert _flags(gpu, h100, replace(taken, take=False)) == ({}, ("they are faster",))
    assert _flags(gpu, h100) == _flags(Target(8, ()), h100) == ({}, ())
    for target in (tpu, gpu):
        own = {"compile_xla_flags": ""}
        assert flag_settings(target, own, h100, taken) == ({}, ())


def test_flags_are_taken_where_they_are_faster_and_fit():
    """Weights of a loop, gathered: with the flags of recipes a turn ahead."""
    machine = load("h100-8")

    def train(stack, x):
        def loss(stack):
            last = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack)[0]
            return jnp.sum(last.astype(jnp.float32) ** 2)

        return jax.tree.map(lambda w, slope: w - 0.1 * slope, stack, jax.grad(loss)(stack))

    shapes = (32, 8192, 8192), (8192, 8192)
    program = trace(train, *(jax.ShapeDtypeStruct(one, jnp.bfloat16) for one in shapes))
    plan = search(
        program,
        machine,
        mesh={"x": 8},
        requirements=["pin stack [None, x, None]", "pin x [x, None]", "pin result [None, x, None]"],
        memory_limit=3.2 * 2**30,  # no room for the whole stack
        by_schedule=False,  # as files are planned
        time_limit=10.0,
    )
    found = priced_flags(plan, machine, lambda: program)
    assert found is not None
    assert found.take
    assert found.why.startswith("compile_xla_flags are those of h100-8@recipe: with them this ")
    tight = priced_flags(replace(plan, memory_limit=1.0), machine, lambda: program)
    assert tight is not None
    assert not tight.take
    assert tight.why.endswith("; there is no memory for them")
    rests = replace(plan, flags="recipe")
    told = priced_flags(rests, load("h100-8@recipe"), lambda: program)
    assert told == PricedFlags(
        "recipe", True, "compile_xla_flags are those of h100-8@recipe, with which this is priced"
    )
    assert priced_flags(plan, load("v5p-8"), lambda: program) is None


def _flags(target, machine, priced=None):
    return flag_settings(target, {}, machine, priced)


@pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")
def test_collectives_of_a_loop_are_pipelined_on_gpus():
    """By the options of the file: those of one turn are hidden by another one's products."""
    machine, shape = load("h100-8"), MeshShape(("fsdp",), (8,))
    on = AbstractMesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    stack, rows = NamedSharding(on, P(None, "fsdp")), NamedSharding(on, P("fsdp"))

    def loss(weights, x):
        def layer(x, w):
            x = jax.lax.with_sharding_constraint(x, rows)
            return jnp.tanh(x @ jax.lax.with_sharding_constraint(w, NamedSharding(on, P()))), None

        return jnp.sum(jax.lax.scan(layer, x, weights)[0].astype(jnp.float32))

    step = jax.jit(jax.grad(loss), in_shardings=(stack, rows), out_shardings=stack)
    shapes = (8, 4096, 4096), (8 * 4096, 4096)
    args = [jax.ShapeDtypeStruct(one, jnp.bfloat16) for one in shapes]
    stage = step.trace(*args).lower(lowering_platforms=("cuda",))
    target = target_of(machine, shape, "gpu")
    taken = PricedFlags("recipe", True, "")
    (words,) = _flags(Target.of(machine), machine, taken)[0].values()
    flags = dict(word.removeprefix("--").split("=") for word in words.split())
    usual, pipelined = (
        compile_lowered(stage, shape, machine, target=replace(target, options=options))
        for options in (target.options, {**target.options, **flags})
    )
    assert usual.timeline is not None
    assert pipelined.timeline is not None
    assert pipelined.timeline.exposed_seconds < 0.8 * usual.timeline.exposed_seconds
    assert pipelined.timeline.seconds < usual.timeline.seconds
    assert pipelined.memory.peak_bytes < 1.2 * usual.memory.peak_bytes
