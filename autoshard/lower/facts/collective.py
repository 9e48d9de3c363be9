"""One collective of a lowered module, as a record."""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = (
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
    "all_slice",
)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a module, with everything it is repeated by.

    `bytes` are local to one device, see the module. `counted_once` names the loops around it
    whose trip count is unknown. The last three fields tie a collective to the one whose result
    it reads.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int = 1
    scope: str = ""
    line: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    counted_once: tuple[str, ...] = ()
    result: int = field(default=-1, compare=False, repr=False)
    operand: int | None = field(default=None, compare=False, repr=False)
    only_use: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is none of {', '.join(KINDS)}")
        if self.bytes < 0 or self.count < 0:
            raise ValueError(
                f"{self.kind}: bytes {self.bytes} and count {self.count}; give numbers of 0 or more"
            )

    def __str__(self) -> str:
        dims = ", ".join(str(size) for size in self.shape)
        text = f"{self.kind}({', '.join(self.axes)}) {self.bytes} B x {self.count}"
        what = f"{self.dtype}[{dims}]" if self.dtype else ""
        return "  ".join(part for part in (text, what, self.scope, self.line) if part)
