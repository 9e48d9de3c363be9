"""What an instruction does: floating-point operations, and bytes of device memory.

    dot            2 x elements of the result x sizes of the contracted dimensions
    ragged kernel  2 x elements of the result x length of a row
    convolution    2 x elements of the output x elements of the kernel / output features
    fusion         the operations inside of it; what stands between them reaches no memory; the
                   start of one that runs beside others does all of it

Bytes are those of results and operands once each, but of an operand that is only sliced what is cut
from it, and of a buffer that is updated in place what is written. Elements that a transposition
reads out of order are counted besides, see `autoshard.program.dim_order`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from autoshard.compiler.hlo.module import Computation, Instruction, Module
from autoshard.program.dim_order import is_coalesced
from autoshard.program.flops import TRANSCENDENTAL

NOTHING = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "add-dependency",
        "partition-id",
        "replica-id",
        "opt-barrier",
    }
)
"""What takes no time."""

_NO_KERNELS = frozenset({"ConcatBitcast", "AllocateBuffer"})
"""Calls of which XLA:TPU makes no kernel: slices that were copied into the vector memory one beside
the other are one array there, and a buffer is taken that something else fills
(xla/service/memory_space_assignment/memory_space_assignment.h: kConcatBitcastCustomCall)."""

_FUNCTIONS = {"exponential": "exp", "exponential-minus-one": "expm1", "log-plus-one": "log1p"} | {
    "sine": "sin",
    "cosine": "cos",
    "power": "pow",
}
"""JAX's names of HLO's transcendental functions, where they differ."""

_FUSIONS = ("fusion", "fusion-start")
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_NUMBER = re.compile(r"\d+")
_CUBLAS_DIMENSIONS = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
_LIBRARIES = ("__cublas", "__cudnn")
_CONVOLUTION_TARGETS = {
    # Which of (operand 0, operand 1, result) are the kernel and the output.
    "__cudnn$convForward": (1, 2),
    "__cudnn$convBiasActivationForward": (1, 2),
    "__cudnn$convBackwardInput": (1, 0),
    "__cudnn$convBackwardFilter": (2, 1),
}


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of matmuls and convolutions, the dtype that they multiply, and bytes moved.

    `scattered` elements are read one by one; `exponentials` is what transcendental functions are
    worth, see `autoshard.program.flops`.
    """

    flops: float
    dtype: str
    bytes: int
    scattered: int = 0
    exponentials: float = 0.0


def does_nothing(instruction: Instruction) -> bool:
    """Whether an instruction takes no time."""
    if instruction.opcode != "custom-call":
        return instruction.opcode in NOTHING
    return (instruction.attribute("custom_call_target") or "").strip('"') in _NO_KERNELS


def work(module: Module, computation: Computation, instruction: Instruction) -> Work:
    """What `instruction` of `computation` does, with what is fused into it; not loops or calls."""
    if does_nothing(instruction):
        return Work(0.0, "", 0)
    flops, dtype = _flops(module, computation, instruction)
    moved = _bytes(module, computation, instruction)
    scattered = _scattered(module, computation, instruction)
    return Work(flops, dtype, moved, scattered, _exponentials(module, instruction))


def _exponentials(module: Module, instruction: Instruction) -> float:
    if instruction.opcode in _FUSIONS:
        callee = module.computations[instruction.called("calls")[0]]
        return sum(_exponentials(module, inner) for inner in callee.instructions)
    name = _FUNCTIONS.get(instruction.opcode, instruction.opcode)
    if name not in TRANSCENDENTAL:
        return 0.0
    return TRANSCENDENTAL[name] * instruction.arrays[0].elements


def _flops(module: Module, computation: Computation, instruction: Instruction) -> tuple[float, str]:
    if instruction.opcode in _FUSIONS:
        callee = module.computations[instruction.called("calls")[0]]
        found = [_flops(module, callee, inner) for inner in callee.instructions]
        dtype = next((dtype for flops, dtype in found if flops), "")
        return sum(flops for flops, _ in found), dtype
    if instruction.opcode == "dot":
        contracted = instruction.attribute("lhs_contracting_dims") or ""
        return _dot(computation, instruction, contracted)
    if instruction.opcode == "convolution":
        return _convolution(computation, instruction, (1, 2))
    if instruction.opcode == "custom-call":
        target = (instruction.attribute("custom_call_target") or "").strip('"')
        cublas = _CUBLAS_DIMENSIONS.search(instruction.rest)
        if cublas and target.startswith("__cublas"):
            return _dot(computation, instruction, cublas[1])
        if target in _CONVOLUTION_TARGETS:
            return _convolution(computation, instruction, _CONVOLUTION_TARGETS[target])
        if "ragged_dot_tiling=" in instruction.rest:
            return _ragged(computation, instruction)
    return 0.0, ""


def _dot(computation: Computation, instruction: Instruction, contracted: str) -> tuple[float, str]:
    left = computation.by_name[instruction.operands[0]].arrays[0]
    sizes = [left.dimensions[int(number)] for number in _NUMBER.findall(contracted)]
    return 2.0 * instruction.arrays[0].elements * math.prod(sizes), left.dtype


