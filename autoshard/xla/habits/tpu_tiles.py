"""How arrays lie in a TPU's memory: in tiles of two dimensions, which the compiler chooses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas

from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_probes import (
    alone,
    bf16,
    cycles,
    f32,
    layout_of,
    products,
    written,
)

_LAYOUTS = "https://openxla.org/xla/tiled_layout"


def _doubled(x: Any) -> Any:
    return lax.optimization_barrier(x * 2) + 1


def _doubled_both(x: Any, y: Any) -> tuple[Any, Any]:
    return _doubled(x), _doubled(y)


def _tiles_filled(built: Built) -> bool:
    """16 rows of 196 take 16 of 256: so does all that is held, two arrays or three."""
    first, _ = written(built, "f32[64,16,196,196]")
    filled = "T(8,128)" in layout_of(first)
    held = built.peak_bytes / (4 * 64 * 196 * 16 * 256)
    return filled and round(held) in (2, 3) and abs(held - round(held)) < 0.01


def _least_wasted(built: Built) -> bool:
    """By 4,096 and 130, of which 128 lanes and 8 rows waste least."""
    first, second = written(built, "f32[4096,3,130]")
    return first.orders == second.orders == ((1, 2, 0),)


def _small_tiles(built: Built) -> bool:
    two, four = (
        {tile in layout_of(one) for one in written(built, type_)}
        for type_, tile in (("f32[1024,2,2,512]", "T(2,128)"), ("f32[5,3,7]", "T(4,128)"))
    )
    return two == four == {True}


def _convolved(x: Any, w: Any, v: Any) -> Any:
    dimensions = ("NHWC", "HWIO", "NHWC")
    x = jnp.tanh(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dimensions))
    return lax.conv_general_dilated(x, v, (1, 1), "SAME", dimension_numbers=dimensions)


def _batch_and_features(built: Built) -> bool:
    found = written(built, "bf16[256,28,28,128]")
    return len(found) == 2 and all({*one.orders[0][-2:]} == {0, 3} for one in found)


def _first_layer(x: Any, w: Any) -> Any:
    def loss(w: Any) -> Any:
        dimensions = ("NHWC", "HWIO", "NHWC")
        made = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=dimensions)
        return jnp.sum(jnp.tanh(made).astype(jnp.float32) ** 2)

    return jax.grad(loss)(w)


def _images_turned(built: Built) -> bool:
    (images,) = written(built, "bf16[64,224,224,3]")
    return images.opcode == "copy" and {*images.orders[0][-2:]} == {0, 3}


def _by_kernel(x: Any) -> Any:
    """A kernel of one block, of what an elementwise op makes."""

    def kernel(given: Any, made: Any) -> None:
        made[...] = given[...] + 1

    made = lax.optimization_barrier(x * 2)
    return pallas.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype))(made)


def _as_numbered(built: Built) -> bool:
    """With 64 in the lanes, where 256 would fill them."""
    (made,) = built.kernels("multiply")
    return made.orders[0] == (0, 1, 2)


def _padded_for_readers(x: Any, w: Any, y: Any) -> tuple[Any, Any]:
    x, z = lax.optimization_barrier((x * 2, x * 3))
    first, second = (jnp.pad(one, ((0, 0), (0, 60), (0, 0))) for one in (x, z))
    return first @ w, lax.optimization_barrier(second * y) + 1


def _in_readers(built: Built) -> bool:
    """No kernel is there for the pad."""
    pads = built.kernels("pad")
    return len(pads) == 2 and all(one.opcodes & {"convolution", "multiply"} for one in pads)


def _padded_alone(x: Any, y: Any) -> tuple[Any, Any]:
    wide = [jnp.pad(lax.optimization_barrier(one * 2), ((0, 0), (0, 60), (0, 0))) for one in (x, y)]
    first, second = map(lax.optimization_barrier, wide)
    return first, second


def _tile_by_tile(built: Built) -> bool:
    """In both types; elementwise kernels of these shapes take half of it, and less."""
    pads = built.kernels("pad")
    tiles = 1024 * 256 // 8
    taken = [cycles(one) / tiles for one in pads]
    return len(pads) == 2 and all(20 < one < 35 for one in taken)


def _backward_turns(dy: Any, first: Any, second: Any, saved: Any) -> Any:
    """Backward turns of layers that saved what enters their functions, and nothing else."""

    def turn(dy: Any, layer: Any) -> Any:
        first, second, saved = layer
        (slope,) = jax.vjp(jax.nn.silu, saved)[1](dy @ second.T)
        return dy + slope @ first.T, jnp.einsum("bsd,bsf->df", dy, slope)

    return lax.scan(turn, dy, (first, second, saved), reverse=True)


def _by_columns(built: Built) -> bool:
    """The slope of 1,024 rows lies by columns, and what was saved is put so for it."""
    (copy,) = written(built, "bf16[1,4,1024,4096]")[-1:]
    slopes = [one for one in products(built) if "bf16[4,1024,4096]" in one.writes]
    return [one.orders[0] for one in slopes] == [(0, 2, 1)] and copy.orders[0] == (0, 1, 3, 2)


HABITS: tuple[Habit, ...] = (
    alone(
        "tiles-of-8-by-128",
        "The two innermost dimensions lie in tiles of 8 x 128, of which the last ones are filled.",
        _doubled,
        (f32(64, 16, 196, 196),),
        _tiles_filled,
        source=_LAYOUTS,
    ),
    alone(
        "tiles-waste-least",
        "Those two dimensions lie innermost by which tiles waste least.",
        _doubled,
        (f32(4096, 3, 130),),
        _least_wasted,
    ),
    alone(
        "tiles-of-few-rows",
        "Of two or three rows a tile has two or four.",
        _doubled_both,
        (f32(1024, 2, 2, 512), f32(5, 3, 7)),
        _small_tiles,
        results=2,
        source=_LAYOUTS,
    ),
    alone(
        "windows-lie-by-batch-and-features",
        "What convolutions of windows read and write lies with batch and features innermost.",
        _convolved,
        (bf16(256, 28, 28, 64), bf16(3, 3, 64, 128), bf16(3, 3, 128, 128)),
        _batch_and_features,
    ),
    alone(
        "images-lie-by-batch-and-channels",
        "For the gradient of their layer images of three channels lie by batch and channels.",
        _first_layer,
        (bf16(64, 224, 224, 3), bf16(7, 7, 3, 64)),
        _images_turned,
    ),
    alone(
        "kernels-read-as-numbered",
        "What a kernel of Pallas reads and writes lies in the order of its dimensions.",
        _by_kernel,
        (f32(4, 256, 64),),
        _as_numbered,
        source="https://docs.jax.dev/en/latest/pallas/tpu/details.html",
    ),
    alone(
        "pads-run-in-readers",
        "A pad runs in the kernels of products and of elementwise ops that read it.",
        _padded_for_readers,
        (bf16(64, 196, 1024), bf16(1024, 1024), bf16(64, 256, 1024)),
        _in_readers,
        results=2,
    ),
    alone(
        "pads-go-tile-by-tile",
        "A kernel that only pads takes 20 to 35 cycles for a tile of its result, in any type.",
        _padded_alone,
        (bf16(1024, 196, 128), f32(1024, 196, 128)),
        _tile_by_tile,
        results=2,
    ),
    alone(
        "wide-units-write-columns",
        "Products whose rows fill lanes lie by columns where matrix units are wider than lanes.",
        _backward_turns,
        (bf16(4, 1024, 1024), bf16(3, 1024, 4096), bf16(3, 4096, 1024), bf16(3, 4, 1024, 4096)),
        _by_columns,
        results=2,
        machine="v6e-1",
        chips=("TPU v6e", "TPU7x device"),
    ),
)
