"""Gradients over microbatches: by itself a scan, and a mark for what is to be pipelined.

    loss, gradients = autoshard.accumulate_grads(loss_fn, microbatches=8)(params, batch)

equals `jax.value_and_grad(loss_fn)(params, batch)` where the loss is a mean over the examples of
the batch: the batch is cut into equal microbatches and the mean over these is returned. Only one
microbatch's activations are alive at a time.

The scan stands in a call of a known name, and so does what is done for one microbatch. From these
two marks `autoshard.lower.mpmd.cut.loop` finds the loss and the gradients of one microbatch in a
traced step.

Microbatch `i` of `m` takes the examples `i`, `i + m`, `i + 2m`, ...: if the batch is sharded, every
device finds its part of each microbatch among its own examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.units import counted

LOOP = "accumulate_grads_over_microbatches"
"""Name of the marked call that holds the scan over microbatches."""
MICROBATCH = "value_and_grad_of_microbatch"
"""Name of the marked call, inside of the scan, that holds the work of one microbatch."""


class MicrobatchError(ValueError):
    """A batch that cannot be cut into the microbatches asked for."""


def accumulate_grads(
    loss_fn: Callable[..., Any],
    *,
    microbatches: int,
    argnums: int | Sequence[int] = 0,
    batch_argnums: int | Sequence[int] = 1,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Like `jax.value_and_grad(loss_fn)`, in equal microbatches of which one is done at a time.

    Gradients are summed in the order of the microbatches, those of 16-bit parameters in float32,
    and come back in the dtype of their parameter.

        step = accumulate_grads(loss_fn, microbatches=4, has_aux=True)
        (loss, aux), gradients = step(params, batch, key)

    Args:
      loss_fn: a function of arrays with a scalar result, the mean over the examples of a batch;
        with `has_aux` it returns (loss, aux).
      microbatches: into how many parts the batch is cut along the first dimension of its arrays.
      argnums: the argument or arguments to differentiate; with several, gradients are a tuple.
      batch_argnums: the argument or arguments that hold examples. All others, keyword arguments
        too, are the same for every microbatch.
      has_aux: whether `loss_fn` returns auxiliary values too. They come back stacked: microbatches
        first.

    Raises:
      ValueError: fewer than one microbatch, or an argument that is both batch and differentiated.
      MicrobatchError: when called, if an array of the batch has no first dimension or one that
        does not divide, or if first dimensions differ; all such arrays are listed.
    """
    if microbatches < 1:
        raise ValueError(f"microbatches is {microbatches}; it must be 1 or more")
    several = not isinstance(argnums, int)
    differentiated = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)
    cut = tuple(batch_argnums) if isinstance(batch_argnums, Sequence) else (batch_argnums,)

    def loop(*args: Any, **kwargs: Any) -> Any:
        order = [_position(number, len(args), "argnums") for number in differentiated]
        batched = [_position(number, len(args), "batch_argnums") for number in cut]
        both = sorted(set(order) & set(batched))
        if both:
            raise ValueError(
                f"arguments {both} are both in argnums and in batch_argnums; a batch is not "
                "differentiated: name other positions"
            )
        batch = {number: args[number] for number in batched}
        _check_batch(batch, microbatches)
        parts = jax.tree.map(lambda leaf: _split(leaf, microbatches), batch)
        chosen = tuple(order) if several else order[0]

        def one(args: Sequence[Any], kwargs: Any) -> tuple[Any, Any]:
            function = jax.value_and_grad(loss_fn, argnums=chosen, has_aux=has_aux)
            value, gradients = function(*args, **kwargs)
            loss, aux = value if has_aux else (value, ())
            return (loss, jax.tree.map(_widened, gradients)), aux

        marked = named(one, MICROBATCH)

        def body(sums: Any, part: Any) -> tuple[Any, Any]:
            new, aux = marked(_with(args, part), kwargs)
            return jax.tree.map(jnp.add, sums, new), aux

        first = jax.tree.map(lambda leaf: leaf[0], parts)
        (shapes, _) = jax.eval_shape(lambda: marked(_with(args, first), kwargs))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (loss, gradients), aux = jax.lax.scan(body, zeros, parts)
        likes = tuple(args[number] for number in order) if several else args[order[0]]
        gradients = jax.tree.map(
            lambda total, like: (total / microbatches).astype(jnp.result_type(like)),
            gradients,
            likes,
        )
        loss = loss / microbatches
        return ((loss, aux) if has_aux else loss), gradients

    return named(loop, LOOP)


def named(function: Callable[..., Any], name: str) -> Any:
    """`jax.jit` of a function, with this name in the jaxpr."""
    function.__name__ = function.__qualname__ = name
    return jax.jit(function)


def _with(args: Sequence[Any], part: Mapping[int, Any]) -> list[Any]:
    return [part.get(number, arg) for number, arg in enumerate(args)]


def _position(number: int, count: int, name: str) -> int:
    position = number + count if number < 0 else number
    if not 0 <= position < count:
        raise ValueError(
            f"{name} holds {number}, but the function is given {counted(count, 'argument')}"
        )
    return position


def _widened(gradient: jax.Array) -> jax.Array:
    """A gradient in the dtype in which it is summed."""
    narrow = jnp.issubdtype(gradient.dtype, jnp.floating) and gradient.dtype.itemsize < 4
    return gradient.astype(jnp.float32) if narrow else gradient


def _split(leaf: jax.Array, microbatches: int) -> jax.Array:
    """`[examples, ...]` as `[microbatches, examples / microbatches, ...]`."""
    count, rest = leaf.shape[0] // microbatches, leaf.shape[1:]
    return jnp.swapaxes(jnp.reshape(leaf, (count, microbatches, *rest)), 0, 1)


def _check_batch(batch: Mapping[int, Any], microbatches: int) -> None:
    faults, sizes = [], {}
    for number, argument in batch.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
            aval = jax.typeof(leaf)
            name = f"args[{number}]{jax.tree_util.keystr(path)}: {aval.str_short()}"
            if not aval.shape:
                faults.append(
                    f"{name} is a scalar: pass it as an argument outside of batch_argnums"
                )
            elif aval.shape[0] % microbatches:
                left = aval.shape[0] % microbatches
                faults.append(f"{name} leaves {left} of its {aval.shape[0]} examples over")
            else:
                sizes.setdefault(aval.shape[0], name)
    if len(sizes) > 1:
        faults += [f"{name} has {counted(size, 'example')}" for size, name in sizes.items()]
    if faults or not sizes:
        listed = "".join(f"\n  * {fault}" for fault in faults or ["it holds no arrays"])
        raise MicrobatchError(
            f"the batch cannot be cut into {microbatches} equal microbatches:{listed}\n"
            "Choose a number of microbatches that divides the batch, or pad the batch."
        )
