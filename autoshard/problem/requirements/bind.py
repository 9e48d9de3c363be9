"""Requirements on the values of one program and the axes of one mesh.

Binding finds every value that a requirement names, and everything that is wrong with it: targets
that name nothing, axes that the mesh has not, ranks that do not fit, sizes that do not divide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.near import did_you_mean
from autoshard.plan.plan import MeshShape
from autoshard.problem.requirements.from_program import Constraint
from autoshard.problem.requirements.records import (
    ChangeLimit,
    CollectiveLimit,
    Forbid,
    LogicalRules,
    Pin,
    Requirement,
    Tie,
)
from autoshard.program.layout import format_type
from autoshard.program.layout_pattern import Dimension, LayoutPattern, fitting_order
from autoshard.program.select import RequirementError, find_values, ops_inside, shown_path
from autoshard.program.trace import Program
from autoshard.units import counted


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A requirement, and the values that it is about.

    Attributes:
      requirement: in the user's words.
      pins, forbids: values with the layouts that they must have, or must not have.
      ties: values that have one layout, whichever it is.
      names: values with the logical names of their dimensions, where the rules are to be found.
      own: whether the program itself demands it.
      before: values with the layouts that they had, where changes are limited.
      limited: values made or read where collectives are limited; empty where they are everywhere.
    """

    requirement: Requirement
    pins: tuple[tuple[int, LayoutPattern], ...] = ()
    forbids: tuple[tuple[int, LayoutPattern], ...] = ()
    ties: tuple[int, ...] = ()
    names: tuple[tuple[int, tuple[str | None, ...]], ...] = ()
    own: bool = False
    before: tuple[tuple[int, LayoutPattern], ...] = ()
    limited: tuple[int, ...] = ()

    @property
    def values(self) -> tuple[int, ...]:
        """Every value that it is about."""
        pinned = [value for value, _ in (*self.pins, *self.forbids, *self.names)]
        return tuple(dict.fromkeys([*pinned, *self.ties]))

    def __str__(self) -> str:
        source = self.requirement.source
        return f"{self.requirement} ({source})" if source else str(self.requirement)


def bind(
    program: Program,
    requirements: Sequence[Requirement],
    mesh: MeshShape | None,
    *,
    constraints: Sequence[Constraint] = (),
) -> tuple[Bound, ...]:
    """Find what requirements are about.

    Args:
      program: whose values they name.
      requirements: of the user.
      mesh: whose axes they name; None where the mesh is still to be found.
      constraints: what the program itself demands; they come first.

    Raises:
      RequirementError: with every offender.
    """
    found: list[Bound] = []
    faults: list[str] = []
    for one in constraints:
        found += _of_constraint(program, one)
    for requirement in requirements:
        try:
            found.append(_bound(program, requirement))
        except RequirementError as error:
            faults.append(str(error))
    without_mesh = [str(b) for b in found if mesh is None and axes_of(b)]
    if without_mesh:
        raise RequirementError(_needs_mesh(without_mesh, found, constraints))
    turned = "" if mesh is None else _other_order(found, mesh)
    for bound in found:
        faults += [f"{bound}: {fault}" for fault in _faults(program, bound, mesh, turned)]
    if faults:
        more = [f"and {len(faults) - 20} more"] if len(faults) > 20 else []
        heading = "some requirements do not fit:"
        raise RequirementError("\n  - ".join([heading, *faults[:20], *more]))
    return tuple(found)


def marks(bounds: Sequence[Bound]) -> dict[int, tuple[str, ...]]:
    """What is asked of every value, in words; equal marks are asked equal things."""
    found: dict[int, list[str]] = {}
    for number, bound in enumerate(bounds):
        for value, pattern in (*bound.pins, *bound.forbids):
            found.setdefault(value, []).append(f"{number} {pattern}")
        for value, names in bound.names:
            found.setdefault(value, []).append(f"{number} {names}")
        for value in bound.ties:
            found.setdefault(value, []).append(f"{number} tie")
        for value in bound.limited:
            found.setdefault(value, []).append(f"{number} limit")
    return {value: tuple(texts) for value, texts in found.items()}


def shown_value(program: Program, value: int) -> str:
    """A value as a user knows it: its tree path, or what makes it, with its type."""
    record = program.values[value]
    path = shown_path(program, value)
    if path:
        return f"{path} {record}"
    op = program.ops[record.producer]
    return f"{record} of {op}"


def _bound(program: Program, requirement: Requirement) -> Bound:
    if isinstance(requirement, Pin | Forbid):
        values = find_values(program, requirement.target)
        ranked = [v for v in values if requirement.layout.fits_rank(_rank(program, v))]
        inner = requirement.target.split()[0] in ("scope", "line", "backward")
        if not ranked or (not inner and len(ranked) < len(values)):
            odd = [v for v in values if v not in ranked]
            shown = ", ".join(shown_value(program, v) for v in odd[:4])
            raise RequirementError(
                f"{requirement}: a layout of "
                f"{counted(len(requirement.layout.dimensions), 'dimension')} does not fit "
                f"{shown}{' and more' if len(odd) > 4 else ''}"
            )
        pairs = tuple((value, requirement.layout) for value in ranked)
        key = "pins" if isinstance(requirement, Pin) else "forbids"
        return replace(Bound(requirement), **{key: pairs})
    if isinstance(requirement, Tie):
        found = [v for target in requirement.targets for v in find_values(program, target)]
        ties = tuple(dict.fromkeys(found))
        shapes = {program.values[v].shape for v in ties}
        if len(shapes) > 1 or len(ties) < 2:
            shown = ", ".join(shown_value(program, v) for v in ties[:4])
            why = "they have different shapes" if len(shapes) > 1 else "it is a single value"
            raise RequirementError(f"{requirement}: {why}: {shown}")
        return Bound(requirement, ties=ties)
    if isinstance(requirement, LogicalRules):
        return _logical(program, requirement)
    if isinstance(requirement, ChangeLimit):
        paths = requirement.layouts
        known = {program.values[v].path: v for v in program.inputs if not program.values[v].free}
        absent = [path for path in paths if path not in known]
        if absent:
            shown = ", ".join(absent[:4])
            raise RequirementError(f"{requirement}: {program.name} has no input {shown}")
        return Bound(requirement, before=tuple((known[p], paths[p]) for p in paths))
    if isinstance(requirement, CollectiveLimit) and requirement.inside:
        try:
            ops = ops_inside(program, requirement.inside)
        except RequirementError as error:
            raise RequirementError(f"{requirement}: {error}") from error
        both = [value for op in ops for value in (*op.inputs, *op.outputs) if value >= 0]
        return Bound(requirement, limited=tuple(dict.fromkeys(both)))
    return Bound(requirement)


