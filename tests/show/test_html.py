"""HTML as values: text is escaped, markup is not, attributes are what they are called."""

from __future__ import annotations

from autoshard.show.html import Cell, Column, Markup, element, join, table
from tests.show.reading import read


def test_text_is_escaped_and_markup_is_not():
    inner = element("b", "a < b & c")
    assert inner == "<b>a &lt; b &amp; c</b>"
    assert element("p", inner, "<i>") == "<p><b>a &lt; b &amp; c</b>&lt;i&gt;</p>"
    assert join("<", None, Markup("<br>")) == "&lt;<br>"


def test_attributes():
    made = element("p", class_='a"b', data_order=0.5, hidden=True, title=None, id=False)
    assert made == '<p class="a&quot;b" data-order="0.5" hidden></p>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_tables_have_orders_for_numbers():
    columns = [Column("name"), Column("bytes", number=True)]
    made = table(columns, [("<x>", Cell("1 KiB", 1024)), ("y", Cell("-"))], sorts=True)
    found = read(made)
    assert found.tables == [[["name", "bytes"], ["<x>", "1 KiB"], ["y", "-"]]]
    assert [value for _, name, value in found.attributes if name == "data-order"] == ["1024.0"]
    assert "sorts" in [value for _, name, value in found.attributes if name == "class"]


def test_options_in_cells_of_code_stay_in_one_line():
    row = ("take 16 chips: --machine v5p-16@recipe --mesh x=8,y=2, batch=8",)
    made = table([Column("how", code=True)], [row])
    assert '<span class="whole">--machine v5p-16@recipe</span>' in made
    assert '<span class="whole">--mesh x=8,y=2</span>, batch=8' in made
    assert read(made).tables[0][1] == [row[0]]
    bold = table([Column("how", code=True)], [(element("b", "--mesh x"),)])
    assert "<b>--mesh x</b>" in bold
