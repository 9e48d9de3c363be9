"""Drawings and traces of a timeline that can be checked by hand."""

from __future__ import annotations

from xml.etree import ElementTree

from autoshard.solve.schedule.drawing import draw_svg, draw_text
from autoshard.solve.schedule.instance_json import instance_from_json
from autoshard.solve.schedule.named import named_orders
from autoshard.solve.schedule.timeline import simulate
from autoshard.solve.schedule.trace import chrome_trace

TWO = instance_from_json(
    {"name": "a < b", "p": 2, "m": 2, "F": 1, "B": 1, "W": 1, "comm": 1, "mem_F": 2, "mem_B": -1,
     "mem_W": -1, "mem_limit": 4}
)  # fmt: skip
ORDERS = named_orders(TWO)
SPLIT, FUSED = simulate(TWO, ORDERS["zb-h1"]), simulate(TWO, ORDERS["1f1b"])


def test_text():
    assert draw_text(SPLIT, columns=int(SPLIT.makespan)) == (
        "mesh 0   FF...BWBW\n         01   0011\nmesh 1   ..FBFBWW.\n           001101\n"
    )
    assert draw_text(FUSED, columns=2 * int(FUSED.makespan)).startswith("mesh 0   FFFF..")
    assert "XXXX" in draw_text(FUSED, columns=2 * int(FUSED.makespan))


def test_svg():
    root = ElementTree.fromstring(draw_svg(TWO, SPLIT))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in root.iter(f"{space}title")]
    assert len(titles) == 12
    assert "F0@1: 2 to 3" in titles
    assert len(list(root.iter(f"{space}polyline"))) == 2
    texts = [text.text or "" for text in root.iter(f"{space}text")]
    assert "a < b makespan 9, span 9, bubble 33.3 %" in texts
    assert {"F, forward", "B, input gradient", "W, weight gradient"} <= set(texts)
    in_seconds = draw_svg(TWO, SPLIT, written=lambda time: f"{time} s")
    assert "<title>F0@1: 2 s to 3 s</title>" in in_seconds
    assert "a &lt; b makespan 9 s, span 9 s, bubble 33.3 %" in in_seconds


def test_trace():
    events = chrome_trace(TWO, SPLIT)["traceEvents"]
    tasks = [event for event in events if event["ph"] == "X"]
    assert len(tasks) == 12
    assert {(e["name"], e["tid"], e["ts"], e["dur"]) for e in tasks} >= {("F0@1", 1, 2, 1)}
    starts = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "f"}
    assert len(starts) == 4
    assert all(ends[number] >= start + 1 for number, start in starts.items())
    taken = [e["args"]["taken"] for e in events if e["ph"] == "C" and "mesh 0" in e["name"]]
    assert taken == [2, 4, 3, 2, 1, 0]


def test_a_unit_is_so_many_microseconds():
    plain = chrome_trace(TWO, SPLIT)["traceEvents"]
    scaled = chrome_trace(TWO, SPLIT, microseconds=0.5)["traceEvents"]
    assert [e.get("ts") for e in scaled] == [e["ts"] / 2 if "ts" in e else None for e in plain]
    assert [e["dur"] for e in scaled if "dur" in e] == [e["dur"] / 2 for e in plain if "dur" in e]
