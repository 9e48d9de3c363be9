"""The page of `autoshard serving` from its file: names stay text, whatever stands in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autoshard.show.sweep.serving_file import is_serving, read_serving
from autoshard.show.sweep.serving_page import serving_page
from autoshard.study.whatif.served import CacheLimit, Served, Serving
from tests.kept import FOLDER
from tests.show.reading import read
from tests.show.sweep.test_page import sweep
from tests.show.test_page import HOSTILE

NAMES = (HOSTILE, "$\\frac{$", "a\x1b[31m\x00b")


def answer(**changed: Any) -> dict[str, Any]:
    decode = sweep()
    rows = tuple(Served(row, 0.1, 2.0, 3.0) for row in decode.rows)
    limits = (CacheLimit("h100-16", {"mode": "train"}, 8e10, 4, 8, None),)
    return {**Serving(decode, None, rows, limits, 128).to_json(), **changed}


@pytest.mark.parametrize("name", NAMES)
def test_no_name_breaks_the_page(name):
    written = answer(serving=name, currency=name)
    for row in written["rows"]:
        for key in ("chip", "machine", "why", "mesh", "binds", "mode"):
            row[key] = name
    for limit in written["limits"]:
        limit.update(machine=name, sizes={name: name})
    text = json.dumps(written)
    assert is_serving(text)
    page = serving_page(read_serving(text))
    found = read(page)
    assert found.tags.count("script") == 1
    assert "\x1b" not in page
    assert "\x00" not in page


def test_what_helps_is_a_batch_that_one_can_choose():
    """The kept answer has batches of 8 and 16, of which the larger takes too long."""
    written = json.loads((FOLDER / "serving.json").read_text())
    written["rows"] = [row for row in written["rows"] if row["chip"] == "h100"]
    written["latency_seconds"] = 140.25e-6
    text = read(serving_page(read_serving(json.dumps(written)))).all_text()
    assert "what would help most: batch=16." in text
    assert "140.3 us a token, more than the 140.2 us that were asked for" in text
