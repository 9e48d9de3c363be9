"""`python -m autoshard.cli.device PLAN PROGRAM`: runs the step of a plan on the local devices.

This is a separate process, because the command line itself never uses accelerators.

Prints one line of JSON: the fields of `autoshard.compiler.run.Measured`, and `skipped` (why, or
empty).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict

from autoshard.units import counted


def main(arguments: Sequence[str]) -> int:
    """Run the step of a plan, if there are as many accelerators as its mesh has devices."""
    import jax

    from autoshard.compiler.run import measure
    from autoshard.lower.spmd import lower
    from autoshard.models import find as reference
    from autoshard.plan.plan import Plan

    path, name = arguments
    plan = Plan.load(path)
    found = reference.find(name, machine=plan.machine)
    devices = [device for device in jax.devices() if device.platform != "cpu"]
    needed = math.prod(plan.mesh.sizes)
    if len(devices) != needed:
        skipped = f"the mesh needs {counted(needed, 'accelerator')}, here are {len(devices)}"
        print(json.dumps({"skipped": skipped}))
        return 0
    measured = measure(lower(plan, found.fn, *found.args, devices=devices))
    print(json.dumps({"skipped": "", **asdict(measured)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
