"""What a plan saves for the backward pass, by line, and the `jax.checkpoint` policy to say so."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from autoshard.plan.plan import Plan
from autoshard.plan.records import KeptValue
from autoshard.program.keep.names import without_part
from autoshard.units import format_bytes


def kept_rows(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Rows of a table: types, bytes, names, and where; none where the search did not choose."""
    rows: list[tuple[str, str, str, str]] = []
    heads = (True, "saved for the backward pass"), (False, "products computed again there")
    names = policy_names(plan.kept)
    for saved, head in heads:
        values = [one for one in plan.kept if one.saved is saved]
        if values:
            rows.append((head, "unsharded" if saved else "", "name" if saved else "", "where"))
        for alike in folded(values):
            one, turns = alike[0], alike[0].turns * len(alike)
            text = f"  {one.type} x {turns}" if turns > 1 else f"  {one.type}"
            part = without_part(one.name)[1]
            text += f" {part}" if part else ""
            size = format_bytes(sum(value.bytes for value in alike)) if saved else ""
            where = " < ".join(one.lines) or "no source line"
            rows.append((text, size, names[one.name] if saved else "", where))
    return rows


def said_in_program(plan: Plan) -> str:
    """How the program would save the same itself.

    Where a loop runs in parts, no policy says it: each part has one of its own.
    """
    named = "jax.ad_checkpoint.checkpoint_name(VALUE, NAME) names these values where they are made"
    parts = dict.fromkeys(without_part(one.name)[1] for one in plan.kept)
    if len(parts) == 1:
        (whole,) = parts
        return (
            f"jax.checkpoint(LAYER, policy={policy(plan, whole)}) says the same of each layer, "
            f"once {named}"
        )
    loops = ", ".join(plan.options.get("parts", {}))
    each = "; ".join(
        f"turns {part}, policy={policy(plan, part)}" if part else f"all, policy={policy(plan, '')}"
        for part in parts
    )
    return (
        f"no policy of jax.checkpoint says the same, since turns of {loops} differ in what they "
        f"save: autoshard.lower runs them so, as does a scan for each part, over its slices of the "
        f"stacked weights, with a policy of its own ({each}), once {named}"
    )


def policy(plan: Plan, part: str = "") -> str:
    """The policy that saves what the plan saves, once its names are given where they are made.

    Args:
      part: of which turns of loops that run in parts, as an index says them.
    """
    names = policy_names([one for one in plan.kept if one.saved])
    values = [one for one in plan.kept if one.saved and without_part(one.name)[1] == part]
    told = dict.fromkeys(names[one.name] for one in values)
    if not told:
        return "jax.checkpoint_policies.nothing_saveable"
    listed = ", ".join(f'"{name}"' for name in told)
    away = dict.fromkeys(names[one.name] for one in values if one.offloaded)
    if away:
        stay = ", ".join(f'"{name}"' for name in told if name not in away)
        sent = ", ".join(f'"{name}"' for name in away)
        return (
            "jax.checkpoint_policies.save_and_offload_only_these_names("
            f"names_which_can_be_saved=[{stay}], names_which_can_be_offloaded=[{sent}], "
            'offload_src="device", offload_dst="pinned_host")'
        )
    return f"jax.checkpoint_policies.save_only_these_names({listed})"


def policy_names(values: Sequence[KeptValue]) -> dict[str, str]:
    """A `checkpoint_name` for each value: its own, or one made of its scope and op.

    Values of repeated layers have one name, and so have those of the parts of a loop.
    """
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for alike in folded(values):
        one, bare = alike[0], without_part(alike[0].name)[0]
        if bare not in known:
            parts = [part for part in bare.partition("#")[0].split("/") if part.isidentifier()]
            text = one.label or "_".join(parts[-2:])
            counts[text] += 1
            known[bare] = text if one.label or counts[text] == 1 else f"{text}_{counts[text]}"
        names.update((value.name, known[bare]) for value in alike)
    return names


def folded(values: Sequence[KeptValue]) -> list[list[KeptValue]]:
    """The values in groups of what repeated layers make: only numbers in their scopes differ."""
    groups: dict[object, list[KeptValue]] = {}
    for one in values:
        scope, _, rest = one.name.rpartition("/")
        alike = one.type, one.lines, one.turns, one.label, one.saved, one.offloaded
        groups.setdefault((starred(scope), rest, *alike), []).append(one)
    return list(groups.values())


def starred(scope: str) -> str:
    """A scope with its numbers left out."""
    return re.sub(r"\d+", "*", scope)
