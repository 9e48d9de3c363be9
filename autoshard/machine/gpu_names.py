"""What a GPU is called: by JAX, by its driver (SLURM takes its word), and by people.

    NVIDIA H100 80GB HBM3, nvidia_h100_80gb_hbm3, H100-SXM5-80GB, h100      the same chip
    NVIDIA A100-SXM4-40GB, a100-40gb                                        the smaller A100
    NVIDIA H100 PCIe, NVIDIA H100 NVL, NVIDIA GH200 480GB                   others, of no preset

A name is read word by word. Each has to be known: one that is not may be of a card with another
memory, or of a slower one. Sources: https://docs.jax.dev/en/latest/jax.html#jax.Device
(`device_kind`); https://slurm.schedmd.com/gres.conf.html (`AutoDetect`).
"""

from __future__ import annotations

import re

MEMORY = {
    "a100": (80,),
    "h100": (80,),
    "h200": (141,),
    "b200": (180, 192),
    "b300": (270, 288),
    "gb200": (186, 192),
    "gb300": (279, 288),
    "mi300x": (192,),
}
"""Gigabytes of the chip of a preset, as their makers write them, by its word."""

OTHERS = {("a100", 40)}
"""Chips of a preset with another memory; a type in `machine_types.toml` has their numbers."""

_PRESETS = {"gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}
_MAKERS = {"nvidia", "amd", "instinct", "tesla"}
_FORM = re.compile(r"sxm\d*|hbm\d*e?|oam")
_GIGABYTES = re.compile(r"(\d{1,4})gb")


def gpu_of(name: str) -> tuple[str, int | None] | None:
    """The preset of a GPU, and its gigabytes where they are others; None for one of no preset.

    >>> gpu_of("NVIDIA H100 80GB HBM3"), gpu_of("nvidia_a100-sxm4-40gb"), gpu_of("NVIDIA H100 NVL")
    (('h100', None), ('a100', 40), None)
    """
    words = [word for word in re.split(r"[\s_-]+", name.lower()) if word not in _MAKERS]
    chips = [word for word in words if word in MEMORY]
    sizes = [int(found[1]) for word in words if (found := _GIGABYTES.fullmatch(word))]
    forms = [word for word in words if _FORM.fullmatch(word)]
    if len(chips) != 1 or len(sizes) > 1 or len(words) != 1 + len(sizes) + len(forms):
        return None
    (chip,) = chips
    preset = _PRESETS.get(chip, chip)
    if not sizes or sizes[0] in MEMORY[chip]:
        return preset, None
    return (preset, sizes[0]) if (chip, sizes[0]) in OTHERS else None
