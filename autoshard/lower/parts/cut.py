"""How one op is cut over the mesh, as what runs on parts sees it."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.lower.parts.manual import Devices
from autoshard.program.layout import Layout, local_shape
from autoshard.program.trace import Op


class LoweringError(ValueError):
    """A plan that cannot be written down for the compiler."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How an op is cut: the layouts of its operands and results, and the axes that leave terms.

    `assignment` has the factor of each axis, or -1.
    """

    op: Op
    reads: tuple[Layout, ...]
    written: tuple[Layout, ...]
    partial: tuple[int, ...]
    result_shapes: tuple[tuple[int, ...], ...]
    devices: Devices
    assignment: tuple[int, ...] = ()

    def axes(self, operand: int, dimension: int) -> tuple[int, ...]:
        """The mesh axes that cut a dimension of an operand, major first."""
        layout = self.reads[operand]
        return tuple(axis for axis, d in enumerate(layout) if d == dimension)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut."""
        return all(d < 0 for layout in (*self.reads, *self.written) for d in layout)

    @property
    def local_results(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the results on one device."""
        return tuple(
            local_shape(shape, layout, self.devices.sizes)
            for shape, layout in zip(self.result_shapes, self.written, strict=True)
        )


def refused(cut: Cut, reason: str) -> LoweringError:
    """The error of an op that cannot be run on parts."""
    names = cut.devices.names
    factors = cut.op.rule.factors
    used = sorted(
        {
            names[axis]
            for layout in (*cut.reads, *cut.written)
            for axis, d in enumerate(layout)
            if d >= 0
        }
        | {names[axis] for axis in cut.partial}
    )
    return LoweringError(
        f"{cut.op} is cut over {', '.join(used)} (rule {cut.op.rule}), but cannot be written out "
        f"for one device: {reason}; lower without explicit=True, which leaves it to the compiler, "
        f"or replicate its factors {', '.join(f.name for f in factors)} with a user rule"
    )
