"""What a layer of a run keeps for its backward pass, and what of that goes to the host."""

from __future__ import annotations

from autoshard.models.decoder import LAYER_INPUT, NAMES
from autoshard.study.measured.table import Run

Remat = str | tuple[str, ...]
_QKV = ("query_proj", "key_proj", "value_proj")
_MAXTEXT = tuple(name for name in NAMES if not name.startswith("expert"))
POLICIES: dict[str, tuple[str, ...]] = {
    # github.com/AI-Hypercomputer/maxtext, layers/decoders.py, get_remat_policy
    "minimal": tuple(name for name in _MAXTEXT if name != "context"),
    "minimal_with_context": _MAXTEXT,
    "save_dot_except_mlpwi": (*_QKV, "out_proj", "mlpwo"),
    "save_dot_with_context_except_mlp": (*_QKV, "context", "out_proj"),
    "qkv_proj_offloaded": _QKV,
    # jax.checkpoint_policies.dots_saveable: products, and no kernel
    "dots_saveable": tuple(name for name in NAMES if name != "context"),
    # arxiv.org/abs/2205.05198, section 5: all but attention inside
    "selective (attention), sequence parallel": tuple(n for n in NAMES if n != "context"),
    "seqsel": tuple(name for name in NAMES if name != "context"),
    # github.com/apple/axlearn, common/attention.py
    "offload qkv_proj and input": _QKV,
    "offload attention projections": (*_QKV, "context", "out_proj"),
}
"""What published remat policies keep of a layer beside its input."""
SELECTIVE = ("query_proj", "value_proj", "mlpwi_0", "mlpwo", "context")
"""What torchtitan keeps by its policy for each op: attention and every second product of a layer,
as they come (github.com/pytorch/torchtitan, activation_checkpoint.py). Products of float8 are those
of its linear layers, and are kept likewise: its documentation has the same memory for both
(docs/performance.md, table 1)."""
JAX = ("MaxText", "AXLearn", "Levanter")
"""Frameworks whose compiler fuses what stands around products."""


class UnreachableError(ValueError):
    """A run that cannot be expressed; the message is the reason."""


def remat_of(run: Run, notes: list[str]) -> tuple[tuple[Remat, ...], tuple[str, ...]]:
    """What a layer keeps, and what of it goes to the host."""
    words = run.remat.strip()
    if words in POLICIES:
        sent = POLICIES[words] if "offload" in words else ()
        return (POLICIES[words],), (*sent, *((LAYER_INPUT,) if "input" in words else ()))
    if words.startswith("selective") and "torchtitan" in run.framework:
        return (SELECTIVE,), ()
    if words == "none":
        if any(name in run.framework for name in JAX):
            return ("none",), ()
        notes.append("products are kept, what is fused around them is made anew")
        return (NAMES,), ()
    if words.startswith("full"):
        return ("full",), ()
    if words.startswith("custom"):
        named = dict(word.split("=") for word in words.split()[1:])
        kept = tuple(n for n, place in named.items() if place != "remat" and n in NAMES)
        return (kept or "full",), tuple(n for n, place in named.items() if place == "offload")
    if words:
        raise UnreachableError(f"remat {words!r} is not a policy that is known")
    if "AXLearn" in run.framework:
        # github.com/apple/axlearn, common/attention.py, build_remat_spec: its default
        notes.append("remat not published: what AXLearn keeps by default")
        return ((*_QKV, "context", "out_proj"),), ()
    notes.append("remat not published: the most that fits is kept")
    return (NAMES, (*_QKV, "context", "out_proj"), "full"), ()
