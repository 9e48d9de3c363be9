"""What a sweep says, and all that can be wrong with it, whole messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.study.whatif.cases import cases_of, machine_of
from autoshard.study.whatif.prices import prices_of, read_prices
from autoshard.study.whatif.words import SweepError, in_full, read_words


def test_values_are_read_in_their_kinds():
    words = ["chips=16..100,24", "chip=v5e,h100", "limit=2GiB", "batch=8..24+8", "scan=false"]
    assert read_words([*words, "rate=0.5"]) == {
        "chips": [16, 32, 64, 24],
        "chip": ["v5e", "h100"],
        "limit": [2.0**31],
        "batch": [8, 16, 24],
        "scan": [False],
        "rate": [0.5],
    }


def test_all_faulty_words_are_named_at_once():
    words = ["chips", "chip=v5e", "chip=h100", "limit=much", "batch=9..3", "seq=4...8"]
    with pytest.raises(SweepError) as caught:
        read_words(words)
    assert str(caught.value) == (
        "the sweep is faulty:\n"
        "  - 'chips' is not a sweep; write a name and values, as chips=16..512\n"
        "  - 'chip' is given twice; write chip=A,B\n"
        "  - 'limit=much': 'much' is not a size; write 60GiB, 80GB or bytes\n"
        "  - 'batch=9..3': 9..3 must go up from at least 1; write 16..512\n"
        "  - 'seq=4...8': '4...8' is not a range; write 16..512, or 64..256+64"
    )


def test_names_may_be_begun_and_unknown_ones_are_refused_together():
    known = ("batch", "sequence", "scan")
    assert in_full({"machine": "v5e-4", "seq": [8, 8, 16]}, known) == {
        "machine": ("v5e-4",),
        "sequence": (8, 16),
    }
    with pytest.raises(SweepError) as caught:
        in_full({"chips": 4, "s": 1, "depth": 2, "batch": [], "ba": 3}, known)
    there = "known: chip, chips, machine, limit, batch, sequence, scan"
    assert str(caught.value) == (
        "the sweep is faulty:\n"
        f"  - 's' may be sequence or scan; {there}\n"
        f"  - 'depth' is neither of the cluster nor a size; {there}\n"
        "  - 'batch' has no values\n"
        "  - no cluster is named; sweep chip=v5p,h100 and chips=64, or machine=v5p-64"
    )


def test_sizes_that_machines_do_not_have_are_named_together():
    with pytest.raises(SweepError) as caught:
        cases_of({"chip": ("v5e", "v6e", "h100"), "chips": (16, 24, 20)})
    message = str(caught.value)
    assert message.startswith("the sweep is faulty:\n  - v5e-20: the hardware does not come as")
    assert "\n  - v6e-20: the hardware does not come as" in message
    assert message.count("\n") == 2


def test_chips_beyond_one_piece_come_in_slices():
    assert machine_of("v5e", 256).name == "v5e-256"
    machine = machine_of("v5e", 1024)
    assert (machine.name, machine.chips) == ("4xv5e-256", 1024)


def test_rows_are_all_combinations_with_the_chips_own_limit():
    sweep = {"chip": ("v5e", "h100"), "chips": (8,), "batch": (1, 2), "limit": (1e9, 2e9)}
    assert len(cases_of(sweep)) == 8
    (case,) = cases_of({"machine": ("v5e-4",), "batch": (1,)})
    assert case.limit == case.machine.chip.usable_bytes
    assert str(case) == "v5e-4 batch=1 limit=15.0GiB"


def test_prices_are_the_users_and_faults_are_named_together(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text('currency = "EUR"\n[v5e]\nchip_hour = 1\nwatts = 200\n["my.toml"]\n')
    prices = read_prices(file)
    assert (prices.currency, prices.of("v5e").chip_hour) == ("EUR", 1.0)
    with pytest.raises(
        SweepError, match=r"chip_hour of my.toml, h100; .*\[\"my.toml\"\] chip_hour"
    ):
        prices.require(["v5e", "my.toml", "h100"], "chip_hour", "tokens-per-dollar")
    with pytest.raises(SweepError) as caught:
        prices_of({"v5e": 1, "h100": {"hour": 1, "watts": -1}, "currency": 3}, where="it")
    assert str(caught.value) == (
        "it is faulty:\n"
        "  - currency = 3 must be a text\n"
        "  - v5e = 1 must be a table: [v5e] chip_hour = ...\n"
        "  - h100.hour is not known; known: chip_hour, watts\n"
        "  - h100.watts = -1 must be a number above 0"
    )
    with pytest.raises(SweepError, match="cannot read the prices"):
        read_prices(tmp_path / "absent.toml")


def test_the_prices_of_the_guide_load(tmp_path):
    page = (Path(__file__).parents[3] / "docs/guide/whatif.md").read_text(encoding="utf-8")
    file = tmp_path / "prices.toml"
    file.write_text(page.split("```toml prices\n")[1].split("```")[0])
    assert read_prices(file).of("v5e").watts == 250
