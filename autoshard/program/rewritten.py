"""A closed jaxpr as a program, and the same step otherwise.

It may save other values, work on microbatches, or hold what it runs on one platform alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autoshard import compat
from autoshard.program.as_run.calls import run_on
from autoshard.program.fingerprint import fingerprint, outline
from autoshard.program.flatten import Flattener
from autoshard.program.graph import Op, Program, Region
from autoshard.program.keep import KeepError, find_residuals, with_parts, with_saved
from autoshard.program.keep.early_casts import with_early_casts
from autoshard.program.keep.early_pads import with_early_pads
from autoshard.program.keep.late_sums import with_late_sums
from autoshard.program.kernels.rule import with_rings
from autoshard.program.microbatches import CutError, with_microbatches
from autoshard.program.rules.ask_shardy import rules_for
from autoshard.program.rules.choose import UserRules, chosen_rule
from autoshard.program.rules.kept import rules_option
from autoshard.program.state.ties import TraceError
from autoshard.program.trip_counts import TripCounts, checked


def resaved(
    program: Program,
    saved: Collection[str] | None,
    offloaded: Collection[str] = (),
    *,
    prefetch: bool = False,
) -> Program:
    """The same step, saving other values for its backward pass.

    Args:
      program: the step, whatever it saves.
      saved: names of `autoshard.program.keep.find_residuals(program.written)`, or None for what the
        step saves as it is written.
      offloaded: those stacks of loops that wait on the host, by name.
      prefetch: whether they move a turn late there, and come a turn early.

    Raises:
      TraceError: there are no such values, or others must be saved.
    """
    chosen = ("saved", "offloaded", "prefetch")
    options = {key: value for key, value in program.options.items() if key not in chosen}
    closed, names = saving(program.written, saved, offloaded, prefetch)
    counts = options.get("trip_counts", ())
    paths = program.input_paths, program.output_paths
    made = laid_out(closed, *paths, counts, program.user_rules)
    options |= {**names, **rules_option(program.user_rules)}
    return replace(program, options=options, jaxpr=closed, **made)


def in_microbatches(program: Program, microbatches: int) -> Program:
    """The same step, on `microbatches` equal parts of its batch, one after another.

    Raises:
      TraceError: it cannot be cut so, or it is already, or it was told what to save.
    """
    beside = "microbatches", "early_casts", "late_sums", "early_pads", "parts"
    _refuse_told(program, *beside, "saved", "offloaded", "prefetch")
    counts = program.options.get("trip_counts", ())
    rules = program.user_rules
    closed, cut = in_parts(program.written, microbatches, program.ties, rules, counts)
    return _written_anew(program, closed, cut)


def casting_early(program: Program) -> Program:
    """The same step, saving what it saves as it is written, with weights cast before its loops.

    Args:
      program: the step, whatever it saves, with no loop in parts.

    Raises:
      TraceError: no loop casts weights, or the step casts early, sums late or has loops in parts
        already.
    """
    _refuse_parts(program)
    _refuse_told(program, "early_casts", "late_sums", "early_pads")
    return _written_anew(program, *cast_early(program.written, True))


def summing_late(program: Program, parts: Sequence[int]) -> Program:
    """The same step, saving what it saves as it is written, that ends sums of loops after them.

    Args:
      program: the step, whatever it saves, with no loop in parts.
      parts: see `autoshard.program.keep.late_sums.with_late_sums`.

    Raises:
      TraceError: no loop has sums that can wait, it sums late already, or it has loops in parts.
    """
    _refuse_parts(program)
    _refuse_told(program, "late_sums", "early_pads")
    return _written_anew(program, *sum_late(program.written, parts))


def padding_early(program: Program) -> Program:
    """The same step, saving what it saves as it is written, with pads before its products.

    Args:
      program: the step, whatever it saves, with no loop in parts.

    Raises:
      TraceError: it pads nothing that products make, it pads early already, or it has loops in
        parts.
    """
    _refuse_parts(program)
    _refuse_told(program, "early_pads")
    return _written_anew(program, *pad_early(program.written, True))


def loops_in_parts(program: Program, parts: Mapping[str, Sequence[int]]) -> Program:
    """The same step, saving what it saves as it is written, with loops that run in parts.

    Args:
      program: the step, whatever it saves, with no loop in parts.
      parts: by the name of a loop (`Residuals.loops` of `program.written`), the turns at which a
        further part begins. Each part may then save other values.

    Raises:
      TraceError: there are no such loops or turns, the step has loops in parts already, or its
        `while` loops have a trip count each.
    """
    if "parts" in program.options:
        raise TraceError(
            f"{program.name} was traced with parts of loops already: give it as it is without"
        )
    counts = program.options.get("trip_counts", ())
    return _written_anew(program, *divided(program.written, parts, counts))


def _refuse_told(program: Program, *options: str) -> None:
    """Refuse a program that was traced with any of these. Raises TraceError."""
    if told := [key for key in options if key in program.options]:
        raise TraceError(
            f"{program.name} was traced with {' and '.join(told)} already: give it as it is without"
        )


def _refuse_parts(program: Program) -> None:
    """Refuse a program that has loops in parts. Raises TraceError."""
    if "parts" in program.options:
        raise TraceError(f"{program.name} has loops in parts already: give it as it is without")


def _written_anew(program: Program, closed: Any, told: Mapping[str, Any]) -> Program:
    """The program as written otherwise, told of what it saves no more; `told` says how."""
    chosen = ("saved", "offloaded", "prefetch")
    options = {key: value for key, value in program.options.items() if key not in chosen}
    counts, rules = options.get("trip_counts", ()), program.user_rules
    made = laid_out(closed, program.input_paths, program.output_paths, counts, rules)
    options = {**options, **told, **rules_option(rules)}
    return replace(program, options=options, jaxpr=closed, written=closed, **made)


def on_platforms(program: Program, platforms: Sequence[str]) -> Program:
    """The same step with what `lax.platform_dependent` runs on some platform alone.

    Args:
      program: the step; what it was told of microbatches and of values to save stays.
      platforms: as JAX calls them (`tpu`, `cuda`); what is there for the first goes before what is
        there for the next. None leave the program as it is.

    Raises:
      TraceError: it has nothing to run there.
    """
    options = program.options
    written, there = of_platforms(program.written, () if "platforms" in options else platforms)
    if not there:
        return program
    closed, told = saving(
        written,
        options.get("saved"),
        options.get("offloaded", ()),
        options.get("prefetch", False),
    )
    paths = program.input_paths, program.output_paths
    rules = program.user_rules
    laid = laid_out(closed, *paths, options.get("trip_counts", ()), rules)
    options = {**options, **told, **there, **rules_option(rules)}
    return replace(program, options=options, jaxpr=closed, written=written, **laid)


def of_platforms(closed: Any, platforms: Sequence[str]) -> tuple[Any, dict[str, list[str]]]:
    """A closed jaxpr with what runs on these platforms alone, and how options of a trace say so.

    Raises:
      TraceError: there is nothing for them.
    """
    if not platforms:
        return closed, {}
    try:
        changed = run_on(closed, platforms)
    except ValueError as error:
        raise TraceError(str(error)) from error
    return changed, {} if changed is closed else {"platforms": list(platforms)}


def in_parts(
    written: Any,
    count: int,
    ties: Sequence[tuple[int, int]],
    user_rules: UserRules | None,
    trip_counts: TripCounts,
) -> tuple[Any, dict[str, int]]:
    """The step in `count` microbatches, and how the options of a trace say so."""
    if count == 1:
        return written, {}
    _check_one_count("a step in microbatches has its loops in another order", trip_counts)
    try:
        state = {position for position, _ in ties}
        closed = with_microbatches(written, count, state=state, user_rules=user_rules)
    except CutError as error:
        raise TraceError(str(error)) from error
    return closed, {"microbatches": count}


def cast_early(written: Any, early: bool) -> tuple[Any, dict[str, bool]]:
    """The step with weights cast before its loops if told so, and how options of a trace say so."""
    if not early:
        return written, {}
    closed = with_early_casts(written)
    if closed is written:
        raise TraceError(
            "no loop of the step reads an argument by casts to one narrower type alone, so that "
            "nothing can be cast before it"
        )
    return closed, {"early_casts": True}


def sum_late(written: Any, parts: Sequence[int]) -> tuple[Any, dict[str, list[int]]]:
    """The step with sums of loops ended after them in these parts, and how options say so."""
    if not parts:
        return written, {}
    closed = with_late_sums(written, parts)
    if closed is written:
        cut = " x ".join(map(str, parts))
        raise TraceError(
            f"no loop of the step stacks sums over a dimension that {cut} parts divide, so that "
            "nothing can be summed after it"
        )
    return closed, {"late_sums": list(parts)}


def pad_early(written: Any, early: bool) -> tuple[Any, dict[str, bool]]:
    """The step with pads before its products if told so, and how options of a trace say so."""
    if not early:
        return written, {}
    closed = with_early_pads(written)
    if closed is written:
        raise TraceError(
            "the step pads nothing that products make and nothing else reads, so that nothing can "
            "be padded before them"
        )
    return closed, {"early_pads": True}


def _check_one_count(why: str, trip_counts: TripCounts) -> None:
    """Refuse trip counts of loops by their place. Raises TraceError."""
    counts = checked(trip_counts)
    if counts and not isinstance(counts, int):
        raise TraceError(f"{why}: give one trip count for all, not {counts}")


def divided(
    written: Any, parts: Mapping[str, Sequence[int]], trip_counts: TripCounts
) -> tuple[Any, dict[str, dict[str, list[int]]]]:
    """The step with loops in these parts, and how the options of a trace say so."""
    if not parts:
        return written, {}
    _check_one_count("loops in the parts of a loop are there several times", trip_counts)
    try:
        closed = with_parts(written, find_residuals(written), parts)
    except KeepError as error:
        raise TraceError(str(error)) from error
    return closed, {"parts": {name: list(starts) for name, starts in parts.items()}}


def saving(
    written: Any, saved: Collection[str] | None, offloaded: Collection[str], prefetch: bool
) -> tuple[Any, dict[str, Any]]:
    """The step with these values saved and offloaded, and how the options of a trace say so."""
    if saved is None and not offloaded:
        return written, {}
    try:
        residuals = find_residuals(written)
        wanted = residuals.saved_as_written() if saved is None else saved
        closed = with_saved(written, residuals, wanted, offloaded, prefetch=prefetch)
        told = {"saved": list(residuals.on_stacks(wanted))}
        if not offloaded:
            return closed, told
        told["offloaded"] = sorted(offloaded)
        return closed, {**told, "prefetch": True} if prefetch else told
    except KeepError as error:
        raise TraceError(str(error)) from error


def laid_out(
    closed: Any,
    in_paths: Sequence[str],
    out_paths: Sequence[str],
    trip_counts: TripCounts,
    user_rules: UserRules | None,
) -> dict[str, Any]:
    """What of a `Program` follows from its closed jaxpr. Raises TraceError."""
    try:
        graph = Flattener(trip_counts)
        graph.run(closed, in_paths, out_paths)
        graph.while_trips.check_all_met()
    except ValueError as error:
        raise TraceError(str(error)) from error
    _check_effects(graph)
    rules = rules_for(
        [equation for equation in graph.equations if equation is not None],
        user_rules=user_rules or {},
    )
    by_op = iter(rules)
    ops = []
    for record, equation in zip(graph.ops, graph.equations, strict=True):
        rule, kernel = record["rule"] if equation is None else next(by_op), record.get("kernel")
        if equation is not None and kernel is not None:
            restricted = chosen_rule(equation, user_rules or {}) is not None
            rule = with_rings(rule, kernel, restricted=restricted)
        ops.append(Op(**{**record, "rule": rule}))
    ops = _price_dearest_branch_only(ops, graph.regions, graph.branches)
    values = tuple(graph.values)
    lines = outline(values, ops, graph.inputs)
    return {
        "values": values,
        "ops": tuple(ops),
        "regions": tuple(graph.regions),
        "inputs": tuple(graph.inputs),
        "outputs": tuple(graph.outputs),
        "carries": tuple(graph.carries),
        "constant_bytes": graph.constant_bytes,
        "fingerprint": fingerprint(lines),
        "outline": lines,
    }


def _check_effects(graph: Flattener) -> None:
    """Refuse effects that JAX keeps in order on one device alone. Raises TraceError."""
    ordered = [
        f"  {op['primitive']} at {op['scope'] or '(top)'} ({op['line'] or 'no source line'})"
        for op, equation in zip(graph.ops, graph.equations, strict=True)
        if equation is not None and compat.single_device_effects(equation)
    ]
    if ordered:
        raise TraceError(
            "JAX keeps these in order on one device alone, and refuses them on a mesh:\n"
            + "\n".join(ordered)
            + "\ndrop ordered=True, or print with jax.experimental.io_callback(..., ordered=True)"
        )


def _price_dearest_branch_only(
    ops: list[Op], regions: Sequence[Region], branches: Sequence[Sequence[int]]
) -> list[Op]:
    """Give weight 0 to the branches of a `cond` that cost less than its dearest one."""
    for group in branches:
        work = []
        for number in group:
            region = regions[number]
            inside = ops[region.start : region.stop]
            work.append(sum(op.flops * op.trips * op.weight for op in inside))
        dearest = group[int(np.argmax(work))]
        for number in group:
            if number != dearest:
                region = regions[number]
                for k in range(region.start, region.stop):
                    ops[k] = replace(ops[k], weight=0.0)
    return ops
