"""What chips reach by public micro-benchmarks, where it is not what their compiler tells.

The presets' numbers are held to the compilers' own estimates. A machine on which steps are
measured reaches others: `as_measured` puts them in place. Each has its source, and none is a step
of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoshard.machine.machine import Machine


@dataclass(frozen=True, slots=True)
class Reached:
    """What a chip reaches.

    Attributes:
      products: (size, share of the peak) of bfloat16 products of equal sides.
      memory: share of its bandwidth that copies of large arrays reach.
      source: of both.
    """

    products: tuple[tuple[float, float], ...]
    memory: float
    source: str


REACHED: Mapping[str, Reached] = {
    "TPU7x device": Reached(
        ((1024, 0.303), (2048, 0.589), (4096, 0.774), (16384, 0.824), (32768, 0.829)),
        0.867,
        "github.com/AI-Hypercomputer/tpu-recipes at c8cfe2f, microbenchmarks/ironwood: README.md, "
        "hbm/hbm.md (copies of 128 MiB and more)",
    ),
    "TPU v6e": Reached(
        ((8192, 0.901),),
        0.829,
        "github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks/README.md (device trace of 8192 "
        "cubed; copies of 32 MiB)",
    ),
}
"""By the name of the chip. Of A100, H100, B200 and MI300X the presets agree with what is published:
0.86, 0.80, 0.78 and 0.60 of the peak at best (github.com/stas00/ml-engineering,
compute/accelerator, maximum achievable matmul FLOPS) beside 0.85, 0.75, 0.75 and 0.6."""


def as_measured(machine: Machine) -> Machine:
    """The machine with what its chip reaches by micro-benchmarks; itself where none are known."""
    found = REACHED.get(machine.chip.name)
    if found is None:
        return machine
    most = max(share for _, share in found.products)
    chip = replace(
        machine.chip,
        matmul_efficiency=most,
        memory_efficiency=found.memory,
        product_shares=tuple((size, share / most) for size, share in found.products),
    )
    return replace(machine, chip=chip, sources=(*machine.sources, found.source))