def _logical(program: Program, requirement: LogicalRules) -> Bound:
    named: dict[int, tuple[str | None, ...]] = {}
    for target, names in requirement.names.items():
        for value in find_values(program, target):
            if len(names) != _rank(program, value):
                raise RequirementError(
                    f"{requirement}: {target} has {counted(len(names), 'name')}, but "
                    f"{shown_value(program, value)} has {_rank(program, value)} dimensions"
                )
            named.setdefault(value, names)
    if requirement.rules is None:
        return Bound(requirement, names=tuple(named.items()))
    rules = requirement.rules
    return Bound(requirement, pins=tuple((v, ruled(names, rules)) for v, names in named.items()))


def ruled(names: Sequence[str | None], rules: Mapping[str, tuple[str, ...]]) -> LayoutPattern:
    """The layout of an array with these logical names by these rules."""
    taken: set[str] = set()
    dimensions = []
    for name in names:
        axes = () if name is None else rules.get(name, ())
        left = tuple(axis for axis in axes if axis not in taken)
        taken.update(left)
        dimensions.append(Dimension(left))
    return LayoutPattern(tuple(dimensions))


def _of_constraint(program: Program, one: Constraint) -> list[Bound]:
    values = tuple(v for v in one.values if not program.values[v].free)
    if one.layout is None:
        if len(values) < 2 or len({program.values[v].shape for v in values}) > 1:
            return []
        names = tuple(shown_value(program, v) for v in values)
        return [Bound(Tie(names, source=one.source), ties=values, own=True)]
    pairs = tuple((value, one.layout) for value in values)
    if not pairs or (one.layout.free and not one.layout.dimensions):  # nothing is asked
        return []
    target = shown_value(program, values[0])
    return [Bound(Pin(target, one.layout, source=one.source), pins=pairs, own=True)]


def axes_of(bound: Bound) -> tuple[str, ...]:
    """Every mesh axis that a bound requirement names, once."""
    patterns = [axis for _, pattern in (*bound.pins, *bound.forbids) for axis in pattern.axes]
    return tuple(dict.fromkeys([*bound.requirement.axes, *patterns]))


def _patterns(bounds: Sequence[Bound]) -> list[LayoutPattern]:
    return [p for b in bounds for _, p in (*b.pins, *b.forbids, *b.before)]


def _other_order(bounds: Sequence[Bound], mesh: MeshShape) -> str:
    """The mesh whose axes stand as all layouts name them, as a repair; or that there is none."""
    sizes = dict(zip(mesh.names, mesh.sizes, strict=True))
    order = fitting_order(_patterns(bounds), mesh.names)
    if order is None:
        return " (no order of the mesh's axes is that of all layouts)"
    return f", or give the mesh in that order: --mesh {_mesh_words(order, sizes)}"


def _mesh_words(order: Sequence[str], sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={sizes[name]}" for name in order)


def _needs_mesh(
    named: Sequence[str], bounds: Sequence[Bound], constraints: Sequence[Constraint]
) -> str:
    meshes = [dict(one.mesh) for one in constraints if one.mesh]
    first = meshes[0] if meshes else {}
    order = fitting_order(_patterns(bounds), tuple(first))
    text = _mesh_words(order or tuple(first), first)
    shown = "\n  - ".join(named[:8])
    return (
        f"requirements name axes, but the mesh is still to be found: give it, such as "
        f"--mesh {text or 'data=2,model=4'}"
        + (", or --ignore-constraints" if meshes else "")
        + f":\n  - {shown}"
    )


def _faults(program: Program, bound: Bound, mesh: MeshShape | None, turned: str) -> list[str]:
    if mesh is None:
        return []
    strange = [axis for axis in axes_of(bound) if axis not in mesh.names]
    if strange:
        asked = [did_you_mean(axis, mesh.names) for axis in strange]
        said = "".join(f"; {one}" for one in dict.fromkeys(asked) if one)
        return [f"the mesh ({mesh}) has no axis {', '.join(strange)}{said}"]
    found: list[str] = []
    for value, pattern in (*bound.pins, *bound.forbids, *bound.before):
        faults = pattern.faults(mesh.names, turned)
        if faults:
            return faults
        if (value, pattern) in (*bound.forbids, *bound.before):
            continue
        record = program.values[value]
        undivided = pattern.undivided(record.shape, mesh.names, mesh.sizes)
        found += [f"{shown_value(program, value)}: {fault}" for fault in undivided]
    return found


def _rank(program: Program, value: int) -> int:
    return len(program.values[value].shape)


def shown_layout(program: Program, value: int, layout: Sequence[int], mesh: MeshShape) -> str:
    """The type of a value in a layout, as JAX prints it."""
    record = program.values[value]
    return format_type(record.dtype, record.shape, tuple(layout), mesh.names)
