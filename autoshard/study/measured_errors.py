"""How far steps are predicted from runs that somebody has measured, as a page says it of a plan.

The figures are those of `docs/results/measured.md`, which `autoshard bench measured` makes: each
published run at its own configuration, with nothing fitted to any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.machine.names import name_and_flags, parse_name
from autoshard.units import format_percent


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
    "A100-40GB": Measured(50, 0.034, 1.01, 0.98),
    "A100-80GB": Measured(45, 0.043, 1.02, 0.98),
    "B200": Measured(31, 0.229, 0.98, 0.58),
    "B300": Measured(17, 0.342, 0.91, 0.47),
    "GB200": Measured(64, 0.190, 0.85, 0.72),
    "GB300": Measured(60, 0.127, 1.00, 0.67),
    "H100": Measured(103, 0.127, 0.95, 0.78),
    "H200": Measured(5, 0.153, 1.15, 0.60),
    "MI325X": Measured(2, 0.137, 0.86, 1.00),
    "MI350X": Measured(2, 0.300, 1.30, 0.00),
    "MI355X": Measured(5, 0.500, 1.50, 0.00),
    "TPU7x": Measured(8, 0.097, 0.92, 1.00),
    "v4": Measured(3, 0.150, 0.85, 0.67),
    "v5e": Measured(15, 0.068, 1.04, 0.87),
    "v5p": Measured(16, 0.112, 0.93, 0.81),
    "v6e": Measured(14, 0.059, 0.94, 1.00),
}
ALL = Measured(440, 0.107, 0.97, 0.77)
PRESETS = {
    "a100": "A100-80GB",
    "b200": "B200",
    "b300": "B300",
    "gb200-nvl72": "GB200",
    "gb300-nvl72": "GB300",
    "h100": "H100",
    "h200": "H200",
    "v7x": "TPU7x",
    **{name: name for name in ("v4", "v5e", "v5p", "v6e")},
}
"""The chip of a preset of machines."""
KIND = "published training runs of decoders"


def measured_text(machine: str) -> str:
    """What is known of the error of predicted steps, for a machine by its name.

    >>> measured_text("v5p-64")
    'of 16 published training runs of decoders on v5p, steps are predicted 11.2 % off (median)'
    """
    chip = PRESETS.get(parse_name(name_and_flags(machine)[0]).family)
    if chip is None:
        return (
            f"no measured run on such chips is known; of {ALL.runs} {KIND} on others, "
            f"{_off(ALL)} (median)"
        )
    known = BY_CHIP[chip]
    return f"of {known.runs} {KIND} on {chip}, {_off(known)} (median)"


def _off(known: Measured) -> str:
    return f"steps are predicted {format_percent(known.error)} off"
