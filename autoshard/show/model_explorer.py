"""The planned program as a graph for Model Explorer, and data that colour it.

See https://github.com/google-ai-edge/model-explorer. Nodes are inputs, operations, the collectives
between them, and outputs; the user's scopes are the layers that fold. Every node shows what the
plan says of it, every edge starts at an output whose type has mesh axes in it. Values that are
computed wherever they are needed are left out.

`node_data` gives the nodes seconds: of compute, or the exposed ones of a collective. The formats
are those that the classes of `model_explorer.graph_builder` and `node_data_builder` describe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoshard.plan.copies import ANEW, VISIBLE
from autoshard.plan.moves import copy_moves
from autoshard.plan.plan import Move
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.plan.text.moves import collective_name
from autoshard.program.layout import Layout, format_type
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op
from autoshard.show.profile import Profile
from autoshard.units import format_bytes, format_seconds

GRADIENT = ("#fff7ec", "#fdbb84", "#b30000")


def graph_collection(found: Profile) -> dict[str, Any]:
    """The graph, as the JSON that Model Explorer opens."""
    nodes = [node for node, _ in _Graph(found).nodes()]
    plan = found.plan
    about = {
        "machine": plan.machine,
        "mesh": str(plan.mesh),
        "step": format_seconds(plan.estimate.step_seconds),
        "peak": format_bytes(plan.estimate.peak_bytes),
    }
    graph = {"id": graph_id(found), "nodes": nodes, "groupNodeAttributes": {"": about}}
    return {"label": plan.program, "graphs": [graph]}


def node_data(found: Profile) -> dict[str, Any]:
    """Seconds of every node that takes time, to colour the graph with."""
    results = {
        node["id"]: {"value": seconds} for node, seconds in _Graph(found).nodes() if seconds > 0
    }
    stops = [
        {"stop": k / (len(GRADIENT) - 1), "bgColor": colour} for k, colour in enumerate(GRADIENT)
    ]
    return {graph_id(found): {"results": results, "gradient": stops}}


def graph_id(found: Profile) -> str:
    """The name under which graph and data find each other."""
    return f"{found.plan.program} {found.plan.fingerprint}"


class _Graph:
    """Makes the nodes; `source` knows where a value comes from, and `copy` its resharded copy."""

    def __init__(self, found: Profile) -> None:
        self.found = found
        self.program, self.plan = found.program, found.plan
        self.chosen = ChosenStrategies(self.plan.decisions, found.prices.mesh_shape)
        readers = found.prices.dataflow.readers
        self.phase = {(use.op, use.position): use.phase for uses in readers for use in uses}
        self.source: dict[int, tuple[str, str]] = {}
        self.copy: dict[int, tuple[str, str]] = {}
        self.settled: dict[int, list[Move]] = {}
        for one in found.moves:
            if not one.before:
                self.settled.setdefault(one.op, []).append(one.move)

    def nodes(self) -> list[tuple[dict[str, Any], float]]:
        """Every node with its seconds, sources before readers."""
        rows: list[tuple[dict[str, Any], float]] = []
        for value in self.program.inputs:
            if not self.program.values[value].free:
                name = f"in{value}"
                self.source[value] = (name, "0")
                path = self.program.values[value].path or "input"
                rows.append((self._node(name, path, "inputs", outputs=[self._stored(value)]), 0.0))
                rows += self._copies(value, "inputs")
        for op in self.program.ops:
            if self.plan.decisions.assignment[op.index] is None:
                continue
            rows += self._op(op)
        for number, value in enumerate(self.program.outputs):
            if value in self.source:
                path = self.program.values[value].path or "output"
                node = self._node(f"out{number}", path, "outputs", sources=[self.source[value]])
                rows.append((node, 0.0))
        return rows

    def _op(self, op: Op) -> list[tuple[dict[str, Any], float]]:
        strategy, name = self.chosen(op), f"op{op.index}"
        sources = []
        for position, value in enumerate(op.inputs):
            if value in self.source:
                sources.append(self._read(op, position, value, strategy))
        seconds = self.found.op_seconds.get(op.index, 0.0)
        about = {
            "seconds": format_seconds(seconds),
            "times": str(op.trips),
            "line": op.line,
            "pass": "backward" if op.backward else "forward or update",
        }
        if op.flops:
            about["TFLOP"] = f"{op.flops * op.trips / 1e12:.4g}"
        written = [
            self._type(value, tuple(layouts[0].tolist()))
            for value, layouts in zip(op.outputs, strategy.written, strict=True)
        ]
        scope = "outputs" if op.primitive == "return" else op.scope
        node = self._node(name, op.primitive, scope, about, sources, written)
        rows = [(node, seconds)]
        moves = self.settled.get(op.index, [])
        for number, value in enumerate(op.outputs):
            self.source[value] = (name, str(number))
            own = moves[number :: len(op.outputs)]
            if own:
                rows += self._chain(f"{name}s{number}_", own, value, op.scope, "source")
            rows += self._copies(value, op.scope)
        return rows

    def _read(self, op: Op, position: int, value: int, strategy: Strategies) -> tuple[str, str]:
        """Where an operand comes from: the copy, where it is read in the copy's layout."""
        wanted = tuple(strategy.reads[position][0].tolist())
        decisions = self.plan.decisions
        visible = decisions.mode[value] & VISIBLE[self.phase[op.index, position]]
        if value in self.copy and visible and wanted == decisions.copy[value]:
            return self.copy[value]
        return self.source[value]

    def _copies(self, value: int, scope: str) -> list[tuple[dict[str, Any], float]]:
        decisions = self.plan.decisions
        if decisions.copy[value] is None:
            return []
        times = 2 if decisions.mode[value] == ANEW else 1  # the same moves, for each pass
        moves = copy_moves(self.found.prices, decisions, value, self.plan.mesh.names)[::times]
        return self._chain(f"copy{value}_", moves, value, scope, "copy", times)

    def _chain(
        self,
        name: str,
        moves: Sequence[Move],
        value: int,
        scope: str,
        target: str,
        times: int = 1,
    ) -> list[tuple[dict[str, Any], float]]:
        """Collectives one after the other, from the value's source to `target`."""
        rows = []
        place = self.source[value]
        for number, move in enumerate(moves):
            label = collective_name(move.kind, move.axes, self.plan.mesh.names)
            about = {
                "seconds": format_seconds(times * move.seconds),
                "exposed": format_seconds(times * move.exposed_seconds),
                "bytes": format_bytes(move.bytes),
                "times": str(times * move.count),
                "line": move.line,
            }
            after = move.value.partition(" -> ")[2]
            node = self._node(f"{name}{number}", label, scope, about, [place], [after])
            place = (node["id"], "0")
            rows.append((node, times * move.exposed_seconds))
        (self.source if target == "source" else self.copy)[value] = place
        return rows

    def _stored(self, value: int) -> str:
        return self._type(value, self.plan.decisions.stored[value])

    def _type(self, value: int, layout: Layout | None) -> str:
        record = self.program.values[value]
        return format_type(record.dtype, record.shape, layout, self.plan.mesh.names)

    def _node(
        self,
        name: str,
        label: str,
        scope: str,
        about: dict[str, str] | None = None,
        sources: Sequence[tuple[str, str]] = (),
        outputs: Sequence[str] = (),
    ) -> dict[str, Any]:
        return {
            "id": name,
            "label": label,
            "namespace": scope,
            "attrs": [{"key": key, "value": said} for key, said in (about or {}).items() if said],
            "incomingEdges": [
                {"sourceNodeId": node, "sourceNodeOutputId": output, "targetNodeInputId": str(k)}
                for k, (node, output) in enumerate(sources)
            ],
            "outputsMetadata": [
                {"id": str(k), "attrs": [{"key": "tensor_shape", "value": text}]}
                for k, text in enumerate(outputs)
            ],
        }
