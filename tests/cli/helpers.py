"""Programs for the command line to be given, and the messages with which it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.cli.main import main

STEPS = """\
import jax
import jax.numpy as jnp


def abstract(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def good():
    def step(w, x):
        return jnp.sum(jnp.tanh(x @ w) @ w.T)

    return step, (abstract(8, 16), abstract(32, 8))


def broken():
    def step(w, x):
        return x @ w

    return step, (abstract(8, 16), abstract(32, 7))


def odd():
    return jnp.tanh, (abstract(7, 3),)


def kernel():
    from jax.experimental import pallas

    def body(x, out):
        out[...] = x[...] * 2

    def double(x):
        return pallas.pallas_call(body, out_shape=abstract(32, 8), name="double")(x)

    return double, (abstract(32, 8),)


def foreign():
    def double(x):
        return jax.ffi.ffi_call("double", abstract(32, 8))(x)

    return double, (abstract(32, 8),)


def ruled():
    return *kernel(), {"user_rules": {"double": "rows columns -> rows columns"}}


def loop():
    def step(x):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))

    return step, (abstract(32, 8),)


def counted():
    return *loop(), {"trip_counts": 3, "donate_argnums": (0,)}


def nothing():
    return 3


def one():
    return (good,)


def wrong():
    return 1, 2, {"donate": 1}


def model():
    return jnp.tanh


def raising():
    return {}["a"]


number = 3


def until():
    def step(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 3, lambda x: x * 2, x)

    return step, (abstract(32, 8),)
"""


SEARCH = "search {} --machine v5e-8 --quiet"


def refused(capsys: pytest.CaptureFixture[str], words: str, code: int = 2) -> str:
    """The message of a command that must fail with `code` and print nothing to stdout."""
    assert main(words.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    start = err.index("autoshard: error: ")
    assert "Traceback" not in err
    return err[start:].removeprefix("autoshard: error: ").removesuffix("\n")


def line_of(folder: Path, text: str) -> str:
    numbers = [n for n, line in enumerate(STEPS.split("\n"), 1) if text in line]
    return f"steps.py:{numbers[0]}"
