"""Every example runs on eight devices, and prints what the step prints unplanned, on one."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import autoshard

EXAMPLES = Path(__file__).parent.parent / "examples"
NEEDS = {
    "equinox_mlp": "equinox",
    "flax_linen": "flax",
    "flax_nnx": "flax",
    "keras_stateless": "keras",
    "torchax_module": "torchax",
}


def unplanned():
    """The interface that the examples use, with nothing planned."""

    def jit(fn=None, **options):
        return jit if fn is None else fn

    def lower(plan, step, *args):
        return SimpleNamespace(jit=lambda: step, shard=lambda *args: args)

    return SimpleNamespace(
        jit=jit, lower=lower, trace=lambda *args, **options: None, search=lambda *args: None
    )


def printed(path, module, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "autoshard", module)
    capsys.readouterr()
    runpy.run_path(str(path))
    return [float(line) for line in capsys.readouterr().out.split()]


def test_there_is_an_example_of_each():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == NEEDS.keys()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_has_the_numbers_of_the_unplanned_step(name, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip(NEEDS[name], reason=f"the example needs {NEEDS[name]}, not installed here")
    path = EXAMPLES / f"{name}.py"
    planned = printed(path, autoshard, monkeypatch, capsys)
    plain = printed(path, unplanned(), monkeypatch, capsys)
    assert len(planned) == 5
    np.testing.assert_allclose(planned, plain, rtol=2e-3)
    code = [line for line in path.read_text().splitlines() if line.strip()]
    assert len(code) <= 25
    assert jax.device_count() == 8
