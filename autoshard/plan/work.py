"""What a step comes to in its field's own figures: tokens a second, and model FLOP utilisation.

MFU is the time that the model's products take at the peak of the chips, by the dtype of each, over
the time of the step: Chowdhery et al., PaLM, appendix B (https://arxiv.org/abs/2204.02311).
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.machine.machine import Machine
from autoshard.plan.records import Work
from autoshard.program.model_work import model_flops, tokens_per_step
from autoshard.program.trace import Program
from autoshard.units import format_percent


def work_of(program: Program, machines: Sequence[Machine]) -> Work:
    """The work of a program on machines that share it, as one mesh or as several."""
    seconds = sum(
        flop / sum(one.chips * one.chip.matmul_flops(dtype) for one in machines)
        for dtype, flop in model_flops(program).items()
    )
    return Work(tokens_per_step(program), seconds)


def work_texts(work: Work | None, step_seconds: float, chips: int) -> list[str]:
    """Tokens a second, of all chips and of one, and MFU, as far as they are known."""
    if work is None or step_seconds <= 0:
        return []
    said = []
    if work.tokens:
        rate = work.tokens / step_seconds
        said.append(f"{rate:,.0f} tokens/s, {rate / chips:,.0f} a chip")
    if work.peak_seconds:
        said.append(f"MFU {format_percent(work.utilisation(step_seconds))}")
    return said


def work_rows(work: Work | None, step_seconds: float, chips: int) -> list[tuple[str, str, str]]:
    """The same as rows of a report: a name, a figure, and words on it."""
    if work is None or step_seconds <= 0:
        return []
    rows = []
    if work.tokens:
        rate = work.tokens / step_seconds
        rows.append(("tokens", f"{rate:,.0f}/s", f"{rate / chips:,.0f} a chip"))
    if work.peak_seconds:
        used = format_percent(work.utilisation(step_seconds))
        rows.append(("MFU", used, "of the chips' peak, by the products that the model needs"))
    return rows
