"""Text as people read it."""

from __future__ import annotations

import pytest

from autoshard.units import visible


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
