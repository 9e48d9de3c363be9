"""The model of a run: published dimensions by the name that the table has for it."""

from __future__ import annotations

import re

from autoshard.models.decoder_sizes import Decoder, published

ALIASES = {
    "fuji-7b v1": "llama1-7b-tied",
    "fuji-7b v2": "llama2-7b",
    "fuji-70b v2": "llama2-70b",
    "llama3-8b": "llama3.1-8b",
    "llama3-70b": "llama3.1-70b",
    "llama3-405b": "llama3.1-405b",
    "deepseekv3": "deepseek-v3",
    "deepseek3-671b": "deepseek-v3",
    "deepseek2-16b": "deepseek-v2-lite",
    "gpt3-175b": "gpt3-175b",
    "deepseekv3 (w/ mtp)": "deepseek-v3-further",
}
"""Names of tables for models of `autoshard.models.decoder.published`."""

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
    """The dimensions of a model as a table calls it, or why there are none."""
    word = re.sub(r"\s*\(w/o MTP\)|\s*\((tokendrop|dropless)\)", "", name)
    word = word.lower().replace("_", "-")
    maxtext = re.fullmatch(r"maxtext (\d+)b \((.*)\)", word)
    if maxtext:
        form = "maxtext" if "global-parameter-scale" in maxtext[2] else "maxtext-v4"
        word = f"{form}-{maxtext[1]}b"
    word = re.sub(r"\s+", "-", ALIASES.get(word, word))
    if word in published():
        return published()[word]
    for beginning, reason in WITHOUT.items():
        if name.lower().startswith(beginning):
            return reason
    return f"no published dimensions of {name!r} are among those of autoshard"
