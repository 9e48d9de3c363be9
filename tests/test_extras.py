"""What is said where an optional package is not there."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from autoshard.cli.main import main
from autoshard.extras import MissingExtraError, require
from autoshard.solve.backends import cbc
from tests.kept import write_kinds


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


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a package be as if it were not installed."""
    real = importlib.util.find_spec

    def find(name: str, within: str | None = None) -> object:
        return None if name.startswith(package) else real(name, within)

    monkeypatch.setattr("importlib.util.find_spec", find)
    monkeypatch.setattr("autoshard.extras.find_spec", find)
    monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        ("bench fidelity --programs mlp --machines h100-8 --svg f.svg", "matplotlib", "plots"),
        ("verify plan.json mlp:tiny --compile tpu", "libtpu", "tpu"),
        ("calibrate --compiled --machine h100-8", "jax_plugins", "gpu"),
        (
            "whatif mlp:tiny --sweep machine=v5e-4 --quiet --scheduler tcp://a:1",
            "distributed",
            "dask",
        ),
        ("search maxtext:llama3.1-8b --machine v5p-8", "maxtext", "maxtext"),
    ],
)
def test_every_extra_is_named_with_both_lines(words, package, extra, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    write_kinds(tmp_path)
    without(package, monkeypatch)
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert f"pip install 'autoshard[{extra}]', or pip install '.[{extra}]' in a clone" in said
