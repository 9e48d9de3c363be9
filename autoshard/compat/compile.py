"""Modules as bytes, and their compilation by a compiler without its devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def module_bytecode(lowered: Any) -> bytes:
    """The StableHLO module of a `jax.stages.Lowered` as MLIR bytecode, source lines included."""
    import io

    buffer = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(buffer)
    return buffer.getvalue()


def stablehlo_of_hlo(proto: bytes, donated: Sequence[int]) -> Any:
    """The StableHLO module of a serialized `HloModuleProto`, its shardings included.

    The compiler moves what a loop does not change out of its carry and then has a sharding too many
    for it; so those of loops are laid on the values that enter the carry.

    Args:
      proto: of a module that is sharded by GSPMD's annotations.
      donated: positions of arguments whose memory results may take.
    """
    import importlib

    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    xla: Any = importlib.import_module("jaxlib._jax")

    def pin(operation: Any, shardings: Sequence[str]) -> None:
        for position, text in enumerate(shardings):
            value = operation.operands[position]
            with ir.InsertionPoint(operation), ir.Location.unknown():
                pinned: Any = stablehlo.CustomCallOp([value.type], [value], "Sharding")
            pinned.operation.attributes["mhlo.sharding"] = ir.StringAttr.get(text)
            operation.operands[position] = pinned.result

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.while" and "mhlo.sharding" in operation.attributes:
            text = ir.StringAttr(operation.attributes["mhlo.sharding"]).value
            del operation.attributes["mhlo.sharding"]
            shardings = re.findall(r"\{[^{}]*\}", text)
            pin(operation, shardings)
            body = operation.regions[1].blocks[0]
            pin(body.operations[len(body.operations) - 1].operation, shardings)
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context():
        module = ir.Module.parse(xla.mlir.hlo_to_stablehlo(proto))
        module.operation.walk(visit)
        operations: Any = module.body.operations
        (entry,) = (one for one in operations if ir.StringAttr(one.name).value == "main")
        attributes = [{named.name: named.attr for named in one} for one in entry.arg_attrs]
        for position in donated:
            attributes[position]["jax.buffer_donor"] = ir.BoolAttr.get(True)
        entry.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes])
    return module


def compile_bytecode(
    bytecode: bytes, devices: Sequence[Any], options: dict[str, Any], *, deviceless: bool
) -> tuple[str, dict[str, int]]:
    """(scheduled HLO text, memory in bytes per device) of a partitioned module, compiled.

    Args:
      bytecode: of a module whose inputs and outputs all carry shardings.
      devices: of its mesh in row-major order.
      options: of the compiler.
      deviceless: whether the devices are those of a topology, onto which nothing can be loaded.
    """
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    grid = np.empty((1, len(devices)), dtype=object)
    grid[0, :] = devices
    client: Any = devices[0].client
    compile_options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=grid,
        env_options_overrides=options,
        detailed_logging=False,
        backend=client,
    )
    with mlir.make_ir_context():
        module = ir.Module.parse(bytecode)
        where = xla_client.DeviceList(tuple(devices))
        compile_it = client.compile if deviceless else client.compile_and_load
        executable = compile_it(module, executable_devices=where, compile_options=compile_options)
    stats = executable.get_compiled_memory_stats()
    memory = {
        name: int(getattr(stats, f"{name}_in_bytes"))
        for name in (
            "argument_size",
            "output_size",
            "alias_size",
            "temp_size",
            "generated_code_size",
            "peak_memory",
            "host_argument_size",
            "host_output_size",
            "host_alias_size",
            "host_temp_size",
        )
    }
    return executable.hlo_modules()[0].to_string(), memory
