"""The microbatch loop of a traced step: what is done for one microbatch, before, and after.

    before    on the step's inputs: the batch in parts, weights cast once, zeros to sum onto
    micro     for every microbatch: losses and gradients from shared values and its part
    after     on the sums and on the stacked results: the optimizer, metrics

`find_loop` looks for the scan that `autoshard.accumulate_grads` marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoshard import compat
from autoshard.lower.mpmd.accumulate import MICROBATCH
from autoshard.lower.mpmd.cut.flat import graph_of
from autoshard.lower.mpmd.cut.graph import Graph, Node, needed
from autoshard.program.microbatches import CutError, with_microbatches
from autoshard.units import counted


class LoopError(ValueError):
    """A step without a microbatch loop, or with one that cannot be pipelined."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Input of `micro`: the step's value `value`, whole or (if `sliced`) one microbatch of it."""

    value: int
    sliced: bool


@dataclass(frozen=True, slots=True)
class Result:
    """Output `output` of `micro`, which over all microbatches becomes the step's value `value`.

    It is summed onto the value `initial`, or (if that is None) stacked.
    """

    output: int
    value: int
    initial: int | None


@dataclass(frozen=True, slots=True, eq=False)
class MicrobatchedStep:
    """A step around its microbatch loop.

    Attributes:
      top: the values of the whole step; its nodes hold the loop, too.
      before, after: nodes of `top` on both sides of the loop.
      micro: the work of one microbatch.
      body: the same as a closed jaxpr.
      microbatches: how many there are.
      operands: for every input of `micro` where it comes from.
      results: what becomes of the outputs of `micro`.
    """

    top: Graph
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    micro: Graph
    body: Any
    microbatches: int
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]


def find_loop(closed: Any) -> MicrobatchedStep:
    """Take a traced step apart at its microbatch loop.

    Raises:
      LoopError: there is none, or several, or it is inside of another loop.
    """
    top = graph_of(closed)
    loops = [n for n, node in enumerate(top.nodes) if _marked(node) is not None]
    if len(loops) != 1:
        where = ", ".join(str(top.nodes[n]) for n in loops)
        raise LoopError(
            "the step has no microbatches at its top level: compute loss and gradients with "
            "autoshard.accumulate_grads(loss_fn, microbatches=m) in place of "
            "jax.value_and_grad(loss_fn), or have a search cut it (--accumulate m)"
            if not loops
            else f"the step has {counted(len(loops), 'microbatch loop')} ({where}), and one is "
            "pipelined: "
            "join them into one loss"
        )
    number = loops[0]
    loop = top.nodes[number]
    first = needed(top.nodes, loop.inputs)
    params = loop.equation.params
    consts, carries = compat.scan_counts(params)
    turn, call = params["jaxpr"].jaxpr, _marked(loop)
    operands = {
        var: Operand(value, sliced=k >= consts + carries)
        for k, (var, value) in enumerate(zip(turn.invars, loop.inputs, strict=True))
        if not consts <= k < consts + carries
    }
    sums = {
        equation.outvars[0]: equation.invars
        for equation in turn.eqns
        if equation.primitive.name == "add"
    }
    made = {var: k for k, var in enumerate(call.outvars)}
    results = []
    for k, atom in enumerate(turn.outvars):
        if k < carries:
            carried, atom = sums[atom]
            assert carried is turn.invars[consts + k]
        initial = loop.inputs[consts + k] if k < carries else None
        results.append(Result(made[atom], loop.outputs[k], initial))
    body = compat.closed(*compat.called_jaxpr(call))
    return MicrobatchedStep(
        top=top,
        before=tuple(node for node, keep in zip(top.nodes, first, strict=True) if keep),
        after=tuple(n for k, n in enumerate(top.nodes) if not first[k] and k != number),
        micro=graph_of(body),
        body=body,
        microbatches=params["length"],
        operands=tuple(operands[atom] for atom in call.invars),
        results=tuple(results),
    )


def cut_into(closed: Any, count: int, ties: Sequence[tuple[int, int]]) -> Any:
    """A traced step that has no microbatches, cut into `count` of them.

    Args:
      ties: positions of inputs, and of the outputs that replace them.

    Raises:
      LoopError: it has microbatches already, or cannot be cut so; the op is named.
    """
    if any(_marked(node) is not None for node in graph_of(closed).nodes):
        raise LoopError(
            f"the step is written in microbatches, and not cut into {count} more: leave "
            "--accumulate out"
        )
    try:
        state = {position for position, _ in ties}
        return with_microbatches(closed, count, state=state, mark=MICROBATCH)
    except (CutError, ValueError) as error:
        raise LoopError(str(error)) from error


def _marked(node: Node) -> Any:
    """The marked call in a scan's body, or None where the node is not a microbatch loop."""
    if node.name != "scan":
        return None
    for equation in node.equation.params["jaxpr"].jaxpr.eqns:
        if equation.params.get("name") == MICROBATCH:
            return equation
    return None
