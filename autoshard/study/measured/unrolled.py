"""Layers that are in no loop, as XLA:GPU compiles them.

MaxText writes its layers out where a configuration says `scan_layers=false`. The sums of their
gradients over whole copies of the weights are joined then, up to a number of bytes that its scripts
for GPUs set to 512 MiB and more (github.com/AI-Hypercomputer/maxtext, src/maxtext/configs/gpu/a3/
llama_2_7b/4vm.sh and 16vm.sh: xla_gpu_all_reduce_combine_threshold_bytes). They are joined in the
order in which a step returns the weights, by their names: layer 0, 1, 10, 11, so that each has an
early layer, whose gradient comes last, and begins when all products are done. Of 8 and 32 layers of
7B's width on 32 H100s, with weights sharded within a host, no product is scheduled after the first
such sum has begun, whether they are joined up to 128, 512 or 1,024 MiB (JAX 0.12.0.1, without
devices). What a loop hides of them is not hidden.
"""

from __future__ import annotations

import math

from autoshard.cost.collective import MeshTopology
from autoshard.models.decoder import parameter_count
from autoshard.study.measured.question import Question

GRADIENT_BYTES = 2.0
"""Of a weight's gradient where it is summed: in bfloat16, as the product that makes it."""


def joined_seconds(asked: Question, topology: MeshTopology) -> float:
    """Seconds of the sums of gradients over whole copies of the weights; 0 where there is one.

    Args:
      asked: of one mesh.
      topology: of its axes in their order.
    """
    mesh = asked.rules.mesh
    if not asked.unrolled or "replica" not in mesh:
        return 0.0
    shards = math.prod(mesh.values()) / mesh["replica"]
    held = GRADIENT_BYTES * parameter_count(asked.decoder) / shards
    return topology.collective_seconds("all_reduce", (list(mesh).index("replica"),), held)
