"""How much XLA runs as one collective, and what each part of it pays of the latency.

Of k parts that may run as one, each pays a k-th; but no more than a number of bytes is combined, so
that a part that takes a share b of them leaves room for that much less:

    paid = 1 - (1 - 1/k) (1 - min(b, 1))

Together they pay for 1 + (k - 1) b collectives where all are as large.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoshard.machine.chip import Chip

GPU_BYTES = 30 * 2**20
"""What the results of collectives that are run as one take at most; the default of
`xla_gpu_all_gather_combine_threshold_bytes` and of its sisters."""
TPU_BYTES = 2**27
"""Likewise of what XLA:TPU sums: in compiled Llama-3 8B 117 and 8 MB, but not 117 and 17."""


def combined_bytes(chip: Chip) -> int:
    """At most how many bytes of results on one device are combined into one collective."""
    return GPU_BYTES if chip.compiler.name == "xla:gpu" else TPU_BYTES


def latency_share(companions: int, size: NDArray[np.float64], chip: Chip) -> NDArray[np.float64]:
    """The part of a collective's latency that one of those pays that may run as one.

    Args:
      companions: how many may, with this one.
      size: bytes of its result on one device.
      chip: it runs on.
    """
    room = 1.0 - np.minimum(size / combined_bytes(chip), 1.0)
    return 1.0 - (1.0 - 1.0 / companions) * room
