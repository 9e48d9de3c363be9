"""In which dtype a run multiplies, and how it scales what it casts."""

from __future__ import annotations

import re

from autoshard.study.measured.remat import UnreachableError
from autoshard.study.measured.table import Run

NARROW = re.compile(r"fp8|float8|mxfp8", re.IGNORECASE)
WIDE = re.compile(r"^(amp_)?(bf16|bfloat16|fp16)?(, fp32 master)?$", re.IGNORECASE)


def products_of(run: Run, notes: list[str]) -> str:
    """The dtype of a run's products; what was taken to be so is added to the notes.

    Raises:
      UnreachableError: no built-in decoder has it.
    """
    words = run.precision
    if not words and "MLPerf" in run.framework:
        # github.com/mlcommons/training_results_v5.1: all configurations that are known are in FP8
        words = "FP8"
        notes.append("precision not published: taken to be that of other submissions")
    if WIDE.fullmatch(words):
        if not words:
            notes.append("precision not published: taken to be bfloat16")
        return "bfloat16"
    if NARROW.search(words) and "FP4" not in words:
        notes.append(f"{words} priced as float8 with fixed scales")
        return "float8_e4m3fn"
    if words in ("NVFP4", "FP4"):
        notes.append(f"{words} priced as products in four bits with fixed scales")
        return "float4_e2m1fn"
    if words.startswith("int8"):
        notes.append(f"{words} priced as int8 with fixed scales")
        return "int8"
    raise UnreachableError(f"products in {words}, which no built-in decoder has")


def scaling_of(run: Run) -> str:
    """How torchtitan scales float8: tensorwise unless it is said (docs/float8.md)."""
    if "torchtitan" not in run.framework or "float8" not in run.precision:
        return ""
    return "rowwise" if "rowwise" in run.precision else "tensorwise"
