"""Optional packages: which extra brings them, and how it is installed."""

from __future__ import annotations

from importlib.util import find_spec


class MissingExtraError(ModuleNotFoundError):
    """A package that only an extra brings is not there; the message says how it is installed."""


def install_line(extra: str) -> str:
    """How to install an extra, from an index and from a clone."""
    return f"pip install 'autoshard[{extra}]', or pip install '.[{extra}]' in a clone"


def why_missing(package: str, extra: str, reader: str) -> str:
    """What to install for what needs a package, or an empty string where the package is there."""
    if find_spec(package) is not None:
        return ""
    return f"{reader} needs {package}, which is not installed: {install_line(extra)}"


def require(package: str, extra: str, reader: str) -> None:
    """Go on where a package is there.

    Raises:
      MissingExtraError: it is not; the message names the reader and what to install.
    """
    if missing := why_missing(package, extra, reader):
        raise MissingExtraError(missing)
