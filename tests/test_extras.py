"""What is said where an optional package is not there."""

from __future__ import annotations

import sys

import pytest

from autoshard.cli.main import main
from autoshard.extras import MissingExtraError, require
from autoshard.solve.backends import cbc


def test_cbc_without_pulp_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pulp", None)
    monkeypatch.setattr("autoshard.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"^CBC needs pulp, .* pip install '\.\[cbc\]'"):
        cbc.program()


def test_what_is_there_is_not_asked_for():
    require("numpy", "plots", "A picture")


def test_a_command_that_lacks_an_extra_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def lacks(_: object) -> int:
        require("no_such_package", "plots", "A picture")
        return 0

    monkeypatch.setattr("autoshard.cli.lists.programs_command", lacks)
    assert main(["programs"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: A picture needs no_such_package, which is not installed: "
        "pip install 'autoshard[plots]', or pip install '.[plots]' in a clone\n"
    )
