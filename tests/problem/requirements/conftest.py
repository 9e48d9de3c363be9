"""A small train step, and its plan without requirements."""

from __future__ import annotations

import pytest

from autoshard.plan.plan import Plan
from autoshard.program.trace import Program
from tests.problem.requirements.programs import plan_of, train_program


@pytest.fixture(scope="session")
def program() -> Program:
    return train_program()


@pytest.fixture(scope="session")
def free(program: Program) -> Plan:
    return plan_of(program)
