"""How long one operation takes on the devices that are there, inside of a compiled program.

An operation is timed as a link of a **chain**: a program in which every operation reads the result
of the one before. With `T(n)` the time of a call of the chain of `n` links,

    seconds of a link = (T(n + m) - T(m)) / n,

so that dispatch from Python, the launch of the program and the wait for its end cancel, and no
operation can be left out, merged with an equal one, or run beside another. Chains are compiled
and run twice before any clock is read; every call ends with `block_until_ready` and has other
inputs than the one before. Short and long chains take turns, and medians over many calls are what
counts. Chains grow until the links between them are long beside all else; where they are not told
from the scatter of the calls even then, there is no result.

All devices run the chain at once, as they do in a step: on chips that share nothing that changes
nothing, and on devices that share cores or memory each gets its part.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec


class LostLinksError(RuntimeError):
    """A compiled chain that does not hold the operations that it was to time."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is spent on timing.

    Attributes:
      largest_bytes: of one array on one device.
      runs: how many runs of calls the medians are taken over.
      run_seconds: how long a run is; of longer calls it has two.
      longest_seconds: sizes grow no further once an operation takes this long.
      least_seconds: how long the links that are timed together are to be; what a call costs may
        vary by tens of microseconds with the length of the program.
      first_links, most_links: how many links the first and the last chain tried are longer by.
    """

    largest_bytes: float
    runs: int = 5
    run_seconds: float = 0.02
    longest_seconds: float = 0.05
    least_seconds: float = 1e-3
    first_links: int = 8
    most_links: int = 512


Launch = Callable[[int], Any]
"""Starts the compiled chain on the i-th of several inputs, and returns its results."""


def link_seconds(compile_chain: Callable[[int], Launch], effort: Effort) -> float | None:
    """Return the seconds of one link, or None where they cannot be told (a warning says why).

    Args:
      compile_chain: gives the chain of so many links, compiled.
      effort: how long to try. The chain grows until its links take as long as all the rest.
    """
    try:
        return _link_seconds(compile_chain, effort)
    except LostLinksError as error:
        warnings.warn(str(error), stacklevel=2)
        return None


def _link_seconds(compile_chain: Callable[[int], Launch], effort: Effort) -> float | None:
    resolution = time.get_clock_info("perf_counter").resolution
    fewer, short = 1, compile_chain(1)
    more = min(max(math.ceil(effort.run_seconds / _warm_up(short)), 1), effort.first_links)
    while True:
        long = compile_chain(fewer + more)
        calls = effort.runs * max(2, math.ceil(effort.run_seconds / _warm_up(long)))
        pairs = [(_call_seconds(short, n), _call_seconds(long, n)) for n in range(calls)]
        rest, rest_error = _median(before for before, _ in pairs)
        whole, whole_error = _median(after for _, after in pairs)
        gained, error = whole - rest, math.hypot(rest_error, whole_error)
        told = gained > max(4 * error, 100 * resolution)
        enough = gained >= max(rest, effort.least_seconds)
        if told and (enough or more >= effort.most_links):
            return gained / more
        if more >= effort.most_links:
            warnings.warn(
                f"{more} operations of {gained / more:.2g} s each drown in calls of {rest:.2g} s, "
                f"known to {error:.2g} s; they are left out",
                stacklevel=3,
            )
            return None
        # Not from one link on: runtimes start programs of one operation in another way.
        fewer, more = more, min(8 * more, effort.most_links)
        short = compile_chain(fewer)
        _warm_up(short)


def _median(times: Iterable[float]) -> tuple[float, float]:
    """A median, and about its standard deviation.

    Of a normal law, 1.4826 times the median of |error| is the standard deviation of one, and that
    of the median of n is 1.2533 / sqrt(n) times as large.
    """
    known = list(times)
    middle = statistics.median(known)
    spread = 1.4826 * statistics.median(abs(entry - middle) for entry in known)
    return middle, 1.2533 * spread / math.sqrt(len(known))


def device_mesh(devices: Sequence[Any], group: int) -> Mesh:
    """The devices in neighbouring groups of `group`: a mesh of axes "outer" and "group"."""
    grid = np.array(devices, dtype=object).reshape(-1, group)
    return Mesh(grid, ("outer", "group"), axis_types=(AxisType.Auto,) * 2)


def compile_on(
    mesh: Mesh,
    body: Callable[..., Any],
    variants: Sequence[Sequence[Any]],
    *,
    wanted: tuple[str, int] | None = None,
) -> Launch:
    """Compile `body`, which every device runs on its part of the arguments.

    Args:
      mesh: as `device_mesh` makes it.
      body: from local arrays to local arrays.
      variants: arguments that it is called with in turn, as `random_parts` makes them.
      wanted: an HLO operation (a pattern of its name), and how many the program must hold.

    Raises:
      LostLinksError: they are not all there.
    """
    # XLA:CPU takes barriers out before it fuses, the other compilers after.
    options: dict[str, str | bool] = {}
    if mesh.devices.flat[0].platform == "cpu":
        options["xla_disable_hlo_passes"] = "cse_barrier_expander"
    jitted = jax.jit(on_each_device(body, mesh))
    compiled = jitted.lower(*variants[0]).compile(compiler_options=options)
    if wanted is not None:
        require_links(compiled.as_text() or "", *wanted)
    return lambda number: compiled(*variants[number % len(variants)])


def on_each_device(body: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """`body` as a function of arrays `[devices, ...]`, of which every device takes its own."""

    def local(*arrays: Any) -> Any:
        result = body(*(array[0] for array in arrays))
        return jax.tree.map(lambda array: array[None], result)

    parts = PartitionSpec(("outer", "group"))
    return jax.shard_map(local, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False)


def require_links(text: str, name: str, links: int) -> None:
    """Raise LostLinksError unless compiled HLO holds at least so many operations of a name."""
    found = len(re.findall(rf"[ )}}](?:{name})(?:-start)?\(", text))
    if found < links:
        raise LostLinksError(
            f"the compiler left {found} of {links} {name} operations in a chain of them, so that "
            "they cannot be timed here"
        )


def random_parts(mesh: Mesh, shape: Sequence[int], dtype: str, seed: int, scale: float = 1) -> Any:
    """A random array of `shape` on every device, uniform in +-`scale`; `[devices, *shape]`."""
    places = np.arange(mesh.devices.size, dtype=np.uint32)
    return _draw(mesh, tuple(shape), dtype)(places + mesh.devices.size * seed, scale)


@functools.lru_cache(maxsize=64)
def _draw(mesh: Mesh, shape: tuple[int, ...], dtype: str) -> Callable[..., Any]:
    """The compiled generator of arrays of one shape (memoised: each has a program of its own)."""

    def local(seeds: Any, scale: Any) -> Any:
        # Of all generators this one is compiled soonest.
        drawn = jax.random.uniform(jax.random.key(seeds[0], impl="rbg"), shape, "float32", -1.0)
        return (scale * drawn).astype(dtype)[None]

    parts = PartitionSpec(("outer", "group"))
    return jax.jit(
        jax.shard_map(
            local, mesh=mesh, in_specs=(parts, PartitionSpec()), out_specs=parts, check_vma=False
        )
    )


def _warm_up(launch: Launch) -> float:
    """Run a chain twice, and return the seconds of a third call."""
    for number in range(2):
        jax.block_until_ready(launch(number))
    return _call_seconds(launch, 2)


def _call_seconds(launch: Launch, number: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(launch(number))
    return time.perf_counter() - start
