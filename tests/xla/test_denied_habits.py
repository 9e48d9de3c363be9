"""Rules ask the compiler: where a habit is denied, something else is derived of a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import autoshard
from autoshard.machine.chip import Chip
from autoshard.machine.compiler import LAWS
from autoshard.machine.load import load
from autoshard.program.facts import Facts
from autoshard.program.trace import Program
from autoshard.xla import analyse
from autoshard.xla.habits import HABITS
from tests.helpers import with_lost_habits
from tests.xla.habit_cases import CASES, LEARNT, LOOKED_UP, OF_PRODUCT, SCATTERED, WIDE, Case

ROOT = Path(autoshard.__file__).parent
RULES = (
    *("facts", "fusion", "fusion_accumulate", "fusion_siblings", "fusion_row_reductions"),
    *("liveness", "in_place", "slices", "combinable", "narrow_copies", "early_updates"),
    *("op_order", "kernel_orders", "dim_order/choose_products", "dim_order/tpu_minor"),
    *("dim_order/unbatched", "dim_order/walk", "dim_order/row_major"),
)
"""Modules of `autoshard.xla` whose answers `analyse` collects."""
NAME = re.compile(r"(gpu|tpu)\.[a-z0-9]+(-[a-z0-9]+)+")


def asked_in(file: Path) -> Iterator[str]:
    """The names of habits that stand in a module."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and NAME.fullmatch(str(node.value)):
            yield str(node.value)


def without(chip: Chip, *habits: str) -> Chip:
    return replace(chip, compiler=replace(chip.compiler, without=frozenset(habits)))


def derived(program: Program, chip: Chip) -> Facts:
    """What is derived of a program, without the chip itself."""
    return replace(analyse(program, chip), chip=None)


@pytest.mark.parametrize(
    ("machine", "habit"), [(machine, habit) for machine, of in CASES.items() for habit in of]
)
def test_a_habit_that_is_denied_is_not_followed(machine: str, habit: str) -> None:
    program, chip = CASES[machine][habit].program(), with_lost_habits(load(machine)).chip
    assert derived(program, chip) != derived(program, without(chip, habit))


@pytest.mark.parametrize(
    ("machine", "habit", "case"),
    [
        ("h100-8", "tpu.lookups-gather-narrow-tables", LOOKED_UP),
        ("v5p-8", "gpu.slices-written-for-products", OF_PRODUCT),
        ("v5p-8", "gpu.gathers-combined", LEARNT),
    ],
)
def test_habits_of_one_compiler_are_nothing_to_another(
    machine: str, habit: str, case: Case
) -> None:
    program, chip = case.program(), load(machine).chip
    assert derived(program, chip) == derived(program, without(chip, habit))


def of_gpus(x: Any, tokens: Any, y: Any) -> Any:
    """A softmax in one kernel, and a scatter that computes what it scatters."""
    return jax.nn.softmax(x), SCATTERED.step(tokens, y)


@pytest.mark.parametrize(
    ("machine", "case", "habits"),
    [
        (
            "h100-8",
            Case(of_gpus, (WIDE, *SCATTERED.args)),
            ("gpu.softmax-in-one-kernel", "gpu.scatters-compute-updates"),
        ),
        (
            "v5p-8",
            LOOKED_UP,
            (
                "tpu.lookups-gather-narrow-tables",
                "tpu.loops-gather-narrow-slices",
                "tpu.reshaped-weights-gathered-narrow",
            ),
        ),
    ],
)
def test_a_chip_without_a_compiler_has_no_habit(
    machine: str, case: Case, habits: tuple[str, ...]
) -> None:
    program, chip = case.program(), load(machine).chip
    laws = derived(program, replace(chip, compiler=LAWS))
    for denied in ((), *((habit,) for habit in habits)):
        assert derived(program, without(chip, *denied)) != laws
    assert derived(program, without(chip, *habits)) == laws


def test_every_habit_that_is_asked_for_has_a_case() -> None:
    asked = {name for file in RULES for name in asked_in(ROOT / "xla" / f"{file}.py")}
    assert asked == {habit for of in CASES.values() for habit in of}


def test_every_habit_that_is_asked_for_is_in_the_catalogue() -> None:
    names = {habit.name for habit in HABITS}
    files = [file for file in ROOT.rglob("*.py") if "habits" not in file.parts]
    unknown = {name for file in files for name in asked_in(file)} - names
    assert not unknown
