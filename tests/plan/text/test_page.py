"""The report of a plan, pinned: what stands where, how trees fold, how numbers read."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace

import pytest
from jax.sharding import PartitionSpec

from autoshard.plan.decisions import Decisions
from autoshard.plan.plan import Baseline, Estimate, MeshShape, Move, Plan, Proof
from autoshard.plan.records import KeptValue
from autoshard.plan.text.kept import policy
from autoshard.plan.text.page import format_bytes, format_gap, format_plan, format_seconds
from autoshard.plan.text.trees import Leaf, fold

GATHER = Move(
    kind="all_gather",
    axes=("data",),
    bytes=2**20,
    count=1,
    seconds=1e-3,
    exposed_seconds=2e-4,
    scope="layer_0/ffn",
    line="model.py:7",
    value="bf16[8@data, 4] -> bf16[8, 4]",
)


def plan(**changes: object) -> Plan:
    given = Plan(
        program="toy",
        fingerprint="0123456789abcdef",
        options={},
        machine="v5e-8",
        memory_limit=2.0**34,
        mesh=MeshShape(("data", "model"), (2, 4)),
        estimate=Estimate(
            0.012, 0.01, 0.015, 0.01, 0.005, 3 * 2**30, "dot_general at ffn (m.py:3)"
        ),
        proof=Proof(
            "feasible",
            0.012,
            0.0119,
            0.1 / 12,
            3.25,
            "gap",
            (("x=2, y=4", 0.0119, 0.012), ("x=8", 0.013, None), ("x=4, y=2", 0.0, None)),
        ),
        specs={
            "inputs": {
                "[0]['layers'][0]['wq']": PartitionSpec(None, ("data", "model")),
                "[0]['layers'][1]['wq']": PartitionSpec(None, ("data", "model")),
                "[0]['norm']": PartitionSpec(),
                "[1]": PartitionSpec("data"),
            },
            "outputs": {
                "[0]['layers'][0]['wq']": PartitionSpec(None, ("data", "model")),
                "[0]['layers'][1]['wq']": PartitionSpec(None, ("data", "model")),
                "[0]['norm']": PartitionSpec(),
            },
        },
        moves=(GATHER, replace(GATHER, scope="layer_1/ffn")),
        baselines=(
            Baseline("data parallel", None, None, "does not fit"),
            Baseline("FSDP", 0.018, 2**30),
        ),
        decisions=Decisions((), (), (), ((0, -1),)),
        reshards=(),
        types={
            "inputs": {
                "[0]['layers'][0]['wq']": "f32[16,64]",
                "[0]['layers'][1]['wq']": "f32[16,64]",
                "[0]['norm']": "bf16[16]",
                "[1]": "i32[8,16]",
            },
            "outputs": {
                "[0]['layers'][0]['wq']": "f32[16,64]",
                "[0]['layers'][1]['wq']": "f32[16,64]",
                "[0]['norm']": "bf16[16]",
            },
        },
    )
    return replace(given, **changes)


# ruff: noqa: E501
REPORT = """\
toy on v5e-8, mesh data=2, model=4 (8 devices)

  step         12.00 ms  between 10.00 ms (every collective hidden) and 15.00 ms (none hidden)
  compute      10.00 ms  83.3 % of the step
  collectives  5.000 ms  2.000 ms of it exposed, 16.7 % of the step
  memory       3.00 GiB  of 16.0 GiB per device
                         at its peak in dot_general at ffn (m.py:3)
  proof        feasible  no plan in the space is faster than 11.90 ms: gap 0.83 % in 3.2 s, as close as was asked for
  idle          model=4  every device along it computes the same

  scheme on this mesh      step  / plan      peak
  this plan            12.00 ms   1.000  3.00 GiB
  data parallel               -       -         -  does not fit
  FSDP                 18.00 ms   1.500  1.00 GiB

                            dimensions @ mesh axes    per device
  inputs                                                1.28 KiB
    [0]['layers'][*]['wq']  f32[16, 64@(data,model)]   2 x 512 B
    [0]['norm']             bf16[16]                        32 B
    [1]                     i32[8@data, 16]                256 B
  outputs                                               1.03 KiB
    [0]                     as input [0]                1.03 KiB

  collectives       exposed   seconds  times  bytes in all
  all_gather@data  400.0 us  2.000 ms      2      2.00 MiB

  dearest           exposed   seconds  times  bytes each  where
  all_gather@data  400.0 us  2.000 ms      2    1.00 MiB  model.py:7  layer_*/ffn
      bf16[8@data, 4] -> bf16[8, 4]

  mesh considered     bound  best found
  x=2, y=4         11.90 ms    12.00 ms  chosen
  x=4, y=2                -           -  not reached
  x=8              13.00 ms           -
