"""No page of any kind has clipped, overlapping or faint text, wide or narrow, light or dark."""

from __future__ import annotations

import pytest

from autoshard.show.document import document, head
from autoshard.show.html import Markup
from autoshard.show.verdict import Answer
from tests.show.browser import SCHEMES, WIDTHS, chromium, faults
from tests.show.kinds import QUICK, SLOW, of_plans, pages

BROWSER = chromium()
BROKEN = Markup(
    '<p style="min-width: 2000px">wide</p>'
    '<div style="overflow: hidden; width: 40px; white-space: nowrap">cut off at its end</div>'
    '<p style="margin: 0">under</p><p style="margin: -1.5em 0 0">over</p>'
    '<p style="color: #888; background: #999">faint</p>'
)


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_no_text_is_clipped_overlapping_or_faint(tmp_path):
    assert BROWSER is not None
    answer = Answer("A question?", "yes", "and why")
    broken = document("broken", head("broken", "", "", [answer]), [("x", "X", BROKEN)])
    shown = {**pages(), **of_plans(QUICK)}
    found = faults(BROWSER, {**shown, "broken": broken}, tmp_path)
    assert len(found) == (len(shown) + 1) * len(WIDTHS) * len(SCHEMES)
    wrong = {name: said for name, said in found.items() if said}
    told = [wrong.pop(name) for name in list(wrong) if name.startswith("broken at ")]
    assert len(told) == len(WIDTHS) * len(SCHEMES)
    for said in told:  # the script sees each kind of fault
        assert any(one.startswith("the page is ") for one in said)
        for kind in ("clipped: cut off", 'over "under": over', "faint: faint"):
            assert any(one.startswith(kind) for one in said), (kind, said)
    assert wrong == {}


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_no_text_is_so_on_pages_of_other_plans(tmp_path):
    assert BROWSER is not None
    found = faults(BROWSER, of_plans(SLOW), tmp_path)
    assert {name: said for name, said in found.items() if said} == {}
