"""How far steps are predicted from runs that somebody has measured, as a page says it of a plan.

The figures are those of `docs/results/measured.md`, which `autoshard bench measured` makes: each
published run at its own configuration, with nothing fitted to any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.machine.names import parse_name


@dataclass(frozen=True, slots=True)
class Measured:
    """Runs on one kind of chip: how many, the median error of the step, how many within a quarter.

    `ratio` is the median of predicted over measured seconds.
    """

    runs: int
    error: float
    ratio: float
    near: float


BY_CHIP = {
    "A100-80GB": Measured(9, 0.156, 1.06, 0.78),
    "B200": Measured(6, 0.232, 1.00, 0.50),
    "B300": Measured(5, 0.203, 1.17, 0.60),
    "GB200": Measured(30, 0.095, 1.10, 0.73),
    "GB300": Measured(35, 0.316, 1.32, 0.29),
    "H100": Measured(73, 0.185, 1.06, 0.68),
    "H200": Measured(2, 0.040, 0.96, 1.00),
    "v4": Measured(3, 0.165, 0.83, 0.67),
    "v5e": Measured(15, 0.047, 1.00, 0.87),
    "v5p": Measured(14, 0.086, 0.94, 0.86),
    "v6e": Measured(12, 0.117, 0.88, 1.00),
}
ALL = Measured(204, 0.169, 1.06, 0.67)
PRESETS = {
    "a100": "A100-80GB",
    "b200": "B200",
    "gb200-nvl72": "GB200",
    "h100": "H100",
    "h200": "H200",
    **{name: name for name in ("v4", "v5e", "v5p", "v6e")},
}
"""The chip of a preset of machines."""
KIND = "published training runs of decoders"


def measured_text(machine: str) -> str:
    """What is known of the error of predicted steps, for a machine by its name.

    >>> measured_text("v5p-64")
    'of 14 published training runs of decoders on v5p, steps are predicted 8.6 % off (median)'
    """
    chip = PRESETS.get(parse_name(machine).family)
    if chip is None:
        return (
            f"no measured run on such chips is known; of {ALL.runs} {KIND} on others, "
            f"{_off(ALL)} (median)"
        )
    known = BY_CHIP[chip]
    return f"of {known.runs} {KIND} on {chip}, {_off(known)} (median)"


def _off(known: Measured) -> str:
    return f"steps are predicted {100 * known.error:.1f} % off"
