"""Ask XLA's own auto-sharder for a plan: runs in the environment of `asked.py`.

`python child.py FOLDER`, with JAX 0.5.3. FOLDER/question.json holds

    program, layers, sizes   a built-in, as `autoshard bench plans` names it
    mesh                     axes and their sizes, major to minor
    topology, devices        what `get_topology_desc` is given; the device at every mesh position

and the answer is FOLDER/plan.json, with XLA's sharding of every input and output by tree path, and
FOLDER/module.hlo.pb, the module in which every instruction carries the sharding that was chosen.

The pass runs early in the TPU compiler. Its result is taken from the compiler's dump as soon as it
is there: what XLA:TPU would then do with the plan takes minutes and is of no interest, and it may
refuse a plan that a chip with more memory can hold.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DUMP = "*.after_auto_spmd_sharding.txt"
POLL_SECONDS = 0.5


def main(folder: Path) -> None:
    """Answer the question in the folder."""
    question = json.loads((folder / "question.json").read_text())
    step = _step(question)
    lowered, paths = _lower(step, question)
    dumps, failed = folder / "dumps", []

    def compile_it() -> None:
        try:
            options = {"xla_dump_to": str(dumps), "xla_dump_hlo_pass_re": "tpu_auto_sharding"}
            lowered.compile(compiler_options=options)
        except BaseException as error:
            failed.append(f"{type(error).__name__}: {error}".splitlines()[0])

    start = time.monotonic()
    thread = threading.Thread(target=compile_it, daemon=True)
    thread.start()
    module = None
    while module is None:
        ended = not thread.is_alive()
        module = _module(dumps)
        if module is None and ended:
            raise SystemExit(failed[0] if failed else "the compiler ran no auto-sharder")
        thread.join(POLL_SECONDS)
    proto = module.as_serialized_hlo_module_proto()
    inputs, outputs = _shardings(proto)
    answer = {
        "inputs": dict(zip(paths[0], inputs, strict=True)),
        "outputs": dict(zip(paths[1], outputs, strict=True)),
        "seconds": time.monotonic() - start,
    }
    (folder / "module.hlo.pb").write_bytes(proto)
    (folder / "plan.json").write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # the compile is still going on


def _step(question: Mapping[str, Any]) -> Any:
    """The built-in, with what it needs of later JAX."""
    from autoshard import models
    from autoshard.models import training

    training.look_up = _look_up
    sizes = dict(zip(("batch", "sequence"), question["sizes"], strict=False))
    layers = {} if question["layers"] is None else {"layers": question["layers"]}
    return models.build(question["program"], **sizes, **layers)


def _look_up(table: Any, indices: Any) -> Any:
    """The same gather as `training.look_up`, which asks for it with words that came later."""
    from jax import lax

    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(indices.ndim, indices.ndim + table.ndim - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    slices = (1, *table.shape[1:])
    return lax.gather(table, indices[..., None], numbers, slices, mode="promise_in_bounds")


def _lower(step: Any, question: Mapping[str, Any]) -> tuple[Any, tuple[list[str], list[str]]]:
    """The step with all shardings left open; tree paths of its arguments and results."""
    import jax
    import numpy as np
    from jax._src.named_sharding import AUTO
    from jax.experimental import topologies
    from jax.sharding import Mesh

    there = topologies.get_topology_desc(**question["topology"]).devices
    by_name = {(getattr(d, "slice_index", None) or 0, *d.coords, d.core_on_chip): d for d in there}
    chosen = [by_name[tuple(name)] for name in question["devices"]]
    grid = np.array(chosen, dtype=object).reshape(tuple(question["mesh"].values()))
    auto = AUTO(Mesh(grid, tuple(question["mesh"])))
    lowered = jax.jit(
        step.fn, in_shardings=auto, out_shardings=auto, keep_unused=True, **step.options
    ).lower(*step.args)

    def paths(tree: Any) -> list[str]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return [jax.tree_util.keystr(path) for path, _ in leaves]

    return lowered, (paths(step.args), paths(jax.eval_shape(step.fn, *step.args)))


def _module(dumps: Path) -> Any | None:
    """The module after the pass; None while it is not there or not written to its end."""
    from jaxlib import xla_client

    for place in dumps.glob(DUMP):
        try:
            return xla_client._xla.hlo_module_from_text(place.read_text())
        except Exception:
            return None
    return None


def _shardings(proto: bytes) -> tuple[list[str], list[str]]:
    """Those of the module's inputs and outputs, as XLA writes them."""
    from jax._src.interpreters import mlir
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    text = xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(proto))
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        (entry,) = (op for op in module.body.operations if ir.StringAttr(op.name).value == "main")
        return tuple(
            [ir.StringAttr(one["mhlo.sharding"]).value for one in attributes]
            for attributes in (entry.arg_attrs, entry.result_attrs)
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
