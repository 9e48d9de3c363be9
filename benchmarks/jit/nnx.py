"""`autoshard.jit` on a Flax NNX training loop: what its first call takes, and later ones.

    python benchmarks/jit/nnx.py --layers 16 --width 2048        # about 1 billion parameters
    python benchmarks/jit/nnx.py --layers 2 --width 128 --run    # and calls, on fake CPU devices

The model is a decoder as people write it: a list of blocks, one after another, attention by
`jax.nn.dot_product_attention`, AdamW. Prints the seconds of each part of the first call, by the
clock and of this process: importing, tracing, the search for a plan, lowering by JAX; with `--run`
also the compile by XLA:CPU, and the median of later calls beside `jax.jit` with the same shardings
written by hand.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long something takes."""
    clock, own = time.perf_counter(), time.process_time()
    yield
    clock, own = time.perf_counter() - clock, time.process_time() - own
    print(f"{what:40} {clock:7.1f} s, {own:6.1f} s of this process", flush=True)


DEVICES = 8
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
)

with timed("importing JAX, Flax, Optax"):
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

with timed("importing autoshard"):
    import autoshard
    from autoshard.search.options import SearchOptions
    from autoshard.search.search import candidates
    from autoshard.units import format_percent

VOCABULARY, HEAD = 32_768, 64


class Block(nnx.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.RMSNorm(width, rngs=rngs) for _ in range(2)])
        self.qkv = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        rows, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).reshape(rows, length, 3, width // HEAD, HEAD)
        query, key, value = (heads[:, :, k] for k in range(3))
        found = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.reshape(x.shape))
        return x + self.down(nnx.silu(self.up(self.norms[1](x))))


class Decoder(nnx.Module):
    """A list of blocks between an embedding and a projection."""

    def __init__(self, layers: int, width: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCABULARY, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(layers)])
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def made(layers: int, width: int) -> tuple[Decoder, nnx.Optimizer]:
    """A model and its optimizer."""
    model = Decoder(layers, width, nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


def train_step(model: Decoder, optimizer: nnx.Optimizer, tokens: Any) -> Any:
    """A step of training in place; returns the loss."""

    def loss(model: Decoder) -> Any:
        logits = model(tokens[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def parts_of_first_call(options: argparse.Namespace) -> None:
    """Print what the first call of a step of shapes takes, part by part, and all of it."""
    model, optimizer = nnx.eval_shape(lambda: made(options.layers, options.width))
    tokens = jax.ShapeDtypeStruct((options.batch, options.length + 1), jnp.int32)
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    print(f"{count / 1e9:.2f} billion parameters, {options.layers} layers, width {options.width}")
    with timed("trace"):
        program = autoshard.trace(train_step, model, optimizer, tokens)
    with timed("search"):
        asked = SearchOptions(time_limit=20.0, baselines=False)
        plan = candidates(program, autoshard.load_machine(f"v5e-{DEVICES}"), asked)[0]
    with timed("lower"):
        lowered = autoshard.lower(plan, train_step, model, optimizer, tokens)
        lowered.lower(platforms=("tpu",))
    print(f"ops {len(program.ops):,}; {plan.mesh}; gap {format_percent(plan.proof.gap, '.2f')}")
    step = autoshard.jit(train_step, machine="v5e", keep=False)
    with timed("the first call, without the compile"):
        step.lower(model, optimizer, tokens)


def later_calls(options: argparse.Namespace) -> None:
    """Print the compile's seconds, and the median of later calls beside `jax.jit` by hand."""
    tokens = jnp.zeros((options.batch, options.length + 1), jnp.int32)
    model, optimizer = made(options.layers, options.width)
    step = autoshard.jit(train_step, machine="v5e", keep=False)
    with timed("the first call, with XLA:CPU's compile"):
        jax.block_until_ready(step(model, optimizer, tokens))
    lowered = step.planned(model, optimizer, tokens)
    graph, state = nnx.split(made(options.layers, options.width))
    places = jax.tree.leaves(lowered.in_shardings)
    leaves = jax.tree.leaves(state)
    layout = jax.tree.unflatten(jax.tree.structure(state), places[: len(leaves)])
    state = jax.device_put(state, layout)
    tokens = jax.device_put(tokens, places[-1])

    def pure(state: Any, tokens: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)
        loss = train_step(model, optimizer, tokens)
        return nnx.state((model, optimizer)), loss

    by_hand = jax.jit(pure, donate_argnums=0, out_shardings=(layout, None))
    state, _ = jax.block_until_ready(by_hand(state, tokens))
    ours, hand = [], []
    for _ in range(options.calls):
        start = time.perf_counter()
        jax.block_until_ready(step(model, optimizer, tokens))
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        state, loss = by_hand(state, tokens)
        jax.block_until_ready(loss)
        hand.append(time.perf_counter() - start)
    print(f"later calls  {1e3 * statistics.median(ours):.2f} ms")
    print(f"jax.jit      {1e3 * statistics.median(hand):.2f} ms")


def main() -> None:
    """Read the options and print what was measured."""
    parser = argparse.ArgumentParser(description="Time autoshard.jit on a Flax NNX loop.")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--run", action="store_true", help="on fake CPU devices, too")
    options = parser.parse_args()
    parts_of_first_call(options)
    if options.run:
        later_calls(options)


if __name__ == "__main__":
    main()
