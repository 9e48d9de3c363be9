"""A plan under `jax.distributed`: two processes of four devices each compute what one device does.

The processes talk over loopback, with Gloo. They run the code of `docs/guide/cluster.md`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import autoshard
from autoshard import models
from tests.helpers import toy_machine
from tests.lower.distributed_child import PROGRAM

CHILD = Path(__file__).parent / "distributed_child.py"
PATIENCE_SECONDS = 600.0


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def run_processes(folder: Path) -> list[str]:
    """What the two processes complain of; nothing where they end well."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=4",
    }
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", str(CHILD), str(number), str(port), str(folder)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [text for text, process in zip(said, processes, strict=True) if process.returncode]


def test_two_processes_compute_what_one_device_does(tmp_path):
    step, args, options = models.tiny(PROGRAM)
    program = autoshard.trace(step, *args, **options)
    plan = autoshard.search(
        program, toy_machine(8), mesh={"data": 2, "model": 4}, time_limit=5, gap=0.5,
        baselines=False, options=options,
    )  # fmt: skip
    crossing = {move.kind for move in plan.moves if "data" in move.axes}
    assert crossing & {"all_gather", "all_reduce", "reduce_scatter", "all_to_all"}
    plan.save(tmp_path / "plan.json")
    complaints = run_processes(tmp_path)
    assert not complaints, "\n\n".join(complaints)
    for number in range(2):
        answer = json.loads((tmp_path / f"{number}.json").read_text())
        assert answer["devices"] == 8
        assert answer["own_devices"] == 4
        assert answer["spread"] > 0
        assert answer["differences"] == []
        assert answer["double"] == []
