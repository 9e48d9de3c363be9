"""The flags of XLA that a file of MaxText's configuration says, in `compile_xla_flags`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autoshard import compat
from autoshard.machine.compiler import FLAGS, sets_of_flags
from autoshard.machine.load import with_flags_named
from autoshard.machine.machine import Machine, under_flags
from autoshard.models.maxtext.express import Expression, Trial
from autoshard.models.maxtext.step import train_step
from autoshard.models.providers import Target
from autoshard.plan.fits import fits
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program, trace
from autoshard.search.assemble import priced_anew, prices_of
from autoshard.units import format_seconds


@dataclass(frozen=True, slots=True)
class PricedFlags:
    """A set of flags of XLA:GPU for the step of a file.

    Attributes:
      name: of the set.
      take: whether the file says it.
      why: a sentence.
    """

    name: str
    take: bool
    why: str


def priced_flags(
    plan: Plan, machine: Machine, program: Callable[[], Program]
) -> PricedFlags | None:
    """The flags of a file for GPUs: those that its plan rests on, else those that are faster.

    A machine with a set of flags (`h100-8@recipe`) has the file say that set. With the defaults of
    the compiler, the file says another set if the same plan is faster with it and fits.

    Args:
      plan: of the step of the file.
      machine: that it is planned for.
      program: makes that step, where it is to be priced again.

    Returns:
      None where the compiler has no set that a file could say.
    """
    compiler = machine.chip.compiler
    others = [one for one in sets_of_flags(compiler.name) if one != "default"]
    if compiler.name != "xla:gpu" or not others:
        return None
    if plan.flags != "default":
        words = f"compile_xla_flags are those of {machine.name}, with which this is priced"
        return PricedFlags(plan.flags, True, words)
    traced = program()
    told = [priced_anew(plan, prices_of(plan, traced, under_flags(machine, one))) for one in others]
    fast = min(told, key=lambda one: one.estimate.expected_seconds)
    now, then = plan.estimate.expected_seconds, fast.estimate.expected_seconds
    named = with_flags_named(machine.name, fast.flags)
    pair = f"{format_seconds(then)} a step, and without them {format_seconds(now)}"
    if then < now and fits(fast.estimate, plan.memory_limit):
        words = f"compile_xla_flags are those of {named}: with them this takes {pair}"
        return PricedFlags(fast.flags, True, words)
    why = "they are not faster" if then >= now else "there is no memory for them"
    words = f"no flags are said: with those of {named} this takes {pair}; {why}"
    return PricedFlags(fast.flags, False, words)


def step_of(search: Expression, best: Trial, name: str) -> Program:
    """The step of a choice, as it is planned."""
    fn, args, options = train_step(search.config_of(best.choice), search.target, keep=True)
    options.pop("notes")
    return trace(fn, *args, name=name, **options)


def flag_settings(
    target: Target, settings: Mapping[str, Any], machine: Machine, priced: PricedFlags | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The flags with which a compiler makes of the step what is planned, and what is said of them.

    By default XLA:TPU cuts a product whose operand is gathered, or whose result is scattered, into
    one piece for each device, and permutes between them. Every piece reads and writes the whole
    result, so that products of large batches take several times as long.

    XLA:GPU lets a turn of a loop wait for the weights that it gathers, and for the gradients that
    it sums. Pipelined, those of one turn move during another one; MaxText's own scripts for GPUs
    (`configs/gpu`) have that in `XLA_FLAGS`. It takes memory for the weights of one turn more.

    Args:
      target: the devices.
      settings: the user's own flags go before.
      machine: that is planned for.
      priced: of XLA:GPU.
    """
    if "compile_xla_flags" in settings:
        return {}, ()
    if target.hardware == "tpu":
        names = ("all_gather", "reduce_scatter")
        words = [f"--xla_tpu_enable_windowed_einsum_for_{name}=false" for name in names]
        why = (
            "compile_xla_flags have weights gathered whole, as they are priced",
            *_outside(machine),
        )
    elif target.hardware == "gpu" and priced is not None:
        told = compat.known_flags(FLAGS["xla:gpu", priced.name]) if priced.take else {}
        words, why = [f"--{name}={value}" for name, value in told.items()], (priced.why,)
    else:
        words, why = [], ()
    return ({"compile_xla_flags": " ".join(words)} if words else {}), why


def _outside(machine: Machine) -> tuple[str, ...]:
    """What XLA:TPU has to be told in its environment for the prices of a machine, if anything."""
    compiler = machine.chip.compiler
    told = compat.taken_on_tpu(compiler.options, machine.chip.name)
    if compiler.name != "xla:tpu" or not told:
        return ()
    words = " ".join(f"--{name}={str(value).lower()}" for name, value in told.items())
    return (f"priced for {machine.name}: set LIBTPU_INIT_ARGS='{words}'",)
