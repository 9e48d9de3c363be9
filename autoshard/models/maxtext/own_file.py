"""A plan as a file of MaxText's configuration, and what it costs against the free plan.

The file stands on MaxText's `base.yml`, or on the file that the user named; it repeats the user's
settings and says the mesh, the saved tensors, the microbatches, the devices, and flags. It is taken
by `python -m maxtext.trainers.pre_train.train_compile FILE`, and by `train`.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoshard.machine.machine import Machine
from autoshard.models.maxtext.config import configured, model_keys, module
from autoshard.models.maxtext.express import Choice, Expression, Trial, slices_of
from autoshard.models.maxtext.flags import flag_settings, priced_flags, step_of
from autoshard.models.maxtext.step import train_step
from autoshard.models.providers import OwnFile, ProgramError, Target
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program, trace
from autoshard.search.options import SearchOptions
from autoshard.search.search import candidates
from autoshard.units import format_bytes, format_percent, format_seconds

_NOT_OF_THE_STEP = {"base_config", "compile_topology", "compile_topology_num_slices"}
SHOWN = 8
"""So many of the other choices are listed."""
COMMAND = "python -m maxtext.trainers.pre_train.train_compile"


def own_file(
    name: str,
    target: Target,
    settings: Mapping[str, Any],
    *,
    machine: Machine,
    asked: SearchOptions,
    heard: Callable[[str], None],
) -> OwnFile:
    """See `autoshard.models.providers.Offered.own_file`."""
    search = Expression(name, target, settings, machine=machine, asked=asked, heard=heard)
    best = search.run()
    assert best.plan is not None
    heard("the free plan")
    config = configured(name, target, settings)
    fn, args, options = train_step(config, target, keep=False)
    options.pop("notes")
    program = trace(fn, *args, name=f"maxtext:{name}", **options)
    free = free_plan(program, machine, asked, best.plan)
    summary = _summary(search, best, free)
    config = search.config_of(best.choice)
    said, aside = parted(search.settings_of(best.choice), model_keys(config.model_name))
    own = best.plan
    priced = priced_flags(own, machine, lambda: step_of(search, best, own.program))
    flags, why = flag_settings(target, settings, machine, priced)
    summary = (*summary, *why)
    keys = {**base_settings(name), **said, **device_settings(target, machine), **flags}
    text = yaml_text(keys, [f"autoshard: {command(aside)}", *summary])
    check_read_back(text, aside, target, config, best.plan)
    return OwnFile(text, best.plan, (f"compile it by: {command(aside)}", *summary))


def free_plan(program: Program, machine: Machine, asked: SearchOptions, own: Plan) -> Plan:
    """The best plan without MaxText's demands, searched also on the mesh of the file.

    Args:
      program: without demands.
      machine: to plan for.
      asked: the options; the time limit is that of each of the two searches.
      own: what the file expresses, which the first search may have had too little time to beat.
    """
    asked = replace(asked, baselines=False)
    found = candidates(program, machine, asked)[0]
    if asked.mesh is None and found.estimate.step_seconds > own.estimate.step_seconds:
        mesh = dict(zip(own.mesh.names, own.mesh.sizes, strict=True))
        other = candidates(program, machine, replace(asked, mesh=mesh))[0]
        found = min(found, other, key=lambda one: one.estimate.step_seconds)
    return found


def parted(
    settings: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings for a file, and those for the command line alone.

    What a model's own file says goes before what a user's file says, so such keys, and
    `override_model_config`, are for the command line.

    >>> parted({"attention": "flash", "head_dim": 64}, {"head_dim": 128})
    ({'attention': 'flash'}, {'override_model_config': True, 'head_dim': 64})
    """
    aside = {key: value for key, value in settings.items() if key in model}
    said = {key: value for key, value in settings.items() if key not in model}
    return said, ({"override_model_config": True, **aside} if aside else {})


def command(aside: Mapping[str, Any]) -> str:
    """How MaxText compiles the file."""
    words = [f"{key}={value}" for key, value in aside.items()]
    return " ".join([COMMAND, "THIS_FILE", *words])


def base_settings(name: str) -> dict[str, str]:
    """The keys that say the model: a file of the user's, or one of MaxText's models.

    >>> base_settings("llama3.1-8b")
    {'base_config': 'base.yml', 'model_name': 'llama3.1-8b'}
    """
    if name.endswith((".yml", ".yaml")):
        return {"base_config": str(Path(name).resolve())}
    return {"base_config": "base.yml", "model_name": name}


