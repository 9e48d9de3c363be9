"""C loops: what they take, how they are made, and what is said where they cannot be."""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from autoshard.native import FLOATS, STRUCT, WORDS, Record, building, function
from autoshard.solve.problem import Floats, Integers


@dataclass(frozen=True, slots=True, eq=False)
class Pair(Record):
    whole: Integers
    share: Floats
    count: int

    def counts(self) -> tuple[int, ...]:
        return (self.whole.size,)


ROOT = str(building.PACKAGE.parent)
PAIR = Pair(np.arange(3), np.ones(2), 7)


def test_a_record_is_pointers_and_integers_in_order():
    assert list(PAIR.struct) == [PAIR.whole.ctypes.data, PAIR.share.ctypes.data, 7, 3]


def test_a_record_copied_or_unpickled_points_at_its_own_arrays():
    for other in (replace(PAIR, whole=np.arange(4)), pickle.loads(pickle.dumps(PAIR))):
        assert list(other.struct)[:2] == [other.whole.ctypes.data, other.share.ctypes.data]
        assert other.struct[3] == other.whole.size


@pytest.mark.parametrize("wrong", [np.ones(3), np.arange(6)[::2], np.arange(3, dtype=np.int32)])
def test_arrays_of_another_type_or_with_gaps_are_refused(wrong):
    with pytest.raises(TypeError, match=r"Pair.whole is .* loops read contiguous <i8"):
        replace(PAIR, whole=wrong)
    loop = function("choose_forest", STRUCT, WORDS, FLOATS)
    with pytest.raises(ctypes.ArgumentError, match="a loop takes contiguous <i8"):
        loop(PAIR.struct, wrong, np.ones(1))


def test_each_who_names_a_loop_keeps_his_own_kinds():
    mine, other = function("word_fits", WORDS), function("word_fits", FLOATS)
    for _ in range(2):
        with pytest.raises(ctypes.ArgumentError, match="a loop takes contiguous <i8"):
            mine(np.ones(3))
        with pytest.raises(ctypes.ArgumentError, match="a loop takes contiguous <f8"):
            other(np.arange(3))


def test_without_a_compiler_the_repair_is_said(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(building.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(building.NoCompilerError, match=r"apt install gcc.*pip install ziglang"):
        building.compiler()


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", f"{sys.executable} -c 'import sys; sys.exit(\"no space\")'")
    with pytest.raises(building.NoCompilerError, match="no space"):
        building.make(tmp_path / "loops.so")
    assert list(tmp_path.iterdir()) == []


def test_where_the_package_cannot_be_written_loops_are_kept_in_the_cache(tmp_path):
    code = (
        "import autoshard.native as native\n"
        "make, here = native.make, native.Path(native.__file__).parent\n"
        "def refuse(file):\n"
        "    if file.parent == here: raise OSError(30, 'Read-only file system')\n"
        "    make(file)\n"
        "native.make, native.file_name = refuse, lambda: 'loops-of-a-test.so'\n"
        "print(native._library()._name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == tmp_path / "autoshard" / "loops-of-a-test.so"
