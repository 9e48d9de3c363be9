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

from hypothesis import settings  # noqa: E402, after the flags

# No example of a property may fail for being slow: the machine that runs it may be busy.
settings.register_profile("patient", deadline=None, derandomize=True)
settings.load_profile("patient")
