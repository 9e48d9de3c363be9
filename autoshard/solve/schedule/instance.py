"""A schedule problem: stages on meshes, microbatches through them, times, transfers and memory.

    A(s)  the stages whose output stage s reads (the edges);  d(s)  the mesh of stage s

    F(s, k)  after F(a, k) + transfer for every a in A(s)
    B(s, k)  after F(s, k), and after B(z, k) + transfer for every z with s in A(z)
    W(s, k)  after B(s, k)
    BW(s, k) as B(s, k) and W(s, k) together; others see its gradient at its end

A mesh runs one task at a time. F takes memory of its mesh when it starts; B and W give parts of it
back when they end, W the rest. A transfer delays what reads it and keeps no mesh busy; within a
mesh there is none. This is the model of the Zero Bubble papers (https://arxiv.org/abs/2401.10241).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance_faults import faults_of

Number = int | float
Numbers = tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """One schedule problem. Times share one unit, and so do amounts of memory; any will do.

    Attributes:
      meshes, microbatches: how many; `autoshard.solve.schedule.instance_json` calls them p and m.
      forward, backward, weight: time of F, B and W, by stage.
      placement: the mesh of every stage.
      transfer: time from one mesh (row) to another (column); zero on the diagonal.
      time_scale: what times are multiplied by, by mesh: 1.5 for a slower one.
      memory_forward: what F takes, by stage.
      memory_backward, memory_weight: what B and W change it by, by stage; zero or less, and
        together with `memory_forward` zero.
      memory_limit: the most that may be taken at once, by mesh; None where nothing limits it.
      edges: (stage, stage that reads its output), without cycles; by default a chain.
      fused: time of BW, by stage, where it is not that of B and W together.
      static_memory: what a stage occupies always, by stage; reported, and not part of the limit.
      named_limits: limits that go by a name, such as ("1f1b", 16).

    Raises:
      ScheduleError: the instance contradicts itself; lists all faults.
    """

    meshes: int
    microbatches: int
    forward: Numbers
    backward: Numbers
    weight: Numbers
    placement: tuple[int, ...]
    transfer: tuple[Numbers, ...]
    time_scale: Numbers
    memory_forward: Numbers
    memory_backward: Numbers
    memory_weight: Numbers
    memory_limit: Numbers | None = None
    edges: tuple[tuple[int, int], ...] = ()
    fused: Numbers | None = None
    static_memory: Numbers = ()
    named_limits: tuple[tuple[str, Number | None], ...] = ()
    name: str = ""
    _readers: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    _sources: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.edges:
            object.__setattr__(self, "edges", tuple(chain(self.stages)))
        if not self.static_memory:
            object.__setattr__(self, "static_memory", (0,) * self.stages)
        faults = faults_of(self)
        if faults:
            raise ScheduleError(
                f"the instance {self.name!r}" if self.name else "this instance", faults
            )
        readers: list[list[int]] = [[] for _ in range(self.stages)]
        sources: list[list[int]] = [[] for _ in range(self.stages)]
        for source, reader in self.edges:
            readers[source].append(reader)
            sources[reader].append(source)
        object.__setattr__(self, "_readers", tuple(map(tuple, readers)))
        object.__setattr__(self, "_sources", tuple(map(tuple, sources)))

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.forward)

    @property
    def is_chain(self) -> bool:
        """Whether every stage but the last feeds just the next one."""
        return sorted(self.edges) == chain(self.stages)

    def readers(self, stage: int) -> tuple[int, ...]:
        """The stages that read the output of this one."""
        return self._readers[stage]

    def sources(self, stage: int) -> tuple[int, ...]:
        """The stages whose output this one reads."""
        return self._sources[stage]

    def on(self, mesh: int) -> tuple[int, ...]:
        """The stages of a mesh."""
        return tuple(s for s, place in enumerate(self.placement) if place == mesh)

    def time(self, kind: str, stage: int) -> Number:
        """How long a task takes where its stage is."""
        if kind == "F":
            time = self.forward[stage]
        elif kind == "B":
            time = self.backward[stage]
        elif kind == "W":
            time = self.weight[stage]
        elif self.fused is not None:
            time = self.fused[stage]
        else:
            time = self.backward[stage] + self.weight[stage]
        return time * self.time_scale[self.placement[stage]]

    def memory(self, kind: str, stage: int) -> Number:
        """What a task changes the memory taken by: F at its start, others at their end."""
        if kind == "F":
            return self.memory_forward[stage]
        if kind == "B":
            return self.memory_backward[stage]
        if kind == "W":
            return self.memory_weight[stage]
        return self.memory_backward[stage] + self.memory_weight[stage]

    def with_limit(self, limit: Number | Numbers | None) -> Instance:
        """This instance with another memory limit, the same for all meshes or one for each."""
        if isinstance(limit, int | float):
            limit = (limit,) * self.meshes
        return replace(self, memory_limit=limit)

    def limit_named(self, name: str) -> Number | None:
        """The memory limit of a name.

        "none" is None; "1f1b" is what 1F1B takes of its first mesh, as many microbatches in flight
        as there are meshes, where the stages take most; "2x" is twice that. Names that the
        instance itself defines come first.

        Raises:
          ScheduleError: nothing has this name.
        """
        known = dict(self.named_limits)
        if name not in known:
            whole = max(sum(self.memory_forward[s] for s in self.on(d)) for d in range(self.meshes))
            first = known.get("1f1b") or self.meshes * whole
            known = {"1f1b": first, "2x": 2 * first, "none": None, **known}
        if name not in known:
            raise ScheduleError(
                f"the limit {name!r}", [f"it is none of {', '.join(known)}; nor is it a number"]
            )
        return known[name]


def chain(stages: int) -> list[tuple[int, int]]:
    """The edges of a chain."""
    return [(stage, stage + 1) for stage in range(stages - 1)]


def vee_faults(instance: Instance) -> list[str]:
    """Why the stages are not a chain that is placed down the meshes and up again."""
    faults = []
    if not instance.is_chain:
        faults.append(f"the edges must be those of a chain, {chain(instance.stages)}")
    vee = [*range(instance.meshes), *reversed(range(instance.meshes))]
    if list(instance.placement) != vee:
        faults.append(f"the placement must be {vee}, not {list(instance.placement)}")
    return faults
