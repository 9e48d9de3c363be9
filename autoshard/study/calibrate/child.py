"""`python -m autoshard.study.calibrate.child OPTIONS`: times on the devices that are there.

A process of its own, because the command line keeps its hands off accelerators.

`OPTIONS` is a JSON object with `largest_bytes` (or null), `runs`, `kinds` and `dtypes`. Prints one
line of JSON for the devices (the fields of `autoshard.study.calibrate.device.Devices`) and then one
for each row of the table, or `{"warning": ...}` for one that could not be measured.
"""

from __future__ import annotations

import datetime
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

PART_OF_MEMORY = 1 / 32
"""Largest array, of a device's memory: a dozen are alive at once."""


def main(arguments: Sequence[str]) -> int:
    """Measure, and print."""
    from autoshard.study.calibrate.device import devices_here
    from autoshard.study.calibrate.measure import measured_rows
    from autoshard.study.calibrate.timing import Effort

    options = json.loads(arguments[0])
    devices, found = devices_here()
    print(json.dumps(asdict(devices)), flush=True)
    largest = options["largest_bytes"] or devices.memory_bytes * PART_OF_MEMORY
    effort = Effort(largest_bytes=largest, runs=options["runs"])
    beside = {"date": datetime.date.today().isoformat(), "device": devices.kind}
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", UserWarning)
    for row in measured_rows(found, effort, kinds=options["kinds"], dtypes=options["dtypes"]):
        print(json.dumps({**row, **beside}), flush=True)
    return 0


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(json.dumps({"warning": str(message)}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
