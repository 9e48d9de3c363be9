"""What is said of the choices of a search over what is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from autoshard.search.keep.trials import said_of


def trial(title: str) -> Any:
    return SimpleNamespace(title=title)


def test_choices_of_one_title_are_counted():
    said = said_of(trial("products"), [trial("cheapest"), trial("everything"), trial("cheapest")])
    assert "products, the best of 4 choices (the others: cheapest (2 of them), everything)" in said


def test_one_choice_alone_is_not_the_best_of_any():
    said = said_of(trial("products"), [])
    assert said.startswith("what is saved for the backward pass: products; nothing else was tried")
