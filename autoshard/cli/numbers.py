"""`python -m autoshard.cli.numbers PLAN PROGRAM [explicit]`: the numbers of `autoshard verify`.

This is a separate process, because fake devices must be requested before JAX starts.

Prints one line of JSON: `differences` (a message, or empty) and `skipped` (why, or empty). The
environment must request as many CPU devices from XLA as the plan's mesh has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from autoshard.models.find import Found


def main(arguments: Sequence[str]) -> int:
    """Run the step of a plan on fake devices and compare it with the unsharded run."""
    from autoshard.lower.numbers.numeric import differences_message
    from autoshard.lower.verify import verify
    from autoshard.models import find as reference
    from autoshard.plan.plan import Plan

    path, name, *how = arguments
    plan = Plan.load(path)
    found = reference.find(name, machine=plan.machine)
    real = concrete(found, seed=0)
    verdict = verify(plan, found.fn, *found.args, concrete=real, explicit="explicit" in how)
    differences = verdict.differences
    answer = {
        "differences": differences_message(list(differences)) if differences else "",
        "skipped": "" if differences is not None else verdict.skipped,
    }
    print(json.dumps(answer))
    return 0


def concrete(found: Found, *, seed: int) -> Any:
    """Return the arguments of a step as real arrays; abstract ones become random arrays."""
    import jax

    if found.builtin:
        from autoshard import models

        return models.concrete(found.builtin, found.args, seed)
    from autoshard.lower.numbers.keys import keys_like
    from autoshard.models import training

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return keys_like(leaf, seed)
        return None

    known = jax.tree.map(draw, found.args)
    keys = jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct((), "float32")
            if not isinstance(leaf, jax.ShapeDtypeStruct)
            or jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else leaf
        ),
        found.args,
    )
    random = training.sample(keys, seed)
    return jax.tree.map(
        lambda given, drawn: drawn if given is None else given,
        known,
        random,
        is_leaf=lambda leaf: leaf is None,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
