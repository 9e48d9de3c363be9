"""The page of `autoshard serving` from its file: names stay text, whatever stands in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autoshard.show.sweep.serving_file import is_serving, read_serving
from autoshard.show.sweep.serving_page import serving_page
from autoshard.study.whatif.served import CacheLimit, Served, Serving
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
