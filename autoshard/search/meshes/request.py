"""The request of a search over several meshes, and the cuts of its steps.

Where what stages save is chosen, each of `titles` is one way in which a stage may do it
(`autoshard.search.meshes.keep.titles`), and a cut takes one title for each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.lower.mpmd.partition import Partition, TracedStep, trace_step
from autoshard.machine.cluster import Cluster
from autoshard.search.meshes.keep.titles import titled
from autoshard.search.meshes.pricer import Pricer

Step = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A step, its arguments, and options of `autoshard.trace`.

Those are `donate_argnums`; and `microbatches` of a step that is not written in microbatches, into
which it is cut then.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A step on a cluster.

    Attributes:
      name: the name of the program.
      steps: the step for each number of microbatches, the fewest first.
      blocks: the names of the repeated blocks.
      limits: usable bytes per device, by mesh.
      titles: the choices of what a stage saves for its backward pass; none if all stages do as
        the program says.
      traced: the traced steps by number of microbatches; each is traced once.
    """

    name: str
    steps: Mapping[int, Step]
    cluster: Cluster
    blocks: tuple[str, ...]
    limits: tuple[float, ...]
    titles: tuple[str, ...] = ()
    traced: dict[int, TracedStep] = field(default_factory=dict)

    def cut(
        self, microbatches: int, counts: Sequence[int], titles: Sequence[str] = ()
    ) -> Partition:
        """Return the step with this many microbatches, cut into stages of these block counts.

        Args:
          titles: for each stage the title of what it saves, or one for all; none for what the
            program says.
        """
        if microbatches not in self.traced:
            self.traced[microbatches] = _traced(self.steps[microbatches])
        step = self.traced[microbatches]
        if not titles:
            return step.cut(counts)
        each = tuple(titles) * len(counts) if len(titles) == 1 else tuple(titles)
        machine = self.cluster.meshes[0]
        return step.cut(counts, saved=lambda staged: titled(staged, each, machine))

    @property
    def cuts(self) -> bool:
        """Return whether the steps are cut into microbatches that they are not written in."""
        return any("microbatches" in options for _, _, options in self.steps.values())

    def choosing(self, titles: Sequence[str]) -> Request:
        """Return the request with these choices of what a stage saves."""
        return replace(self, titles=tuple(titles))


def _traced(step: Step) -> TracedStep:
    fn, args, options = step
    told = {key: options[key] for key in ("donate_argnums", "microbatches") if key in options}
    return trace_step(fn, *args, **told)


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
    return Request(name, ordered, cluster, blocks, limits, traced={fewest: traced})
