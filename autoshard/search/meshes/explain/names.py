"""The programs of stages with their values called as in the step.

    params.layers.w1[0:8]    rows of an argument of the step, which live on the stage
    result[1].layers.w1[0:8] rows of a result of the step
    totals[3]                the sum over microbatches of the stage's gradients of one array
    sent[0][2]               what stage 0 sends of each microbatch; in stage 0 it is a result
    around[1]                what another stage makes once a step, before or after the loop

A target may leave the rows out, and `result` before `sent`. Scopes and lines are those of the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoshard.lower.mpmd.partition import Partition
from autoshard.near import hint
from autoshard.plan.plan import Plan
from autoshard.program.select import RequirementError, path_keys, shown_path
from autoshard.program.trace import Program
from autoshard.search.explain import values_to_explain
from autoshard.search.meshes.stage_program import Argument, StageProgram

_ROWS = re.compile(r"\[\d+:\d+\]$")
_OWN = "totals", "sent", "around"


def named(program: Program, stage: StageProgram, partition: Partition, sent: Sent) -> Program:
    """Return a stage's traced program with the step's names of its values.

    Args:
      program: `stage.traced()`.
      sent: of all stages (`numbered`).
    """
    names = (*partition.argument_names, *_OWN)
    paths = dict(zip(program.outputs, _paths(stage.results, sent, None), strict=True))
    positions = {name: f"[{k}]" for k, name in enumerate(names)}
    paths |= zip(program.inputs, _paths(stage.arguments, sent, positions), strict=True)
    values = tuple(
        replace(value, path=paths.get(value.index, value.path)) for value in program.values
    )
    return replace(program, values=values, argument_names=names)


Sent = dict[tuple[int, int], int]
"""The number of what a stage sends, by the stage and the value."""


def numbered(programs: Sequence[StageProgram]) -> Sent:
    """Return the numbers of all that stages send."""
    found: Sent = {}
    for program in programs:
        sent = dict.fromkeys(one.value for one in program.results if one.group == "sent")
        found.update(((program.stage, value), k) for k, value in enumerate(sent))
    return found


def _paths(arguments: Sequence[Argument], sent: Sent, names: dict[str, str] | None) -> list[str]:
    """Return the paths of arguments, or of results where no positions of names are given."""
    found, totals, around = [], 0, 0
    for one in arguments:
        first = names or {name: f"['{name}']" for name in _OWN}
        if one.path:
            found.append(one.path)
        elif one.group == "totals":
            found.append(f"{first['totals']}[{totals}]")
            totals += 1
        elif one.group == "sent":
            found.append(f"{first['sent']}[{one.stage}][{sent[one.stage, one.value]}]")
        else:
            found.append(f"{first['around']}[{around}]")
            around += 1
    return found


def stages_with(
    target: str, programs: Sequence[Program], plans: Sequence[Plan], stages: Sequence[int]
) -> dict[int, list[int]]:
    """Return the values that a target names in each stage that has any.

    Args:
      programs: of all stages (`named`), with their `plans`.
      stages: where to look.

    Raises:
      RequirementError: it names nothing in these stages; near names are proposed.
    """
    found: dict[int, list[int]] = {}
    near = ""
    for stage in stages:
        program, values = programs[stage], dict[int, None]()
        for one, way in ((p, w) for p in (program, whole(program)) for w in _ways(target)):
            try:
                values.update(dict.fromkeys(values_to_explain(one, plans[stage], way)))
            except RequirementError as error:
                near = "".join(str(error).partition("; ")[1:])
        if values:
            found[stage] = list(values)
    if found:
        return found
    if target.split(None, 1)[0] not in ("line", "scope", "backward"):
        calls = map(whole, (programs[stage] for stage in stages))
        known = [shown_path(one, v) for one in calls for v in (*one.inputs, *one.outputs)]
        near = hint(target, known)
    some = f"{'stages' if len(stages) > 1 else 'stage'} {', '.join(map(str, stages))}"
    raise RequirementError(f"{target!r} names no value of {some}{near}")


def whole(program: Program) -> Program:
    """Return a program in which rows of an array are called like the array."""
    values = tuple(replace(one, path=_ROWS.sub("", one.path)) for one in program.values)
    return replace(program, values=values)


def _ways(target: str) -> Iterator[str]:
    yield target
    if path_keys(target)[:1] == ["sent"]:
        yield f"result.{target}"
