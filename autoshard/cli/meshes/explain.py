"""`autoshard explain` of a plan for several meshes: by stage, with what the step makes of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from autoshard.cli.common import CommandError, program_of
from autoshard.cli.meshes.verify import is_for_meshes, step_of
from autoshard.cli.progress import ProgressLine
from autoshard.units import counted

if TYPE_CHECKING:
    from autoshard.search.meshes.explain.explain import PipelineExplainer

MOST = 6
LISTED = 8
"""Values that are listed of each stage where none is named."""


def explain_pipeline(options: argparse.Namespace) -> int:
    """Run `autoshard explain` of a plan for several meshes."""
    from autoshard.lower.mpmd.cut.loop import LoopError
    from autoshard.machine.cluster import ClusterError
    from autoshard.plan.plan import PlanError
    from autoshard.program.select import RequirementError
    from autoshard.search.meshes.explain.explain import PipelineExplainer, known_stages
    from autoshard.search.meshes.plan import PipelinePlan

    _refuse(options)
    try:
        plan = PipelinePlan.load(options.plan)
        stages = known_stages(plan, options.stage)
        found = step_of(plan, program_of(options, plan.program))
        with ProgressLine(quiet=options.quiet or options.json) as line:
            line.show(f"cutting {plan.program} into its stages", group="cut")
            explainer = PipelineExplainer(
                plan,
                found.fn,
                *found.args,
                donate_argnums=found.options.get("donate_argnums", ()),
                stages=stages,
                time_limit=options.time_limit,
            )
            text = _answer(options)(explainer, options, line)
    except (ClusterError, LoopError, PlanError, RequirementError) as error:
        raise CommandError(str(error)) from error
    print(text)
    return 0


def _refuse(options: argparse.Namespace) -> None:
    """Refuse options that do not go together, or with these plans."""
    from autoshard.cli.explain import refuse_beside_keep

    if options.machine is not None:
        raise CommandError(
            f"{options.plan!r} is for several meshes, which name their machines: leave --machine "
            "out"
        )
    refuse_beside_keep(options)
    if options.against is not None and not is_for_meshes(options.against):
        raise CommandError(
            f"{options.plan!r} is for several meshes, and {options.against!r} for one: give two "
            "plans for several meshes, or see both by `autoshard report`"
        )


Answer = Callable[["PipelineExplainer", argparse.Namespace, ProgressLine], str]


def _answer(options: argparse.Namespace) -> Answer:
    if options.keep is not None:
        return _kept
    if options.against is not None:
        return _against
    return _explained if options.value or options.line else _dearest


def _targets(options: argparse.Namespace) -> list[str]:
    return [*options.value, *(f"line {line}" for line in options.line)]


def _explained(
    explainer: PipelineExplainer, options: argparse.Namespace, line: ProgressLine
) -> str:
    """Why values lie so in their stages, and what other layouts cost."""
    values = [one for target in _targets(options) for one in explainer.values(target)]
    values = list(dict.fromkeys(values))
    answers = []
    for k, (stage, value) in enumerate(values[:MOST]):
        line.show(f"{k + 1} of {min(len(values), MOST)}: stage {stage}", group="explain")
        answers.append(explainer.of_value(stage, value, time_limit=options.time_limit))
    more = len(values) - len(answers)
    if options.json:
        told = [one.to_json() for one in answers]
        return json.dumps({"answers": told, "more": more, "notes": explainer.notes})
    texts = [*map(str, answers)]
    if more > 0:
        texts.append(f"and {counted(more, 'more value')}; name fewer of them, or a --stage")
    return "\n\n".join([*texts, *_notes(explainer)])


def _dearest(explainer: PipelineExplainer, options: argparse.Namespace, line: ProgressLine) -> str:
    """The dearest values of each stage as tables; all of them as JSON."""
    from autoshard.cli.explain import dearest_table
    from autoshard.terminal import paragraph

    line.show("pricing the values of the stages", group="dearest")
    found = explainer.dearest()
    if options.json:
        told = [one.to_json() for one in found]
        return json.dumps({"dearest": told, "notes": explainer.notes})
    texts = []
    for one in found:
        texts.append(paragraph(str(one.place), hanging=2))
        if one.alike is None:
            texts += ["", dearest_table(one.dearest, LISTED)]
        else:
            texts.append(f"  its values lie as those of stage {one.alike}\n")
    target = next(iter(found[0].dearest)).target
    return "\n".join(
        [
            *texts,
            "exposed: what their collectives add to what the stage works in a step, of all that "
            "they take",
            "Why one lies so, and what else it could:",
            f"  autoshard explain {options.plan} '{target}' --stage {found[0].place.stage}",
            *_notes(explainer),
        ]
    )


def _kept(explainer: PipelineExplainer, options: argparse.Namespace, line: ProgressLine) -> str:
    """What it costs of the step to keep values otherwise as a table, or as JSON."""
    from autoshard.cli.explain import more_or_less
    from autoshard.search.meshes.explain.otherwise import keep_choices, otherwise
    from autoshard.terminal import paragraph, table
    from autoshard.units import format_bytes, format_seconds

    choices = keep_choices(explainer, options.keep)
    found = []
    for k, one in enumerate(choices[:MOST]):
        said = f"{k + 1} of {min(len(choices), MOST)}: stage {one.stage}, {one.value.name}"
        line.show(said, group="keep")
        found.append(otherwise(explainer, one, time_limit=options.time_limit))
    more = len(choices) - len(found)
    if options.json:
        told = [one.to_json() for one in found]
        return json.dumps({"answers": told, "more": more, "notes": explainer.notes})
    rows = [
        ("stage", "value", "of a microbatch", "now", "instead", "step", "stage", "on a device", "")
    ]
    for one in found:
        kept, value = one.kept, one.kept.value
        why = "" if kept.fits else kept.why if kept.seconds is None else "does not fit"
        rows.append(
            (
                str(one.place.stage),
                value.label or value.name,
                f"{value.type} x {value.turns}",
                kept.now,
                kept.instead,
                more_or_less(kept.seconds, format_seconds),
                more_or_less(one.stage_seconds, format_seconds),
                more_or_less(kept.bytes, format_bytes),
                why,
            )
        )
    named = f"and {more} more: name them, as in --keep '*ffn*', or a --stage\n" if more > 0 else ""
    now = format_seconds(explainer.staged.now.seconds or 0.0)
    return "\n\n".join(
        [
            f"{table(rows, right=(5, 6, 7), indent=0)}\n{named}".rstrip("\n"),
            paragraph(
                f"Each row is a plan of its stage, found anew, in the schedule of all: what the "
                f"step takes more than {now}, what the stage works more in it, and what a device "
                "of its mesh takes more at the peak"
            ),
            *_notes(explainer),
        ]
    )


def _against(explainer: PipelineExplainer, options: argparse.Namespace, line: ProgressLine) -> str:
    """How another plan differs."""
    from autoshard.search.meshes.explain.against import against
    from autoshard.search.meshes.plan import PipelinePlan

    line.show("comparing the stages", group="against")
    other = PipelinePlan.load(options.against)
    found = [against(explainer, other, target) for target in _targets(options) or (None,)]
    if options.json:
        told = [one.to_json() for one in found]
        return json.dumps({"answers": told, "more": 0, "notes": explainer.notes})
    return "\n\n".join([*map(str, found), *_notes(explainer)])


def _notes(explainer: PipelineExplainer) -> list[str]:
    return [f"Note: {note}." for note in explainer.notes]
