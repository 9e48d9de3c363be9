"""Built-in example programs: real training and serving steps, as abstract shapes only.

Every built-in is one plain JAX function with the arguments of its real size as
`jax.ShapeDtypeStruct`, so that it can be traced and planned without a device and without weights:

    from autoshard import models

    fn, args, options = models.build("llama3-8b")    # the real sizes
    fn, args, options = models.tiny("llama3-8b")     # the same code, small enough to run anywhere
    values = models.concrete("llama3-8b", args, seed=0)

Models live in one module each and are imported when they are asked for; this module imports
nothing heavy. A module with choices of its own (`llama.llama`, `mlp.mlp`, ...) offers them as a
factory which returns the same triple.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from autoshard.near import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoshard.models.annotate import LogicalAxes
    from autoshard.models.training import Step

__all__ = ["build", "concrete", "logical_axes", "names", "sizes", "tiny"]

_LLAMA = tuple(
    f"llama3-{size}{variant}"
    for size in ("1b", "8b", "70b", "405b")
    for variant in ("", "-unrolled", "-decode", "-prefill")
)

_SERVING = ("-decode", "-prefill")

_MODULES = {
    "mlp": "mlp",
    **dict.fromkeys(_LLAMA, "llama"),
    "mixtral-8x7b": "mixtral",
    "mixtral-8x7b-unrolled": "mixtral",
    "vit-l16": "vision_transformer",
    "resnet50": "resnet",
    "unet": "unet",
    "gnn": "graph_network",
}


def names() -> tuple[str, ...]:
    """The names that `build` and `tiny` accept."""
    return tuple(_MODULES)


def build(name: str, **sizes: Any) -> Step:
    """Return `(fn, args, options)` of the built-in `name` at its real size, or with other `sizes`.

    `sizes` are arguments of the module's factory: `build("llama3-8b", batch=16, layers=4)`.
    `options` holds `donate_argnums`: the positions of the arguments that the step replaces.

    Raises:
      ValueError: there is no such built-in (with the nearest names), or it has no such sizes.
    """
    return _made(_module(name).build, name, sizes)


def sizes(name: str) -> tuple[str, ...]:
    """The names of the sizes that `build` and `tiny` take of a built-in, such as `batch`."""
    factory = getattr(_module(name), _MODULES[name])
    return tuple(one for one in inspect.signature(factory).parameters if one != "config")


def tiny(name: str, **sizes: Any) -> Step:
    """Return the built-in `name` with small sizes that eight devices divide; see `build`."""
    return _made(_module(name).tiny, name, sizes)


def concrete(name: str, args: Any, seed: int = 0) -> Any:
    """Return random arrays for the abstract `args` of the built-in `name`.

    Weights are random, optimizer state and caches are zero, and integers stay within their range
    (a vocabulary, a number of classes, a number of nodes). Equal seeds give equal arrays.
    """
    return _module(name).sample(args, seed)


def logical_axes(name: str) -> LogicalAxes:
    """Return the logical names of the dimensions of a built-in's arguments, to shard it by hand.

    See `autoshard.models.annotate`. Raises ValueError if nobody has named them.
    """
    found = getattr(_module(name), "LOGICAL_AXES", None)
    if found is None or name.endswith(_SERVING):
        named = [
            one
            for one in _MODULES
            if hasattr(_module(one), "LOGICAL_AXES") and not one.endswith(_SERVING)
        ]
        raise ValueError(
            f"the dimensions of {name!r} have no logical names; those of {', '.join(named)} have"
        )
    return found


def _made(make: Callable[..., Step], name: str, sizes: dict[str, Any]) -> Step:
    try:
        return make(name, **sizes)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ValueError(f"{name!r}: {error}; the sizes are those of its factory") from error


def _module(name: str) -> Any:
    if name not in _MODULES:
        hint = did_you_mean(name, _MODULES) or f"known: {', '.join(_MODULES)}."
        raise ValueError(f"no built-in program is called {name!r}; {hint}")
    return importlib.import_module(f"autoshard.models.{_MODULES[name]}")
