"""MaxText compiled with the file that a plan becomes, and with what it does by default.

    python benchmarks/maxtext_files/files.py qwen3-0.6b gemma-2b --machine v5p-64 --remat search \
        --recipe remat_policy=minimal

For each model the best file of MaxText's is found (`--as maxtext`): the split of the devices and,
if asked, the tensors that are saved. Then MaxText's own step is compiled with that file, with its
default, and with its default split and the settings of a recipe: its constraints, its shardings of
arguments and results, and what it donates, on its mesh. Nothing of a plan goes into the compiled
step; times of Pallas kernels alone, which no compiler tells, are the plan's. Prints a row for each:
predicted and compiled step and peak of a device, and how many of the compiled collectives are as
the plan has them; which, goes to stderr.

With `--only default,free` the file is not looked for, and the free plan of the same step is
compiled beside the default: MaxText's step without its constraints, with the plan's own.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding
from models import SETTINGS

from autoshard import compat, load_machine
from autoshard.compiler.compiled import Compiled, compile_lowered, compile_plan
from autoshard.compiler.target import CompileError, kind_of, target_of
from autoshard.compiler.verdict import judge
from autoshard.lower.facts.kernel_times import kernel_times
from autoshard.lower.facts.loop_trips import loop_trips
from autoshard.lower.spmd import lower
from autoshard.machine.machine import Machine
from autoshard.models.find import find, offered_program
from autoshard.models.maxtext.express import Expression, Trial, slices_of
from autoshard.models.maxtext.flags import flag_settings, priced_flags, step_of
from autoshard.models.maxtext.step import mesh_sizes, traced_step, train_step
from autoshard.models.providers import Target
from autoshard.plan.plan import MeshShape, Plan
from autoshard.plan.records import Estimate
from autoshard.program.bodies import replaced
from autoshard.program.trace import trace
from autoshard.search.options import SearchOptions
from autoshard.search.search import search
from autoshard.units import format_bytes, format_seconds

ROWS = ("default", "ours", "free")
"""What is compiled: MaxText's step as it is, with the best file's split, and by the free plan."""
HEAD = "| model | machine | split | step | compiled | peak | compiled | collectives |"


def own_stage(config: Any, devices: Target, fn: Any, args: tuple[Any, ...]) -> Any:
    """MaxText's own step of a configuration as a `jax.stages.Lowered`, on an abstract mesh.

    `fn` and `args` are what `train_step` makes of it.
    """
    built = traced_step(config, devices, mesh_sizes(config, devices))
    mesh = built.mesh.abstract_mesh

    def given(leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, leaf.spec)

    def without_devices(equation: Any) -> Any:
        meshes = {
            key: value.abstract_mesh
            for key, value in equation.params.items()
            if isinstance(value, jax.sharding.Mesh)
        }
        return equation.replace(params={**equation.params, **meshes}) if meshes else equation

    closed = jax.make_jaxpr(fn)(*args)
    run = jaxpr_as_fun(compat.closed(replaced(closed.jaxpr, without_devices), closed.consts))
    places = [given(leaf) for leaf in jax.tree.leaves(jax.tree.broadcast(built.shardings, args))]
    state = len(jax.tree.leaves(args[0]))
    results = [*places[:state], *[None] * (len(closed.out_avals) - state)]
    step = jax.jit(
        lambda *leaves: tuple(run(*leaves)),
        in_shardings=tuple(places),
        out_shardings=tuple(results),
        donate_argnums=tuple(range(state)),
    )
    return step.trace(*jax.tree.leaves(args)).lower(lowering_platforms=devices.platforms[:1])


def own_flags(search: Expression, trial: Trial) -> dict[str, str]:
    """What a file of ours says of flags."""
    plan = trial.plan
    assert plan is not None
    priced = priced_flags(plan, search.machine, lambda: step_of(search, trial, plan.program))
    return flag_settings(search.target, search.settings, search.machine, priced)[0]


def compile_own(search: Expression, trial: Trial, *, ours: bool) -> Compiled:
    """MaxText's own step as a trial has it, compiled for the machine; `ours`: with a file's flags.

    What `compile_xla_flags` says goes to the compiler, as MaxText hands it over.
    """
    plan, machine = trial.plan, search.machine
    assert plan is not None
    config = search.config_of(trial.choice)
    fn, args, options = train_step(config, search.target, keep=True)
    options.pop("notes")
    program = trace(fn, *args, **options)
    names, sizes = zip(*trial.choice.split, strict=True)
    mesh, said = MeshShape(names, sizes), config.compile_xla_flags
    if ours:
        said = own_flags(search, trial).get("compile_xla_flags", said)
    words = (said or "").split()
    flags = dict(word.removeprefix("--").split("=", 1) for word in words)
    target = target_of(machine, mesh, kind_of(machine))
    return compile_lowered(
        own_stage(config, search.target, fn, args),
        mesh,
        machine,
        target=replace(target, options={**target.options, **flags}),
        loops=loop_trips(program),
        kernels=kernel_times(program, plan.decisions, plan.mesh.sizes, machine.chip),
    )


def row(model: str, machine: Machine, search: Expression, trial: Trial, who: str) -> str:
    """What is predicted and compiled of one file."""
    assert trial.plan is not None
    estimate = trial.plan.estimate
    start = f"| {model} | {machine.name} | {who}: {trial.choice} "
    try:
        found = compile_own(search, trial, ours=who == "ours")
    except CompileError as error:
        return start + _refused(error, estimate)
    return start + _compiled(found, trial.plan)


def free_row(model: str, options: argparse.Namespace, machine: Machine) -> str:
    """What is predicted and compiled of the free plan."""
    step = find(f"maxtext:{model}?{options.settings}", machine=machine)
    program = trace(step.fn, *step.args, **step.options)
    plan = search(program, machine, baselines=False, time_limit=options.time_limit)
    start = f"| {model} | {machine.name} | free: {plan.mesh} "
    try:
        found = compile_plan(lower(plan, step.fn, *step.args), machine)
    except CompileError as error:
        return start + _refused(error, plan.estimate)
    return start + _compiled(found, plan)


def _compiled(found: Compiled, plan: Plan) -> str:
    assert found.timeline is not None
    verdict, estimate = judge(plan, found), plan.estimate
    print(verdict, file=sys.stderr, flush=True)
    tallies = verdict.comparison.tallies
    planned = sum(min(one.planned, one.found) for one in tallies)
    others = sum(max(one.found - one.planned, 0) for one in tallies)
    missing = sum(max(one.planned - one.found, 0) for one in tallies)
    return (
        f"| {format_seconds(estimate.expected_seconds)} | {format_seconds(found.timeline.seconds)} "
        f"| {format_bytes(estimate.expected_bytes)} | {format_bytes(found.memory.peak_bytes)} "
        f"| {planned} as planned, {others} others, {missing} missing |"
    )


def _refused(error: CompileError, estimate: Estimate) -> str:
    reason = str(error).split("\n")[0]
    return (
        f"| {format_seconds(estimate.expected_seconds)} | refused: {reason} "
        f"| {format_bytes(estimate.expected_bytes)} | | |"
    )


def searched(model: str, options: argparse.Namespace, machine: Machine, recipe: str) -> Expression:
    """The search for the best file of a model, whose settings include those of a recipe."""
    settings = "&".join(filter(None, (options.settings, recipe)))
    program = offered_program(f"maxtext:{model}?{settings}")
    assert program is not None
    asked = SearchOptions(
        baselines=False, remat=options.remat, accumulate=options.accumulate, time_limit=20.0
    )
    until = time.monotonic() + options.seconds

    def heard(news: str) -> None:
        print(f"  {model}: {news}", file=sys.stderr, flush=True)
        if time.monotonic() > until:
            raise KeyboardInterrupt

    target = Target.of(machine)
    return Expression(model, target, program.settings, machine=machine, asked=asked, heard=heard)


def rows(model: str, options: argparse.Namespace, machine: Machine) -> Iterator[str]:
    """The rows of a model that are asked for; ours where it is another than the default."""
    search = searched(model, options, machine, "")
    default = search.price(search.default())
    files = [(search, default, "default")] if "default" in options.only else []
    for recipe in options.recipe:
        other = searched(model, options, machine, recipe)
        files.append((other, other.price(other.default()), f"default, {recipe}"))
    if "ours" in options.only:
        best = search.run()
        assert best.seconds <= default.seconds, f"{best} is worse than the default, {default}"
        assert best.plan is not None
        another = best is not default or own_flags(search, best)
        files += [(search, best, "ours")] if another else []
    for one, trial, who in files:
        if trial.plan is None:
            yield f"| {model} | {machine.name} | {who}: {trial} | | | | | |"
        else:
            yield row(model, machine, one, trial, who)
    if "free" in options.only:
        yield free_row(model, options, machine)


def main() -> None:
    """Read the options and print the rows of each model."""
    parser = argparse.ArgumentParser(description="Compile MaxText with our files.")
    parser.add_argument("models", nargs="+", help="of MaxText")
    parser.add_argument("--machine", default="v5p-64")
    parser.add_argument("--settings", default=SETTINGS, help="keys of MaxText's configuration")
    parser.add_argument("--remat", choices=("respect", "search", "offload"), default="respect")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=["default", "ours"], help="of ROWS"
    )
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of the free search")
    parser.add_argument("--accumulate", type=int, nargs="+", default=[1], help="microbatches")
    parser.add_argument(
        "--recipe", action="append", default=[], help="more keys of it, for one more row"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the search for a file")
    options = parser.parse_args()
    machine = load_machine(options.machine)
    if not set(options.only) <= set(ROWS):
        parser.error(f"--only {','.join(options.only)}: of {', '.join(ROWS)}")
    if slices_of(machine) > 1:
        parser.error(f"{machine.name} has {slices_of(machine)} slices; this compiles for one")
    print(HEAD, "|---" * 8 + "|", sep="\n", flush=True)
    for model in options.models:
        for line in rows(model, options, machine):
            print(line, flush=True)


if __name__ == "__main__":
    main()
