"""Rings of permutes as the collective that they implement.

A matmul whose operand is gathered, or whose result is scattered, is cut by XLA into one piece per
device, with a permute between pieces ("windowed einsum", "collective matmul": Wang et al., "Overlap
Communication with Dependent Computation via Decomposition in Large Deep Learning Models", ASPLOS
2023). In a group of n devices a ring of pieces of b bytes stands for

    all_gather of n b bytes        the pieces that come by are multiplied
    reduce_scatter of n b bytes    products are added to the pieces that come by

A ring has at least n - 1 permutes, or some more to bring the pieces into place; rings that turn
both ways have two chains. Permutes belong to one chain where one's result, through additions and
loop state, is the next one's operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.compiler.hlo.collectives import Found, HloCollective
from autoshard.compiler.hlo.events import opcode_of
from autoshard.compiler.hlo.groups import Pairs, parse_pairs, ring_length
from autoshard.compiler.hlo.module import Instruction
from autoshard.compiler.hlo.places import DATA_MOVEMENT, Place
from autoshard.compiler.hlo.uses import Reader, parts, readers

_Key = tuple[str, str]
"""(computation, name) of a permute."""

_CARRIED = DATA_MOVEMENT | {"add", "select", "pad", "concatenate", "slice"}
"""Through which a piece that is passed on may go."""

_JOINED = frozenset({"concatenate", "pad", "maximum", "slice", "select"})
"""In which a piece may be put together with others before it is multiplied."""

MATMULS = frozenset({"dot", "convolution"})


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring of permutes.

    Attributes:
      members: numbers of its permutes among the collectives that were found.
      kind: what it implements.
      length: devices in it.
      count: how often the whole ring runs in a step.
    """

    members: tuple[int, ...]
    kind: str
    length: int
    count: int


def fold_rings(found: Sequence[Found]) -> list[HloCollective]:
    """The records of `found`, each ring of permutes as one collective at its first permute."""
    folded: dict[int, HloCollective | None] = {}
    for ring in find_rings(found):
        first = found[ring.members[0]].record
        folded.update(dict.fromkeys(ring.members))
        folded[ring.members[0]] = replace(
            first,
            kind=ring.kind,
            bytes=first.bytes * ring.length,
            group_size=ring.length,
            count=ring.count,
        )
    records = (folded.get(number, one.record) for number, one in enumerate(found))
    return [record for record in records if record is not None]


def find_rings(found: Sequence[Found]) -> list[Ring]:
    """The rings among `found`."""
    permutes = {
        (one.place.computation.name, one.event.instruction.name): number
        for number, one in enumerate(found)
        if one.record.opcode == "collective-permute" and _turns_all(one.event.collective)
    }
    joined: list[list[int]] = []
    for chain in _chains(found, permutes):
        opposite = next((ring for ring in joined if _turn_against(found, ring, chain)), None)
        if opposite is not None:
            opposite.extend(chain)
        else:
            joined.append(list(chain))
    rings = (_as_ring(found, tuple(sorted(members))) for members in joined)
    return [ring for ring in rings if ring is not None]


def _turns_all(collective: Instruction) -> bool:
    """Whether a permute passes pieces around rings of one length; one that some devices keep is a
    change of the order in which axes cut an array."""
    pairs = parse_pairs(collective.attribute("source_target_pairs") or "")
    return all(a != b for a, b in pairs) and ring_length(_pairs(collective)) is not None


def _as_ring(found: Sequence[Found], members: tuple[int, ...]) -> Ring | None:
    """The ring that permutes are, if they pass all pieces around next to matmuls."""
    length = ring_length(_pairs(found[members[0]].event.collective))
    count = _around(found, members).count
    passes = sum(found[member].record.count for member in members) / max(count, 1)
    if length is None or passes < length - 1:
        return None
    if not any(_meets_matmul(found[member]) for member in members):
        return None
    added = any(_is_added(found[member]) for member in members)
    return Ring(members, "reduce_scatter" if added else "all_gather", length, count)


