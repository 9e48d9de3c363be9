"""`benchmarks/maxtext_files/models.py`: rows of the tables of MaxText's models."""

from __future__ import annotations

import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from autoshard.cli.bench import load_benchmark

PAGE = Path(__file__).parents[2] / "docs/results/maxtext.md"
models = load_benchmark("maxtext_files.models")


def rows_of(page: str) -> list[str]:
    """The models of the two tables, in their order."""
    lines = page.split("\n")
    firsts = [lines.index(head) + 2 for head in (models.PLANNED, models.REFUSED)]
    found = []
    for first in firsts:
        end = next(k for k in range(first, len(lines)) if not lines[k].startswith("|"))
        found += [models.model_of(line) for line in lines[first:end]]
    return found


def test_a_row_goes_where_it_belongs_in_place_of_an_older_one() -> None:
    before = "| b | v5p-64, 16x4 | 1 | 2 | 3 | 4 | 5 s | 6 | 7 |"
    other = "| a | v5p-64, 16x4 | why \\| not |"
    lines = ("words", models.PLANNED, "|---|", before, "", models.REFUSED, "|---|", other, "")
    planned = "| a, `scan_layers=false` | v5p-64, 16x4 | 8 | 2 | 3 | 4 | 5 s | 6 | 7 |"
    refused = "| b | v5p-64, 16x4 | it is \\| was |"
    assert models.with_rows("\n".join(lines), [planned, refused]).split("\n") == [
        *("words", models.PLANNED, "|---|", planned, "", models.REFUSED, "|---|", refused, "")
    ]
    with pytest.raises(ValueError, match="the page has no table that begins with"):
        models.with_rows("words", [planned])


def test_what_is_said_goes_before_what_a_model_needs() -> None:
    own = {"m": {"settings": "attention=dot_product&a=1", "mesh": "32x4"}}
    found = models.asked("m", own, {"settings": "a=2", "machine": "v6e-64", "mesh": None})
    assert (found.machine, found.mesh, found.seconds) == ("v6e-64", "32x4", 60.0)
    assert found.program == (
        "maxtext:m?per_device_batch_size=1&max_target_length=4096&attention=dot_product&a=2"
    )
    assert found.cells == "| m, `attention=dot_product`, `a=2` | v6e-64, 32x4 |"


def test_the_page_has_each_model_once_in_the_order_of_names() -> None:
    page = PAGE.read_text()
    found = rows_of(page)
    assert len(set(found)) == len(found)
    assert models.with_rows(page, []) == page
    assert set(tomllib.loads(models.OWN.read_text())) <= set(found)


@pytest.mark.skipif(find_spec("maxtext") is None, reason="MaxText is not installed")
def test_the_page_has_all_models_of_maxtext() -> None:
    assert sorted(rows_of(PAGE.read_text())) == models.model_names()
