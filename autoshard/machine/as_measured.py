"""What chips reach by public micro-benchmarks, where it is not what their compiler tells.

The presets' numbers are held to the compilers' own estimates. A machine on which steps are
measured reaches others: `as_measured` puts them in place. Each has its source, and none is a step
of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from autoshard.machine.machine import Machine

TYPICAL = 0.85
"""What products of a model's own sizes reach of the best size: a quick run over one side reaches 80
to 90 % of it (github.com/stas00/ml-engineering, compute/accelerator/benchmarks)."""


Attention = Literal["cudnn", "flash-2", "flash-1"]
"""Kernels of fused attention: cuDNN's, and FlashAttention of the second and the first kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a chip reaches.

    Attributes:
      products: (size, share of the peak) of bfloat16 products of equal sides.
      float8: share of its peak that such products of eight bits reach; None for the same.
      memory: share of its bandwidth that copies of large arrays reach; None for the preset's.
      attention: share of the peak that kernels reach, by their kind, with the scores that a causal
        mask hides not counted; by their products and elementwise work where not said.
      typical: share of that which products of a model's own sizes reach.
      source: of all.
    """

    products: tuple[tuple[float, float], ...]
    float8: float | None = None
    memory: float | None = None
    attention: Mapping[Attention, float] = field(default_factory=dict)
    typical: float = 1.0
    source: str


_MATMUL = "github.com/stas00/ml-engineering at b9e2972, compute/accelerator: maximum achievable"
_BLACKWELL = Reached(
    products=((8192, 0.776),),
    typical=TYPICAL,
    attention={"cudnn": 0.55},
    source=f"{_MATMUL}; arxiv.org/abs/2603.05451: FlashAttention-4 reaches 1,613 TFLOP/s "
    "on a B200, 1.3 times what cuDNN 9.13 does",
)
_HOPPER = Reached(
    products=((8192, 0.803),),
    typical=TYPICAL,
    float8=0.709,
    attention={"cudnn": 0.505, "flash-2": 0.315, "flash-1": 0.158},
    source=f"{_MATMUL}; arxiv.org/abs/2407.08608, figures 5 and 6, heads of 128, 4,096 tokens: "
    "cuDNN 518 TFLOP/s forward with a causal mask, 499 backward; FlashAttention-2 319 and 310; "
    "arxiv.org/abs/2307.08691, abstract: FlashAttention-2 is twice as fast as the first",
)
REACHED: Mapping[str, Reached] = {
    "TPU7x device": Reached(
        products=((1024, 0.303), (2048, 0.589), (4096, 0.774), (16384, 0.824), (32768, 0.829)),
        memory=0.867,
        source="github.com/AI-Hypercomputer/tpu-recipes at c8cfe2f, microbenchmarks/ironwood: "
        "README.md, hbm/hbm.md (copies of 128 MiB and more)",
    ),
    "TPU v6e": Reached(
        products=((8192, 0.901),),
        memory=0.829,
        source="github.com/AI-Hypercomputer/tpu-recipes, microbenchmarks/README.md (device trace "
        "of 8192 cubed; copies of 32 MiB)",
    ),
    "A100 SXM 80GB": Reached(
        products=((8192, 0.859),),
        typical=TYPICAL,
        attention={"cudnn": 0.6, "flash-2": 0.6, "flash-1": 0.33},
        source=f"{_MATMUL}; arxiv.org/abs/2307.08691, abstract: FlashAttention-2 reaches 50 to "
        "73 % of the peak of an A100, the first 25 to 40 %",
    ),
    "H100 SXM": _HOPPER,
    "H200 SXM": _HOPPER,
    **dict.fromkeys(("B200", "GB200"), _BLACKWELL),
    **dict.fromkeys(
        ("B300", "GB300"),
        replace(
            _BLACKWELL,
            attention={kernel: 1.35 * share for kernel, share in _BLACKWELL.attention.items()},
            source=f"{_BLACKWELL.source}; developer.nvidia.com/blog/making-softmax-more-efficient-"
            "with-nvidia-blackwell-ultra: twice the exponentials of a GB200, 35 % more attention "
            "forward",
        ),
    ),
}
"""By the name of the chip. Of an H200 no figures are published: its dies are those of an H100."""


def as_measured(machine: Machine, attention: Attention = "cudnn", *, best: bool = False) -> Machine:
    """The machine with what its chip reaches by micro-benchmarks; itself where none are known.

    Args:
      attention: the kernels of the programs that run on it.
      best: whether products reach what those of the best size do, as a bound has them, not what
        is typical.
    """
    chip = machine.chip
    found = REACHED.get(chip.name)
    if found is None:
        return machine
    typical = 1.0 if best else found.typical
    most = typical * max(share for _, share in found.products)
    peaks = dict(chip.peak_flops)
    if found.float8 is not None:
        peaks["float8"] *= typical * found.float8 / most
    shares = tuple((size, typical * share / most) for size, share in found.products)
    kernels = found.attention.get(attention)
    chip = replace(
        chip,
        peak_flops=peaks,
        matmul_efficiency=most,
        memory_efficiency=found.memory or chip.memory_efficiency,
        product_shares=shares if len(shares) > 1 else (),
        kernel_share=None if kernels is None else min(kernels / most, 1.0),
    )
    return replace(machine, chip=chip, sources=(*machine.sources, found.source))
