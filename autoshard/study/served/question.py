"""A point as a question: which step on which machine, laid out how.

Two mesh axes, major to minor, as far as they are larger than one:

    expert    of experts; for all else part of the tensor-parallel ranks
    tensor    heads, hidden widths and vocabulary

Activations are whole on all ranks between the parts of a layer, so that each part ends with a sum
over them, as engines have it. Where there are fewer heads of keys than ranks, each is held by
several (GQA).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoshard.machine.as_measured import as_measured
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.machine.numbers import with_numbers
from autoshard.models.annotate import Rules
from autoshard.models.decoder_sizes import Decoder, sizes_of
from autoshard.models.engine import Precision
from autoshard.study.measured.machines import CHIPS
from autoshard.study.measured.remat import UnreachableError
from autoshard.study.served.collectives import with_engine_collectives
from autoshard.study.served.table import PRECISIONS, Point
from autoshard.units import counted


@dataclass(frozen=True, slots=True)
class Question:
    """A point's own configuration.

    Attributes:
      decoder: dimensions, with as many heads of keys as ranks have.
      machine: of the ranks that serve one copy, at what its chip reaches at best.
      precision: dtypes.
      rules: mesh, and where logical names lie.
    """

    decoder: Decoder
    machine: Machine
    precision: Precision
    rules: Rules


def question(point: Point) -> Question:
    """The question that a point is.

    Raises:
      UnreachableError: its model, machine or layout cannot be expressed.
    """
    try:
        decoder = sizes_of(point.model)
    except ValueError as error:
        raise UnreachableError(str(error).split(";")[0]) from error
    unknown = [name for name in ("pattern", "expert_latent") if getattr(decoder, name)]
    if unknown:
        raise UnreachableError(f"a model with {' and '.join(unknown)}, which no engine step has")
    if point.tp != point.chips:
        raise UnreachableError(
            f"{counted(point.chips, 'chip')} of which {point.tp} share a tensor: others than "
            "tensor-parallel ranks are not expressed"
        )
    if point.tp % point.ep:
        raise UnreachableError(f"ep {point.ep} does not divide tp {point.tp}")
    machine = _machine(point)
    rules = _rules(point, decoder)
    if not decoder.latent and decoder.kv_heads % point.tp:
        decoder = _with_copies(decoder, point.tp)
    narrow = PRECISIONS[point.experts or point.weights]
    known = machine.chip.rate_key(narrow) in machine.chip.peak_flops
    precision = Precision(
        weights=PRECISIONS[point.weights],
        cache=PRECISIONS[point.cache],
        experts=narrow,
        expert_products=narrow if known else "bfloat16",
    )
    if machine.chip.rate_key(precision.weights) not in machine.chip.peak_flops:
        raise UnreachableError(f"a {point.chip} has no products in {point.weights}")
    return Question(decoder, machine, precision, rules)


def _machine(point: Point) -> Machine:
    if point.chip not in CHIPS:
        raise UnreachableError(f"no preset is a {point.chip}")
    known = CHIPS[point.chip]
    try:
        machine = load(f"{known.preset}-{point.chips}")
    except MachineError as error:
        raise UnreachableError(str(error).split("\n")[0]) from error
    machine = with_numbers(machine, dict(known.other))
    return with_engine_collectives(as_measured(machine, best=True))


def _with_copies(decoder: Decoder, ranks: int) -> Decoder:
    if ranks % decoder.kv_heads or decoder.heads % ranks:
        raise UnreachableError(
            f"{decoder.heads} heads with {decoder.kv_heads} of keys do not lie on {ranks} ranks"
        )
    return replace(decoder, kv_heads=ranks)


def _rules(point: Point, decoder: Decoder) -> Rules:
    sizes = {"expert": point.ep, "tensor": point.tp // point.ep}
    mesh = {axis: size for axis, size in sizes.items() if size > 1} or {"tensor": 1}
    ranks = tuple(mesh)
    tensor = tuple(axis for axis in ranks if axis == "tensor")
    names = {"kv_heads": ranks, "heads": ranks, "mlp": ranks, "vocab": ranks}
    if decoder.vocabulary % point.tp:
        del names["vocab"]
    if decoder.experts:
        experts = tuple(axis for axis in ranks if axis == "expert")
        names |= {"expert": experts, "expert_mlp": tensor}
    return Rules(mesh, names, names)
