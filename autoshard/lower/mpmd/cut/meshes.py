"""Which mesh does what around the microbatch loop, and in which programs.

State has a home: a weight lives on the mesh of the first stage that reads it, its optimizer state
and its update with it; or where the user wants it (`autoshard.lower.mpmd.cut.homes`). What is
computed of several meshes' values (a gradient norm, a metric) is placed by
`autoshard.lower.mpmd.cut.inference`. So every mesh updates its own weights.

On each mesh, nodes are gathered into few programs: those of one level need nothing that another
mesh makes at that level or later.

    level = 0 for what needs inputs alone, one more than the level of what comes from other meshes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.lower.mpmd.cut.fragments import SHARED, Cut
from autoshard.lower.mpmd.cut.graph import Node, needed
from autoshard.lower.mpmd.cut.homes import Homes
from autoshard.lower.mpmd.cut.inference import FLOPS_PER_BYTE, Places, Question, free_nodes, infer
from autoshard.lower.mpmd.cut.outer import Outer
from autoshard.lower.mpmd.cut.pieces import Pieces


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A program of one mesh, before or after the loop; it reads and leaves outer values."""

    mesh: int
    early: bool
    level: int
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'before' if self.early else 'after'}{self.level}@{self.mesh}"


@dataclass(frozen=True, slots=True, eq=False)
class Around:
    """The outer graph on meshes.

    Attributes:
      phases: programs, those before the loop first, by level.
      homes: for every outer value the meshes that have it without a transfer, its home first:
        for inputs where they are put, for others where they are computed.
      needs: for every value that the loop or a phase reads, the meshes that do.
    """

    phases: tuple[Phase, ...]
    homes: Mapping[int, tuple[int, ...]]
    needs: Mapping[int, tuple[int, ...]]


def place_around(
    outer: Outer,
    cut: Cut,
    mesh_of: Sequence[int],
    ties: Iterable[tuple[int, int]],
    *,
    given: Homes = Homes(),  # noqa: B008 (it is frozen)
    flops_per_byte: float = FLOPS_PER_BYTE,
) -> Around:
    """Place what is done around the loop.

    Args:
      outer: the outer graph.
      cut: the microbatch's fragments.
      mesh_of: the mesh of every stage.
      ties: (position among the step's inputs, position among its outputs) of state that comes back.
      given: the meshes on which the user wants inputs and results.
      flops_per_byte: FLOP in the time in which a byte crosses between meshes.
    """
    return _Around(outer, cut, tuple(mesh_of), tuple(ties), given, flops_per_byte).run()


def _values(entry: int | Pieces) -> tuple[int, ...]:
    return (entry,) if isinstance(entry, int) else entry.values


def _by_value(entries: Sequence[int | Pieces], meshes: Mapping[int, int]) -> dict[int, int]:
    return {value: mesh for at, mesh in meshes.items() for value in _values(entries[at])}


@dataclass(slots=True)
class _Family:
    """Values that live together: bytes that speak for a mesh, by how much they count."""

    votes: dict[tuple[int, int], int] = field(default_factory=dict)

    def home(self) -> int | None:
        """The mesh with most bytes of the votes that count most."""
        if not self.votes:
            return None
        return max(self.votes.items(), key=lambda vote: (vote[0][0], vote[1], -vote[0][1]))[0][1]


