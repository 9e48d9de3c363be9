"""Records of plain data: what does not fit is named by its path, its value and what is expected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest

from autoshard.files import FileError, typed


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outer:
    count: Annotated[int, msgspec.Meta(ge=1)]
    seconds: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    word: Literal["a", "b"] = "a"
    maybe: float | None = None
    inner: tuple[Inner, ...] = ()
    named: dict[str, dict[str, Inner]] = field(default_factory=dict)
    pair: tuple[int, int] = (0, 0)
    one: Inner | None = None


def test_a_record_of_its_types():
    data = {"count": 2, "seconds": 3, "inner": [{"name": "x", "sizes": [1]}], "maybe": None}
    assert typed(data, Outer) == Outer(2, 3.0, inner=(Inner("x", (1,)),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": "2"}, "count is '2'; it must be a whole number"),
        ({"count": True}, "count is true; it must be a whole number"),
        ({"count": 2.0}, "count is 2.0; it must be a whole number"),
        ({"count": 0}, "count is 0; it must be a whole number of at least 1"),
        ({"count": None}, "count is null; it must be a whole number"),
        ({"seconds": -1}, "seconds is -1; it must be a number of at least 0.0"),
        ({"seconds": 1e9}, "seconds is 1000000000.0; it must be a number of at most 10.0"),
        ({"word": "c"}, "word is 'c'; it must be one of the words that are known"),
        ({"maybe": "x"}, "maybe is 'x'; it must be a number or null"),
        ({"inner": {}}, "inner is an object of 0 entries; it must be a list"),
        ({"inner": [[]]}, "inner[0] is a list of 0; it must be an object"),
        ({"inner": [{}]}, "inner[0].name is missing"),
        ({"inner": [{"name": "x"}, {"name": 1}]}, "inner[1].name is 1; it must be a text"),
        ({"pair": [1]}, "pair is a list of 1; it must be a list of 2"),
        ({"named": {"a": 1}}, "named.a is 1; it must be an object"),
        ({"count": "x" * 999}, f"count is '{'x' * 55}...'; it must be a whole number"),
    ],
)
def test_what_does_not_fit(changes, message):
    with pytest.raises(FileError) as caught:
        typed({"count": 1, **changes}, Outer)
    assert str(caught.value) == message


def test_the_entry_of_a_mapping_is_found():
    good = {f"key {number}": {"x": {"name": "x"}} for number in range(20)}
    data: dict[str, Any] = {
        "count": 1,
        "named": good | {"bad": {"ok": {"name": "x"}, "y": {"name": 7}}},
    }
    data["named"] |= {"last": {}}
    with pytest.raises(FileError) as caught:
        typed(data, Outer, name="'f.json'")
    assert str(caught.value) == "'f.json': named.bad.y.name is 7; it must be a text"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": 1}, "colour is not known"),
        ({"inner": [{"name": "x"}, {"name": "x", "size": 1}]}, "inner[1].size is not known"),
        ({"named": {"a": {}, "b": {"c": {"name": "x", "y": 1}}}}, "named.b.c.y is not known"),
        ({"one": {"name": "x", "the size": 1}}, "one['the size'] is not known"),
    ],
)
def test_keys_that_no_record_has(changes, message):
    with pytest.raises(FileError) as caught:
        typed({"count": 1, **changes}, Outer)
    assert str(caught.value) == message


def test_what_is_no_record_at_all():
    for data in ([], 1, "x", None):
        with pytest.raises(FileError, match=r"^the file is .*; it must be an object$"):
            typed(data, Outer)


def test_another_kind_of_error():
    with pytest.raises(KeyError):
        typed([], Outer, error=KeyError)
