"""One accelerator: its rates, its memory, and the compiler that programs for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

import numpy as np

from autoshard.machine.compiler import LAWS, Compiler

PLACES = (
    "gpu.products-are-calls",
    "gpu.results-beside",
    "gpu.loop-edges-as-numbered",
    "gpu.stacked-out-of-order",
    "gpu.inner-rows-copied-for-scatters",
)
"""Habits that keep something in memory for what a plan does, and that need no hidden collective."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator, as JAX counts devices.

    Attributes:
      name: how its vendor calls it.
      peak_flops: FLOP/s of the matrix unit by dtype, dense, at JAX's default precision.
      vector_flops: FLOP/s of the units that do elementwise arithmetic in float32.
      memory_bytes: device memory that a program can address, bytes.
      memory_bandwidth: bytes/s between device memory and the chip.
      reserve_bytes: memory left to the runtime and to fragmentation, bytes.
      launch_seconds: fixed cost of one (fused) operation, seconds.
      matmul_efficiency, memory_efficiency: fractions of the peaks that programs reach.
      exponential_flops: what an exponential takes of the elementwise units, as FLOP of theirs;
        other functions are multiples of it, see `autoshard.program.flops.TRANSCENDENTAL`.
      transaction_bytes: the least that device memory moves for one element; what a transposition
        that jumps about pays for each. 0: transpositions are not priced.
      sm_bandwidth: bytes/s that one multiprocessor reads, of a kernel that runs on a
        few of them (`autoshard.cost.vector_products`). 0: such kernels are not priced.
      vector_memory_bytes: of a memory beside the main one in which XLA keeps arrays, see
        `autoshard.xla.forecast.tpu_vector_memory`.
      lanes, sublanes: of the tiles in which arrays of two dimensions or more lie in its memory, see
        `autoshard.cost.tiling`; 1 where they lie element by element.
      pad_tile_seconds: what a kernel that only pads takes for a tile of its result. 0: it takes
        what its bytes do.
      compiler: that programs for it.
      product_shares: (size, share of `matmul_efficiency`) of products of `size` cubed, by size, see
        `product_share`; none where all sizes reach the same.
      matrix_side: rows and columns of a matrix unit that is a square of multipliers; 0 for others.
      kernel_share: what hand-written kernels reach as a whole, by their products, as a share of
        what products in bfloat16 do, where that was measured; None where it was not.
    """

    name: str
    peak_flops: Mapping[str, float] = field(hash=False)
    vector_flops: float
    memory_bytes: float
    memory_bandwidth: float
    reserve_bytes: float
    launch_seconds: float
    matmul_efficiency: float
    memory_efficiency: float
    exponential_flops: float = 0.0
    transaction_bytes: float = 0.0
    sm_bandwidth: float = 0.0
    vector_memory_bytes: float = 0.0
    lanes: int = 1
    sublanes: int = 1
    pad_tile_seconds: float = 0.0
    compiler: Compiler = LAWS
    product_shares: tuple[tuple[float, float], ...] = ()
    matrix_side: int = 0
    kernel_share: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy as a call of the constructor: read-only mappings have no pickle."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values["peak_flops"] = dict(self.peak_flops)
        return Chip, tuple(values.values())

    @property
    def usable_bytes(self) -> float:
        """Memory that a plan may fill, in bytes."""
        return self.memory_bytes - self.reserve_bytes

    @property
    def counts_anew(self) -> bool:
        """Whether what a plan takes is counted once more as its compiler runs it.

        See `autoshard.xla.forecast.forecast`.
        """
        own = self.compiler
        if not own.name:
            return False
        keeps = self.vector_memory_bytes > 0 and own.has("tpu.short-lived-in-vector-memory")
        return own.hides_collectives or keeps or any(map(own.has, PLACES))

    @property
    def memory_rate(self) -> float:
        """Bytes/s between device memory and the chip that programs reach."""
        return self.memory_bandwidth * self.memory_efficiency

    @property
    def exponential_bytes(self) -> float:
        """What memory could move while one exponential is computed, bytes."""
        return self.exponential_flops / self.vector_flops * self.memory_rate

    def matmul_flops(self, dtype: str) -> float:
        """Return the peak FLOP/s of the matrix unit for operands of a dtype.

        All 8-bit floats share the key ``float8``. A dtype that the matrix unit does not know
        (``int32``, ``complex64``) runs on the vector unit.
        """
        return self.peak_flops.get(self.rate_key(dtype), self.vector_flops)

    def product_share(self, flops: float | np.ndarray) -> float | np.ndarray:
        """What products of so many FLOP reach, as a share of `matmul_efficiency`.

        A product is taken as one of equal sides; between sizes the share is linear in their
        logarithm, and beyond them as at the nearest.
        """
        if not self.product_shares:
            return 1.0
        sizes, shares = zip(*self.product_shares, strict=True)
        return np.interp(np.log(np.maximum(flops, 1.0) / 2) / 3, np.log(sizes), shares)

    def rate_key(self, dtype: str) -> str:
        """The key of `peak_flops` for operands of a dtype; it may be absent."""
        key = str(dtype)
        if key not in self.peak_flops:
            key = re.sub(r"^float(8|4)_.*", r"float\1", re.sub(r"^uint", "int", key))
        return key

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.matmul_flops('bfloat16') / 1e12:,.0f} TFLOP/s bf16, "
            f"{self.memory_bytes / 2**30:,.0f} GiB at {self.memory_bandwidth / 1e9:,.0f} GB/s"
        )
