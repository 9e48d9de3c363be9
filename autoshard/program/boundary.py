"""The sharding rule of ops at the edge of a region, and of those that only pass an array on."""

from __future__ import annotations

import functools
import itertools

from autoshard.program.rules.ask_shardy import Factor, FactorKind, Rule


@functools.lru_cache(maxsize=4096)
def boundary_rule(shapes: tuple[tuple[int, ...], ...], result: tuple[int, ...]) -> Rule:
    """Identity from the trailing dimensions; a leading loop dimension must be replicated.

    Arrays of no elements stay whole.
    """
    rank = min([len(result), *(len(shape) for shape in shapes)])
    longest = max([len(result), *(len(shape) for shape in shapes)])
    tail = next(shape[len(shape) - rank :] for shape in [result, *shapes] if len(shape) >= rank)
    kind = FactorKind.REPLICATE if 0 in (*result, *itertools.chain(*shapes)) else FactorKind.PASS
    factors = [Factor(_letter(k), size, kind, None) for k, size in enumerate(tail)]
    lead: tuple[tuple[int, ...], ...] = ()
    if longest > rank:
        size = next(shape[0] for shape in [result, *shapes] if len(shape) > rank)
        factors.append(Factor(_letter(rank), size, FactorKind.REPLICATE, None))
        lead = ((rank,),)
    body = tuple((k,) for k in range(rank))

    def mapping(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return (lead + body) if len(shape) > rank else body

    return Rule(tuple(factors), tuple(mapping(shape) for shape in shapes), (mapping(result),))


def _letter(k: int) -> str:
    return chr(ord("i") + k) if k < 18 else f"z_{k - 17}"
