"""Does the sharded program compute what the unsharded one computes?

Both run on fake CPU devices, which JAX makes of one host when its backend starts with

    XLA_FLAGS=--xla_force_host_platform_device_count=8

Sharding changes the order of sums, so floating-point leaves agree up to a tolerance. The error of
an element is measured against its own size plus the root mean square of its array:

    |actual - expected| <= tolerance * (|expected| + rms(expected))

so that elements that nearly cancel are not held to more digits than their terms have. Integers,
booleans and random keys must be equal; nan equals nan, and an infinity itself.

Arrays over the devices of several processes are gathered; every process compares the same leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh

TOLERANCES: Mapping[str, float] = {
    "float64": 1e-10,
    "complex128": 1e-10,
    "float32": 2e-5,
    "complex64": 2e-5,
    "float16": 5e-3,
    "bfloat16": 4e-2,
}
_FLOAT8_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True)
class Difference:
    """One leaf that differs: where it is in the result, and how.

    `worst` is the largest error of an element and `allowed` what it may be, for leaves whose
    values differ; both are 0 where structure, shape or dtype differ.
    """

    path: str
    reason: str
    worst: float = 0.0
    allowed: float = 0.0

    def __str__(self) -> str:
        return f"{self.path or 'result'}: {self.reason}"


class OutputsDifferError(AssertionError):
    """Every leaf in which two results differ, as `differences`."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        self.differences = tuple(differences)
        super().__init__(differences_message(differences))


def differences_message(differences: Sequence[Difference]) -> str:
    """One line for each difference, under a heading."""
    if not differences:
        return "the results agree"
    noun = "leaf differs" if len(differences) == 1 else "leaves differ"
    lines = [f"{len(differences)} {noun} between the expected and the actual result:"]
    return "\n".join([*lines, *(f"  * {difference}" for difference in differences)])


def compare_outputs(
    expected: Any,
    actual: Any,
    *,
    tolerances: Mapping[str, float] | None = None,
    floor: float = 0.0,
    rounding: Mapping[str, np.ndarray] | None = None,
) -> list[Difference]:
    """Every leaf in which two pytrees of arrays differ; an empty list where they agree.

    Args:
        expected: the result to be met.
        actual: the result to check, sharded or not.
        tolerances: relative errors by dtype name, over `TOLERANCES`.
        floor: an error of a floating-point element that is always allowed.
        rounding: by path, a further error of each element that is allowed, see
            `autoshard.lower.numbers.rounding`.
    """
    allowed = {**TOLERANCES, **(tolerances or {})}
    wanted, got = leaves_of(expected), leaves_of(actual)
    differences = [Difference(path, "expected but absent") for path in wanted if path not in got]
    differences += [Difference(path, "not expected") for path in got if path not in wanted]
    for path, leaf in wanted.items():
        if path in got:
            more = None if rounding is None else rounding.get(path)
            difference = _leaf_difference(path, leaf, got[path], allowed, floor, more)
            if difference is not None:
                differences.append(difference)
    return differences


def require_same_outputs(
    expected: Any, actual: Any, *, tolerances: Mapping[str, float] | None = None
) -> None:
    """Raise `OutputsDifferError`, which lists every offender, unless two results agree."""
    differences = compare_outputs(expected, actual, tolerances=tolerances)
    if differences:
        raise OutputsDifferError(differences)


def cpu_mesh(sizes: Sequence[int], names: Sequence[str]) -> Mesh:
    """A mesh of fake CPU devices with Auto axes.

    Raises:
        RuntimeError: if the CPU backend has too few devices.
    """
    needed = int(np.prod(sizes, dtype=np.int64))
    devices = jax.devices("cpu")
    if len(devices) < needed:
        shape = ", ".join(f"{name}={size}" for size, name in zip(sizes, names, strict=True))
        raise RuntimeError(
            f"a mesh of ({shape}) needs {needed} CPU devices and there are {len(devices)}; start "
            f"Python with XLA_FLAGS=--xla_force_host_platform_device_count={needed}"
        )
    grid = np.array(devices[:needed]).reshape(tuple(sizes))
    return Mesh(grid, tuple(names), axis_types=(AxisType.Auto,) * len(names))


