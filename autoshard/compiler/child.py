"""`python -m autoshard.compiler.child FOLDER`: compile one request, in a process of its own.

Compilers read their environment when they are loaded, print as they like, may run for minutes and
may crash; so each compile has a process that can be silenced and ended. The folder holds
`module.mlirbc` and `target.json`; the answer is written into it, see `autoshard.compiler.cache`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoshard import compat
from autoshard.compiler.cache import Answer, write_answer


def main(arguments: Sequence[str]) -> int:
    """Compile what lies in the folder."""
    folder = Path(arguments[0])
    target = json.loads((folder / "target.json").read_text(encoding="utf-8"))
    devices = _devices(target)
    dumps = folder / "dumps"
    options = {
        **target["options"],
        "xla_dump_to": str(dumps),
        "xla_dump_hlo_pass_re": "spmd-partitioning",
        "xla_dump_large_constants": target["prints_constants"],
    }
    start = time.perf_counter()
    text, memory = compat.compile_bytecode(
        (folder / "module.mlirbc").read_bytes(),
        devices,
        options,
        deviceless=target["kind"] != "cpu",
    )
    facts = {
        "memory": memory,
        "compile_seconds": time.perf_counter() - start,
        "device_kind": devices[0].device_kind,
    }
    answer = Answer(
        facts=facts,
        final=text,
        partitioned=_dump(dumps, "*after_*spmd-partitioning.before*"),
        schedule=_dump(dumps, "*.schedule.txt"),
        memory_report=_dump(dumps, "*memory-usage-report.txt"),
    )
    write_answer(folder, answer)
    return 0


def _devices(target: Mapping[str, Any]) -> list[Any]:
    """The devices of the mesh, in row-major order."""
    import jax
    from jax.experimental import topologies

    wanted = [tuple(device) for device in target["devices"]]
    if target["kind"] == "cpu":
        there = jax.devices("cpu")
        return [there[number] for (number,) in wanted]
    there = topologies.get_topology_desc(**target["topology"]).devices
    if target["kind"] == "gpu":
        return [there[number] for (number,) in wanted]
    by_name = {(getattr(d, "slice_index", None) or 0, *d.coords, d.core_on_chip): d for d in there}
    return [by_name[name] for name in wanted]


def _dump(folder: Path, pattern: str) -> str:
    """The text of the one dump that fits, or an empty string."""
    found = sorted(folder.glob(pattern))
    return found[-1].read_text(encoding="utf-8") if found else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
