"""Which part of the user's program an instruction belongs to."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.compiler.hlo.module import Instruction, Module

_PRODUCTS = frozenset({"dot", "convolution", "ragged-dot"})
_LIBRARY_PRODUCTS = ("__cublas$", "__cudnn$conv", "__triton_gemm", "__cutlass")


def part_of(module: Module, instruction: Instruction) -> tuple[str, bool]:
    """(name stack without the operation, whether a product is in it).

    A fusion is where its own metadata say; without any, where the first of the operations inside
    of it that has some is.
    """
    inside = list(_inside(module, instruction))
    name = next((one.op_name for one in inside if one.op_name), "")
    return name.rpartition("/")[0], any(map(_is_product, inside))


def _inside(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    yield instruction
    if instruction.opcode == "fusion":
        for callee in instruction.called("calls"):
            for one in module.computations[callee].instructions:
                yield from _inside(module, one)


def _is_product(instruction: Instruction) -> bool:
    if instruction.opcode in _PRODUCTS:
        return True
    target = instruction.attribute("custom_call_target") or ""
    return target.strip('"').startswith(_LIBRARY_PRODUCTS)
