"""The compiler that programs for a chip, as far as plans must know it.

What a compiler does is not a property of silicon. A machine file names the compiler:

    compiler = "xla:gpu"

Rules ask it whether it has a habit (`Compiler.has`); the habits themselves, with their sources and
probes, are `autoshard.xla.HABITS`. A machine whose file names none gets laws alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

_REDUCED = "all_gather", "reduce_scatter", "all_reduce"

FLAGS: Mapping[tuple[str, str], Mapping[str, bool | int | str]] = {
    ("xla:tpu", "recipe"): {
        # github.com/AI-Hypercomputer/maxtext, benchmarks/xla_flags_library.py, CF_FOR_ALL_GATHER
        "xla_tpu_enable_async_collective_fusion": True,
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
        "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
        "xla_tpu_overlap_compute_collective_tc": True,
        "xla_enable_async_all_gather": True,
    },
    ("xla:gpu", "recipe"): {
        # As MaxText's scripts for GPUs have it (configs/gpu/a3/llama_2_7b/1vm.sh), in the words of
        # every release: collectives of a turn of a loop run in another one, and those of one turn
        # are joined up to some size, whatever dimensions they are of. Of four of its models on 8
        # H100s gathers of 64 MiB are slower as compiled in three, by 0.9 % at most, and 0.4 %
        # faster in one.
        **{f"xla_gpu_enable_pipelined_{kind}": True for kind in _REDUCED},
        **{f"xla_gpu_pipeline_{kind}": "COLLECTIVE_PIPELINING_MODE_ON" for kind in _REDUCED},
        "xla_gpu_all_gather_combine_threshold_bytes": 128 << 20,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 64 << 20,
        "xla_gpu_all_reduce_combine_threshold_bytes": 128 << 20,
        "xla_gpu_enable_all_gather_combine_by_dim": False,
        "xla_gpu_enable_reduce_scatter_combine_by_dim": False,
        "xla_gpu_enable_while_loop_double_buffering": True,
    },
}
"""Sets of flags beside a compiler's defaults, by its name and theirs. A release takes those that it
knows (`autoshard.compat.known_flags`)."""
PIPELINED: Mapping[tuple[str, str], float] = {("xla:gpu", "recipe"): 0.75}
"""The sets of flags with which collectives of loops run in another turn, and the share of these
that runs beside compute: of plans that shard weights alone, of a ViT-L and of Llama-3-8B, on 64
H100s, 25 % and 27 % of all collectives are exposed by XLA:GPU's own timelines (JAX 0.12.0.1), and
78 % and 56 % with its defaults."""
PREFIXES = {"xla:gpu": "gpu.", "xla:tpu": "tpu."}
"""Compilers that are known, and what the names of their habits begin with."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler on one kind of chip.

    Attributes:
      name: ``xla:gpu``, ``xla:tpu``, or empty where nothing is known of it.
      hides_collectives: whether it runs kernels in an order of its own for every plan, so that
        collectives run beside them (`autoshard.xla.latency_hiding`). XLA:GPU does so on Hopper and
        later, XLA:TPU on v5e and TPU7x.
      heap_overhead: what its heap of temporaries takes beyond what is alive at once, as a share of
        that: gaps between buffers, and an order of its own.
      workspace_bytes: what one call of its library of products takes in memory beside its arrays.
      without: habits that it is taken not to have, by name.
      release: the jaxlib that it belongs to, as ``0.12.0``; empty stands for the first tested one.
      flags: ``default``, or a set of `FLAGS`.
    """

    name: str = ""
    hides_collectives: bool = False
    heap_overhead: float = 0.0
    workspace_bytes: float = 0.0
    without: frozenset[str] = frozenset()
    release: str = ""
    flags: str = "default"

    @property
    def options(self) -> dict[str, bool | int | str]:
        """What the compiler is told besides its defaults."""
        return dict(FLAGS.get((self.name, self.flags), {}))

    @property
    def pipelines(self) -> bool:
        """Whether its flags have collectives of loops run in another turn than what needs them."""
        return (self.name, self.flags) in PIPELINED

    @property
    def pipelined(self) -> float:
        """The share of such a collective that runs beside compute."""
        return PIPELINED.get((self.name, self.flags), 0.0)

    def has(self, habit: str) -> bool:
        """Whether it has a habit: it is of that compiler, and not denied."""
        prefix = PREFIXES.get(self.name)
        return prefix is not None and habit.startswith(prefix) and habit not in self.without

    def denies(self, *habits: str) -> bool:
        """Whether it is taken not to have one of these, which any compiler is expected to have."""
        return not self.without.isdisjoint(habits)

    @property
    def platforms(self) -> tuple[str, ...]:
        """What JAX calls the platforms that it compiles for; none where nothing is known of it."""
        return {"xla:gpu": ("cuda", "rocm"), "xla:tpu": ("tpu",)}.get(self.name, ())

    @property
    def runs_in_least_memory(self) -> bool:
        """Whether kernels run in the order of least memory, in loops, too.

        XLA does so on chips for which its latency-hiding scheduler does not run.
        """
        return not self.hides_collectives

    def __str__(self) -> str:
        told = "" if self.flags == "default" else f" with {self.flags} flags"
        return f"{self.name}{told}" if self.name else "no compiler: laws alone"


def told_microseconds(seconds: float) -> int:
    """As XLA:GPU is told the latencies of a network: whole microseconds, and not none."""
    return max(round(1e6 * seconds), 1)


LOST: Mapping[str, str] = {
    "gpu.slices-written-for-products": "0.11",
    "gpu.workspace-of-blackwell": "0.12",
    "gpu.loop-edges-as-numbered": "0.12",
    "gpu.stacks-written-in-turn": "0.12",
    "gpu.caches-put-in-order-for-sums": "0.12",
    "tpu.long-functions-made-anew": "0.12",
    "tpu.slopes-of-turned-scores-made-anew": "0.11",
    "tpu.ragged-gradients-once-per-group": "0.11",
    "tpu.v5p-hides-gathers-by-recipe": "0.11",
    "tpu.v6e-hides-gathers-by-recipe": "0.11",
}
"""Habits that compilers had once, and the first jaxlib whose compiler was seen without."""


def lost(habit: str, release: str) -> bool:
    """Whether the compiler of a jaxlib, as ``0.12.0``, no longer has a habit."""
    return habit in LOST and bool(release) and _ordered(release) >= _ordered(LOST[habit])


def of_release(compiler: Compiler, release: str) -> Compiler:
    """The compiler as it came with a jaxlib: without the habits that were lost by then."""
    gone = {name for name in LOST if compiler.has(name) and lost(name, release)}
    return replace(compiler, release=release, without=compiler.without | gone)


def _ordered(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)[:3]))


LAWS = Compiler()
"""Of which nothing is known."""

DEFAULTS = {
    # Medians of 249 and 66 compiled plans of the built-in programs; the workspace is cuBLAS's from
    # Hopper on, docs.nvidia.com/cuda/cublas, cublasSetWorkspace.
    "xla:gpu": Compiler("xla:gpu", True, 0.003, 2.0**25),
    "xla:tpu": Compiler("xla:tpu", False, 0.03),
}
"""What is taken of a compiler that a machine file names, and says no more of."""


def with_flags(compiler: Compiler, flags: str) -> Compiler:
    """The compiler with a set of flags.

    With those of recipes XLA:TPU runs gathers beside products on all chips: so does a chain of two
    products that libtpu 0.0.42.1 compiles for v5p and v6e. Later ones refuse these flags there.

    Raises:
      ValueError: it has no such set.
    """
    known = sets_of_flags(compiler.name)
    if flags not in known:
        raise ValueError(f"{compiler} has no flags {flags!r}; it has {', '.join(known)}")
    hides = compiler.hides_collectives or (compiler.name, flags) == ("xla:tpu", "recipe")
    return replace(compiler, flags=flags, hides_collectives=hides)


def sets_of_flags(name: str) -> tuple[str, ...]:
    """The sets of flags of a compiler, by its name."""
    return ("default", *(flags for compiler, flags in FLAGS if compiler == name))


def of_table(table: Mapping[str, Any]) -> Compiler:
    """The compiler of a machine file, from its checked table.

    Where the table names no release, it is the one of the installed jaxlib. What it says of hiding
    collectives goes before what its flags imply.
    """
    flagged = with_flags(DEFAULTS[table["name"]], table.get("flags", "default"))
    compiler = replace(flagged, **table)
    return of_release(compiler, compiler.release or installed_release())


def installed_release() -> str:
    """The version of the installed jaxlib, with which compilers are released."""
    return metadata.version("jaxlib")
