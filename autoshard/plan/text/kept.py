"""What a plan saves for the backward pass, by line, and the `jax.checkpoint` policy to say so."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from autoshard.plan.plan import Plan
from autoshard.plan.records import KeptValue
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
        for alike in _folded(values):
            one, turns = alike[0], alike[0].turns * len(alike)
            text = f"  {one.type} x {turns}" if turns > 1 else f"  {one.type}"
            size = format_bytes(sum(value.bytes for value in alike)) if saved else ""
            where = " < ".join(one.lines) or "no source line"
            rows.append((text, size, names[one.name] if saved else "", where))
    return rows


def policy(plan: Plan) -> str:
    """The policy that saves what the plan saves, once its names are given where they are made."""
    values = [one for one in plan.kept if one.saved]
    names = policy_names(values)
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

    Values of repeated layers have one name.
    """
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for alike in _folded(values):
        one = alike[0]
        parts = [part for part in one.name.partition("#")[0].split("/") if part.isidentifier()]
        text = one.label or "_".join(parts[-2:])
        counts[text] += 1
        new = text if one.label or counts[text] == 1 else f"{text}_{counts[text]}"
        names.update((value.name, new) for value in alike)
    return names


def _folded(values: Sequence[KeptValue]) -> list[list[KeptValue]]:
    """The values in groups of what repeated layers make: only numbers in their scopes differ."""
    groups: dict[object, list[KeptValue]] = {}
    for one in values:
        scope, _, rest = one.name.rpartition("/")
        key = re.sub(r"\d+", "*", scope), rest, one.type, one.lines, one.turns, one.label, one.saved
        groups.setdefault(key, []).append(one)
    return list(groups.values())