def check_read_back(
    text: str, aside: Mapping[str, Any], target: Target, config: Any, plan: Plan
) -> None:
    """Let MaxText read a file, and compare the step that it makes of it with the planned one.

    Args:
      text: of the file.
      aside: what the command line says.
      target: the devices.
      config: MaxText's configuration of the planned step.
      plan: of that step.

    Raises:
      ProgramError: they are not the same; the keys that differ are named.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "own.yml"
        path.write_text(text)
        read = configured(str(path), target, aside)
    fn, args, options = train_step(read, target, keep=True)
    options.pop("notes")
    program = trace(fn, *args, name=plan.program, **options)
    if program.fingerprint == plan.fingerprint:
        return
    wanted = config.get_keys()
    other = [key for key, value in read.get_keys().items() if value != wanted.get(key)]
    raise ProgramError(
        "MaxText makes another step of the file than of the settings; keys that differ: "
        f"{', '.join(sorted(set(other) - _NOT_OF_THE_STEP))}; give these as settings, "
        "PROGRAM,key=value"
    )


def device_settings(target: Target, machine: Machine) -> dict[str, Any]:
    """The keys that say the devices: for `train_compile` by MaxText's name of the TPU slice."""
    slices = slices_of(machine)
    found: dict[str, Any] = {"hardware": target.hardware, "num_slices": slices}
    family = {"v7x": "tpu7x"}.get(machine.family, machine.family)
    known = module("maxtext.utils.accelerator_to_spec_map").UserFacingNameToSystemCharacteristics
    inside = target.devices // slices
    for name, one in known.items():
        if name.split("-")[0] == family and one.devices_per_slice == inside:
            return {
                **found,
                "compile_topology": name,
                "compile_topology_num_slices": slices,
            }
    return found


def yaml_text(keys: Mapping[str, Any], comments: Sequence[str]) -> str:
    """A YAML file: values as JSON, which YAML contains.

    >>> print(yaml_text({"attention": "flash", "ici_fsdp_parallelism": 8}, ["planned"]), end="")
    # planned
    attention: "flash"
    ici_fsdp_parallelism: 8
    """
    lines = [f"# {one}".rstrip() for text in comments for one in text.split("\n")]
    lines += [f"{key}: {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def differences(free: Plan, own: Plan) -> list[str]:
    """Why one plan takes longer than another of the same step: where the seconds are, and inputs.

    Args:
      free: the plan to compare with.
      own: the plan that a file expresses.
    """
    lines = []
    for words, a, b in (
        ("kernels", free.estimate.compute_seconds, own.estimate.compute_seconds),
        *((kind, *pair) for kind, pair in _exposed(free, own).items()),
    ):
        if abs(a - b) >= 1e-3 * free.estimate.step_seconds:
            lines.append(f"{words}: {format_seconds(b)} instead of {format_seconds(a)}")
    mine, theirs = _cuts(own), _cuts(free)
    other = [path for path in mine if path in theirs and mine[path] != theirs[path]]
    if other:
        example = other[0]
        lines.append(
            f"{len(other)} of {len(mine)} inputs are cut otherwise, as {example}: "
            f"{_times(mine[example])} instead of {_times(theirs[example])}"
        )
    return lines


def _summary(search: Expression, best: Trial, free: Plan) -> tuple[str, ...]:
    assert best.plan is not None
    lines = [str(best)]
    seconds, least = best.seconds, free.estimate.step_seconds
    size = format_bytes(free.estimate.expected_bytes)
    lines.append(
        f"the free plan: {format_seconds(least)} a step, {size}, mesh {free.mesh}, "
        f"{_percent(seconds, least)}"
    )
    lines += [f"  {one}" for one in differences(free, best.plan)]
    default = next((one for key, one in search.trials.items() if _is_default(search, key)), None)
    if default is not None and default is not best:
        more = f", {_percent(seconds, default.seconds)}" if default.plan is not None else ""
        lines.append(f"MaxText's default, {default}{more}")
    elif default is best:
        lines.append("it is what MaxText does by default")
    others = [one for one in search.ranked() if one is not best][:SHOWN]
    lines.append(f"{search.counted()}{'; the next:' if others else ''}")
    lines += [f"  {one}" for one in others]
    lines += [f"no plan: {one}" for one in search.unplanned()[:SHOWN]]
    for why in dict.fromkeys(search.left_out.values()):
        axes = ", ".join(axis for axis, one in search.left_out.items() if one == why)
        lines.append(f"not split: {axes}: {why}")
    if search.interrupted:
        lines.append("interrupted: not all splits were priced")
    return tuple(lines)


def _is_default(search: Expression, choice: Choice) -> bool:
    default = search.default()
    return (choice.split, choice.between) == (default.split, default.between) and (
        choice.saved is None and choice.microbatches == 1
    )


def _percent(seconds: float, other: float) -> str:
    share = seconds / other - 1
    words = "more" if share > 0 else "less"
    return f"than which this takes {format_percent(abs(share))} {words}"


def _exposed(free: Plan, own: Plan) -> dict[str, tuple[float, float]]:
    """Seconds of collectives that nothing hides, by kind."""
    sums = []
    for plan in (free, own):
        found: Counter[str] = Counter()
        for move in plan.moves:
            found[move.kind] += move.exposed_seconds  # type: ignore[assignment]
        sums.append(found)
    return {kind: (sums[0][kind], sums[1][kind]) for kind in sorted({*sums[0], *sums[1]})}


def _cuts(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Into how many parts the dimensions of each input are cut, by path."""
    sizes = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    found = {}
    for path, spec in plan.specs["inputs"].items():
        parts = []
        for entry in spec:
            axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            count = 1
            for axis in axes:
                count *= sizes[axis]
            parts.append(count)
        while parts and parts[-1] == 1:
            parts.pop()
        found[path] = tuple(parts)
    return found


def _times(parts: tuple[int, ...]) -> str:
    return "x".join(map(str, parts)) if parts else "whole"
