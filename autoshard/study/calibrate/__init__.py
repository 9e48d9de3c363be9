"""Machines fitted to times that were measured or compiled.

    from autoshard import calibrate, load_machine

    table = calibrate.read_table("times.csv")
    found = calibrate.fit(table, load_machine("h100-64"), source="times.csv")
    print(found.report)
    found.machine                            # a Machine, for autoshard.search

`columns` says what a table holds, `fitting` how it is fitted; `machine_toml` writes machine files.
The devices that JAX sees are timed by

    from autoshard.calibrate.measure import measured_rows
    from autoshard.calibrate.timing import Effort

    table = pandas.DataFrame(measured_rows(jax.devices(), Effort(largest_bytes=2**30)))
"""

from __future__ import annotations

from autoshard.study.calibrate.fitting import Fit, fit
from autoshard.study.calibrate.report import Report
from autoshard.study.calibrate.table import TableError, read_table

__all__ = ["Fit", "Report", "TableError", "fit", "read_table"]
