"""`python check_size.py GIGABYTES`: an install without extras is not larger.

It is autoshard and all that it needs, without byte code, as they are in this environment.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata

from packaging.requirements import Requirement


def closure(name: str) -> dict[str, metadata.Distribution]:
    """A package and what it needs without extras, by name."""
    found: dict[str, metadata.Distribution] = {}
    met: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(name)]
    while todo:
        one = todo.pop()
        key = re.sub(r"[-_.]+", "-", one.name).lower()
        if (key, frozenset(one.extras)) in met:
            continue
        met.add((key, frozenset(one.extras)))
        found[key] = metadata.distribution(one.name)
        for text in found[key].requires or ():
            needed = Requirement(text)
            extras = ("", *one.extras)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras):
                todo.append(needed)
    return found


def size_of(package: metadata.Distribution) -> int:
    """Bytes of its files, without byte code."""
    places = (one.locate() for one in package.files or () if one.suffix != ".pyc")
    return sum(place.stat().st_size for place in places if place.is_file())


def main() -> None:
    """Print the sizes, and fail above the limit."""
    limit = float(sys.argv[1])
    sizes = {name: size_of(one) / 1e9 for name, one in closure("autoshard").items()}
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])[:5]
    total = sum(sizes.values())
    print(f"install: {total:.3f} GB;", ", ".join(f"{name} {size:.3f}" for name, size in largest))
    if total > limit:
        sys.exit(f"an install takes {total:.3f} GB, more than {limit} GB")


if __name__ == "__main__":
    main()
