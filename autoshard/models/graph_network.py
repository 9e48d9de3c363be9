"""A message-passing graph network on a large graph: gathers, per-edge networks, segment sums.

The encode-process-decode design of MeshGraphNets (https://arxiv.org/abs/2010.03409, section 3.2)
at the latent size and depth of GraphCast (https://arxiv.org/abs/2212.12794, section 3: 16 rounds
of width 512). Each round computes, for each edge from `s` to `r`,

    edge += MLP(edge, node[s], node[r]);   node[r] += MLP(node[r], sum of edges into r)

with layer norms. A row of the graph is a node or an edge; sharding the edges makes the segment sum
a scatter-add with an unreduced result, sharding the nodes makes the gather collective. The sum is
in float32. The graph is data: `senders` and `receivers` are inputs of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.models import training
from autoshard.models.training import Step, abstract, layer_norm, project


@dataclass(frozen=True, slots=True)
class GraphNetwork:
    """The sizes of one graph and of the network on it."""

    nodes: int = 131_072
    edges: int = 1_048_576
    features: int = 64
    edge_features: int = 8
    outputs: int = 64
    width: int = 512
    rounds: int = 16


def graph_network(
    config: GraphNetwork | None = None,
    *,
    rounds: int | None = None,
    scan: bool = True,
    checkpoint: bool = True,
) -> Step:
    """The AdamW step of node-wise regression on one graph."""
    config = config or GraphNetwork()
    if rounds is not None:
        config = replace(config, rounds=rounds)

    def loss(params: Any, batch: Any) -> jax.Array:
        with jax.named_scope("encode"):
            nodes = _network(params["node_encoder"], batch["nodes"].astype(jnp.bfloat16))
            edges = _network(params["edge_encoder"], batch["edges"].astype(jnp.bfloat16))
        (nodes, _), _ = training.repeat(
            _round,
            (nodes, edges),
            params["rounds"],
            batch["senders"],
            batch["receivers"],
            checkpoint=checkpoint,
        )
        with jax.named_scope("decode"):
            out = project("nd,do->no", nodes, params["decoder"]).astype(jnp.float32)
        with jax.named_scope("loss"):
            return jnp.mean(jnp.square(out + params["decoder_bias"] - batch["targets"]))

    ends = abstract(config.edges, dtype=jnp.int32)
    data = {
        "nodes": abstract(config.nodes, config.features),
        "edges": abstract(config.edges, config.edge_features),
        "senders": ends,
        "receivers": ends,
        "targets": abstract(config.nodes, config.outputs),
    }
    return training.adamw_step(loss, weights(config, scan=scan), data)


def weights(config: GraphNetwork, *, scan: bool = True) -> dict[str, Any]:
    """The abstract parameters."""
    width = config.width
    one_round = {
        "edge": _network_weights({"edge": width, "sender": width, "receiver": width}, width),
        "node": _network_weights({"node": width, "messages": width}, width),
    }
    return {
        "node_encoder": _network_weights({"features": config.features}, width),
        "edge_encoder": _network_weights({"features": config.edge_features}, width),
        "rounds": training.stacked(one_round, config.rounds, scan=scan),
        "decoder": abstract(width, config.outputs),
        "decoder_bias": abstract(config.outputs),
    }


def _network_weights(inputs: dict[str, int], width: int) -> dict[str, Any]:
    return {
        **{f"from_{name}": abstract(size, width) for name, size in inputs.items()},
        "hidden_bias": abstract(width),
        "out": abstract(width, width),
        "out_bias": abstract(width),
        "norm_scale": abstract(width),
        "norm_bias": abstract(width),
    }


def _network(weights: Any, features: jax.Array) -> jax.Array:
    return _finish(weights, project("nf,fd->nd", features, weights["from_features"]))


def _finish(weights: Any, hidden: jax.Array) -> jax.Array:
    """All of a two-layer network but its first product."""
    hidden = jax.nn.silu(hidden + weights["hidden_bias"].astype(hidden.dtype))
    out = project("nd,de->ne", hidden, weights["out"]) + weights["out_bias"].astype(hidden.dtype)
    return layer_norm(out, weights["norm_scale"], weights["norm_bias"])


def _round(
    carry: tuple[jax.Array, jax.Array], weights: Any, senders: jax.Array, receivers: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], None]:
    """One round of messages; the first product of each network is split by its inputs.

    Nodes are multiplied before they are gathered: there are fewer nodes than edges, and the result
    equals the product of the concatenated rows.
    """
    nodes, edges = carry
    with jax.named_scope("edges"):
        edge = weights["edge"]
        sent = training.look_up(project("nd,de->ne", nodes, edge["from_sender"]), senders)
        met = training.look_up(project("nd,de->ne", nodes, edge["from_receiver"]), receivers)
        own = project("nd,de->ne", edges, edge["from_edge"])
        edges = edges + _finish(edge, own + sent + met)
    with jax.named_scope("nodes"):
        node = weights["node"]
        messages = sum_into(edges, receivers, nodes.shape[0])
        own = project("nd,de->ne", nodes, node["from_node"])
        nodes = nodes + _finish(node, own + project("nd,de->ne", messages, node["from_messages"]))
    return (nodes, edges), None


def sum_into(rows: jax.Array, segments: jax.Array, count: int) -> jax.Array:
    """Sum the `rows` of each of `count` segments, in float32: one scatter-add."""
    total = jnp.zeros((count, rows.shape[1]), jnp.float32)
    added = total.at[segments].add(
        rows.astype(jnp.float32), mode="promise_in_bounds", wrap_negative_indices=False
    )
    return added.astype(rows.dtype)


def build(name: str, **sizes: Any) -> Step:
    """The built-in `name`, at its real size where `sizes` say nothing else."""
    return graph_network(**sizes)


def tiny(name: str, **sizes: Any) -> Step:
    """The built-in `name`, small where `sizes` say nothing else."""
    config = GraphNetwork(nodes=64, edges=256, features=8, outputs=8, width=32, rounds=2)
    return graph_network(config, **sizes)


def sample(args: Any, seed: int) -> Any:
    """Random arguments: edges between any two nodes."""
    data = args[2]
    nodes = data["nodes"].shape[0]
    bounds = {"senders": nodes, "receivers": nodes, "nodes": 1, "edges": 1, "targets": 1}
    return training.sample(args, seed, bounds)
