"""Asking XLA's partitioner whether it still has a fault of `autoshard.lower.partitioner`.

    ask_fault(fault)    the probe's op, cut over fake CPU devices, in a process of its own

The child (`python -m autoshard.compiler.partitioner NAME`) compiles the op as it is cut and runs
it. It prints as JSON whether the numbers are those of the op on whole arrays, and which collectives
the compiled program has; where it ends without an answer, the partitioner has aborted.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from autoshard.compiler.ask import NoAnswer, ask
from autoshard.compiler.probes import Outcome
from autoshard.compiler.request import versions
from autoshard.lower.partitioner import FAULTS, CutOp, Fault

KIND = "partitioner"
"""Its name beside those of compilers."""

TIME_LIMIT = 300.0
"""Seconds that a probe may take."""
_COLLECTIVE = re.compile(
    r"= \S+ (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def ask_fault(fault: Fault) -> Outcome:
    """Ask the installed partitioner whether it has a fault.

    ``holds`` where it has, ``lost`` where it is known to have none any more (the release was asked
    for others, and this one was not seen), ``broken`` where its probe shows something else.

    Args:
      fault: with its probe.
    """
    start = time.perf_counter()
    devices = math.prod(fault.probe.mesh.values())
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
    found = _shown(ask(__name__, [fault.name], environment, time_limit=TIME_LIMIT))
    version = f"jaxlib {versions()['jaxlib']}"
    gone = version not in fault.seen and any(version in other.seen for other in FAULTS)
    detail = "" if found == ("nothing" if gone else fault.shows) else f"its probe shows: {found}"
    status = "broken" if detail else "lost" if gone else "holds"
    return Outcome(fault.name, status, detail, version, time.perf_counter() - start)


def _shown(answer: dict[str, Any] | NoAnswer) -> str:
    """What a child showed: a word of `Shows`, ``nothing``, or why it has no answer."""
    if isinstance(answer, NoAnswer):
        return "aborts" if answer.aborted else answer.why
    if not answer["equal"]:
        return "wrong"
    return "sends" if answer["collectives"] else "nothing"


def run_cut(probe: CutOp) -> tuple[bool, list[str]]:
    """Compile and run a cut op on this process's devices.

    Returns whether its numbers are those of the op on whole arrays, and its collectives.
    """
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    sizes = tuple(probe.mesh.values())
    devices = np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes)
    mesh = Mesh(devices, tuple(probe.mesh), axis_types=(AxisType.Auto,) * len(sizes))
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=shape).astype("float32") for shape in probe.shapes]
    placed = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in probe.reads]
    written = NamedSharding(mesh, PartitionSpec(*probe.writes))
    step = jax.jit(probe.op, in_shardings=placed, out_shardings=written)
    compiled = step.lower(*arrays).compile()
    results = compiled(*(jax.device_put(a, s) for a, s in zip(arrays, placed, strict=True)))
    expected = jax.jit(probe.op)(*arrays)
    equal = np.allclose(results, expected, rtol=1e-4, atol=1e-4)
    return bool(equal), _COLLECTIVE.findall(compiled.as_text() or "")


def main(arguments: Sequence[str]) -> int:
    """Answer for the fault of this name."""
    fault = next(fault for fault in FAULTS if fault.name == arguments[0])
    equal, collectives = run_cut(fault.probe)
    print(json.dumps({"equal": equal, "collectives": collectives}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
