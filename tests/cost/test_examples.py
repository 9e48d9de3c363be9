"""The examples in the docstrings of machines, layouts and cost laws run as written."""

import doctest
import importlib
import subprocess
import sys

import pytest

MODULES = (
    "program.layout",
    "machine",
    "machine.file",
    "machine.network",
    "cost.placement",
    "cost.collective",
    "cost.roofline",
    "cost.states",
    "cost.reshard",
    "cost.settle",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"autoshard.{name}")
    assert doctest.testmod(module).failed == 0


def test_prices_need_no_jax():
    """The package's own `__init__` is left out: it may offer what needs JAX."""
    program = (
        "import sys, types, importlib.machinery\n"
        "package = types.ModuleType('autoshard'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['autoshard'] = package\n"
        f"for name in {MODULES!r}: __import__('autoshard.' + name)\n"
        "sys.exit('jax' in sys.modules)"
    )
    folder = importlib.import_module("autoshard").__path__[0]
    assert subprocess.run([sys.executable, "-c", program, folder], check=False).returncode == 0
