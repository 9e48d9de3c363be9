"""Choices whose stacks wait for the backward pass in the memory of the host.

Where stacks do not fit a device, some of them may lie on the host: as few as it takes, the largest
first, since each one has a transfer in every turn of its loop. Where all fit at best, layouts may
still leave too little room, so that everything on the host is tried with them too, and where
nothing else fits (`emptied`). What transfers cost is not asked here: a plan of the choice prices
them, and hides them behind kernels.

Where a plan was found, the host is more room (`beside`): what moves there while the forward pass
runs costs no time, so that as much may be saved besides what fits the device. Where a compiler
fetches a stack no earlier than the turn that reads it, one product more is offered, too (`alone`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from autoshard.machine.host import Host
from autoshard.machine.machine import Machine
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Program
from autoshard.program.keep import Residuals, find_residuals
from autoshard.search.keep.priced import Rates, cheapest
from autoshard.search.keep.proposals import Proposal
from autoshard.units import counted, format_bytes

MOST = 4
"""So many choices are offered with stacks on the host."""
SHARES = (1.0, 0.6)
"""Of the seconds of the forward pass, how much of them transfers to the host may take."""
ALONE = 3
"""So many products are offered to lie there alone."""


def offloaded(
    residuals: Residuals,
    choices: Sequence[Proposal],
    host: Host | None,
    chips: int,
    free_bytes: float,
    *,
    most: int = MOST,
) -> list[Proposal]:
    """The choices with stacks on the host, in their order, at most so many; none twice.

    Args:
      residuals: the candidates of the program.
      choices: of what to save.
      host: of the machine; without one there is nothing to offer.
      chips: how many there are; stacks are cut into as many parts at best.
      free_bytes: per device, for stacks.
      most: how many are offered.
    """
    found: list[Proposal] = []
    if host is None:
        return found
    for choice in dict.fromkeys((*choices, _nothing(residuals))):
        sizes = {name: size / chips for name, size in residuals.stacks(choice.saved).items()}
        left = sum(sizes.values())
        least = free_bytes if left > free_bytes else 0.0
        away: list[str] = []
        for name in sorted(sizes, key=lambda one: -sizes[one]):
            if left > least:
                away.append(name)
                left -= sizes[name]
        room = sum(sizes[name] for name in away) <= host.bytes_per_chip
        if away and left <= free_bytes and room:
            title = f"{choice.title}, {len(away)} of {counted(len(sizes), 'stack')} on the host"
            found.append(replace(choice, title=title, offloaded=frozenset(away)))
    return found[:most]


def emptied(
    residuals: Residuals, choices: Sequence[Proposal], host: Host | None, chips: int
) -> list[Proposal]:
    """The choices with all of their stacks on the host, those that leave the most room first.

    For where nothing was found that fits: what lies beside stacks may take more than is known
    before a plan is there. Arguments are those of `offloaded`.
    """
    lean = sorted(choices, key=lambda one: sum(residuals.stacks(one.saved).values()))
    lean.insert(0, _nothing(residuals))
    return offloaded(residuals, lean, host, chips, math.inf, most=len(lean))


def _nothing(residuals: Residuals) -> Proposal:
    """To save what has to be."""
    pinned = residuals.on_stacks([one.name for one in residuals.values if one.pinned])
    return Proposal("nothing", frozenset(pinned))


def on_host(
    residuals: Residuals, rates: Rates, saved: Collection[str], machine: Machine
) -> list[Proposal]:
    """Choices with stacks on the host at the prices of a plan with none there; none twice.

    Args:
      residuals: the candidates of the program.
      rates: what they cost in the plan.
      saved: the names of what the plan saves.
      machine: with a host.
    """
    made = [beside(residuals, rates, machine, share) for share in SHARES]
    made += alone(residuals, rates, saved, machine)
    return [one for one in dict.fromkeys(made) if one is not None]


def alone(
    residuals: Residuals, rates: Rates, saved: Collection[str], machine: Machine
) -> list[Proposal]:
    """What a plan saves and one product more on the host, the dearest to compute again first.

    For XLA:TPU, by whose defaults a stack comes hardly before the turn that reads it: one that is
    read after others were computed again comes beside that, and of several the first has nothing
    to come beside.
    """
    host = machine.host
    if host is None or machine.chip.compiler.name != "xla:tpu":
        return []
    stacks = set(residuals.on_stacks(saved))
    anew = sum(rates.again[name] for name in rates.again.keys() - stacks)
    products = {one.name for one in residuals.values if is_matrix_op(one.primitive)}
    found = []
    for name in sorted(products & rates.dear - stacks, key=lambda one: -rates.again[one]):
        size, left = rates.bytes[name], anew - rates.again[name]
        if size / host.rate("from_host") > left or size > host.bytes_per_chip:
            continue
        if name in residuals.stacks({*stacks, name}):  # it is read, with the others there
            title = f"what the best so far saves, and {name} on the host"
            found.append(Proposal(title, frozenset((*stacks, name)), frozenset([name])))
    return found[:ALONE]


def beside(residuals: Residuals, rates: Rates, machine: Machine, share: float) -> Proposal | None:
    """The cheapest choice with so much on the host as moves there beside the forward pass.

    None where all that is cheapest fits the device. Stacks are fetched a turn ahead, but for
    XLA:TPU, which gains nothing by it: eight layers of two products, what they are given on the
    host, compiled for v5e-8 to 0.472 s a step without and 0.494 s with (0.086 s waited in both, JAX
    0.12.0.1).

    Args:
      residuals: the candidates of the program.
      rates: what they cost in a plan with none on the host.
      machine: with a host; what a loop carries is cut into as many parts as it has chips, at best.
      share: of the seconds of the forward pass, how much transfers may take.
    """
    host, early = machine.host, machine.chip.compiler.name != "xla:tpu"
    if host is None:
        return None
    forward = sum(rates.again.values())
    room = min(share * forward * host.rate("to_host"), host.bytes_per_chip)
    saved = cheapest(residuals.values, replace(rates, free_bytes=rates.free_bytes + room), ())
    if saved is None:
        return None
    stacks = residuals.stacks(saved)
    more = sum(rates.bytes.get(name, 0.0) for name in stacks) - rates.free_bytes
    away = _least({n: rates.bytes.get(n, size / machine.chips) for n, size in stacks.items()}, more)
    if not away:
        return None
    title = f"cheapest with {counted(len(away), 'stack')} on the host"
    return Proposal(title, saved, frozenset(away), prefetch=early)


def _least(sizes: Mapping[str, float], wanted: float) -> list[str]:
    """Few stacks that take so many bytes together, and hardly more."""
    found: list[str] = []
    left = wanted
    for name in sorted(sizes, key=lambda one: -sizes[one]):
        if left > 0.0:
            found.append(name)
            left -= sizes[name]
    for name in list(found):
        if left + sizes[name] <= 0.0:
            found.remove(name)
            left += sizes[name]
    return found


def waiting(program: Program) -> list[str]:
    """A note on the stacks that a program keeps on the host; none where there are none."""
    names = program.options.get("offloaded", ())
    if not names:
        return []
    residuals = find_residuals(program.written)
    sizes = residuals.stacks(program.options["saved"])
    listed = ", ".join(f"{name} ({format_bytes(sizes[name])})" for name in names)
    return [f"these stacks, unsharded, wait for the backward pass on the host: {listed}"]