def _ragged(computation: Computation, instruction: Instruction) -> tuple[float, str]:
    """XLA:TPU's kernel of a ragged product: its last operands are rows and matrices."""
    rows, result = computation.by_name[instruction.operands[-2]].arrays[0], instruction.arrays[0]
    return 2.0 * result.elements * rows.dimensions[-1], rows.dtype


def _convolution(
    computation: Computation, instruction: Instruction, roles: tuple[int, int]
) -> tuple[float, str]:
    labels = re.fullmatch(r"\w+_(\w+)->\w+", instruction.attribute("dim_labels") or "")
    if labels is None:
        return 0.0, ""
    left, right = (computation.by_name[name].arrays[0] for name in instruction.operands[:2])
    kernel, output = ((left, right, instruction.arrays[0])[role] for role in roles)
    features = kernel.dimensions[labels[1].index("o")]
    return 2.0 * output.elements * kernel.elements / max(features, 1), left.dtype


def _bytes(module: Module, computation: Computation, instruction: Instruction) -> int:
    if instruction.opcode not in _FUSIONS:
        if instruction.opcode == "dynamic-update-slice":
            return 2 * computation.by_name[instruction.operands[1]].bytes
        if instruction.opcode in _SLICES:
            return 2 * instruction.bytes
        return (
            instruction.bytes
            - _workspace(instruction)
            + sum(computation.by_name[name].bytes for name in dict.fromkeys(instruction.operands))
        )
    callee = module.computations[instruction.called("calls")[0]]
    return _written(callee) + sum(
        _read(callee, number, computation.by_name[name])
        for number, name in enumerate(instruction.operands)
    )


def _workspace(instruction: Instruction) -> int:
    """Bytes of the array behind a library call's results that it has for itself.

    It is as large as the library may ever want (32 MiB), whatever the call writes there.
    """
    target = (instruction.attribute("custom_call_target") or "").strip('"')
    if instruction.opcode != "custom-call" or not target.startswith(_LIBRARIES):
        return 0
    *results, last = instruction.arrays
    return last.bytes if results and last.dtype in ("s8", "u8") else 0


def _is_workspace(callee: Computation, result: Instruction) -> bool:
    """Whether one of a tuple's arrays is what a library has for itself."""
    called = callee.by_name[result.operands[0]]
    own = _workspace(called) > 0
    return own and int(result.attribute("index") or 0) == len(called.arrays) - 1


def _scattered(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Elements that are read out of order, of every large operand of the transposition."""
    if instruction.opcode in _FUSIONS:
        callee = module.computations[instruction.called("calls")[0]]
        operands = [computation.by_name[name] for name in dict.fromkeys(instruction.operands)]
        read = [sum(array.elements for array in operand.arrays) for operand in operands]
        scattered = [
            one.arrays[0].elements
            for one in callee.instructions
            if one.opcode == "transpose" and _jumps(callee, one)
        ]
        if instruction.attribute("kind") == "kCustom":  # Triton loads a tile of each by itself
            return sum(scattered)
        return sum(size * sum(other >= size for other in read) for size in scattered)
    if instruction.opcode == "transpose" and _jumps(computation, instruction):
        return instruction.arrays[0].elements
    return 0


def _jumps(computation: Computation, transpose: Instruction) -> bool:
    operand = computation.by_name[transpose.operands[0]].arrays[0]
    wanted = tuple(map(int, _NUMBER.findall(transpose.attribute("dimensions") or "")))
    large = [d for d in range(len(operand.dimensions)) if operand.dimensions[d] > 1]
    return not is_coalesced(
        operand.dimensions, tuple(large), tuple(d for d in wanted if d in large)
    )


def _read(callee: Computation, number: int, operand: Instruction) -> int:
    parameter = callee.parameter(number)
    if parameter is None:
        return operand.bytes
    return min(_fetched(callee, parameter, operand.bytes), operand.bytes)


def _fetched(callee: Computation, buffer: Instruction, whole: int) -> int:
    """Bytes that are read of a buffer which may be sliced, or updated in place and then sliced.

    What is written to it counts elsewhere, see `_written`.
    """
    total = 0
    for user in callee.users.get(buffer.name, ()):
        first = user.operands[0] == buffer.name
        if first and user.opcode in _SLICES:
            total += user.bytes
        elif first and user.opcode in ("bitcast", "dynamic-update-slice"):
            total += _fetched(callee, user, whole)
        elif user.opcode != "tuple" or not _is_updated(callee, buffer):
            return whole
    return total


def _is_updated(callee: Computation, buffer: Instruction) -> bool:
    """Whether a result of a fusion is its operand, updated in place."""
    while buffer.opcode == "bitcast":
        buffer = callee.by_name[buffer.operands[0]]
    return buffer.opcode == "dynamic-update-slice"


def _written(callee: Computation) -> int:
    root = callee.root
    results = callee.operands(root) if root.opcode == "tuple" else (root,)
    total = 0
    for result in results:
        while result.opcode == "bitcast":
            result = callee.by_name[result.operands[0]]
        if result.opcode == "dynamic-update-slice":
            total += callee.by_name[result.operands[1]].bytes
        elif result.opcode == "get-tuple-element":
            total += result.bytes * (not _is_workspace(callee, result))
        else:
            total += result.bytes - _workspace(result)
    return total
