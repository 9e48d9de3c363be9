"""Under what a known function was traced, to trace it anew under the same.

Kernels for TPUs ask for which one they are made: of the device that stands here, or of the abstract
device of the mesh around them (`jax.sharding.use_abstract_mesh`). A plan is lowered later, within
`jax.shard_map` and often on another platform. Where the mesh there has no device of the same
platform, the function is traced under that of the first trace, on its own, and what it is made of
is put in place of the call.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from autoshard import compat

ONE_CORE = "disable_multi_core_mode"
"""An option of tokamax by which kernels are plain Pallas calls, not kernels on a mesh of cores."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a function's kernels are made under.

    Attributes:
      device: the abstract device of the mesh around, or None.
      option, value: an option of the function's library, as a context, and what it was; or None.
    """

    device: Any
    option: Any
    value: Any

    @staticmethod
    def of(function: Callable[..., Any]) -> Surroundings:
        """Here and now."""
        config = getattr(sys.modules[function.__module__], "config", None)
        option = getattr(config, ONE_CORE, None)
        device = jax.sharding.get_abstract_mesh().abstract_device
        return Surroundings(device, option, None if option is None else option.value)

    def run(self, fn: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """The only result of `fn` on arrays, traced under these."""
        with contextlib.nullcontext() if self.option is None else self.option(self.value):
            here = jax.sharding.get_abstract_mesh().abstract_device
            if self.device is None or getattr(here, "platform", None) == self.device.platform:
                return fn(*arrays)
            shapes = [compat.shape_struct(jax.typeof(one)) for one in arrays]
            alone = jax.sharding.AbstractMesh((), (), abstract_device=self.device)
            with jax.sharding.use_abstract_mesh(alone):
                closed = jax.make_jaxpr(fn)(*shapes)
            (result,) = jaxpr_as_fun(closed)(*arrays)
            return result
