"""A plan's layouts as those of `keras.distribution.LayoutMap`, by the paths of Keras variables.

    layouts = keras.distribution.LayoutMap(device_mesh)
    for path, axes in keras_layouts(plan, model.trainable_variables).items():
        layouts[path] = axes

A layout of Keras names at most one mesh axis for each dimension
(https://keras.io/api/distribution/layout_map), so a plan that cuts a dimension over two cannot be
said so.
"""

from __future__ import annotations

from typing import Any

import jax

from autoshard.plan.plan import Plan


class KerasLayoutError(ValueError):
    """A plan that Keras cannot say, or variables that it does not know; lists all faults."""


def keras_layouts(plan: Plan, *variables: Any) -> dict[str, tuple[str | None, ...]]:
    """The mesh axes of each dimension of each variable, by its path.

    Args:
      plan: of a step whose arguments hold the variables' arrays.
      *variables: for each argument a pytree of its form, of the Keras variables (each has a `path`
        and a `shape`) whose arrays it holds; None for one that holds none.

    Raises:
      KerasLayoutError: a dimension is cut over several axes, or the plan has no such input.
    """
    specs, found = plan.specs["inputs"], {}
    faults = []
    for where, variable in jax.tree_util.tree_flatten_with_path(variables)[0]:
        path = jax.tree_util.keystr(where)
        if path not in specs:
            faults.append(f"the plan has no input {path}, for {variable.path}")
            continue
        entries = [*specs[path], *(None for _ in variable.shape)][: len(variable.shape)]
        several = [one for one in entries if isinstance(one, tuple) and len(one) > 1]
        if several:
            axes = " and ".join(several[0])
            faults.append(f"{variable.path}: a dimension is cut over {axes}")
            continue
        found[variable.path] = tuple(one[0] if isinstance(one, tuple) else one for one in entries)
    if faults:
        raise KerasLayoutError(
            "\n  - ".join(["Keras cannot lay these out as planned:", *faults])
            + "\na layout of Keras has one mesh axis for a dimension: search with a mesh of one "
            "axis, as --mesh 8"
        )
    return found
