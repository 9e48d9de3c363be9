"""The layouts of a plan's inputs and outputs for programs that know nothing of autoshard.

`shardings` is plain data from which plain JAX makes every `NamedSharding`:

    given = json.load(file)
    mesh = jax.make_mesh(given["mesh"]["axis_sizes"], given["mesh"]["axis_names"])
    spec = PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in entry["spec"]))
    NamedSharding(mesh, spec)

`logical_rules` is the same as YAML in the form of MaxText: names of dimensions, and rules that lay
names on mesh axes.
"""

from __future__ import annotations

import json
import math
from typing import Any

from jax.sharding import PartitionSpec

from autoshard.plan.plan import Plan


def shardings(plan: Plan) -> dict[str, Any]:
    """Plain data: the mesh, and for every input and output its type, layout and local shape.

    Keys: `mesh` (`axis_names`, `axis_sizes`), `inputs` and `outputs`; there by tree path `type` of
    the whole array, `spec` (for every dimension None, an axis or a list of axes) and
    `local_shape`, what one device holds.
    """
    sizes = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    found: dict[str, Any] = {
        "mesh": {"axis_names": list(plan.mesh.names), "axis_sizes": list(plan.mesh.sizes)}
    }
    for side, specs in plan.specs.items():
        found[side] = {}
        for path, spec in specs.items():
            kind = plan.types[side][path]
            axes = entries(spec, len(shape_of(kind)))
            local = [
                size // math.prod(sizes[axis] for axis in here)
                for size, here in zip(shape_of(kind), axes, strict=True)
            ]
            found[side][path] = {
                "type": kind,
                "spec": [None if not a else a[0] if len(a) == 1 else list(a) for a in axes],
                "local_shape": local,
            }
    return found


def logical_rules(plan: Plan) -> str:
    """Logical axis rules as YAML, in the form of MaxText's configuration.

    Dimensions of one size over the same axes have one name, such as `size_4096_over_x_y`, and
    dimensions that are whole have none; so the rules give every input of the plan its layout, in
    whatever order they are read. Rules that were asked for, or found for names of the user's, stand
    first.
    """
    rules: dict[str, list[str]] = {}
    for one in plan.requirements:
        if one["kept"]:
            rules.update({name: list(axes) for name, axes in one.get("rules", {}).items()})
    names: dict[str, list[str | None]] = {}
    for path, spec in plan.specs["inputs"].items():
        shape = shape_of(plan.types["inputs"][path])
        names[path] = []
        for size, axes in zip(shape, entries(spec, len(shape)), strict=True):
            name = f"size_{size}_over_{'_'.join(axes)}" if axes else None
            names[path].append(name)
            if name is not None:
                rules[name] = list(axes)
    lines = [
        *(f"# {line}" for line in f"{plan.program} on {plan.machine}, {plan.mesh}".splitlines()),
        f"mesh_axes: {json.dumps(plan.mesh.names)}",
        f"mesh_shape: {json.dumps(plan.mesh.sizes)}",
        "logical_axis_rules:" if rules else "logical_axis_rules: []",
        *(f"  - {json.dumps([name, axes])}" for name, axes in rules.items()),
        "# of every input by its tree path: the names of its dimensions",
        "logical_axis_names:" if names else "logical_axis_names: {}",
        *(f"  {json.dumps(path)}: {json.dumps(given)}" for path, given in names.items()),
    ]
    return "\n".join(lines) + "\n"


def shape_of(kind: str) -> tuple[int, ...]:
    """The shape in a type such as `f32[4096,128]`."""
    inside = kind.partition("[")[2].rpartition("]")[0]
    return tuple(int(size) for size in inside.split(",") if size.strip())


def entries(spec: PartitionSpec, rank: int) -> list[tuple[str, ...]]:
    """The axes of each of the `rank` dimensions, major first."""
    given: list[Any] = [*spec, *[None] * (rank - len(spec))]
    return [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in given]
