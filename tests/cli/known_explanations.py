"""What `autoshard explain` answers about `tests/kept/plan.json`, as a search would find it."""

from __future__ import annotations

from typing import Any

from autoshard.plan.records import KeptValue
from autoshard.search.explanation import Alternative, Difference, Explanation
from autoshard.search.keep.otherwise import KeptOtherwise
from autoshard.search.provenance import Origin

STEP, PEAK = 59.33e-6, 62.8e3
CHANGES = (
    "params.layers[0].down_bias: f32[32@(x,y)] -> f32[32]",
    "params.layers[0].up: f32[32@(x,y), 64] -> f32[32@y, 64]",
    "params.layers[0].up_bias: f32[64@(x,y)] -> f32[64]",
    "opt_state[0].mu.layers[0].down_bias: f32[32@(x,y)] -> f32[32]",
    "opt_state[0].mu.layers[0].up_bias: f32[64@(x,y)] -> f32[64]",
)


def _alternative(seconds: float, more: int, others: int, proven: float | None = None, **words: Any):
    bound = STEP + (seconds if proven is None else proven)
    return Alternative((), STEP + seconds, PEAK + more, bound, CHANGES, others, **words)


def explanation(value: int) -> Explanation:
    """Why a weight is laid out as it is, and what else it could."""
    reader = "add at optimizer (training.py:136)"
    return Explanation(
        value=value,
        shown="params.layers[0].up f32[32,64]",
        layouts=("f32[32@(x,y), 64]",),
        origins=tuple(Origin(axis, 0, "", (), 21, reader, 13e-9) for axis in "xy"),
        alternatives=(
            _alternative(-14.53e-6, 1771, 175, -16.18e-6),
            _alternative(3e-6, -3307, 1, note="without pin params.** [x, ...]"),
            Alternative((), None, None, STEP, (), 0, "no plan"),
        ),
        requirements=(("pin params.** [x, ...]", 2.5e-6), ("prefer params.** [y, ...]", 0.0)),
        memory="memory binds at broadcast_in_dim at transpose(jvp(loss)) (mlp.py:43): a GiB more "
        "there saves up to 338.2 ms a step",
        step_seconds=STEP,
        peak_bytes=PEAK,
        types=("f32[32@y, 64]", "f32[32, 64@(x,y)]", "f32[32, 64]"),
    )  # fmt: skip


def difference() -> Difference:
    """How two plans differ."""
    alone = (("params.layers[0].up: f32[32@y, 64]", _alternative(1.5e-6, 1771, 12)),)
    return Difference((STEP, 61e-6), (PEAK, 60e3), CHANGES[:2], 31, alone)


def kept(name: str, saved: bool, label: str = "") -> KeptValue:
    """A value of a layer, as a plan keeps it."""
    return KeptValue(name, "bf16[16,64]", 2, 4096, ("mlp.py:49",), label, saved)


KEPT = (
    KeptOtherwise(kept("layers/dot_general", True), "computed again", 17.27e-6, -4096.0, True),
    KeptOtherwise(kept("layers/gelu", False, "ffn_act"), "saved", -2e-6, 8192.0, False),
    KeptOtherwise(kept("layers/add", True), "computed again", why="its inputs are not kept"),
)


class Explainer:
    """Has its answers already."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def explain(self, value: int, **_: Any) -> Explanation:
        return explanation(value)

    def against(self, *_: Any) -> Difference:
        return difference()


ANSWERS: dict[str, Any] = {
    "autoshard.search.explain.Explainer": Explainer,
    "autoshard.search.keep.otherwise.keep_choices": lambda *_: [one.value for one in KEPT],
    "autoshard.search.keep.otherwise.otherwise": lambda program, machine, plan, value, **_: next(
        one for one in KEPT if one.value == value
    ),
}
"""By what they replace."""
