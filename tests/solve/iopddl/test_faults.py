"""Contest files that are damaged or make no sense: every fault, with its values and the repair."""

from __future__ import annotations

import gzip
import json
import math

import pytest

from autoshard.solve import ProblemError, iopddl
from tests.solve.iopddl.test_iopddl import DATA, changed

HEADLINE = "the data is not a choice problem in the contest's format:\n"
FAULTS = {
    "an edge of the wrong size": (
        {"edges_costs": [[0], [1] * 6, [0] * 8]},
        "  - edge 0-1 (edges.nodes[0]): 1 cost for 3 x 2 choices; give 6, row by row\n"
        "  - edge 0-0 (edges.nodes[2]): 8 costs for 3 x 3 choices; give 9, row by row",
    ),
    "edges to nodes that are not there": (
        {"edges_nodes": [[0, 3], [-1, 1], [0, 0]]},
        "  - edge 0-3 (edges.nodes[0]) joins a node that is not there; the file has nodes 0 to 2\n"
        "  - edge -1-1 (edges.nodes[1]) joins a node that is not there; the file has nodes 0 to 2",
    ),
    "costs without a meaning": (
        {
            "nodes_costs": [[5, math.nan, 1], [0, -math.inf], [7]],
            "edges_costs": [[0, 0, 0, math.nan, 0, 0], [-math.inf] * 6, [0] * 9],
        },
        "  - node 0: choice 1 costs nan; give finite costs, or at least 1e18 to forbid a choice\n"
        "  - node 1: choice 1 costs -inf; give finite costs, or at least 1e18 to forbid a choice\n"
        "  - edge 0-1 (edges.nodes[0]): entry 3 costs nan; give finite costs, or at least 1e18 to "
        "forbid a pair\n"
        "  - edge 0-1 (edges.nodes[1]): entry 0 costs -inf, entry 1 costs -inf, entry 2 costs -inf "
        "and 3 more; give finite costs, or at least 1e18 to forbid a pair",
    ),
    "usages without a meaning": (
        {"nodes_usages": [[3, -1, math.nan], [math.inf, 1], [100]]},
        "  - node 0: choice 1 uses -1, choice 2 uses nan; give finite usages of 0 or more\n"
        "  - node 1: choice 0 uses inf; give finite usages of 0 or more",
    ),
    "intervals": (
        {"nodes_intervals": [[3, 2], [-1, 3], [0, 0]]},
        "  - node 0 has the interval [3, 2); give 0 <= start <= stop (both 0 for never)\n"
        "  - node 1 has the interval [-1, 3); give 0 <= start <= stop (both 0 for never)",
    ),
    "ragged nodes": (
        {"nodes_costs": [[5, 1], [0, 2], []], "edges_nodes": [], "edges_costs": []},
        "  - node 2 has no choices; give at least one cost\n"
        "  - node 0 has 2 costs but 3 usages; give one of each per choice\n"
        "  - node 2 has 0 costs but 1 usage; give one of each per choice",
    ),
    "a negative limit": (
        {"usage_limit": -1},
        "  - usage_limit is -1; give 0 or more, or leave it out for no limit",
    ),
    "a limit that is not a number": (
        {"usage_limit": math.nan},
        "  - usage_limit is nan; give 0 or more, or leave it out for no limit",
    ),
    "lists of different lengths": (
        {"nodes_costs": [[5, 1, 1], [0, 2]], "edges_costs": []},
        "  - lists of different lengths: nodes.costs 2, nodes.usages 3, nodes.intervals 3; give "
        "one entry per node\n"
        "  - lists of different lengths: edges.nodes 3, edges.costs 0; give one entry per edge",
    ),
    "missing lists": (
        {"nodes": {"costs": [[1]], "usages": "none"}, "edges": {}},
        "  - nodes.intervals is missing; give a list with one entry per node\n"
        "  - nodes.usages is 'none'; give a list with one entry per node\n"
        "  - edges.nodes is missing; give a list with one entry per edge\n"
        "  - edges.costs is missing; give a list with one entry per edge",
    ),
    "other types": (
        {
            "name": 3,
            "usage_limit": True,
            "edges": [],
        },
        "  - edges is []; give an object of lists, empty ones for no edges\n"
        "  - name is 3; give a string\n"
        "  - usage_limit is True; give a number, or leave it out for no limit",
    ),
    "rows that are none": (
        {
            "nodes_costs": [5, [True, "2"], [None]],
            "nodes_intervals": [[0], [0.5, 1], ["0", 2]],
            "edges_nodes": [[0, 1, 2], None, [0, 2**70]],
        },
        "  - nodes.costs[0] is 5; give a list of numbers\n"
        "  - nodes.costs[1][0] is True; give a number\n"
        "  - nodes.costs[1][1] is '2'; give a number\n"
        "  - nodes.costs[2][0] is null; give a number\n"
        "  - nodes.intervals[0] is [0]; give [start, stop] as whole numbers\n"
        "  - nodes.intervals[1] is [0.5, 1]; give [start, stop] as whole numbers\n"
        "  - nodes.intervals[2] is ['0', 2]; give [start, stop] as whole numbers\n"
        "  - edges.nodes[0] is [0, 1, 2]; give the numbers of two nodes as whole numbers\n"
        "  - edges.nodes[1] is null; give the numbers of two nodes as whole numbers\n"
        f"  - edges.nodes[2] is [0, {2**70}]; give the numbers of two nodes as whole numbers",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_names_every_fault_of_data_and_of_text(tmp_path, name):
    paths, message = FAULTS[name]
    data = changed(**paths)
    with pytest.raises(ProblemError) as caught:
        iopddl.from_json(data)
    assert str(caught.value) == HEADLINE + message
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"problem": data}))
    with pytest.raises(ProblemError) as caught:
        iopddl.read(path)
    assert str(caught.value) == HEADLINE.replace("the data", repr(str(path))) + message


