"""`python -m autoshard.cli.meshes.numbers PLAN PROGRAM [TRACE]`: the step of a plan on many meshes.

This is a separate process, because fake devices must be requested before JAX starts.

Prints one line of JSON: `differences` (a message, or empty), `skipped` (why, or empty), and
`recording` (what ran, as text). Writes what ran as a trace to TRACE.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the step of a plan on fake devices and compare it with the step on one device."""
    from autoshard.cli.meshes.verify import step_of
    from autoshard.cli.numbers import concrete
    from autoshard.lower.numbers.double import NotWidenedError
    from autoshard.lower.numbers.numeric import differences_message
    from autoshard.search.meshes.plan import PipelinePlan
    from autoshard.search.meshes.verify import numeric_differences

    path, name, *trace = arguments
    plan = PipelinePlan.load(path)
    found = step_of(plan, name)
    try:
        differences, recording = numeric_differences(
            plan,
            found.fn,
            concrete(found, seed=0),
            donate_argnums=found.options.get("donate_argnums", ()),
        )
    except NotWidenedError as error:
        print(json.dumps({"differences": "", "skipped": str(error), "recording": ""}))
        return 0
    for file in trace:
        recording.laid_out().save(file)
    answer = {
        "differences": differences_message(differences) if differences else "",
        "skipped": "",
        "recording": str(recording),
    }
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
