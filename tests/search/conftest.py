"""The small train step of the requirements, and its plan without any."""

from tests.problem.requirements.conftest import free, program

__all__ = ["free", "program"]
