"""Tokens brought to experts and back by kernels that send each token once to a place.

An all-to-all sends a token to each of its experts. DeepEP and Hybrid-EP, which Megatron-Bridge
takes (docs.nvidia.com/nemo/megatron-bridge, MoE Dispatcher Selection Guide), send it once to each
device that has any of them, or between hosts once to each host. Of `A` experts that a token uses,
chosen by chance among `E` on `n` places, so many places have one:

    n (1 - C(E - E / n, A) / C(E, A))

Seconds are the bytes of those tokens over what the kernels were measured to move (github.com/
deepseek-ai/DeepEP at 41cad94, docs/README_Hybrid-EP.md: kernels alone, bfloat16, 16 of a chip's
processors; tests/test_hybrid_ep.py says which bytes are counted). Bringing back sums what a device
has of a token before it is sent. In the backward pass the two change places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from autoshard.machine.network import Switch
from autoshard.plan.records import Move
from autoshard.study.measured.data_parallel import Shapes, of_weights
from autoshard.study.measured.question import Question

Rates = tuple[tuple[int, float, float], ...]
_NVL72: Rates = (
    (8, 750.15e9, 684.27e9),
    (16, 661.93e9, 600.75e9),
    (24, 637.80e9, 565.53e9),
    (32, 629.79e9, 547.25e9),
    (36, 612.85e9, 543.27e9),
)
_NVL8: Rates = ((8, 734.95e9, 673.84e9),)
_BETWEEN: Rates = ((16, 71.71e9, 62.95e9), (32, 57.69e9, 57.46e9), (64, 49.97e9, 49.77e9))
INSIDE: Mapping[str, Rates] = {
    **dict.fromkeys(("GB200", "GB300"), _NVL72),
    **dict.fromkeys(("B200", "B300"), _NVL8),
}
"""Devices, and bytes/s to experts and back, of places that are joined by NVLink. Those with 300 in
their names have the same links."""
OUTSIDE: Mapping[str, Rates] = dict.fromkeys(("H100 SXM", "H200 SXM"), _BETWEEN)
"""The same between hosts of eight, each device with 400 Gb/s."""


def distinct_places(experts: int, active: int, places: int) -> float:
    """Of so many places with equally many experts each, how many a token goes to.

    >>> round(distinct_places(experts=128, active=8, places=8), 2)
    5.31
    """
    others = experts - experts // places
    return places * (1.0 - math.comb(others, active) / math.comb(experts, active))


def exchange_seconds(asked: Question) -> float | None:
    """Mean seconds of one way, to experts or back, of a layer and microbatch; None if not known."""
    mesh, decoder = asked.rules.mesh, asked.decoder
    places_of = asked.rules.parameters["expert"]
    ranks = math.prod(mesh[axis] for axis in places_of)
    inner = asked.machine.network[0]
    if not asked.exchanges or ranks == 1 or not isinstance(inner, Switch):
        return None
    name, experts, active = asked.machine.chip.name, decoder.experts, decoder.active
    beside = math.prod(mesh.get(axis, 1) for axis in ("context", "tensor") if axis not in places_of)
    hosts = ranks * beside / inner.chips
    if hosts <= 1 and name in INSIDE:
        rates, places = INSIDE[name], distinct_places(experts, active, ranks)
    elif hosts > 1 and hosts == int(hosts) and name in OUTSIDE:
        count = int(hosts)
        rates = OUTSIDE[name]
        places = distinct_places(experts, active, count) * (count - 1) / count
    else:
        return None
    rules = asked.rules.activations
    axes = (*rules["batch"], *rules["norm_length"])
    tokens = asked.batch // asked.microbatches * asked.sequence / math.prod(mesh[a] for a in axes)
    sizes, there, back = zip(*rates, strict=True)
    rate = 2 / (1 / np.interp(ranks, sizes, there) + 1 / np.interp(ranks, sizes, back))
    return 2.0 * tokens * decoder.expert_width * places / float(rate)


def is_exchange(move: Move, shapes: Shapes) -> bool:
    """Whether a collective brings tokens to experts or back; `shapes` are those of weights."""
    kinds = ("all_to_all", "reduce_scatter")
    found = move.kind in kinds and move.axes == ("expert",) and "/ffn" in move.scope
    return found and not of_weights(move, shapes)
