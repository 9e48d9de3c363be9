"""The versions of what made a report."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGES = ("autoshard", "jax", "jaxlib", "numpy", "scipy", "ortools", "highspy")


def versions() -> tuple[tuple[str, str], ...]:
    """(name, version) of this package, of Python, and of what prices and solves."""
    known = [("Python", platform.python_version())]
    for name in PACKAGES:
        try:
            known.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            known.append((name, "not installed"))
    return tuple(known)
