"""The dimensions of decoder-only transformers: those of published models, and any others.

`published` has them by the names that people call the models, each with its source, from
`decoders.toml`; `sizes_of` finds one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from autoshard.files import toml_of
from autoshard.files.typed import typed
from autoshard.near import did_you_mean

PATTERN = {"M": "state_layers", "*": "attention_layers", "E": "layers"}
"""Kinds of layers by the letters of a pattern, as Megatron-LM has them (hybrid_layer_pattern)."""
SLOTS = 8
"""Tokens of a group that an expert gets, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The dimensions of a decoder-only transformer.

    Attributes:
      layers, width, heads, kv_heads, vocabulary: as usual.
      head_size: width of one head; 0 for `width / heads`.
      value_size: width of one head of the values, where it is another one.
      hidden: width of the feed-forward layer; of dense layers alone where there are experts.
      gated: whether the feed-forward layer is gated (three matrices, not two).
      tied: whether the embedding also is the output layer.
      window: tokens that most layers look back at; 0 for all.
      full_every: where there is a window, every so manyth layer looks at all tokens.
      latent: width into which keys and values are first projected; 0 where they are not.
      query_latent: likewise, of queries.
      shared_size: of the width of a head, what the keys of all heads share beside the latent.
      experts, active: experts of a layer, and how many a token uses; 0 where there are none.
      expert_hidden: width of one expert.
      shared_hidden: width of the experts that all tokens use.
      dense_layers: first layers, which have no experts.
      expert_latent: width into which tokens are projected for experts; 0 where they are not.
      pattern: of layers that are one thing each: M a state-space mixer, * attention, E experts;
        "" where every layer is attention and what follows it.
      state_heads, state_head_size, state_size, state_groups: of a state-space mixer, see
        `autoshard.models.state_space`.
      further: tokens beyond the next that are predicted, each through one more layer and the
        logits (https://arxiv.org/abs/2412.19437, section 2.2), whose weights all of them share.
      theta: base of the rotary positions.
      source: where the dimensions are from.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    head_size: int = 0
    value_size: int = 0
    gated: bool = True
    tied: bool = False
    window: int = 0
    full_every: int = 0
    latent: int = 0
    query_latent: int = 0
    shared_size: int = 0
    experts: int = 0
    active: int = 0
    expert_hidden: int = 0
    shared_hidden: int = 0
    dense_layers: int = 0
    expert_latent: int = 0
    pattern: str = ""
    state_heads: int = 0
    state_head_size: int = 0
    state_size: int = 0
    state_groups: int = 1
    further: int = 0
    theta: float = 500_000.0
    source: str = ""

    def __post_init__(self) -> None:
        if not self.head_size:
            object.__setattr__(self, "head_size", self.width // self.heads)
        if not self.value_size:
            object.__setattr__(self, "value_size", self.head_size)
        faults = [
            f"{name} is {value}"
            for name, value in (
                ("kv_heads does not divide heads: the rest", self.heads % self.kv_heads),
                ("layers without experts beyond all layers: the excess",
                 max(self.dense_layers - self.layers, 0)),
                ("experts that a token uses beyond all experts: the excess",
                 max(self.active - self.experts, 0)),
                ("layers beyond the pattern: the excess",
                 max(self.layers - len(self.pattern), 0) if self.pattern else 0),
                ("letters of the pattern that are none of M, *, E: their count",
                 sum(letter not in PATTERN for letter in self.pattern)),
                ("state_groups does not divide state_heads: the rest",
                 self.state_heads % self.state_groups),
            )
            if value
        ]  # fmt: skip
        if faults:
            raise ValueError(f"no decoder has these dimensions: {'; '.join(faults)}")

    @property
    def group(self) -> int:
        """Tokens that are dispatched to experts together, a power of two."""
        return 2 ** math.ceil(math.log2(SLOTS * self.experts / self.active)) if self.experts else 0

    @property
    def slots(self) -> int:
        """Tokens of a group that an expert gets."""
        return math.ceil(self.group * self.active / self.experts) if self.experts else 0

    @property
    def kinds(self) -> dict[str, int]:
        """Kinds of layers and how many there are of each, in the order in which they run."""
        if self.pattern:
            used = self.pattern[: self.layers]
            return {kind: used.count(one) for one, kind in PATTERN.items() if one in used}
        dense = self.dense_layers if self.experts else 0
        rest = self.layers - dense
        local = rest - rest // self.full_every if self.window and self.full_every else 0
        counts = {"dense_layers": dense, "local_layers": local, "layers": rest - local}
        return {kind: count for kind, count in counts.items() if count}

    @property
    def further_kinds(self) -> tuple[str, ...]:
        """Kinds of the layers through which a further token is predicted, in their order."""
        if not self.further:
            return ()
        return ("attention_layers", "layers") if self.pattern else ("layers",)

    @property
    def expert_width(self) -> int:
        """Width of what experts read and return."""
        return self.expert_latent or self.width

    @property
    def attention_count(self) -> int:
        """How many layers have attention."""
        kinds = self.kinds
        return kinds.get("attention_layers", 0) if self.pattern else sum(kinds.values())


@functools.cache
def published() -> Mapping[str, Decoder]:
    """Dimensions of published models by name, from `decoders.toml`."""
    file = "decoders.toml"
    text = (resources.files("autoshard") / "models" / file).read_text(encoding="utf-8")
    return typed(toml_of(text, file), dict[str, Decoder], name=file)


def sizes_of(name: str) -> Decoder:
    """The published dimensions of a model.

    Raises:
      ValueError: there are none of that name; near names are proposed, or all of them.
    """
    known = published()
    if name not in known:
        hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
        raise ValueError(f"no published dimensions of {name!r}; {hint}")
    return known[name]
