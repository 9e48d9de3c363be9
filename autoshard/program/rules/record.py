"""What a sharding rule is: factors, and which dimension of which tensor each of them makes up.

A rule says how an op may be computed in parts. `[i, k] x [k, j] -> [i, j]` has three factors; a
mesh axis put on factor `i` splits dimension 0 of the first operand and dimension 0 of the result,
and each device computes its part alone. A dimension may be made of several factors, the major
first: a reshape from 4x8 to 32 has the rule `([i, j])->([ij])`, and splitting 32 into 4 or fewer
parts splits `i`. The kind of a factor says what else splitting it costs:

    PASS       nothing: part s of every result depends on part s of the operands alone
    REDUCE     every device gets a partial result, to be combined with `operator` across devices
    REPLICATE  not possible: the op needs all of the dimension, so it must not be split
    PERMUTE    parts of neighbouring devices are needed (slice, pad, convolution windows)
    RING       the parts of all devices come by, one after another (keys and values of attention)
    EXCHANGE   elements of the parts go to the devices that need them, and results come back
    BLOCKED    possible, but a sharding is not carried through the op along this factor

The text form is Shardy's: `([i, k], [k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}`, with
`reduction={k:max}` where the operator is not a sum.

A dimension may be cut in another way than by its factors, which sends what they do not: a `Joint`
has a factor of its own, and says which dimensions a mesh axis on it cuts. In the text it stands
last, with the dimensions counted over all operands and results: `exchange={l} joint={l:0.0 1.0}`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

OPERATORS = ("sum", "max", "min", "and", "or", "prod")

Mapped = tuple[tuple[tuple[int, ...], ...], ...]
"""Per tensor, per dimension, the indices of its factors, major first."""


class FactorKind(Enum):
    """What splitting a factor over devices costs; the value is its word in the text form."""

    PASS = "pass"
    REDUCE = "reduction"
    REPLICATE = "need_replication"
    PERMUTE = "permutation"
    RING = "ring"
    EXCHANGE = "exchange"
    BLOCKED = "blocked_propagation"

    def __str__(self) -> str:
        return self.name


CUT = frozenset({FactorKind.PASS, FactorKind.REDUCE, FactorKind.RING, FactorKind.EXCHANGE})
"""The kinds of factors that a mesh axis may cut."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a rule: its name, its size, its kind, and the operator of a reduction."""

    name: str
    size: int
    kind: FactorKind = FactorKind.PASS
    operator: str | None = None

    def __post_init__(self) -> None:
        if (self.kind is FactorKind.REDUCE) != (self.operator in OPERATORS):
            raise ValueError(
                f"factor {self.name} of kind {self.kind} has operator {self.operator!r}; "
                f"a REDUCE factor needs one of {', '.join(OPERATORS)}, every other kind None"
            )


@dataclass(frozen=True, slots=True)
class Joint:
    """Another way to cut dimensions that have factors already, all of them together.

    Attributes:
      factor: its number; no dimension has it.
      places: (tensor, dimension) of all that it cuts, operands first.
    """

    factor: int
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """How an op may be computed in parts.

    Invariants: factor names differ; a tensor uses a factor at most once; every index exists.
    `operands[o][d]` are the factors of dimension `d` of operand `o`, major first; a dimension of
    size 1 may have none. Factors appear in the order of the results' dimensions, then of the
    operands'. A dimension has as many elements as its factors' sizes multiplied, but for those
    along which parts are shifted or nothing may be split (a slice, a concatenation): there one
    factor stands for dimensions of several sizes, and has the smallest. What is `joint` divides
    all of its dimensions; of one of kind EXCHANGE their own factors may cut the parts further.
    """

    factors: tuple[Factor, ...]
    operands: Mapped
    results: Mapped
    joint: tuple[Joint, ...] = ()

    def __post_init__(self) -> None:
        names = [factor.name for factor in self.factors]
        if len(set(names)) < len(names):
            raise ValueError(
                f"factor names {', '.join(names)} are not all different; name each factor once"
            )
        for tensor in (*self.operands, *self.results):
            used = [index for dimension in tensor for index in dimension]
            if len(set(used)) < len(used):
                raise ValueError(
                    f"{_tensor(tensor, self.factors)} uses a factor twice; give its dimensions "
                    "different factors"
                )
            if any(not 0 <= index < len(names) for index in used):
                raise ValueError(
                    f"{tensor} names a factor that is not there; the {len(names)} factors have the "
                    f"numbers 0 to {len(names) - 1}"
                )

    def __str__(self) -> str:
        sides = (
            "(" + ", ".join(_tensor(tensor, self.factors) for tensor in side) + ")"
            for side in (self.operands, self.results)
        )
        text = "->".join(sides)
        if self.factors:
            text += " {" + ", ".join(f"{f.name}={f.size}" for f in self.factors) + "}"
        for kind in FactorKind:
            names = [
                f.name if f.operator in (None, "sum") else f"{f.name}:{f.operator}"
                for f in self.factors
                if f.kind is kind
            ]
            if names and kind is not FactorKind.PASS:
                text += f" {kind.value}={{{', '.join(names)}}}"
        said = (
            f"{self.factors[one.factor].name}:{' '.join(f'{t}.{d}' for t, d in one.places)}"
            for one in self.joint
        )
        return f"{text} joint={{{', '.join(said)}}}" if self.joint else text

    def homes(self, tensor: int) -> dict[int, int]:
        """The dimension of a tensor, operands first, that each factor cuts, if it cuts one."""
        dimensions = (*self.operands, *self.results)[tensor]
        home = {factor: d for d, factors in enumerate(dimensions) for factor in factors}
        return home | {one.factor: d for one in self.joint for t, d in one.places if t == tensor}

    def with_joint(self, size: int, kind: FactorKind, places: Sequence[tuple[int, int]]) -> Rule:
        """This rule with another way to cut some dimensions together.

        >>> rule = Rule.parse("([i, k], [j])->([i]) {i=8, j=4, k=2}")
        >>> str(rule.with_joint(4, FactorKind.EXCHANGE, [(0, 0), (1, 0), (2, 0)]))
        '([i, k], [j])->([i]) {i=8, j=4, k=2, l=4} exchange={l} joint={l:0.0 1.0 2.0}'
        """
        taken = {one.name for one in self.factors}
        free = (name for k in itertools.count() if (name := factor_name(k)) not in taken)
        factors = (*self.factors, Factor(next(free), size, kind))
        return replace(
            self, factors=factors, joint=(*self.joint, Joint(len(self.factors), tuple(places)))
        )

    def without_joint(self) -> Rule:
        """This rule, cut along its dimensions' own factors alone."""
        whole = {one.factor for one in self.joint}
        factors = (
            replace(one, kind=FactorKind.REPLICATE) if k in whole else one
            for k, one in enumerate(self.factors)
        )
        return replace(self, factors=tuple(factors), joint=())

    @staticmethod
    def parse(text: str) -> Rule:
        """The rule that `text` spells; the inverse of `str`.

        >>> str(Rule.parse("([i, k], [k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}"))
        '([i, k], [k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}'
        """
        return _parse(text)

    @staticmethod
    def build(
        operands: Sequence[Sequence[Sequence[Hashable]]],
        results: Sequence[Sequence[Sequence[Hashable]]],
        factors: Mapping[Hashable, tuple[int, FactorKind, str | None]],
    ) -> Rule:
        """The rule with dimensions as sequences of labels, which are named anew, results first.

        `factors` gives the size, the kind and the operator of each label.

        >>> kinds = {"row": (2, FactorKind.PASS, None), "column": (3, FactorKind.REDUCE, "max")}
        >>> str(Rule.build([[["row"], ["column"]]], [[["row"]]], kinds))
        '([i, j])->([i]) {i=2, j=3} reduction={j:max}'
        """
        order: dict[Hashable, int] = {}
        for tensor in (*results, *operands):
            for label in (label for dimension in tensor for label in dimension):
                order.setdefault(label, len(order))
        read, made = (
            tuple(tuple(tuple(order[label] for label in d) for d in tensor) for tensor in side)
            for side in (operands, results)
        )
        named = (Factor(factor_name(index), *factors[label]) for label, index in order.items())
        return Rule(tuple(named), read, made)


