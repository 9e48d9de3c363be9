"""Plans compiled by the real TPU compiler for chips that are not there.

The compiler wants a process of its own: it reads its environment when it is loaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.helpers import sampled

SCRIPT = """
import json, sys
import jax
from jax.experimental import topologies
import autoshard
from autoshard import models
from tests.helpers import toy_machine

topology = topologies.get_topology_desc(platform="tpu", topology_name="v5p:2x2x2")
step = models.tiny(sys.argv[1])
program = autoshard.trace(step.fn, *step.args, **step.options)
plan = autoshard.search(program, toy_machine(8), mesh={"x": 4, "y": 2}, baselines=False)
lowered = autoshard.lower(plan, step.fn, *step.args, devices=topology.devices)
compiled = lowered.jit().lower(*step.args).compile()
memory = compiled.memory_analysis()
inputs = jax.tree.leaves(compiled.input_shardings)
wanted = jax.tree.leaves(lowered.in_shardings)
shapes = [x.ndim for x in jax.tree.leaves(step.args)]
print(json.dumps({
    "moves": sorted({move.kind for move in plan.moves}),
    "text": compiled.as_text(),
    "donated": memory.alias_size_in_bytes,
    "arguments": memory.argument_size_in_bytes,
    "whole": sum(program.values[v].bytes for v in program.inputs),
    "same": all(a.is_equivalent_to(b, n) for a, b, n in zip(inputs, wanted, shapes, strict=True)),
}))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="the TPU compiler is not installed: pip install 'autoshard[tpu]'",
)
@pytest.mark.parametrize("name", sampled(["mlp", "llama3-8b"], lambda name: name == "mlp"))
def test_a_plan_compiles_for_tpus_that_are_not_there(name: str) -> None:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name],
        capture_output=True,
        text=True,
        env=environment,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["moves"], "the toy machine must make sharding win, or nothing is tested"
    assert found["same"], "the compiler keeps the plan's input shardings"
    assert found["donated"] > 0
    assert found["arguments"] < found["whole"], "inputs are sharded"
    assert "all-gather" in found["text"] or "all-reduce" in found["text"]
