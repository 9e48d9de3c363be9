"""Ring attention: attention cut along its sequence, with keys and values that go round.

Each device holds one part of the queries, keys and values. In `n` steps the keys and values of all
devices come by, each device passing on what it has seen; the parts of the result are joined by
their log-sum-exp, exactly (https://arxiv.org/abs/2310.01889). Backward, the gradients of keys and
values go round with them, and once more to where they belong; what each device computes from the
final log-sum-exp and output is its exact share of all gradients.

Under a causal mask most devices would wait for the last one. So the sequence is cut in `2 n` parts,
and device `i` works on parts `i` and `2 n - 1 - i`. Of a step's four pairs of parts two are seen,
whoever's keys come by, none of them masked within:

    keys from before   first and second queries with the first keys
    keys from behind   second queries with the first and second keys

Only its own keys, in the first step, are masked within. Each device does the same amount of work.
Arrays lie in order outside: halves are exchanged on the way in and on the way out.

A Pallas kernel whose queries are cut, or backward its keys, sees the whole of the others, and
nothing goes round, but of those that are known (`autoshard.program.kernels.known.attention`): these
may be rings, too. Where a mask leaves parts more or less to do, devices may take two of `2 n`
parts, too: another way to cut the same dimensions, beside that into parts that stay in order. What
is exchanged and what it saves are priced, and the search takes the cheapest.

What can be run so is what the search may choose: the factor of kind RING in the rule of such an
operation (`autoshard.program.rules.attention`, `autoshard.program.kernels.rule`) says so, and
lowering runs it
(`autoshard.lower.kernels.ring`). A call with a window, a bias, lengths, packed or paged sequences,
dropout or a function of its own is kept whole along its sequence, as is attention of queries over
keys of another number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from autoshard import compat


@dataclass(frozen=True, slots=True)
class Ring:
    """What an attention sends where its sequence is cut; arrays by number, operands first.

    Attributes:
      causal: whether queries see no keys behind them, so that halves are exchanged.
      operands: the operands that are cut: of these, and of the results, halves are exchanged.
      results: the results that are cut and read.
      passed: the operands that go round: keys and values.
      summed: the results that go round with them: their gradients.
      repeated: (array, elements) of those that hold one element so many times in their last
        dimension; it is sent once.
      beside: bytes that a call writes beside its results, for each of the first result.
      places: (tensor, dimension), operands first, of all that is cut, where that is beside the
        factors of these dimensions: into `parts` parts at most.
    """

    causal: bool
    operands: tuple[int, ...]
    results: tuple[int, ...]
    passed: tuple[int, ...]
    summed: tuple[int, ...] = ()
    repeated: tuple[tuple[int, int], ...] = ()
    beside: float = 0.0
    places: tuple[tuple[int, int], ...] = ()
    parts: int = 1

    @property
    def arrays(self) -> frozenset[int]:
        """All that is cut, with results that nobody reads."""
        return frozenset((*self.operands, *self.results, *(tensor for tensor, _ in self.places)))

    def share(self, number: int) -> int:
        """How many times less of an array than all of it is sent."""
        return dict(self.repeated).get(number, 1)


class Sending(NamedTuple):
    """One array that is sent by every device to another one: one of `share` shares of its part.

    `half` says whether that is of a half of it, `hidden` whether a device computes meanwhile.
    """

    number: int
    half: bool
    share: int
    times: int
    hidden: bool


def sendings(ring: Ring, devices: int) -> Iterator[Sending]:
    """What is sent, and how often, where the sequence is cut over so many devices."""
    if ring.causal:
        halves = 1 if devices == 2 else 2  # of two devices each keeps its first half
        for number in (*ring.operands, *ring.results):
            yield Sending(number, True, 2 * ring.share(number), halves, False)
    for number in (*ring.passed, *ring.summed):
        yield Sending(number, False, ring.share(number), devices - 1, True)
    for number in ring.summed:
        yield Sending(number, False, ring.share(number), 1, False)


def calls(ring: Ring, devices: int) -> int:
    """How often a device computes attention where the sequence is cut over so many."""
    if not ring.passed:
        return 2
    return 2 * devices - 1 if ring.causal else devices


def ring_of(equation: Any) -> Ring | None:
    """What an equation of cuDNN's attention sends as a ring; None where it cannot be one."""
    call = compat.fused_attention(equation)
    shapes = [atom.aval.shape for atom in equation.invars]
    special = (call.padded, call.bias, call.dropout, call.paged, call.packed, call.modified)
    if any(special) or call.window is not None:
        return None
    length = shapes[0][length_dimension(call)]
    if shapes[1][length_dimension(call)] != length or (call.causal and length % 2):
        return None
    count = len(equation.invars)
    if call.backward:
        summed = (count + 1, count + 2)
        return Ring(call.causal, (0, 1, 2, 10, 11, 12), (count, *summed), (1, 2), summed)
    results = tuple(range(count, count + len(equation.outvars)))
    return Ring(call.causal, (0, 1, 2), results, (1, 2))


def length_dimension(call: compat.FusedAttention) -> int:
    """The dimension of queries, keys and values along which the sequence lies."""
    return 2 if call.heads_first else 1
