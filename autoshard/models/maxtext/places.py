"""Where the tensors that a layer names wait for the backward pass: a search by prices.

MaxText's `remat_policy: custom` has a place for each: kept on the device, sent to the host, or
computed again. Its other policies are sets of tensors that are kept. They are priced first, the
largest first, until one that fits is no better than the one before. From the best of them one
tensor at a time changes its place while that helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

PASSES = 3
"""Over all tensors, at most so often."""
_PROJECTIONS = ("query_proj", "key_proj", "value_proj", "kv_proj", "qkv_proj")
_POLICIES = (
    (*_PROJECTIONS, "out_proj", "mlpwi_0", "mlpwi_1", "mlpwi", "mlpwo"),
    (*_PROJECTIONS, "context", "out_proj"),
    (*_PROJECTIONS, "out_proj", "mlpwo"),
    (*_PROJECTIONS, "out_proj"),
    _PROJECTIONS,
    ("out_proj",),
)
"""What MaxText's policies keep; `minimal_with_context` keeps more than the first."""


@dataclass(frozen=True, slots=True)
class Places:
    """Tensors on the device, and on the host; all others are computed again."""

    device: tuple[str, ...] = ()
    host: tuple[str, ...] = ()


def choose(names: Sequence[str], price: Callable[[Places], float], *, host: bool) -> Places | None:
    """The best places that were found; None where none has a price.

    Args:
      names: of the tensors.
      price: seconds of a step; infinite where it does not fit, or cannot be the best of all.
      host: whether tensors may wait on the host.
    """
    best, least = None, math.inf
    for places in policies(names, host=host):
        seconds = price(places)
        if best is not None and seconds >= least:
            break
        if seconds < least:
            best, least = places, seconds
    start = best or Places()
    for _ in range(PASSES):
        before = start
        for name in names:
            for places in moved(start, name, names, host=host):
                seconds = price(places)
                if seconds < least:
                    start, least = places, seconds
        if start == before:
            break
    return None if math.isinf(least) else start


def policies(names: Sequence[str], *, host: bool) -> list[Places]:
    """All tensors, and what MaxText's policies keep of them, the most first; none twice."""
    kept = [tuple(names)]
    kept += [tuple(name for name in names if name in policy) for policy in _POLICIES]
    ordered = sorted(dict.fromkeys(kept), key=len, reverse=True)
    away = [Places(host=tuple(names))] if host else []
    return [*(Places(one) for one in ordered if one), *away, Places()]


def moved(places: Places, name: str, names: Sequence[str], *, host: bool) -> Iterator[Places]:
    """The places where one tensor is elsewhere.

    >>> list(moved(Places(("a",)), "b", ["a", "b"], host=True))
    [Places(device=('a', 'b'), host=()), Places(device=('a',), host=('b',))]
    """
    device, away = {*places.device} - {name}, {*places.host} - {name}
    choices = [({*device, name}, away), (device, away)]
    choices += [(device, {*away, name})] if host else []
    for here, there in choices:
        found = Places(
            tuple(one for one in names if one in here), tuple(one for one in names if one in there)
        )
        if found != places:
            yield found
