"""Fake CPU devices for every test, and a quick compiler; the flags must stand before JAX's backend.

What LLVM optimises costs more time than the small arrays of tests save, and changes no collective
and no buffer.
"""

import os

from autoshard import compat

DEVICES = 8
FLAGS = {
    "xla_force_host_platform_device_count": str(DEVICES),
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": "false",
}

os.environ.setdefault("JAX_PLATFORMS", "cpu")
given = os.environ.get("XLA_FLAGS", "")
known = compat.known_flags(FLAGS)
ours = [f"--{name}={value}" for name, value in known.items() if name not in given]
os.environ["XLA_FLAGS"] = " ".join([*given.split(), *ours])

from pathlib import Path  # noqa: E402, after the flags

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# No example of a property may fail for being slow: the machine that runs it may be busy. Each run
# has the same ones, so that more than these would be seen once.
settings.register_profile("patient", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a small step, as a file, with gathers, reductions, exchanges and slices."""
    from autoshard.cli.main import main

    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = ["--require", "pin params**.down [model, data]"]
    words += ["--require", "pin params**.up [data, model]"]
    words += ["--require", "pin batch** [data, ...]"]
    words += ["--require", "limit all_gather count 3"]
    words += [
        "--machine",
        "v5e-8",
        "--mesh",
        "data=2,model=4",
        "--gap",
        "0.1",
        "--no-baselines",
        "--quiet",
    ]
    assert main(["search", "mlp:tiny", *words, "-o", str(path)]) == 0
    return path
