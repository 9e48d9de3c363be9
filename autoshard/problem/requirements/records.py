"""What a user demands of a plan.

    pin       a value has a layout, whole or in part (`autoshard.program.layout_pattern`)
    tie       several values have one layout, whichever it is (Shardy's sharding groups)
    forbid    a value is never in such a layout, neither stored nor resharded
    limit     bytes of memory, or the number or bytes of collectives in a step

A requirement holds in every plan unless it says how strong it is:

    priority  plans keep as many requirements of p0 as can be kept, among those plans as many of p1
              as can be, and so on; what is left is decided by seconds. As in Shardy, where rules of
              a lower number are obeyed first
    price     a plan may break it, at this many seconds more per step

Each is a record, and a statement in text (`autoshard.problem.requirements.text`):

    pin params.layers[*].w1 [data, model?]
    p1: replicate opt_state.** over pod
    2ms: tie params.embed with params.unembed
    forbid scope layer_*/attention [?, model, ...]
    limit memory 60GiB
    limit all_gather over data count 3
    limit collectives in layers/mlp bytes 2GiB
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoshard.program.layout_pattern import LayoutPattern
from autoshard.program.select import RequirementError

COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
)


_BYTES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, ""))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What all requirements have.

    Attributes:
      priority: 0, 1, ... (0 is the strongest), or None.
      price: seconds per step for which a plan may break it, or None.
      source: where it is written, such as `with_sharding_constraint at model.py:41`.

    Raises:
      RequirementError: it has both a priority and a price, or one of them is negative.
    """

    priority: int | None = None
    price: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.priority is not None and self.price is not None:
            raise RequirementError(f"{self}: give a priority or a price, not both")
        if (self.priority or 0) < 0 or not 0 <= (self.price or 0) < float("inf"):
            raise RequirementError(
                f"{self}: priority {self.priority} or price {self.price}; give a finite number "
                "of 0 or more"
            )

    @property
    def hard(self) -> bool:
        """Whether it holds in every plan."""
        return self.priority is None and self.price is None

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it names."""
        return ()

    def _prefixed(self, text: str) -> str:
        if self.priority is not None:
            return f"p{self.priority}: {text}"
        return text if self.price is None else f"{_exact(self.price, _SECONDS)}: {text}"


@dataclass(frozen=True, slots=True)
class _OfLayout(Requirement):
    """What is asked of the layout of the values at `target`."""

    target: str
    layout: LayoutPattern

    @property
    def axes(self) -> tuple[str, ...]:
        return self.layout.axes


@dataclass(frozen=True, slots=True)
class Pin(_OfLayout):
    """The values at `target` are stored in a layout of `layout`."""

    def __str__(self) -> str:
        layout = self.layout
        if layout.more and not layout.dimensions and layout.replicated:
            return self._prefixed(f"replicate {self.target} over {', '.join(layout.replicated)}")
        return self._prefixed(f"pin {self.target} {layout}")


@dataclass(frozen=True, slots=True)
class Forbid(_OfLayout):
    """The values at `target` are nowhere in a layout of `layout`: neither stored nor copied."""

    def __str__(self) -> str:
        return self._prefixed(f"forbid {self.target} {self.layout}")


@dataclass(frozen=True, slots=True)
class Tie(Requirement):
    """All values at all of the targets are stored in one layout; they have one shape."""

    targets: tuple[str, ...]

    def __str__(self) -> str:
        return self._prefixed(f"tie {' with '.join(self.targets)}")


@dataclass(frozen=True, slots=True)
class MemoryLimit(Requirement):
    """At most so many bytes per device at any time."""

    bytes: float

    def __str__(self) -> str:
        return self._prefixed(f"limit memory {_exact(self.bytes, _BYTES)}")


@dataclass(frozen=True, slots=True)
class CollectiveLimit(Requirement):
    """At most so many collectives, or bytes of them, in one step on one device.

    Attributes:
      kind: one of `COLLECTIVES`, or None: all of them together.
      over: only those that run over any of these axes; empty: over whatever axes.
      inside: only those of ops under these scopes, forward and backward, written as in
        `autoshard.program.select`; empty: wherever. A copy of a value is made for the op that reads
        it.
      count: executions in a step, or None.
      bytes: as in `autoshard.plan.Move.bytes`, times executions; or None.

    Raises:
      RequirementError: not exactly one of count and bytes, or another kind.
    """

    kind: str | None = None
    over: tuple[str, ...] = ()
    count: int | None = None
    bytes: float | None = None
    inside: str = ""

    def __post_init__(self) -> None:
        Requirement.__post_init__(self)
        if (self.count is None) == (self.bytes is None):
            raise RequirementError(
                f"{self}: count {self.count} and bytes {self.bytes}; give either, and not both"
            )
        if self.kind is not None and self.kind not in COLLECTIVES:
            raise RequirementError(f"{self}: {self.kind!r} is none of {', '.join(COLLECTIVES)}")
        if min(self.count or 0, self.bytes or 0) < 0:
            raise RequirementError(
                f"{self}: a limit of {min(self.count or 0, self.bytes or 0)}; give 0 or more"
            )

    @property
    def axes(self) -> tuple[str, ...]:
        return self.over

    @property
    def most(self) -> float:
        """The limit itself, a count or bytes."""
        return float(self.bytes if self.count is None else self.count)  # type: ignore[arg-type]

    def __str__(self) -> str:
        where = f" in {self.inside}" if self.inside else ""
        over = f" over {', '.join(self.over)}" if self.over else ""
        most = (
            f"bytes {_exact(self.bytes, _BYTES)}" if self.count is None else f"count {self.count}"
        )
        return self._prefixed(f"limit {self.kind or 'collectives'}{where}{over} {most}")


@dataclass(frozen=True, slots=True)
class ChangeLimit(Requirement):
    """At most so many inputs are laid out otherwise than before.

    Inputs whose paths differ in numbers alone, such as those of layers, count once.

    Attributes:
      layouts: by tree path, how they were laid out.
      count: how many of them may change.
      target: the inputs that count, as a user says it.
    """

    layouts: Mapping[str, LayoutPattern] = field(hash=False)
    count: int
    target: str = "state"

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(a for one in self.layouts.values() for a in one.axes))

    @property
    def most(self) -> float:
        """The limit itself."""
        return float(self.count)

    def __str__(self) -> str:
        return self._prefixed(f"limit changes of {self.target} count {self.count}")


@dataclass(frozen=True, slots=True)
class LogicalRules(Requirement):
    """Dimensions have names, and rules lay the names on mesh axes, as Flax and MaxText do.

    Attributes:
      names: from a target to the logical names of its dimensions (None: whole).
      rules: from a logical name to mesh axes, major first; a name without a rule is whole. An axis
        that an earlier dimension of the same value has taken is left out. None: whatever rules are
        best; the plan says which.
    """

    names: Mapping[str, tuple[str | None, ...]] = field(hash=False)
    rules: Mapping[str, tuple[str, ...]] | None = field(default=None, hash=False)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(a for axes in (self.rules or {}).values() for a in axes))

    def __str__(self) -> str:
        if self.rules is None:
            known = dict.fromkeys(n for names in self.names.values() for n in names if n)
            return self._prefixed(f"logical rules of {', '.join(known)}")
        rules = ", ".join(f"{name}={'+'.join(axes)}" for name, axes in self.rules.items())
        return self._prefixed(f"logical rules {rules}")


def _exact(number: float | None, units: tuple[tuple[float, str], ...]) -> str:
    """A number in the largest unit in which a few digits say it without loss."""
    number = number or 0.0
    for scale, unit in units:
        text = f"{number / scale:.4g}"
        if float(text) * scale == number and abs(number) >= scale and "e" not in text:
            return text + unit
    scale, unit = units[-1]
    return f"{repr(number / scale).removesuffix('.0')}{unit}"
