"""Our own pipeline of a run: the same model, batch and machine in other stages.

What the run's pipeline is priced by prices others (`autoshard.study.measured.stages`): how many
meshes there are, how many ranks of tensor parallelism each has, how many stages lie on a mesh and
in which order they work, and what a layer keeps. Experts and context-parallel ranks stay as they
are, and so does the number of sequences that a rank works on at once. From the run's own numbers of
meshes and ranks the search goes on to half and twice as many of either, as long as that is faster.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.machine.file import MachineError
from autoshard.machine.machine import submachine
from autoshard.models.decoder import NAMES
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.prepare import MeshError
from autoshard.solve.schedule import ScheduleError
from autoshard.study.measured.pipeline import VEE, Pipeline
from autoshard.study.measured.question import Question, Remat, describe, divides, rules_of
from autoshard.study.measured.remat import UnreachableError
from autoshard.study.measured.saved import data_parallel
from autoshard.study.measured.stages import Parts, Piped, parts_of, piped_of

ONE = ("1f1b", "zb-h1", "zb-h2")
"""Schedules of one stage a mesh."""
SEVERAL = ("interleaved", "interleaved-zb")
"""Those of any number."""
CHUNKS = (2, 4)
"""Stages a mesh beside the run's own."""
KEPT: tuple[Remat, ...] = (NAMES, "full")
"""What a layer may keep beside what the run's does."""


@dataclass(frozen=True, slots=True)
class OurPipeline:
    """A pipeline that fits.

    Attributes:
      asked: the question that it is.
      piped: its price.
    """

    asked: Question
    piped: Piped

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.piped.seconds

    @property
    def mesh(self) -> str:
        """Meshes and axes, as ``pipeline=4,replica=8,tensor=2``."""
        return describe(self.asked)

    def choices(self) -> str:
        """Its schedule, and the number of stages on a mesh."""
        pipeline = self.asked.pipeline
        assert pipeline is not None
        several = f" of {pipeline.chunks} stages a mesh" if pipeline.chunks > 1 else ""
        return f"{pipeline.schedule}{several}"


def our_pipeline(asked: Question, *, limit: float, time_limit: float) -> OurPipeline | None:
    """The best pipeline that is found and fits; None where none fits.

    Args:
      asked: a run with a pipeline.
      limit: bytes of a device.
      time_limit: seconds of the search; each plan of a stage takes as long as it takes.
    """
    assert asked.pipeline is not None
    search = _Search(asked, limit, time.monotonic() + time_limit)
    at = asked.pipeline.meshes, asked.rules.mesh.get("tensor", 1)
    search.price(*at)
    while not search.is_over:
        before = search.best
        for meshes, ranks in _around(*at):
            search.price(meshes, ranks)
        if search.best is None or search.best is before:
            break
        best = search.best.asked
        assert best.pipeline is not None
        at = best.pipeline.meshes, best.rules.mesh.get("tensor", 1)
    return search.best


def _around(meshes: int, ranks: int) -> Iterator[tuple[int, int]]:
    for factor, other in ((0.5, 1), (1, 0.5), (2, 1), (1, 2), (0.5, 2), (2, 0.5)):
        if meshes * factor >= 2 and ranks * other >= 1:
            yield int(meshes * factor), int(ranks * other)


class _Search:
    """The best pipeline so far, and the numbers of meshes and ranks that were priced."""

    def __init__(self, asked: Question, limit: float, deadline: float) -> None:
        self._asked, self._limit, self._deadline = asked, limit, deadline
        self._seen: set[tuple[int, int]] = set()
        self.best: OurPipeline | None = None

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def price(self, meshes: int, ranks: int) -> None:
        """Price all schedules of so many meshes and ranks of tensor parallelism, once."""
        if (meshes, ranks) in self._seen or self.is_over:
            return
        self._seen.add((meshes, ranks))
        try:
            question = _with_stages(self._asked, meshes, ranks)
        except (UnreachableError, MachineError):
            return
        if question is None:
            return
        for remat in dict.fromkeys((*self._asked.remat, *KEPT)):
            if self.is_over:
                return
            try:
                parts = parts_of(question, remat, max(self._deadline - time.monotonic(), 1.0))
            except (InfeasibleError, NoPlanError, MeshError, ValueError):
                continue
            for pipeline in _pipelines(question):
                self._take(replace(question, pipeline=pipeline), parts, remat)

    def _take(self, question: Question, parts: Parts, remat: Remat) -> None:
        assert question.pipeline is not None
        try:
            found = piped_of(question, question.pipeline, parts, remat)
        except ScheduleError:
            return
        fits = found.needed_bytes <= self._limit
        if fits and (self.best is None or found.seconds < self.best.seconds):
            self.best = OurPipeline(question, found)


def _pipelines(asked: Question) -> Iterator[Pipeline]:
    """All schedules on the meshes of a question that have a layer for each stage."""
    own = asked.pipeline
    assert own is not None
    for schedule in ONE:
        yield replace(own, chunks=1, schedule=schedule)
    for schedule in sorted(VEE):
        if 2 * own.meshes <= asked.decoder.layers:
            yield replace(own, chunks=2, schedule=schedule)
    for chunks in dict.fromkeys((own.chunks, *CHUNKS)):
        if chunks > 1 and chunks * own.meshes <= asked.decoder.layers:
            for schedule in SEVERAL:
                yield replace(own, chunks=chunks, schedule=schedule)


def _with_stages(asked: Question, meshes: int, ranks: int) -> Question | None:
    """The question on other stages; None where the machine does not divide so.

    Raises:
      UnreachableError: the batch or the sequence does not divide.
      MachineError: the machine has no such part.
    """
    own = asked.pipeline
    assert own is not None
    context, experts = (asked.rules.mesh.get(axis, 1) for axis in ("context", "expert"))
    chips, config = own.machine.chips, asked.decoder
    if chips % (meshes * ranks * context * experts) or config.heads % ranks:
        return None
    if meshes > config.layers:
        return None
    replicas = chips // (meshes * ranks * context * experts)
    of_rank = asked.batch // asked.microbatches // data_parallel(asked)
    count, left = divmod(asked.batch, of_rank * replicas * experts)
    if left or not count:
        return None
    mesh = {"replica": replicas, "fsdp": 1, "expert": experts, "context": context, "tensor": ranks}
    divides(asked.batch // count, asked.sequence, mesh)
    apart = "tensor" in asked.rules.mesh and "tensor" not in asked.rules.activations["norm_length"]
    rules = rules_of(
        config,
        mesh,
        whole=True,
        wide_experts=False,
        parallel_sequence=not apart,
        parallel_width=False,
    )
    return replace(
        asked,
        microbatches=count,
        machine=submachine(own.machine, chips // meshes),
        pipeline=replace(own, meshes=meshes),
        rules=rules,
    )
