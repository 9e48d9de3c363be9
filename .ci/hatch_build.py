"""Put the C loops, compiled, into a wheel; hatchling runs this (`autoshard/native/building.py`)."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parents[1] / "autoshard" / "native"))

import building


class LoopsHook(BuildHookInterface):
    """Wheels hold the library, and say for which machines; sdists hold the C files alone."""

    def dependencies(self) -> list[str]:
        """A compiler from the index, where the machine has none."""
        try:
            building.compiler()
        except building.NoCompilerError:
            return ["ziglang>=0.13"]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        file = building.PACKAGE / "native" / building.file_name()
        if not file.exists():
            building.make(file)
        build_data["pure_python"] = False
        build_data["tag"] = (
            f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        )
        if version != "editable":
            build_data["force_include"][str(file)] = f"autoshard/native/{file.name}"
