"""What was meant by a name that is none: all messages ask here, and all alike."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

MOST = 3
"""So many near names are proposed."""
LIKENESS, LESS = 0.45, 0.15
"""Names are near from this share of common letters on (`difflib.SequenceMatcher.ratio`), and where
it is at most so much less than that of the nearest."""
FEW = 8
"""So many names are listed where none is near."""


def near(name: str, known: Iterable[str]) -> list[str]:
    """The known names that are nearest to one that is none, best first; none where none is near."""
    found = get_close_matches(name, list(dict.fromkeys(known)), n=MOST, cutoff=LIKENESS)
    alike = [SequenceMatcher(None, one, name).ratio() for one in found]
    return [one for one, ratio in zip(found, alike, strict=True) if ratio >= alike[0] - LESS]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question for the near names, as `did you mean mesh?`; empty where there are none."""
    found = near(name, known)
    return f"did you mean {' or '.join(found)}?" if found else ""


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a message: `; did you mean mesh?`, or `; known: mesh, machine`."""
    known = list(dict.fromkeys(known))
    if asked := did_you_mean(name, known):
        return f"; {asked}"
    more = ", ..." if len(known) > FEW else ""
    return f"; known: {', '.join(known[:FEW])}{more}" if known else ""
