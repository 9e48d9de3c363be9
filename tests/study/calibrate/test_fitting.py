"""Fits: what made a table is found again, and what a table does not tell stays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.study.calibrate import fit
from autoshard.study.calibrate.laws import laws
from autoshard.study.calibrate.parameters import (
    LEAST_LAUNCH_SECONDS,
    from_coordinate,
    parameters,
    to_coordinate,
    value,
    with_values,
)
from autoshard.study.calibrate.report import ParameterReport
from autoshard.study.calibrate.table import rows

START = "h100-64"
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "collective_permute")


def changed(machine: Machine, **values: float) -> Machine:
    """The machine with other values, by the last parts of their names."""
    named = {str(p.name).replace("chip.", ""): p for p in parameters(machine)}
    return with_values(machine, {named[name]: number for name, number in values.items()})


def full_table() -> pd.DataFrame:
    """Rows that tell of every parameter of a machine of 8 x 8 chips."""
    found: list[dict[str, object]] = []
    for size in (64, 128, 512, 1024, 2048, 4096, 8192):
        shape = {"m": size, "n": size, "k": size}
        found.append({"kind": "matmul", **shape, "dtype": "bfloat16", "seconds": 1.0})
    for power in range(12, 33, 4):
        found.append({"kind": "elementwise", "bytes": 2.0**power, "seconds": 1.0})
    found.append({"kind": "launch", "seconds": 1.0})
    for power in range(8, 33, 6):
        for kind in KINDS:
            row = {"kind": "collective", "collective": kind, "bytes": 2.0**power, "seconds": 1.0}
            for size in (2, 8):
                found.append({**row, "group_size": size})
                found.append({**row, "group_size": size, "level": "1"})
            found.append({**row, "mesh": "data=8,model=8", "axes": "data,model"})
    for share in (0.2, 0.5, 1.0):
        found.append({"kind": "step", "compute_seconds": 1.0, "collective_seconds": share})
        found[-1]["exposed_seconds"] = share
    return pd.DataFrame(found)


def timed(table: pd.DataFrame, machine: Machine, noise: float = 0.0, seed: int = 0) -> pd.DataFrame:
    """The table with the times that a machine has, give or take."""
    priced, faults = laws(rows(table), machine)
    assert faults == []
    dice = np.random.default_rng(seed)
    seconds = priced.seconds(machine) * np.exp(noise * dice.normal(size=len(table)))
    table = table.copy()
    steps = table["kind"] == "step"
    table.loc[~steps, "seconds"] = seconds[~steps]
    if steps.any():
        exposed = (seconds - table["compute_seconds"])[steps]
        table.loc[steps, "exposed_seconds"] = exposed.clip(0, table["collective_seconds"][steps])
    return table


def entries(report) -> dict[str, ParameterReport]:
    return {entry.name: entry for entry in report.parameters}


FRACTIONS = st.floats(0.2, 1.0)
LATENCIES = st.floats(2e-6, 2e-5)  # none drowns in the others


@settings(max_examples=30)
@given(
    *(FRACTIONS, FRACTIONS, LATENCIES),
    *(FRACTIONS, LATENCIES, LATENCIES),
    *(FRACTIONS, LATENCIES, LATENCIES),
    st.floats(0, 1),
)
def test_the_machine_that_made_a_table_is_found(
    matmul, memory, launch, e0, l0, s0, e1, l1, s1, overlap
):
    truth = changed(
        load(START),
        matmul_efficiency=matmul,
        memory_efficiency=memory,
        launch_seconds=launch,
        overlap=overlap,
        **{
            "network[0].efficiency": e0,
            "network[0].latency_seconds": l0,
            "network[0].start_seconds": s0,
            "network[1].efficiency": e1 / 4,
            "network[1].latency_seconds": l1,
            "network[1].start_seconds": s1,
        },
    )
    found = fit(timed(full_table(), truth), load(START))
    for parameter in parameters(truth):
        expected = value(truth, parameter)
        scale = 1e-6 if parameter.kind == "seconds" else 1.0
        assert value(found.machine, parameter) == pytest.approx(
            expected, rel=0.02, abs=0.02 * scale
        ), parameter
    assert all(entry.fitted for entry in found.report.parameters)


def test_noise_and_outliers_do_little():
    truth = changed(
        load(START), matmul_efficiency=0.5, launch_seconds=5e-6, overlap=0.3, memory_efficiency=0.7
    )
    table = timed(full_table(), truth, noise=0.05)
    wrong = table.index[table["kind"] == "matmul"][-1]
    table.loc[wrong, "seconds"] *= 20
    found = fit(table, load(START)).machine
    for parameter in parameters(truth):
        slack = 0.15 if parameter.kind == "overlap" else 0.0  # three rows of 5 % noise tell it
        here, expected = value(found, parameter), value(truth, parameter)
        assert here == pytest.approx(expected, rel=0.2, abs=slack), parameter


def test_parameters_without_rows_stay_and_the_report_says_so():
    table = full_table()
    machine = load(START)
    truth = changed(machine, matmul_efficiency=0.5, launch_seconds=4e-6)
    large = table[(table["kind"] == "matmul") & (table["m"] >= 4096)]
    found = fit(timed(large, truth), machine)
    expected = changed(machine, matmul_efficiency=value(found.machine, parameters(machine)[0]))
    assert found.machine == expected
    assert found.machine.chip.matmul_efficiency == pytest.approx(0.5, rel=0.05)
    told = entries(found.report)
    assert told["chip.launch_seconds"].note == "stays: its rows do not determine it"
    assert told["chip.memory_efficiency"].note.startswith("stays: ")
    assert told["network[0].efficiency"].note == "stays: no row tells of it"
    assert told["network[0].efficiency"].rows == 0
    assert told["overlap"].note == "stays: no row tells of it"
    assert not told["overlap"].fitted
    assert told["chip.matmul_efficiency"].rows == 2
    assert told["chip.matmul_efficiency"].errors_after.median < 0.01
    assert told["chip.matmul_efficiency"].errors_before.median > 0.3


def test_collectives_and_steps_leave_the_chip_alone():
    table = full_table()
    machine = load(START)
    truth = changed(machine, **{"network[0].latency_seconds": 9e-6, "overlap": 0.2})
    chosen = table[table["kind"].isin(["collective", "step"])]
    found = fit(timed(chosen, truth), machine, source="timelines")
    assert found.machine.chip == machine.chip
    assert found.machine.overlap == pytest.approx(0.2)
    assert found.machine.network[0].latency_seconds == pytest.approx(9e-6, rel=0.01)
    assert found.machine.sources[:-1] == machine.sources
    assert found.machine.sources[-1] == (
        "timelines: network[0].efficiency, network[0].latency_seconds, network[0].start_seconds, "
        "network[1].efficiency, network[1].latency_seconds, overlap fitted to it"
    )


def test_bounds_hold_and_are_named():
    machine = load("h100-8")
    fast = [
        {"kind": "matmul", "m": size, "n": size, "k": size, "dtype": "bfloat16", "seconds": seconds}
        for size, seconds in ((4096, 5e-5), (8192, 4e-4))
    ]
    found = fit(pd.DataFrame([*fast, {"kind": "launch", "seconds": 1e-12}]), machine)
    assert found.machine.chip.matmul_efficiency == 1.0
    assert found.machine.chip.launch_seconds == LEAST_LAUNCH_SECONDS
    notes = {name: entry.note for name, entry in entries(found.report).items()}
    assert notes["chip.matmul_efficiency"] == (
        "at its bound: the rows are faster than the peak in the machine file"
    )
    assert notes["chip.launch_seconds"] == "at its bound: no row shows any"


def test_the_same_table_in_another_order_gives_the_same_fit():
    table = timed(full_table(), changed(load(START), matmul_efficiency=0.4), noise=0.1)
    first = fit(table, load(START)).machine
    second = fit(table.sample(frac=1, random_state=1), load(START)).machine
    for parameter in parameters(first):
        assert value(first, parameter) == pytest.approx(value(second, parameter), rel=2e-3)


def test_the_table_and_the_machine_are_left_as_they_are():
    table, machine = timed(full_table(), load(START)), load(START)
    before = table.copy(deep=True), dataclasses.replace(machine)
    fit(table, machine)
    pd.testing.assert_frame_equal(table, before[0])
    assert machine == before[1]


def test_a_torus_has_hops():
    machine = load("v5p-64")
    table = pd.DataFrame(
        [
            {"kind": "collective", "collective": kind, "mesh": "x=4,y=16", "axes": axes,
             "bytes": 2.0**power, "seconds": 1.0}
            for kind in KINDS for axes in ("x", "y", "x,y") for power in (10, 20, 30)
        ]
    )  # fmt: skip
    truth = changed(machine, **{"network[0].efficiency": 0.6, "network[0].hop_seconds": 3e-6})
    found = fit(timed(table, truth), machine).machine
    assert found.network == truth.network


def test_the_report_as_text_frame_and_data():
    table = timed(full_table(), changed(load(START), matmul_efficiency=0.5))
    report = fit(table, load(START)).report
    lines = str(report).split("\n")
    assert lines[0].split() == ["parameter", "before", "after", "rows", "error", "before", "after"]
    assert lines[1].split()[:3] == ["chip.matmul_efficiency", "0.75", "0.5"]
    assert lines[-1] == "errors: median / 90th percentile of |predicted / measured - 1|"
    assert all(line == line.rstrip() for line in lines)
    frame = report.to_frame()
    assert frame["name"].tolist() == [p.name for p in parameters(load(START))]
    assert {"before", "after", "rows", "median_error_before", "percentile90_error_after"} <= set(
        frame
    )
    kinds = {entry["kind"]: entry["rows"] for entry in report.to_json()["kinds"]}
    assert kinds == dict(table["kind"].value_counts())


@given(st.floats(1e-3, 1.0), st.floats(1e-9, 1.0), st.floats(1e-7, 1e-2))
def test_coordinates_are_undone(fraction, seconds, scale):
    for parameter in parameters(load(START)):
        number = seconds if parameter.kind == "seconds" else fraction
        there = to_coordinate(parameter, number, scale)
        assert from_coordinate(parameter, there, scale) == pytest.approx(number, rel=1e-12)
