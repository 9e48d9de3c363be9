"""The model of a run: published dimensions by the name that the table has for it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

from autoshard.models.decoder_sizes import Decoder, published

ALIASES = {
    "fuji-7b v1": "llama1-7b-tied",
    "fuji-7b v2": "llama2-7b",
    "fuji-70b v2": "llama2-70b",
    "llama-7b": "llama1-7b",
    "llama-13b": "llama1-13b",
    "llama-33b": "llama1-33b",
    "llama-65b": "llama1-65b",
    "llama3-8b": "llama3.1-8b",
    "llama3-70b": "llama3.1-70b",
    "llama3.3-70b": "llama3.1-70b",
    "llama3-405b": "llama3.1-405b",
    "llama4-scout": "llama4-17b-16e",
    "llama4-maverick": "llama4-17b-128e",
    "deepseek3-671b": "deepseek-v3",
    "deepseek2-236b": "deepseek-v2",
    "deepseek2-16b": "deepseek-v2-lite",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3 (w/ mtp)": "deepseek-v3-further",
}
"""Names of tables for models of `autoshard.models.decoder.published`."""
VARIANT = r"-(instruct|chat|base|hf|it|pt|v0\.\d|\d{4})$"
"""What names of trained weights end with, which dimensions do not depend on."""

WITHOUT = {
    "qwen3.5": "linear attention (gated delta rule), which no built-in decoder has",
    "wan": "a diffusion model of videos, and no decoder",
    "deepseekv4": "attention whose dimensions are not published",
    "gemma4": "a model whose dimensions are not among the published ones of autoshard",
    "honeycrisp": "a model whose dimensions are not published",
    "moe_67b": "a model whose dimensions the source does not say",
    "gpt2-style": "a model whose dimensions the source does not say",
}
"""What stands against a model, by the beginning of its name."""


def decoder_of(name: str) -> Decoder | str:
    """The dimensions of a model as a table calls it, or why there are none.

    Hyphens, spaces and underscores are as good as none, and who published it, and what its weights
    were trained to, say nothing of dimensions: `meta-llama/Llama-3.1-8B-Instruct` is `llama3.1-8b`.
    """
    word = re.sub(r"\s*\(w/o MTP\)|\s*\((tokendrop|dropless)\)|^[\w.-]+/", "", name).lower()
    maxtext = re.fullmatch(r"maxtext (\d+)b \((.*)\)", word)
    if maxtext:
        form = "maxtext" if "global_parameter_scale" in maxtext[2] else "maxtext-v4"
        word = f"{form}-{maxtext[1]}b"
    for one in _variants(word):
        found = _by_letters().get(one)
        if found is not None:
            return published()[found]
    for beginning, reason in WITHOUT.items():
        if name.lower().startswith(beginning):
            return reason
    return f"no published dimensions of {name!r} are among those of autoshard"


def _variants(word: str) -> Iterator[str]:
    """The letters of a name, and of what is left of it without each of its endings."""
    yield _letters(word)
    while re.search(VARIANT, word):
        word = re.sub(VARIANT, "", word)
        yield _letters(word)


@functools.cache
def _by_letters() -> Mapping[str, str]:
    """Published models by the letters of their names, and of others that tables have for them."""
    names = {_letters(name): name for name in published()}
    return {**{_letters(other): name for other, name in ALIASES.items()}, **names}


def _letters(name: str) -> str:
    return re.sub(r"[-_\s]", "", name.lower())
