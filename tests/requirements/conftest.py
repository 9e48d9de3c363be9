"""A small train step, and its plan without requirements."""

from __future__ import annotations

import pytest

from autoshard.plan import Plan
from autoshard.program import Program
from tests.requirements.programs import plan_of, train_program


@pytest.fixture(scope="session")
def program() -> Program:
    return train_program()


@pytest.fixture(scope="session")
def free(program: Program) -> Plan:
    return plan_of(program)
