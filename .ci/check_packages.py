"""`python check_packages.py SDIST WHEEL`: both are whole, and the wheel says what it is.

Every file of the package in the working tree is in the wheel; what an index shows is there; nothing
beside the package is in it. The sdist has what is needed to build the wheel and to test it.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOOPS = "autoshard/native/loops-*.so"
"""The compiled loops: wheels hold them, sdists do not."""
SHOWN = ("Summary", "License-Expression", "License-File", "Requires-Python", "Classifier")
"""Fields of the metadata that an index shows."""


def files(folder: str, root: Path = ROOT) -> set[str]:
    """The files below a folder that are neither byte code nor compiled loops."""
    found = (root / folder).rglob("*")
    return {
        str(f.relative_to(root))
        for f in found
        if f.is_file() and "__pycache__" not in f.parts and not f.match(LOOPS)
    }


def faults(sdist: Path, wheel: Path) -> list[str]:
    """What is wrong with them."""
    with zipfile.ZipFile(wheel) as opened:
        held = set(opened.namelist())
        (place,) = (name for name in held if name.endswith(".dist-info/METADATA"))
        said = message_from_bytes(opened.read(place))
    with tarfile.open(sdist) as opened:
        sources = {name.partition("/")[2] for name in opened.getnames()}
    info = place.partition("/")[0]
    needed = files("autoshard") | {f"autoshard/{name}" for name in files("benchmarks")}
    needed |= {f"{info}/{name}" for name in ("licenses/LICENSE", "entry_points.txt", "RECORD")}
    wrong = [f"{wheel.name} lacks {name}" for name in sorted(needed - held)]
    wrong += [
        f"{wheel.name} has {name}"
        for name in sorted(held)
        if name.partition("/")[0] not in ("autoshard", info)
    ]
    if not any(Path(name).match(LOOPS) for name in held):
        wrong.append(f"{wheel.name} lacks {LOOPS}")
    wrong += [f"its metadata lack {field}" for field in SHOWN if not said.get(field)]
    if not str(said.get_payload()).startswith("# autoshard"):
        wrong.append("its description is not the README")
    if said.get("Description-Content-Type") != "text/markdown":
        wrong.append("its description is no Markdown")
    needed = (
        files("autoshard")
        | files("tests")
        | {"pyproject.toml", "README.md", "LICENSE", ".ci/hatch_build.py"}
    )
    return wrong + [f"{sdist.name} lacks {name}" for name in sorted(needed - sources)]


if __name__ == "__main__":
    found = faults(*map(Path, sys.argv[1:3]))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
