"""Where ops live that nobody placed: the RFC's example, and what is cheaper, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autoshard.lower.mpmd.cut.flat import graph_of
from autoshard.lower.mpmd.cut.inference import Question, infer, inferred_transfers


def asked(fn, *args, named, places=2, **options):
    """The graph of a function, its places, and transfers; `named` are places by scope."""
    graph = graph_of(jax.make_jaxpr(fn)(*args))
    fixed = {
        number: named[node.scope] for number, node in enumerate(graph.nodes) if node.scope in named
    }
    found = infer(Question(graph, places, fixed, **options))
    by_name = {
        f"{node.name}@{node.scope}" if node.scope else node.name: place
        for node, place in zip(graph.nodes, found, strict=True)
    }
    return by_name, inferred_transfers(graph, found, fixed)


def test_mesh_inference_of_the_rfc():
    """Multiply goes to layer1's mesh and divide to layer2's; nothing more is sent."""

    def program(x, unused):
        with jax.named_scope("layer1"):
            first = x + x
        with jax.named_scope("layer2"):
            second = first + first
        return first * first, second / second

    x = jnp.ones(4)
    places, transfers = asked(program, x, x, named={"layer1": 0, "layer2": 1})
    assert places == {"add@layer1": (0,), "add@layer2": (1,), "mul": (0,), "div": (1,)}
    assert transfers == []


@pytest.mark.parametrize(("wide", "expected"), [(True, (0, 1)), (False, (0,))])
def test_cloned_or_sent_whichever_moves_fewer_bytes(wide, expected):
    """What both meshes read is made of few bytes (clone it) or of many (send the result).

    Either way it is a column of eight numbers that crosses.
    """

    def program(x):
        shared = jnp.broadcast_to(x[:, None], (8, 64)) if wide else x.sum(axis=1)
        with jax.named_scope("left"):
            left = shared * 2.0
        with jax.named_scope("right"):
            right = shared * 3.0
        return left, right

    x = jnp.ones(8) if wide else jnp.ones((8, 64))
    graph = graph_of(jax.make_jaxpr(program)(x))
    source = {graph.inputs[0]: frozenset({0})}
    places, transfers = asked(program, x, named={"left": 0, "right": 1}, sources=source)
    assert places["broadcast_in_dim" if wide else "reduce_sum"] == expected
    assert [(graph.bytes(value), place) for value, place, _ in transfers] == [(8 * 4, 1)]
