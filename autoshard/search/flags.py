"""What other flags of a machine's compiler would change of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoshard.cost.step_prices import step_prices
from autoshard.machine.compiler import sets_of_flags
from autoshard.machine.load import with_flags_named
from autoshard.machine.machine import Machine, under_flags
from autoshard.plan.evaluate import evaluate
from autoshard.plan.fits import fits
from autoshard.plan.plan import Estimate, Plan
from autoshard.program.trace import Program
from autoshard.search.alternatives import Priced
from autoshard.search.assemble import forecasted, priced_anew, prices_of
from autoshard.units import format_seconds
from autoshard.xla import analyse

WORTH = 0.03
"""Of a step, what flags must take off it to be spoken of: predictions err by as much."""
PASSED_ON = frozenset({"xla:gpu"})
"""The compilers to which a lowered step passes the flags of its plan."""


def flags_notes(priced: Priced, limit: float) -> Iterator[str]:
    """Yield a sentence for each set of flags with which a plan would be faster, and fits.

    Args:
      priced: the plan.
      limit: bytes per device.
    """
    mesh, decisions, prices, evaluation = priced
    now = evaluation.estimate.expected_seconds
    for told in _with_other_flags(prices.machine):
        flow = replace(analyse(prices.program, told.chip), parted=prices.dataflow.parted)
        other = step_prices(prices.program, flow, told, prices.mesh_shape, prices.corrections)
        found = forecasted(other, decisions, evaluate(other, decisions, mesh.names)).estimate
        if found.expected_seconds < (1 - WORTH) * now and fits(found, limit):
            yield _sentence("this plan", found, now, told)


def flags_notes_of_another(
    plan: Plan, taken: Plan, program: Program, machine: Machine
) -> Iterator[str]:
    """Yield a sentence for each set of flags with which a plan that was not taken is faster.

    Args:
      plan: what was found before the one that is taken.
      taken: the plan that is.
      program: which `plan` is of.
      machine: of both.
    """
    now = taken.estimate.expected_seconds
    for told in _with_other_flags(machine):
        found = priced_anew(plan, prices_of(plan, program, told)).estimate
        if found.expected_seconds < (1 - WORTH) * now and fits(found, plan.memory_limit):
            yield _sentence("another plan", found, now, told)


def _with_other_flags(machine: Machine) -> Iterator[Machine]:
    compiler = machine.chip.compiler
    for flags in sets_of_flags(compiler.name):
        if flags != compiler.flags and compiler.name in PASSED_ON:
            yield under_flags(machine, flags)


def _sentence(which: str, found: Estimate, now: float, told: Machine) -> str:
    flags = told.chip.compiler.flags
    return (
        f"with the compiler's {flags} flags {which} takes {format_seconds(found.expected_seconds)} "
        f"a step, and not {format_seconds(now)}: search for --machine "
        f"{with_flags_named(told.name, flags)}"
    )
