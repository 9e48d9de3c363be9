"""What is known to be wrong about XLA's partitioner, as data: ops that run on parts instead.

A **fault** is one sentence about cuts of which the partitioner (the same for all XLA compilers)
makes something else than was asked:

    wrong     the compiled step computes other numbers
    aborts    the process of the compiler ends
    sends     it moves what a plan does not move, mostly by gathering an operand

Each has a source, the versions with which it was seen, and a probe: a small op cut in such a way.
`autoshard bench habits --compile partitioner` asks the installed version, in a process of its own,
which an abort takes along. Where a fault covers an op, every device runs it on its own part
(`autoshard.lower.local.run_in_parts`), whichever way it is cut: partitioners change, and a plan
must not depend on which of its cuts they can do.

Cuts that cannot be run on parts either are absent: the rules of their ops say so
(`autoshard.program.rules.overrides`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from jax import lax

from autoshard import compat
from autoshard.compat.row_exchange import ROW_EXCHANGE
from autoshard.program.ragged import RAGGED
from autoshard.program.vocabulary import DECOMPOSITIONS, ITERATED

_OF_EACH_PART = frozenset(
    {
        *(RAGGED, ROW_EXCHANGE, *compat.KERNELS, compat.RULED, compat.FFI),
        *("top_k", "approx_top_k", *DECOMPOSITIONS, *ITERATED),
    }
)
Shows = Literal["wrong", "aborts", "sends"]
Spec = tuple[Any, ...]

_CONVOLUTIONS = "xla/service/spmd/convolution_handler.cc"
_SEEN = ("jaxlib 0.10.2", "jaxlib 0.11.2", "jaxlib 0.12.0.1")


@dataclass(frozen=True, slots=True)
class CutOp:
    """An op that shows a fault.

    Attributes:
      op: one op on whole arrays.
      shapes: of its operands, float32.
      mesh: axis sizes by name.
      reads: a `PartitionSpec` as a tuple for every operand.
      writes: likewise of the result.
    """

    op: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    mesh: dict[str, int]
    reads: tuple[Spec, ...]
    writes: Spec


@dataclass(frozen=True, slots=True)
class Fault:
    """One belief about XLA's partitioner.

    Attributes:
      name: as ``partitioner.batch-groups-summed-twice``.
      claim: one sentence.
      source: a file of the public XLA sources, or an issue.
      covers: whether an equation is such an op.
      shows: what comes of its probe.
      probe: an op that shows it.
      seen: versions of jaxlib whose partitioner has it.
    """

    name: str
    claim: str
    source: str
    covers: Callable[[Any], bool]
    shows: Shows
    probe: CutOp
    seen: tuple[str, ...] = _SEEN


def faults_of(equation: Any) -> tuple[Fault, ...]:
    """The faults that cover an equation."""
    return tuple(fault for fault in FAULTS if fault.covers(equation))


def runs_in_parts(equation: Any) -> bool:
    """Whether every device runs the op on its own part, and the partitioner is not asked.

    Ragged products do too: each compiler lowers them in its own way, which no sharding survives.
    So do kernels, into which no partitioner can look, and what is lowered as a loop that tests all
    elements, or the whole batch, each turn. XLA:TPU gathers the batch of other decompositions, and
    XLA:GPU that of a `top_k`, where an axis of the mesh cuts none of it.
    """
    return equation.primitive.name in _OF_EACH_PART or bool(faults_of(equation))


def _has_batch_groups(equation: Any) -> bool:
    return _is_convolution(equation) and equation.params["batch_group_count"] > 1


def _has_feature_groups(equation: Any) -> bool:
    return _is_convolution(equation) and equation.params["feature_group_count"] > 1


def _has_strides(equation: Any) -> bool:
    return _is_convolution(equation) and max(equation.params["window_strides"], default=1) > 1


def _is_convolution(equation: Any) -> bool:
    return equation.primitive.name == "conv_general_dilated"


def _is_fourier_transform(equation: Any) -> bool:
    return equation.primitive.name == "fft"


def _convolution(
    padding: int = 0, dilation: int = 1, *, features: int = 1, batches: int = 1, stride: int = 1
) -> Callable[..., Any]:
    """A convolution over one dimension, with groups perhaps, of [batch, channels, places]."""

    def op(left: Any, right: Any) -> Any:
        return lax.conv_general_dilated(
            left,
            right,
            (stride,),
            [(padding, padding)],
            lhs_dilation=(dilation,),
            feature_group_count=features,
            batch_group_count=batches,
        )

    return op


FAULTS: tuple[Fault, ...] = (
    Fault(
        "partitioner.batch-groups-summed-twice",
        "Where batches are grouped and the contracted channels are cut over some axes of the mesh, "
        "sums are taken over all of its axes: results are too large by the number of replicas.",
        _CONVOLUTIONS,
        _has_batch_groups,
        "wrong",
        CutOp(
            _convolution(2, batches=8),
            ((8, 4, 8), (8, 4, 8)),
            {"x": 2, "y": 2},
            ((None, "x"), (None, "x")),
            (),
        ),
    ),
    Fault(
        "partitioner.batch-groups-cut-twice-abort",
        "Where batches are grouped, the groups are cut over one axis and the channels of each over "
        "another, the partitioner divides by none and ends the process.",
        _CONVOLUTIONS,
        _has_batch_groups,
        "aborts",
        CutOp(
            _convolution(2, batches=2),
            ((8, 4, 8), (16, 4, 8)),
            {"x": 2, "y": 2},
            (("x",), (("x", "y"),)),
            (None, ("x", "y")),
        ),
    ),
    Fault(
        "partitioner.batch-groups-windows-exchanged",
        "Where batches are grouped and places of the result are cut, which every device could make "
        "from what it has, neighbours exchange margins.",
        _CONVOLUTIONS,
        _has_batch_groups,
        "sends",
        CutOp(
            _convolution(2, batches=8),
            ((8, 4, 7), (8, 4, 8)),
            {"x": 2},
            ((), ()),
            (None, None, "x"),
        ),
    ),
    Fault(
        "partitioner.feature-groups-gathered",
        "Where channels are grouped by several and windows have several elements, a batch that is "
        "cut is gathered.",
        "https://github.com/openxla/xla/issues/47945",
        _has_feature_groups,
        "sends",
        CutOp(
            _convolution(features=2),
            ((4, 8, 8), (8, 4, 3)),
            {"x": 2},
            (("x",), ()),
            ("x",),
        ),
    ),
    Fault(
        "partitioner.grouped-gradients-gathered",
        "Where a dilated operand with grouped channels is cut by its places, it is gathered.",
        _CONVOLUTIONS,
        _has_feature_groups,
        "sends",
        CutOp(
            _convolution(1, 2, features=16),
            ((4, 32, 8), (16, 2, 2)),
            {"x": 2},
            ((None, None, "x"), ()),
            (None, None, "x"),
        ),
    ),
    Fault(
        "partitioner.strided-places-wrong",
        "Where windows are strided, and their places are cut over one axis and the channels of the "
        "result over another, the operand is exchanged and partial sums of it are wrong.",
        _CONVOLUTIONS,
        _has_strides,
        "wrong",
        CutOp(
            _convolution(stride=4),
            ((2, 4, 16), (8, 4, 4)),
            {"x": 2, "y": 2},
            ((None, None, "x"), ("y",)),
            (None, "y", "x"),
        ),
    ),
    Fault(
        "partitioner.fourier-transforms-gathered",
        "A batch of Fourier transforms that is cut is gathered.",
        "https://github.com/jax-ml/jax/issues/15680",
        _is_fourier_transform,
        "sends",
        CutOp(lambda x: lax.fft(x, "RFFT", (8,)), ((4, 8),), {"x": 2}, (("x",),), ("x",)),
        seen=("jaxlib 0.10.2", "jaxlib 0.11.2"),
    ),
)
"""All of them, those of one op together."""
