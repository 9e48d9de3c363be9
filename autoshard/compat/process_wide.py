"""All that this package changes of JAX's inside for a whole process, and what each is for.

replaced          user_code sees what a step computes while it is traced: put back afterwards
no_user_lines     lines of these files are none of the user's: for good
attention_of_part cuDNN's attention on one part lowers without devices: for good
alias_jaxlib      `jaxlib._sdy_mpmd` looks for jaxlib below `jax.jaxlib`: for good
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(
    *, bind: Callable[..., Any], trace: Callable[..., Any], reset_name_stack: Callable[..., Any]
) -> Iterator[None]:
    """Other functions in the place of three of JAX's, until the context ends.

    Args:
      bind: of every primitive, given the original and then what it is given.
      trace: what `jax.checkpoint` traces functions with, given the original likewise.
      reset_name_stack: the context in which JAX traces a function by itself.
    """
    from jax._src import ad_checkpoint, core, source_info_util

    primitives: Any = core.Primitive
    checkpoint: Any = ad_checkpoint
    before = primitives.bind, checkpoint._trace_to_jaxpr, source_info_util.reset_name_stack
    original, traced, _ = before

    def bound(primitive: Any, *operands: Any, **parameters: Any) -> Any:
        return bind(original, primitive, *operands, **parameters)

    checkpoint._trace_to_jaxpr = lambda function, *facts: trace(traced, function, *facts)
    source_info_util.reset_name_stack = reset_name_stack
    primitives.bind = bound
    try:
        yield
    finally:
        primitives.bind, checkpoint._trace_to_jaxpr, source_info_util.reset_name_stack = before


def no_user_lines(path: str) -> None:
    """Let no line of a file, or of the files of a folder, be taken for one of the user's."""
    from jax._src import source_info_util

    if source_info_util.is_user_filename(path):
        source_info_util.register_exclusion(path)


def attention_of_part() -> None:
    """Let cuDNN's attention on one part be lowered where there is no device.

    JAX asks for devices since it partitions a call of the whole as it lowers it; a call on a part
    becomes one custom call.
    """
    from jax._src import dispatch
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    for primitive in (cudnn._dot_product_attention_fwd_p, cudnn._dot_product_attention_bwd_p):
        dispatch.prim_requires_devices_during_lowering.discard(primitive)


def alias_jaxlib() -> None:
    """Let what was imported of `jaxlib` be found below `jax.jaxlib`, too."""
    import jaxlib

    sys.modules.setdefault("jax.jaxlib", jaxlib)
    for name in [name for name in sys.modules if name.startswith("jaxlib.")]:
        sys.modules.setdefault(f"jax.{name}", sys.modules[name])
