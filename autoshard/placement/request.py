"""What a search over several meshes is asked, and the cuts of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.cluster import Cluster
from autoshard.mpmd.partition import Partition, partition_step
from autoshard.placement.pricer import Pricer

Step = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A step, its arguments, and options of `autoshard.trace` (`donate_argnums`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A step on a cluster.

    Attributes:
      name: what the program is called.
      steps: for every number of microbatches the step, fewest first.
      blocks: names of the repeated blocks.
      limits: bytes that may be used per device, by mesh.
    """

    name: str
    steps: Mapping[int, Step]
    cluster: Cluster
    blocks: tuple[str, ...]
    limits: tuple[float, ...]

    def cut(self, microbatches: int, counts: Sequence[int]) -> Partition:
        """The step with so many microbatches, cut into stages of so many blocks."""
        return cut_step(self.steps[microbatches], counts)


def cut_step(step: Step, stages: int | Sequence[int]) -> Partition:
    """A step, cut into stages: how many, or how many blocks each has."""
    fn, args, options = step
    donate = options.get("donate_argnums", ())
    return partition_step(fn, *args, stages=stages, donate_argnums=donate)


def request_of(name: str, steps: Mapping[int, Step], cluster: Cluster, pricer: Pricer) -> Request:
    """The request for these steps.

    Raises:
      LoopError: the first step has no microbatch loop.
    """
    ordered = dict(sorted(steps.items()))
    blocks = cut_step(next(iter(ordered.values())), 1).cut.stages.names[0]
    limits = tuple(pricer.limit(machine) for machine in cluster.meshes)
    return Request(name, ordered, cluster, blocks, limits)
