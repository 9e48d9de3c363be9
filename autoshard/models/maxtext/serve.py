"""MaxText's model as its engine serves it: a prompt of one sequence, or a token of every sequence.

    step=decode     (params, cache, rest, tokens, positions) -> next tokens, cache
    step=prefill    the same of one prompt of `max_prefill_predict_length` tokens

Models and caches are those of `maxtext.inference.maxengine`: abstract, one for each of its two
modes, so that the cache has its layout. `decode` serves `per_device_batch_size` sequences on each
device. Of the logits the greatest is taken; what else the engine does between steps (sampling,
inserting a prompt's cache into the batch's) is not in the step.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from autoshard.models.maxtext.config import module, quiet
from autoshard.models.maxtext.step import stand_in_mesh, without_constraints, without_sharding
from autoshard.models.providers import ProgramError, Target
from autoshard.units import counted

SERVED = ("decode", "prefill")


def serving_step(
    config: Any, target: Target, kind: str
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The step, its arguments and how it is traced; its constraints are set aside.

    Args:
      config: MaxText's.
      target: the devices.
      kind: "decode" or "prefill".

    Raises:
      ProgramError: MaxText cannot build it.
    """
    names = module("maxtext.common.common_types")
    decodes = kind == "decode"
    mode = names.MODEL_MODE_AUTOREGRESSIVE if decodes else names.MODEL_MODE_PREFILL
    rows = int(config.micro_batch_size_to_train_on) if decodes else 1
    length = 1 if decodes else int(config.max_prefill_predict_length)
    try:
        with quiet(io.StringIO()):
            traced, args = _traced(config, target, mode, (rows, length))
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        what = f"MaxText cannot build the {kind} step of {config.model_name}"
        raise ProgramError(f"{what}: {why}") from error
    closed, count = without_constraints(traced.jaxpr)
    run, results = jaxpr_as_fun(closed), jax.tree.structure(traced.out_info)

    def step(params: Any, cache: Any, rest: Any, tokens: Any, positions: Any) -> Any:
        leaves = jax.tree.leaves((params, cache, rest, tokens, positions))
        return jax.tree.unflatten(results, run(*leaves))

    note = (
        f"{kind} of {counted(rows, 'sequence')}, {counted(length, 'token')} each, as "
        f"MaxText's engine does it; {count} constraints of "
        "its logical axis rules are set aside"
    )
    return step, args, {"donate_argnums": 1, "notes": (note,)}


def _traced(
    config: Any, target: Target, mode: str, shape: tuple[int, int]
) -> tuple[Any, tuple[Any, ...]]:
    nnx, spmd = module("flax.nnx"), module("flax.core.spmd")
    create = module("maxtext.utils.model_creation_utils").get_nnx_create_model_fn
    mesh = stand_in_mesh(config, target, (1,) * len(config.mesh_axes))
    make = create(config, mesh=mesh, model_mode=mode, quant_mode_str="train")
    with spmd.logical_axis_rules(config.logical_axis_rules):
        graph, params, cache, rest = nnx.split(nnx.eval_shape(make), nnx.Param, nnx.Cache, ...)

        def step(params: Any, cache: Any, rest: Any, tokens: Any, positions: Any) -> Any:
            model = nnx.merge(graph, params, cache, rest, copy=True)
            segments = None if shape[1] == 1 else jnp.ones_like(tokens)
            logits = model(
                tokens,
                positions,
                decoder_segment_ids=segments,
                enable_dropout=False,
                model_mode=mode,
            )
            return jnp.argmax(logits[:, -1], axis=-1), nnx.state(model, nnx.Cache)

        tokens = jax.ShapeDtypeStruct(shape, "int32")
        state = jax.tree.map(without_sharding, (params, cache, rest))
        args = (*state, tokens, tokens)
        return jax.jit(step).trace(*args), args
