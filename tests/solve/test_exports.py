"""The names that the package offers."""

from __future__ import annotations

import importlib
import inspect

import pytest

import autoshard.solve


def test_every_name_is_offered_and_is_no_module():
    # A module of the package would hide a function of the same name once it is imported.
    for name, home in autoshard.solve._LATER.items():
        importlib.import_module(f"autoshard.solve.{home}")
        assert name in autoshard.solve.__all__
    for name in autoshard.solve.__all__:
        offered = getattr(autoshard.solve, name)
        assert inspect.isclass(offered) or inspect.isfunction(offered), name


def test_other_names_are_refused():
    with pytest.raises(AttributeError) as caught:
        autoshard.solve.__getattr__("nothing_of_the_kind")
    assert str(caught.value) == "module 'autoshard.solve' has no attribute 'nothing_of_the_kind'"
