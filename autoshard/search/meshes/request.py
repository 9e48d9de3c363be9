"""The request of a search over several meshes, and the cuts of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard.lower.mpmd.partition import Partition, TracedStep, trace_step
from autoshard.machine.cluster import Cluster
from autoshard.search.meshes.pricer import Pricer

Step = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A step, its arguments, and options of `autoshard.trace` (`donate_argnums`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A step on a cluster.

    Attributes:
      name: the name of the program.
      steps: the step for each number of microbatches, the fewest first.
      blocks: the names of the repeated blocks.
      limits: usable bytes per device, by mesh.
      traced: the traced steps by number of microbatches; each is traced once.
    """

    name: str
    steps: Mapping[int, Step]
    cluster: Cluster
    blocks: tuple[str, ...]
    limits: tuple[float, ...]
    traced: dict[int, TracedStep] = field(default_factory=dict)

    def cut(self, microbatches: int, counts: Sequence[int]) -> Partition:
        """Return the step with this many microbatches, cut into stages of these block counts."""
        if microbatches not in self.traced:
            self.traced[microbatches] = _traced(self.steps[microbatches])
        return self.traced[microbatches].cut(counts)


def _traced(step: Step) -> TracedStep:
    fn, args, options = step
    return trace_step(fn, *args, donate_argnums=options.get("donate_argnums", ()))


def request_of(name: str, steps: Mapping[int, Step], cluster: Cluster, pricer: Pricer) -> Request:
    """Return the request for these steps.

    Raises:
      LoopError: the first step has no microbatch loop.
    """
    ordered = dict(sorted(steps.items()))
    fewest = next(iter(ordered))
    traced = _traced(ordered[fewest])
    blocks = traced.cut(1).cut.stages.names[0]
    limits = tuple(pricer.limit(machine) for machine in cluster.meshes)
    return Request(name, ordered, cluster, blocks, limits, {fewest: traced})
