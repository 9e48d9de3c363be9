"""A case of a rule: its equation, the rule that it must have, and how its operands are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Drawn:
    """An operand to draw: well-conditioned floats, small indices, booleans, or random keys."""

    shape: tuple[int, ...]
    dtype: Any = jnp.float32

    def draw(self, generator: np.random.Generator) -> Any:
        if self.dtype == "key":
            seeds = generator.integers(0, 2**30, self.shape).astype(np.uint32)
            return jax.random.wrap_key_data(jnp.asarray(np.stack([seeds, seeds + 1], -1)))
        if self.dtype is bool:
            return jnp.asarray(generator.random(self.shape) > 0.5)
        if np.issubdtype(self.dtype, np.integer):
            return jnp.asarray(generator.integers(0, 6, self.shape), self.dtype)
        values = generator.uniform(0.2, 0.9, self.shape)
        if len(self.shape) > 1 and self.shape[-1] == self.shape[-2]:
            values = values + 3 * np.eye(self.shape[-1])
        return jnp.asarray(values, self.dtype)


def f(*shape: int, dtype: Any = jnp.float32) -> Drawn:
    return Drawn(shape, dtype)


def i(*shape: int) -> Drawn:
    return Drawn(shape, jnp.int32)


def b(*shape: int) -> Drawn:
    return Drawn(shape, bool)


def key(*shape: int) -> Drawn:
    return Drawn(shape, "key")


@dataclass(frozen=True)
class Case:
    primitive: str
    rule: str
    function: Callable[..., Any]
    operands: tuple[Drawn, ...]
    newer: str = ""
    """The rule that Shardy has in a later version."""


class Family(dict[str, Case]):
    """Cases by their names."""

    def case(
        self,
        name: str,
        primitive: str,
        rule: str,
        function: Callable[..., Any],
        *operands: Drawn,
        newer: str = "",
    ) -> None:
        assert name not in self, f"two cases are called {name}"
        self[name] = Case(primitive, rule, function, operands, newer)