def _chains(found: Sequence[Found], permutes: dict[_Key, int]) -> list[list[int]]:
    parent = {number: number for number in permutes.values()}

    def head(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    for number in permutes.values():
        one = found[number]
        for key in _passed_on(one.event.home, _operand(one)):
            other = permutes.get(key)
            if other is not None and _alike(found[number], found[other]):
                parent[head(number)] = head(other)
    chains: dict[int, list[int]] = {}
    for number in permutes.values():
        chains.setdefault(head(number), []).append(number)
    return list(chains.values())


def _alike(one: Found, other: Found) -> bool:
    """Whether two permutes pass pieces of one size around in the same direction, for one matmul."""
    return (
        one.record.scope == other.record.scope
        and one.record.bytes == other.record.bytes
        and one.axes == other.axes
        and _pairs(one.event.collective) == _pairs(other.event.collective)
    )


def _turn_against(found: Sequence[Found], ring: Sequence[int], chain: Sequence[int]) -> bool:
    """Whether a chain is the other direction of a ring of one chain, for the same operation."""
    one, other = found[ring[0]], found[chain[0]]
    pairs = {_pairs(found[number].event.collective) for number in ring}
    reverse = tuple(sorted((b, a) for a, b in _pairs(other.event.collective)))
    return (
        pairs == {reverse}
        and one.record.scope == other.record.scope
        and one.record.bytes == other.record.bytes
        and _around(found, ring).computation is _around(found, chain).computation
    )


def _pairs(collective: Instruction) -> Pairs:
    pairs = parse_pairs(collective.attribute("source_target_pairs") or "")
    return tuple(sorted(pair for pair in pairs if pair[0] != pair[1]))


def _passed_on(place: Place, value: Instruction) -> dict[_Key, bool]:
    """The permutes whose results `value` is, or is a sum with.

    Of each, whether it comes only from an earlier turn of the loop in which `value` stands.
    """
    sources: dict[_Key, bool] = {}
    seen: set[tuple[str, str, bool]] = set()
    pending = [(place, value, False)]
    while pending:
        place, value, carried = pending.pop()
        place, value = place.origin(value)
        key = (place.computation.name, value.name)
        if (*key, carried) in seen:
            continue
        seen.add((*key, carried))
        if opcode_of(value) == "collective-permute":
            sources[key] = carried and sources.get(key, True)
        elif value.opcode.endswith("-done") and value.operands:
            pending.append((place, place.find(value.operands[0]), carried))
        elif value.opcode in _CARRIED:
            pending.extend((place, place.find(name), carried) for name in value.operands)
        elif value.opcode == "get-tuple-element":
            turned = place.find(value.operands[0]).opcode == "parameter"
            pending.extend((*before, carried or turned) for before in _state(place, value))
    return sources


def _state(place: Place, value: Instruction) -> list[tuple[Place, Instruction]]:
    """What an element of a loop's state is: before the loop, and after a turn of it."""
    index = int(value.attribute("index") or 0)
    made = place.find(value.operands[0])
    found: list[tuple[Place, Instruction]] = []
    if made.opcode == "while":
        inner = place.enter(made, made.called("body")[0])
        found += _element(inner, inner.computation.root, index)
        found += _element(place, place.find(made.operands[0]), index)
    elif made.opcode == "parameter" and place.caller is not None:
        outside, loop = place.caller
        if loop.opcode == "while":
            found += _element(place, place.computation.root, index)
            found += _element(outside, outside.find(loop.operands[0]), index)
    return found


def _element(place: Place, made: Instruction, index: int) -> list[tuple[Place, Instruction]]:
    if made.opcode != "tuple" or index >= len(made.operands):
        return []
    return [(place, place.find(made.operands[index]))]


def _is_added(one: Found) -> bool:
    """Whether what a permute brings is added to something."""
    return any(reader.opcode == "add" for _, reader, _ in _result_readers(one))


def _meets_matmul(one: Found) -> bool:
    """Whether what a permute brings is multiplied, or is added to a product."""
    pending = list(_result_readers(one))
    seen: set[tuple[str, str, int]] = set()
    while pending:
        place, reader, position = pending.pop()
        if (place.computation.name, reader.name, position) in seen:
            continue
        seen.add((place.computation.name, reader.name, position))
        if reader.opcode in MATMULS:
            return True
        if reader.opcode == "add":
            if any(_comes_from_matmul(place, place.find(name)) for name in reader.operands):
                return True
        elif reader.opcode in _JOINED:
            pending.extend(readers(place, reader))
        elif reader.opcode == "tuple":
            pending.extend(_next_turn(place, reader, position))
    return False


def _next_turn(place: Place, state: Instruction, position: int) -> list[Reader]:
    """Who reads an element of `state`, which a loop hands on, in its next turn."""
    if not state.is_root or place.caller is None or place.caller[1].opcode != "while":
        return []
    parameter = place.computation.parameter(0)
    taken = parts(place, parameter) if parameter is not None else []
    return [
        reader for index, value in taken if index == position for reader in readers(place, value)
    ]


def _comes_from_matmul(place: Place, value: Instruction) -> bool:
    seen: set[tuple[str, str]] = set()
    pending = [(place, value)]
    while pending:
        place, value = pending.pop()
        place, value = place.origin(value)
        if (place.computation.name, value.name) in seen:
            continue
        seen.add((place.computation.name, value.name))
        if value.opcode in MATMULS:
            return True
        if value.opcode in _CARRIED:
            pending.extend((place, place.find(name)) for name in value.operands)
        elif value.opcode == "get-tuple-element":
            pending.extend(_state(place, value))
    return False


def _result_readers(one: Found) -> list[Reader]:
    place, result = one.event.home, one.event.collective
    if result.opcode.endswith("-start"):
        done = [
            user
            for user in place.computation.users.get(result.name, ())
            if user.opcode.endswith("-done")
        ]
        if len(done) != 1:
            return []
        result = done[0]
    return list(readers(place, result))


def _around(found: Sequence[Found], members: Sequence[int]) -> Place:
    """The place around a ring, or around the loop that turns it.

    A loop turns a ring where its state carries the pieces from one permute of the ring to another.
    """
    outermost = min((found[member].place for member in members), key=_depth)
    inside = [found[member] for member in members if found[member].place is outermost]
    if len(inside) < len(members) or outermost.caller is None:
        return outermost
    names = {one.event.instruction.name for one in inside}
    carried = any(
        turned and name in names
        for one in inside
        for (_, name), turned in _passed_on(one.event.home, _operand(one)).items()
    )
    outside, call = outermost.caller
    return outside if call.opcode == "while" and carried else outermost


def _operand(one: Found) -> Instruction:
    return one.event.home.find(one.event.collective.operands[one.operand])


def _depth(place: Place) -> int:
    depth = 0
    while place.caller is not None:
        place, depth = place.caller[0], depth + 1
    return depth