class _Around:
    def __init__(
        self,
        outer: Outer,
        cut: Cut,
        mesh_of: tuple[int, ...],
        ties: tuple[tuple[int, int], ...],
        given: Homes,
        flops_per_byte: float,
    ) -> None:
        self.outer, self.graph, self.cut = outer, outer.graph, cut
        self.given = _by_value(outer.inputs, given.inputs)
        self.returned = _by_value(outer.outputs, given.outputs)
        self.mesh_of = mesh_of
        self.flops_per_byte = flops_per_byte
        self.tied: dict[int, int] = {}  # outputs by the input that they replace
        for position, result in ties:
            before, after = _values(outer.inputs[position]), _values(outer.outputs[result])
            if len(before) == len(after):
                self.tied.update(zip(before, after, strict=True))

    def run(self) -> Around:
        reading = self._read_by_stages()
        wanted = {v: frozenset(self.mesh_of[s] for s in stages) for v, stages in reading.items()}
        where: dict[int, int] = {}
        for one in (*self.outer.totals, *self.outer.stacks):
            where[one.value] = self.mesh_of[one.source.stage]
        for total in self.outer.totals:
            mesh = frozenset((where[total.value],))
            wanted[total.initial] = wanted.get(total.initial, frozenset()) | mesh
        homes = self._families(reading, where)
        state = [v for v in self.tied if self.graph.avals[v].shape]
        sources: dict[int, Places] = {v: frozenset((m,)) for v, m in where.items()}
        sources |= {v: frozenset((homes[v],)) for v in state if v in homes}
        sources |= {v: frozenset((mesh,)) for v, mesh in self.given.items()}
        for value, mesh in self.returned.items():
            wanted[value] = wanted.get(value, frozenset()) | {mesh}
        for value in state:
            result = self.tied[value]
            if value in homes:
                wanted[result] = wanted.get(result, frozenset()) | {homes[value]}
        fixed = {
            number: homes[node.outputs[0]]
            for number, node in enumerate(self.graph.nodes)
            if number not in self.outer.early and node.outputs[0] in homes
        }
        meshes = 1 + max((*self.mesh_of, *self.given.values(), *self.returned.values()))
        places = infer(
            Question(self.graph, meshes, fixed, sources, wanted, flops_per_byte=self.flops_per_byte)
        )
        return self._around(places, sources, wanted)

    def _read_by_stages(self) -> dict[int, list[int]]:
        """For every outer value that the loop reads, the stages that do."""
        result: dict[int, set[int]] = {}
        for (stage, _), fragment in self.cut.fragments.items():
            for source in fragment.inputs:
                if source.stage == SHARED:
                    result.setdefault(self.outer.operands[source.value], set()).add(stage)
        return {value: sorted(stages) for value, stages in result.items()}

    def _families(
        self, reading: Mapping[int, list[int]], where: Mapping[int, int]
    ) -> dict[int, int]:
        """The home of every array that is computed from, or replaces, something with a home."""
        graph = self.graph
        leader = list(range(len(graph.avals)))

        def find(value: int) -> int:
            while leader[value] != value:
                leader[value] = leader[leader[value]]
                value = leader[value]
            return value

        for node in graph.nodes:
            arrays = [v for v in (*node.inputs, *node.outputs) if graph.avals[v].shape]
            for value in arrays[1:]:
                leader[find(value)] = find(arrays[0])
        families: dict[int, _Family] = {}

        def vote(value: int, mesh: int, weight: int) -> None:
            if graph.avals[value].shape:
                votes = families.setdefault(find(value), _Family()).votes
                votes[weight, mesh] = votes.get((weight, mesh), 0) + graph.bytes(value)

        for value, stages in reading.items():
            vote(value, self.mesh_of[stages[0]], 2 if value in self.tied else 1)
        for value, mesh in where.items():
            vote(value, mesh, 0)
        for value, mesh in self.given.items():
            if value in self.tied:
                vote(value, mesh, 3)
        homes = {leading: family.home() for leading, family in families.items()}
        return {
            value: home
            for value in range(len(leader))
            if graph.avals[value].shape and (home := homes.get(find(value))) is not None
        }

    def _around(
        self,
        places: Sequence[tuple[int, ...]],
        sources: Mapping[int, Places],
        wanted: Mapping[int, Places],
    ) -> Around:
        graph, early = self.graph, self.outer.early
        free = free_nodes(graph)
        free_maker = {v: n for n in free for v in graph.nodes[n].outputs}
        live = needed(graph.nodes, (*graph.outputs, *wanted))
        needs: dict[int, set[int]] = {v: set(meshes) for v, meshes in wanted.items()}
        level: dict[tuple[int, int], int] = {}  # of (value, mesh)
        homes: dict[int, tuple[int, ...]] = {}
        groups: dict[tuple[bool, int, int], list[int]] = {}
        made_early = {v for n in early for v in graph.nodes[n].outputs}
        for number, node in enumerate(graph.nodes):
            if number in free or not live[number]:
                continue
            for value in node.outputs:
                homes[value] = places[number]
            for mesh in places[number]:
                height = 0
                for value in node.inputs:
                    if value in free_maker:
                        continue
                    needs.setdefault(value, set()).add(mesh)
                    if value not in homes or (number not in early and value in made_early):
                        continue
                    if mesh in homes[value]:
                        height = max(height, level[value, mesh])
                    else:
                        height = max(height, level[value, homes[value][0]] + 1)
                level.update(((value, mesh), height) for value in node.outputs)
                groups.setdefault((number not in early, height, mesh), []).append(number)
        for value in graph.inputs:
            reading = sorted(needs.get(value, ())) or [0]
            if value in sources:
                (home,) = sources[value]
                homes[value] = (home,)
            else:
                homes[value] = tuple(reading)
        # Constants that the loop starts from or reads, or that the step returns, are made by the
        # first program of the mesh.
        for value in (*wanted, *graph.outputs):
            if value in free_maker and value not in homes:
                homes[value] = tuple(sorted(wanted.get(value, ()))) or (0,)
                late = value not in wanted
                for mesh in homes[value]:
                    groups.setdefault((late, 0, mesh), [])
        kept = set(graph.outputs) | set(wanted)
        phases = []
        for (late, height, mesh), numbers in sorted(groups.items()):
            phases.append(self._phase(late, height, mesh, numbers, homes, needs, kept, free_maker))
        return Around(tuple(phases), homes, {v: tuple(sorted(m)) for v, m in needs.items()})

    def _phase(
        self,
        late: bool,
        height: int,
        mesh: int,
        numbers: Sequence[int],
        homes: Mapping[int, tuple[int, ...]],
        needs: Mapping[int, set[int]],
        kept: set[int],
        free_maker: Mapping[int, int],
    ) -> Phase:
        graph = self.graph
        nodes = [graph.nodes[number] for number in numbers]
        made = {value for node in nodes for value in node.outputs}
        inputs = dict.fromkeys(
            v for node in nodes for v in node.inputs if v not in made and v not in free_maker
        )
        mine = set(numbers)
        elsewhere = {
            v
            for n, node in enumerate(graph.nodes)
            if n not in mine
            for v in node.inputs
            if v in made
        }
        outputs = [v for v in sorted(made) if v in kept or v in elsewhere]
        if height == 0:
            outputs += [
                v
                for v in sorted(kept)
                if v in free_maker and mesh in homes[v] and late == (v not in needs)
            ]
        copied: set[int] = set()
        pending = [*(v for node in nodes for v in node.inputs), *outputs]
        while pending:
            value = pending.pop()
            if value in free_maker and free_maker[value] not in copied:
                copied.add(free_maker[value])
                pending += graph.nodes[free_maker[value]].inputs
        constants = [graph.nodes[number] for number in sorted(copied)]
        return Phase(mesh, not late, height, (*constants, *nodes), tuple(inputs), tuple(outputs))
