"""Find the collectives of a loop that XLA:GPU runs in another turn than the one that needs them.

Where its flags say so (`autoshard.machine.compiler.FLAGS`), what a turn gathers of the loop's
inputs is gathered in the turn before, and what it sums for stacked results is summed in the turn
after:

    turn k    w[k + 1] = all-gather(stack[k + 1])    carried to the next turn
              y = x w[k]                             waits for nothing
              g[k - 1] = reduce-scatter(p[k - 1])    of products that were carried here
              p[k] = x^T dy

So both may run beside any kernels of a turn. Both arrays are there once more, between turns.
Gathers of the first turn run before the loop, and sums of the last one behind it.

Which may move, says `autoshard.xla.pipelined`; copies do that are gathers and nothing else. The
loop is unrolled by two, so that nothing is copied between turns.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from autoshard.cost.step_prices import StepPrices
from autoshard.plan.memory_events import UnderWay
from autoshard.program.graph import Op, Region
from autoshard.program.readers import region_spans
from autoshard.xla.forecast.event_marks import CopyBegins, FirstTurn, SumEnds
from autoshard.xla.forecast.planned_collectives import Collectives, Decided, region_read_in


@dataclass(frozen=True, slots=True)
class Pipelined:
    """The collectives of a plan that run in another turn.

    Attributes:
      decided: the plan.
      gathers: each copy that is gathered a turn ahead, as the mark of its begin.
      sums: each op whose results are summed a turn behind, as the mark of its end.
    """

    decided: Decided
    gathers: set[CopyBegins] = field(default_factory=set)
    sums: set[SumEnds] = field(default_factory=set)

    def gathers_ahead(
        self, region: Region, value: int, life: int, steps: Collection[Collectives]
    ) -> bool:
        """Whether a copy is gathered a turn ahead; it is noted then."""
        moves = bool(self.gathered_of(region, value, steps))
        if moves:
            self.gathers.add(CopyBegins(value, life))
        return moves

    def gathered_of(
        self, region: Region, value: int, steps: Collection[Collectives]
    ) -> frozenset[int]:
        """What is around a loop of which a copy is gathered a turn ahead; nothing if it is not."""
        kinds = {kind for step in steps for kind, _ in step.kinds}
        program, flow = self.decided.prices.program, self.decided.prices.dataflow
        if kinds != {"all_gather"} or region_read_in(program, value) != region.index:
            return frozenset()
        return flow.made_ahead.get(value, frozenset())

    def sums_behind(self, op: Op) -> bool:
        """Whether the results of an op are summed a turn behind; it is noted then."""
        moves = op.index in self.decided.prices.dataflow.summed_behind
        if moves:
            self.sums.add(SumEnds(op.index))
        return moves

    def under_way(self, flights: UnderWay) -> UnderWay:
        """The points of collectives without those that run in another turn."""
        begun = {
            key: at for key, at in flights.begun.items() if CopyBegins(*key) not in self.gathers
        }
        settled = {op: at for op, at in flights.settled.items() if SumEnds(op) not in self.sums}
        return replace(flights, begun=begun, settled=settled)

    def between_turns(
        self, now: StepPrices, marks: Mapping[Hashable, int]
    ) -> Iterator[tuple[int, float]]:
        """Yield the memory events of what is carried to the next turn.

        A copy is there from its turn's begin to its first reader, too, that of the first turn from
        its own collective; and the next one from the begin of its collective to the end of the
        turn. What is to be summed is there from its op to the end of the turn, and that of the turn
        before from the begin of a turn until it is summed.
        """
        spans = region_spans(now.program, now.dataflow.when)
        decided = Decided(now, self.decided.decisions)
        for one in self.gathers:
            start, stop = spans[region_read_in(now.program, one.value)]
            layout = decided.decisions.copy[one.value]
            assert layout is not None
            size = now.copied_bytes(one.value, layout)
            first = min(use.at for use in decided.served(one.value)[one.life])
            before = marks.get(FirstTurn(one.value, one.life), start)
            yield from ((before, size), (first, -size), (marks[one], size), (stop, -size))
        for one in self.sums:
            op, strategy = now.program.ops[one.op], decided.chosen(now.program.ops[one.op])
            start, stop = spans[op.region]
            at = now.dataflow.when[op.index] + 1
            for output, written in zip(op.outputs, strategy.written, strict=True):
                size = now.scratch_bytes(output, written[0])
                yield from ((start, size), (marks[one], -size), (at, size), (stop, -size))
