"""Tables of times: every kind of row, both forms of file, every fault with its row and column."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from autoshard.cost.collective import MeshTopology
from autoshard.cost.roofline import op_seconds
from autoshard.machine.load import load
from autoshard.study.calibrate import TableError, fit, read_table
from autoshard.study.calibrate.columns import COLUMNS, ROW_KINDS
from autoshard.study.calibrate.laws import laws
from autoshard.study.calibrate.table import rows

GOOD = [
    {"kind": "matmul", "m": 64, "n": 32, "k": 16, "dtype": "bfloat16", "seconds": 1e-5},
    {"kind": "matmul", "m": 64, "n": 32, "k": 16, "dtype": "float32", "batch": 4, "seconds": 1e-5},
    {"kind": "compute", "flops": 1e12, "bytes": 8, "dtype": "int8", "unit": "matrix", "seconds": 1},
    {"kind": "elementwise", "bytes": 1e6, "seconds": 1e-5},
    {"kind": "memory", "bytes": 1e6, "seconds": 1e-5},
    {"kind": "launch", "seconds": 1e-6},
    {
        "kind": "attention",
        "batch": 2,
        "heads": 4,
        "queries": 128,
        "keys": 256,
        "head_dim": 64,
        "dtype": "float16",
        "seconds": 1e-4,
    },
    {"kind": "collective", "collective": "all_gather", "group_size": 8, "bytes": 1, "seconds": 1},
    {
        "kind": "collective",
        "collective": "all_reduce",
        "group_size": 4,
        "level": "InfiniBand",
        "bytes": 1e6,
        "seconds": 1,
    },
    {
        "kind": "collective",
        "collective": "all_to_all",
        "mesh": "data=8,model=8",
        "axes": "data",
        "bytes": 1e6,
        "seconds": 1,
    },
    {
        "kind": "step",
        "compute_seconds": 1,
        "collective_seconds": 0.5,
        "exposed_seconds": 0.25,
        "hideable_seconds": 0.4,
    },
]


def test_every_kind_of_row_costs_what_the_laws_say():
    machine = load("h100-64")
    chip, topology = machine.chip, MeshTopology(machine, (8, 8))
    priced, faults = laws(rows(pd.DataFrame(GOOD)), machine)
    assert faults == []
    hosts = MeshTopology(machine, (2, 4, 8))
    scores = op_seconds(chip, 0.0, 2 * 2 * 2 * 4 * 128 * 256, unit="vector")
    attention = scores + sum(
        op_seconds(chip, 2.0 * 8 * 128 * 256 * 64, size, "float16")
        for size in [2 * 8 * (128 * 64 + 64 * 256 + 128 * 256)] * 2
    )
    expected = [
        op_seconds(chip, 2.0 * 64 * 32 * 16, 2 * (64 * 16 + 16 * 32 + 64 * 32)),
        op_seconds(chip, 8.0 * 64 * 32 * 16, 16 * (64 * 16 + 16 * 32 + 64 * 32), "float32"),
        op_seconds(chip, 1e12, 8, "int8"),
        op_seconds(chip, 0.0, 1e6, unit="vector"),
        op_seconds(chip, 0.0, 1e6, unit="vector"),
        chip.launch_seconds,
        attention,
        topology.collective_seconds("all_gather", (1,), 1.0),
        hosts.collective_seconds("all_reduce", (1,), 1e6),
        topology.collective_seconds("all_to_all", (0,), 1e6),
        1.5 - machine.overlap * 0.4,
    ]
    assert priced.seconds(machine) == pytest.approx(expected, rel=1e-12)
    assert {row["kind"] for row in GOOD} == set(ROW_KINDS)


def test_a_file_reads_as_the_frame_in_both_forms(tmp_path):
    frame = pd.DataFrame(GOOD)
    frame.to_csv(tmp_path / "times.csv", index=False)
    (tmp_path / "times.jsonl").write_text("\n".join(map(json.dumps, GOOD)) + "\n\n")
    expected = [(row.kind, dict(row.cells)) for row in rows(frame)]
    for name in ("times.csv", "times.jsonl"):
        found = rows(read_table(tmp_path / name))
        assert [(row.kind, dict(row.cells)) for row in found] == expected
    assert found[1].where == "line 2"
    assert rows(read_table(tmp_path / "times.csv"))[1].where == "line 3"


def test_meshes_may_be_given_as_data():
    row = {**GOOD[9], "mesh": {"data": np.int64(8), "model": 8}, "axes": ["data"]}
    assert rows(pd.DataFrame([row])) == rows(pd.DataFrame([GOOD[9]]))


def test_every_fault_is_named_at_once():
    faulty = [
        {"kind": "matmul", "m": 0, "n": 2.5, "k": "x", "dtype": "bf17", "seconds": -1},
        {"kind": "matmull", "m": 1},
        {"kind": "elementwise", "bytes": float("inf"), "seconds": 1, "m": 3},
        {"kind": "launch"},
        {"kind": "collective", "collective": "gather", "bytes": 1, "seconds": 1, "group_size": 2},
        {"kind": "collective", "collective": "all_gather", "bytes": 1, "seconds": 1},
        {**GOOD[9], "group_size": 2},
        {**GOOD[9], "axes": None},
        {**GOOD[9], "axes": "expert"},
        {**GOOD[9], "mesh": "data8"},
        {"kind": "step", "compute_seconds": 1, "collective_seconds": 1, "exposed_seconds": 2},
        {"kind": "step", "compute_seconds": 0, "collective_seconds": 1, "exposed_seconds": 0},
        {"kind": "memory", "bytes": 0, "seconds": 1},
        {"kind": "launch", "seconds": "1e-320"},
    ]
    with pytest.raises(TableError) as caught:
        fit(pd.DataFrame(faulty, dtype=object), load("h100-64"))
    assert str(caught.value) == (
        "the table has 19 faults:\n"
        "  * row 0, column m: 0; write a whole number from 1 on\n"
        "  * row 0, column n: 2.5; write a whole number from 1 on\n"
        "  * row 0, column k: 'x'; write a whole number from 1 on\n"
        "  * row 0, column dtype: 'bf17'; write a dtype such as bfloat16 or float32\n"
        "  * row 0, column seconds: -1; write seconds, 1e-12 or more\n"
        "  * row 1, column kind: 'matmull' is not a kind of row; did you mean matmul?\n"
        "  * row 2, column m: elementwise rows have none; leave it empty\n"
        "  * row 2, column bytes: inf; write a number from 0 on\n"
        "  * row 3, column seconds is empty; write seconds, 1e-12 or more\n"
        "  * row 4, column collective: 'gather'; write one of all_gather, reduce_scatter, "
        "all_reduce, all_to_all, collective_permute, all_slice\n"
        "  * row 5, column group_size is empty; give it, or mesh and axes\n"
        "  * row 6, columns mesh and group_size: give the mesh and axes, or the group, not both\n"
        "  * row 7, column axes is empty; write names of mesh axes such as data or data,model\n"
        "  * row 8, column axes: no axis expert in the mesh of data, model\n"
        "  * row 9, column mesh: 'data8'; write axes and sizes such as data=8,model=8\n"
        "  * row 10, column exposed_seconds: 2 is more than the 1 of collective_seconds\n"
        "  * row 11, columns compute_seconds and exposed_seconds: a step takes some time\n"
        "  * row 12, column bytes: 0; a row that moves nothing is of kind launch\n"
        "  * row 13, column seconds: '1e-320'; write seconds, 1e-12 or more"
    )


@pytest.mark.parametrize("dtype", ["9" * 5000, "[[[[", "f4+i4", "float32(", "V8"])
def test_a_dtype_is_a_name(dtype):
    with pytest.raises(TableError, match="write a dtype such as bfloat16 or float32"):
        rows(pd.DataFrame([{**GOOD[0], "dtype": dtype}]))


def test_groups_that_the_machine_does_not_have_are_named():
    gather = {"kind": "collective", "collective": "all_gather", "bytes": 1, "seconds": 1}
    faulty = [
        {**gather, "group_size": 3},
        {**gather, "group_size": 1},
        {**gather, "group_size": 16, "level": "NVLink"},
        {**gather, "group_size": 8, "level": "ICI"},
        {**gather, "group_size": 8, "level": "2"},
        {**gather, "mesh": "data=4", "axes": "data"},
        {**gather, "mesh": "data=64 one=1", "axes": "one"},
    ]
    with pytest.raises(TableError) as caught:
        fit(pd.DataFrame(faulty), load("h100-64"))
    assert str(caught.value) == (
        "the table has 7 faults:\n"
        "  * row 0, column group_size: 3 does not divide the 64 of h100-64\n"
        "  * row 1, column group_size: a group of one device moves nothing; leave the row out\n"
        "  * row 2, column group_size: 16 does not divide the 8 of level NVLink of h100-64\n"
        "  * row 3, column level: h100-64 has no 'ICI'; it has NVLink or 0, InfiniBand or 1\n"
        "  * row 4, column level: h100-64 has no '2'; it has NVLink or 0, InfiniBand or 1\n"
        "  * row 5, column mesh: it has 4 devices, h100-64 has 64; give a mesh over all of them, "
        "or group_size\n"
        "  * row 6, column axes: a group of one device moves nothing; leave the row out"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a table: it is empty; give CSV, or JSON lines"),
        ("kind,seconds\n", "has no rows"),
        ("kind,secs\nlaunch,1\n", "column secs is not known; did you mean seconds?"),
        ("kin,seconds\nlaunch,1\n", "column kind is missing"),
        ("kind,seconds\nlaunch,1,2\n", "its heading has 2 cells, and line 2 has 3"),
        ("kind,seconds\nlaunch,1\nlaunch,1,2,3\n", "has 2 cells, and line 3 has 4"),
        ('kind,seconds\nlaunch,"1\n', "line 2 begins does not end as it should"),
        ("kind,seconds\nlaunch,one\n", "line 2, column seconds: 'one'"),
        (
            '{"kind": "launch", "seconds": 1}\n{"kind"\n[1]',
            "'line 2' is damaged: no JSON at line 1, column 8",
        ),
        ('{"kind": "launch", "seconds": 1}\n[1]', "line 2 is not an object"),
        ('{"kind": "launch", "seconds": true}', "line 1, column seconds: True"),
    ],
)
def test_damaged_files(tmp_path, text, complaint):
    path = tmp_path / "times"
    path.write_text(text)
    with pytest.raises(TableError) as caught:
        fit(read_table(path), load("h100-8"))
    assert complaint in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TableError, match=r"cannot read the table .*: No such file"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="it is not text"):
        read_table(tmp_path / "binary")


def test_every_column_is_used_and_explained():
    used = {name for kind in ROW_KINDS.values() for name in (*kind.required, *kind.optional)}
    assert used == set(COLUMNS)
    import autoshard.study.calibrate.columns as module

    assert module.__doc__ is not None
    for name in (*ROW_KINDS, *COLUMNS):
        assert name in module.__doc__, name
    assert Path(module.__file__).name == "columns.py"