def test_shows_twenty_faults_and_counts_the_rest():
    data = {
        "nodes": {"intervals": [[0, 0]], "costs": [[1]], "usages": [[1]]},
        "edges": {"nodes": [[0, 7]] * 1500, "costs": [[1]] * 1500},
    }
    with pytest.raises(ProblemError) as caught:
        iopddl.from_json(data)
    lines = str(caught.value).split("\n")
    assert len(lines) == 22
    assert lines[-1] == "  and 1,480 more"


WHOLE = json.dumps(DATA).encode()
DAMAGED = {
    "empty": (b"", "is empty; copy or download it again"),
    "blank": (b" \n", "is empty; copy or download it again"),
    "truncated": (
        WHOLE[:100],
        "is truncated: its JSON breaks off after 100 bytes; copy or download it again",
    ),
    "no JSON": (
        b"def f():",
        "is not JSON at line 1, column 1, where 'def f():' stands; copy or download it again",
    ),
    "rows that are no JSON": (
        WHOLE.replace(b"[0, 2]", b"[0 2]", 1),
        "is not JSON at line 1, column 64, where '2], [1, 3], [0, 0]], \"co' stands; copy or "
        "download it again",
    ),
    "binary": (
        b"\x80\x81\x82",
        "is neither JSON nor gzip'ed JSON: byte 1 is of no text; copy or download it again",
    ),
    "truncated gzip": (
        gzip.compress(WHOLE, mtime=0)[:60],
        "is truncated: its gzip data break off after 60 bytes; copy or download it again",
    ),
    "no more than a gzip header": (
        gzip.compress(WHOLE, mtime=0)[:2],
        "is truncated: its gzip data break off after 2 bytes; copy or download it again",
    ),
    "a list": (
        b"[1, 2]",
        "is not a choice problem in the contest's format:\n"
        "  - the file holds [1, 2]; give an object with the keys nodes and edges",
    ),
    "another object": (
        b'{"problem": {"vertices": 3}}',
        "is not a choice problem in the contest's format:\n"
        "  - nodes is missing; give an object of lists, empty ones for no nodes\n"
        "  - edges is missing; give an object of lists, empty ones for no edges",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path, name):
    content, message = DAMAGED[name]
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ProblemError) as caught:
        iopddl.read(path)
    assert str(caught.value) == f"{str(path)!r} {message}"


def test_gzip_with_a_wrong_checksum_and_endless_nesting(tmp_path):
    packed = bytearray(gzip.compress(WHOLE, mtime=0))
    packed[-8] ^= 1
    path = tmp_path / "bad.json.gz"
    path.write_bytes(packed)
    with pytest.raises(ProblemError, match="its gzip data are inconsistent"):
        iopddl.read(path)
    path.write_bytes(b'{"problem":' + b"[" * 100_000)
    with pytest.raises(ProblemError, match="is not a problem: its JSON is nested too deeply"):
        iopddl.read(path)


@pytest.mark.parametrize("cut", range(1, len(WHOLE), 37))
def test_no_part_of_a_file_is_a_file(tmp_path, cut):
    path = tmp_path / "cut.json"
    path.write_bytes(WHOLE[:cut])
    with pytest.raises(ProblemError, match=r"^'.*cut.json' is truncated: its JSON breaks off"):
        iopddl.read(path)