"""


def test_the_whole_report():
    assert format_plan(plan()) == REPORT


@pytest.mark.parametrize(("columns", "width"), [(40, 80), (100, 100), (400, 200), (None, 0)])
def test_a_page_is_as_wide_as_the_terminal(monkeypatch, columns, width):
    """From 80 to 200 columns; where there is none, nothing is cut."""
    if columns is not None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
    text = format_plan(plan(program="p" * 300, moves=(replace(GATHER, scope="s" * 300),)))
    widest = max(map(len, text.split("\n")))
    if columns is None:
        assert "p" * 300 in text
        assert "s" * 300 in text
        assert "…" not in text
    else:
        assert widest == width


def test_columns_are_aligned():
    lines = format_plan(plan()).split("\n")
    assert len({line.index("12.00 ms") + 8 for line in lines if "this plan" in line}) == 1
    header = next(line for line in lines if "/ plan" in line)
    row = next(line for line in lines if "FSDP" in line)
    assert header.index("/ plan") + 6 == row.index("1.500") + 5


def test_no_collectives_and_no_schemes():
    text = format_plan(plan(moves=(), baselines=()))
    assert "no collectives: every device works alone" in text
    assert "scheme" not in text
    assert "dearest" not in text


def test_dearest_says_what_it_leaves_out():
    moves = tuple(replace(GATHER, bytes=number) for number in (1, 2, 3))
    text = format_plan(plan(moves=moves), dearest=1)
    assert "and 2 more, 400.0 us exposed in all" in text
    assert "dearest" not in format_plan(plan(), dearest=0)


def test_a_bound_of_nothing_is_no_bound():
    proof = replace(plan().proof, bound=0.0, gap=1.0, limit_hit="interrupted")
    assert "no bound is proven yet, in 3.2 s, interrupted" in format_plan(plan(proof=proof))


def test_shapes_that_are_as_good_are_told_from_the_chosen_one():
    others = (("x=8", 0.011, 0.012), ("data=2, model=4", 0.011, 0.012), ("x=4, y=2", 0.01, 0.013))
    words = {"x=8": "as good", "data=2, model=4": "chosen", "x=4, y=2": "13.00 ms"}
    for considered in itertools.permutations(others):
        proof = replace(plan().proof, meshes=considered)
        lines = format_plan(plan(proof=proof)).rstrip().split("\n")[-3:]
        assert all(line.endswith(words[line.strip().split("  ")[0]]) for line in lines)
    # The shape that was searched has axes that are merged in the plan.
    proof = replace(plan().proof, meshes=(("x=2, y=2, z=2", 0.01, 0.012), others[2]))
    assert "x=2, y=2, z=2    10.00 ms    12.00 ms  chosen" in format_plan(plan(proof=proof))


def test_without_types_specs_are_printed():
    text = format_plan(plan(types={}))
    assert "('data', 'model')" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1.25194, "1.252 s"),
        (123.456, "123.5 s"),
        (0.0123449, "12.34 ms"),
        (0.99996, "1.000 s"),
        (0.999949, "999.9 ms"),
        (3.1e-6, "3.100 us"),
        (1.2e-7, "120.0 ns"),
        (9.9999e-7, "1.000 us"),
        (4.2e-11, "0.04200 ns"),
        (float("inf"), "-"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2**10, "1.00 KiB"),
        (6.06 * 2**30, "6.06 GiB"),
        (93 * 2**30, "93.0 GiB"),
        (512 * 2**20, "512 MiB"),
        (float("inf"), "unlimited"),
    ],
)
def test_bytes(count, text):
    assert format_bytes(count) == text


def test_gaps():
    given = (0.0, 1e-12, 1e-6, 0.0093, 0.5, float("inf"))
    wanted = ["0 %", "0 %", "< 0.01 %", "0.93 %", "50.00 %", "unknown"]
    assert [format_gap(gap) for gap in given] == wanted


def lines(tree: dict[str, str], seen: dict[object, str] | None = None) -> list[tuple[str, str]]:
    leaves = {path: Leaf(text, 1.0) for path, text in tree.items()}
    folded = fold(leaves, {} if seen is None else seen, origin="input")
    assert sum(line.bytes for line in folded) == len(tree)
    return [(line.path, line.text) for line in folded]


def test_equal_items_of_a_list_fold():
    tree = {f"[0]['layers'][{i}]['w']": "A" for i in range(5)}
    assert lines(tree) == [("[0]['layers'][*]['w']", "A")]


def test_runs_of_equal_items_keep_their_bounds():
    tree = {f"[0][{i}]": "A" if i in (0, 4) else "B" for i in range(5)}
    assert lines(tree) == [("[0][0]", "A"), ("[0][1:4]", "B"), ("[0][4]", "A")]


def test_equal_leaves_of_a_dictionary_share_a_line():
    tree = {"[0]['a']": "A", "[0]['b']": "B", "[0]['c']": "A"}
    assert lines(tree) == [("[0]['a', 'c']", "A"), ("[0]['b']", "B")]


def test_many_equal_leaves_take_several_lines():
    tree = {f"[0]['{key * 12}']": "A" for key in "abcd"}
    assert lines(tree) == [
        (f"[0]['{'a' * 12}', '{'b' * 12}']", "A"),
        (f"[0]['{'c' * 12}', '{'d' * 12}']", "A"),
    ]


def test_a_subtree_seen_before_is_named():
    tree = {f"{root}['{key}']": key for root in ("[0]", "[1][0].mu", "[1][0].nu") for key in "ab"}
    assert lines(tree) == [
        ("[0]['a']", "a"),
        ("[0]['b']", "b"),
        ("[1][0].mu", "as input [0]"),
        ("[1][0].nu", "as input [0]"),
    ]


def test_a_function_of_one_bare_array():
    assert lines({"": "A"}) == [("", "A")]


def test_keys_with_brackets_and_dots():
    tree = {"[0]['a.b[0]']": "A", "[0].c": "B"}
    assert lines(tree) == [("[0]['a.b[0]']", "A"), ("[0].c", "B")]


KEPT = """
  saved for the backward pass    unsharded  name                   where
    bf16[8,16] x 6                1.50 KiB  attention_dot_general  m.py:7 < m.py:20
    bf16[8,4] x 3                    192 B  hidden                 m.py:9
  products computed again there                                    where
    f32[8,8] x 3                                                   m.py:8
  jax.checkpoint(LAYER, policy=jax.checkpoint_policies.save_only_these_names("attention_dot_general", "hidden")) says
    the same of each layer, once jax.ad_checkpoint.checkpoint_name(VALUE, NAME) names these values where they are made
"""


def test_what_is_saved_is_said_by_line_and_as_a_policy():
    first = KeptValue(
        "layer_0/attention/ab,bc->ac/dot_general#2",
        *("bf16[8,16]", 3, 768, ("m.py:7", "m.py:20"), "", True),
    )
    second = replace(first, name="layer_1/attention/ab,bc->ac/dot_general#2")
    named = KeptValue("layer_0/tanh", "bf16[8,4]", 3, 192, ("m.py:9",), "hidden", True)
    again = KeptValue("layer_0/dot_general", "f32[8,8]", 3, 768, ("m.py:8",), "", False)
    told = plan(kept=(first, second, named, again))
    assert KEPT in format_plan(told)
    assert Plan.from_json(json.loads(json.dumps(told.to_json()))).kept == told.kept
    assert policy(plan(kept=(again,))) == "jax.checkpoint_policies.nothing_saveable"
