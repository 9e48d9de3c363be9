"""Text as people read it."""

from __future__ import annotations

import pytest

from autoshard.units import counted, format_number, visible


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (133594.2, "133,594"), (0.05, "0.05"), (0.003, "3 m"), (2e-8, "20 n")],
)
def test_numbers_without_a_unit_have_a_prefix_where_they_are_small(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("params.w1 → ü\n\t-", "params.w1 → ü\n\t-"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\x00b\x7f\r", "a\\x00b\\x7f\\r"),
        ("\ud800", "\\ud800"),
        ("\u2028\uffff", "\\u2028\\uffff"),
    ],
)
def test_what_no_reader_sees_is_written_out(text, shown):
    assert visible(text) == shown
    assert visible(shown) == shown
    shown.encode()


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "axis", "1 axis"),
        (2, "axis", "2 axes"),
        (0, "fake device", "0 fake devices"),
        (3, "mesh", "3 meshes"),
        (2, "entry", "2 entries"),
        (2, "way", "2 ways"),
        (1, "process", "1 process"),
        (2, "process", "2 processes"),
    ],
)
def test_nouns_agree_with_their_numbers(number, noun, text):
    assert counted(number, noun) == text


def test_counted_numbers_take_a_form():
    assert counted(12345, "row", ",") == "12,345 rows"