def run_on_cpu_devices(
    sharded: Callable[..., Any],
    unsharded: Callable[..., Any],
    *arguments: Any,
    in_shardings: Any = None,
    tolerances: Mapping[str, float] | None = None,
) -> list[Difference]:
    """Run both functions on fake CPU devices and compare what they return.

    Args:
        sharded: the function to check, jitted here if it is not already; it carries its own
            constraints, on a mesh such as `cpu_mesh` makes.
        unsharded: the function that is right, run on one device.
        arguments: pytrees of arrays for both.
        in_shardings: a pytree prefix of the tuple of arguments, of shardings that they are
            placed with for `sharded`; None leaves them where they are.
        tolerances: relative errors by dtype name, over `TOLERANCES`.

        mesh = cpu_mesh((2, 4), ("data", "model"))
        rows = NamedSharding(mesh, PartitionSpec("data"))
        differences = run_on_cpu_devices(step, plain_step, x, in_shardings=(rows,))
    """
    one_device = jax.devices("cpu")[0]
    with jax.default_device(one_device):
        expected = jax.jit(unsharded)(*jax.device_put(arguments, one_device))
    if in_shardings is not None:
        arguments = jax.device_put(arguments, in_shardings)
    return compare_outputs(expected, jax.jit(sharded)(*arguments), tolerances=tolerances)


def leaves_of(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their paths."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def array_of(leaf: Any) -> np.ndarray:
    """A leaf as numpy has it, whole; of a random key, its data."""
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        leaf = multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)


def _leaf_difference(
    path: str,
    expected: Any,
    actual: Any,
    tolerances: Mapping[str, float],
    floor: float,
    rounding: np.ndarray | None,
) -> Difference | None:
    wanted, got = array_of(expected), array_of(actual)
    if wanted.shape != got.shape:
        return Difference(path, f"shape {got.shape}, expected {wanted.shape}")
    if wanted.dtype != got.dtype:
        return Difference(path, f"dtype {got.dtype}, expected {wanted.dtype}")
    name = str(wanted.dtype)
    exact = not jax.numpy.issubdtype(wanted.dtype, np.inexact)
    tolerance = 0.0 if exact else tolerances.get(name, _FLOAT8_TOLERANCE)
    if exact:
        off = np.atleast_1d(wanted != got)
        error = np.atleast_1d(off.astype(np.float64))
        if name != "bool":
            error = np.abs(np.atleast_1d(wanted).astype(np.float64) - got.astype(np.float64))
        limit = np.zeros_like(error)
        if rounding is not None:
            off &= ~np.isinf(np.atleast_1d(rounding))
    else:
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        reference, value = np.atleast_1d(wanted.astype(wide)), np.atleast_1d(got.astype(wide))
        finite = np.isfinite(reference)
        size = np.where(finite, np.abs(reference), 0.0)
        scale = float(np.sqrt(np.mean(size**2))) if size.size else 0.0
        limit = tolerance * (size + scale) + floor
        if rounding is not None:
            limit = limit + np.atleast_1d(rounding)
        same = (reference == value) | (np.isnan(reference) & np.isnan(value))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(value - reference))
        error = np.where(np.isnan(error), np.inf, error)
        off = error > limit
    if not off.any():
        return None
    excess = np.where(off, error - limit, -np.inf)
    index = np.unravel_index(int(np.argmax(excess)), excess.shape)
    position = "".join(f"[{int(i)}]" for i in index) if wanted.shape else ""
    seen, right = np.atleast_1d(got)[index], np.atleast_1d(wanted)[index]
    reason = (
        f"{name}{list(wanted.shape)}: {int(off.sum())} of {off.size} elements differ; "
        f"worst {position or 'value'} {seen}, expected {right}"
    )
    if not exact:
        reason += f" (error {error[index]:.3g}, allowed {limit[index]:.3g})"
    return Difference(path, reason, float(error[index]), float(limit[index]))
