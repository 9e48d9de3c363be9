"""Which programs run for a file's word: built-ins, and what was named in a folder of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.models.trusted import is_trusted, remember


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("reference", ["llama3-8b", "mlp"])
def test_builtins_always_run(reference):
    assert is_trusted(reference)


@pytest.mark.parametrize("reference", ["os:abort", "model.py:step", "package.model:step"])
def test_nothing_else_runs_before_it_was_named(reference, own, tmp_path_factory, monkeypatch):
    assert not is_trusted(reference)
    remember(reference)
    assert is_trusted(reference)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert not is_trusted(reference)


def test_a_path_is_the_same_program_from_everywhere(own, tmp_path_factory, monkeypatch):
    remember("model.py:step")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert is_trusted(f"{own}/model.py:step")
    assert not is_trusted(f"{own}/model.py:other")
    assert not is_trusted(f"{own}/other.py:step")


def test_a_folder_that_all_may_write_is_not_ones_own(own):
    own.chmod(0o777)
    remember("model.py:step")
    assert not is_trusted("model.py:step")
