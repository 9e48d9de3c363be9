"""Compiling the built-ins for the tests: soon done matters more than fast code."""

import jax
import pytest

from autoshard import compat

QUICKLY = compat.known_flags(
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)


@pytest.fixture(scope="session")
def compiled():
    """`jax.jit` with the compiler's optimisations off."""

    def compile_quickly(fn, **options):
        return jax.jit(fn, compiler_options=QUICKLY, **options)

    return compile_quickly
