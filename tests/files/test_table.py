"""Records as CSV."""

from __future__ import annotations

import csv
import io

from autoshard.files import csv_text


def test_records_are_read_as_they_were_written():
    records = [{"name": 'a, "b"', "seconds": 1.5e-7, "fits": True}, {"name": "c", "seconds": None}]
    text = csv_text(records)
    assert text.splitlines()[0] == "name,seconds,fits"
    assert list(csv.DictReader(io.StringIO(text))) == [
        {"name": 'a, "b"', "seconds": "1.5e-07", "fits": "True"},
        {"name": "c", "seconds": "", "fits": ""},
    ]