def factor_name(index: int) -> str:
    """Shardy's name of factor `index`: `i` to `z`, then `z_1`, `z_2`, …"""
    letters = "ijklmnopqrstuvwxyz"
    return letters[index] if index < len(letters) else f"z_{index - len(letters) + 1}"


_LETTER = re.compile(r"[a-z](?:_\d+)?")
_RULE = re.compile(
    r"\((?P<operands>.*?)\)->\((?P<results>.*?)\)(?: \{(?P<sizes>[^}]*)\})?(?P<kinds>.*)"
)
_KIND = re.compile(r"(\w+)=\{([^}]*)\}")


def _tensor(tensor: tuple[tuple[int, ...], ...], factors: tuple[Factor, ...]) -> str:
    return "[" + ", ".join(_dimension([factors[i].name for i in d]) for d in tensor) + "]"


def _dimension(names: list[str]) -> str:
    if not names:
        return "1"
    if len(names) == 1 or all(_LETTER.fullmatch(name) for name in names):
        return "".join(names)
    return "<" + " ".join(names) + ">"


@lru_cache(maxsize=65536)
def _parse(text: str) -> Rule:
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"cannot read the rule {text!r}; expected the form "
            "([i, k], [k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}"
        )
    sizes: dict[str, int] = {}
    for entry in filter(None, (match["sizes"] or "").split(", ")):
        name, size = entry.split("=")
        sizes[name] = int(size)
    kinds: dict[str, tuple[FactorKind, str | None]] = {}
    places: dict[str, tuple[tuple[int, int], ...]] = {}
    for word, names in _KIND.findall(match["kinds"]):
        if word == "joint":
            for name, _, text in (one.partition(":") for one in names.split(", ")):
                pairs = (place.split(".") for place in text.split())
                places[name] = tuple((int(tensor), int(d)) for tensor, d in pairs)
            continue
        kind = FactorKind(word)
        for name in names.split(", "):
            name, _, operator = name.partition(":")
            # Shardy calls some dimensions both blocked and in need of replication: the first wins.
            kinds.setdefault(
                name, (kind, (operator or "sum") if kind is FactorKind.REDUCE else None)
            )
    index = {name: number for number, name in enumerate(sizes)}
    factors = tuple(
        Factor(name, size, *kinds.get(name, (FactorKind.PASS, None)))
        for name, size in sizes.items()
    )

    def tensors(side: str) -> Mapped:
        return tuple(
            tuple(_indices(dimension, index) for dimension in filter(None, inner.split(", ")))
            for inner in re.findall(r"\[([^\]]*)\]", side)
        )

    joint = tuple(Joint(index[name], found) for name, found in places.items())
    return Rule(factors, tensors(match["operands"]), tensors(match["results"]), joint)


def _indices(dimension: str, index: Mapping[str, int]) -> tuple[int, ...]:
    if dimension == "1":
        return ()
    if dimension in index:
        return (index[dimension],)
    names = dimension[1:-1].split() if dimension[0] == "<" else _LETTER.findall(dimension)
    return tuple(index[name] for name in names)
