"""The words of a sweep: a name and the values that it takes.

    chips=16..512           from 16 to 512, doubling
    chips=64..256+64        from 64 to 256, in steps of 64
    chip=v5e,h100           names, or machine files
    limit=60GiB,80GiB       bytes per device
    batch=32,64,128         a keyword argument of the program's function

`chip` and `chips` (or `machine`, both in one word) and `limit` are about the cluster. All other
names are sizes of the program; the first letters will do where they say which (`seq=8192`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoshard.models.providers import value_of
from autoshard.near import near
from autoshard.units import parse_size

CLUSTER = ("chip", "chips", "machine", "limit")
MOST_VALUES = 10_000
"""A range of more values than this is a slip of the pen."""
MOST_SHOWN = 40
"""Of more sizes than this, an error shows those alone whose names are alike."""


class SweepError(ValueError):
    """A sweep that cannot be made; the message lists all faults and what would repair them."""


def read_words(words: Iterable[str]) -> dict[str, list[Any]]:
    """The sweep of `name=values` words, as they stand on a command line.

    Raises:
      SweepError: a word is not a name with values, or a name is given twice; all of them are named.

    >>> read_words(["chips=16..64", "limit=60GiB"])
    {'chips': [16, 32, 64], 'limit': [64424509440.0]}
    """
    sweep: dict[str, list[Any]] = {}
    faults = []
    for word in words:
        name, equals, values = (part.strip() for part in word.partition("="))
        if not equals or not name.isidentifier() or not values:
            faults.append(f"{word!r} is not a sweep; write a name and values, as chips=16..512")
        elif name in sweep:
            faults.append(f"{name!r} is given twice; write {name}=A,B")
        else:
            try:
                sweep[name] = _values(name, values)
            except ValueError as error:
                faults.append(f"{word!r}: {error}")
    if faults:
        raise SweepError("\n  - ".join(["the sweep is faulty:", *faults]))
    return sweep


def in_full(sweep: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """The sweep with the program's own names in full, and every value in a tuple.

    Args:
      sweep: names to a value or several.
      names: the sizes that the program has.

    Raises:
      SweepError: names that are none, that stand for several, or that say the same twice.
    """
    found: dict[str, tuple[Any, ...]] = {}
    faults = []
    for name, values in sweep.items():
        several = isinstance(values, Iterable) and not isinstance(values, str)
        listed = tuple(dict.fromkeys(values)) if several else (values,)
        full = [name] if name in CLUSTER or name in names else _begun(name, names)
        if len(full) != 1:
            shown = near(name, names) if len(names) > MOST_SHOWN else names
            known = ", ".join([*CLUSTER, *shown])
            full = full if len(full) <= MOST_SHOWN else []
            what = f"may be {' or '.join(full)}" if full else "is neither of the cluster nor a size"
            faults.append(f"{name!r} {what}; known: {known}")
        elif full[0] in found:
            faults.append(f"{name!r} is {full[0]!r}, which is given already")
        elif not listed:
            faults.append(f"{name!r} has no values")
        else:
            found[full[0]] = listed
    if "machine" in found and ("chip" in found or "chips" in found):
        faults.append("'machine' says chip and chips in one word; give the one or the others")
    elif "machine" not in found and "chip" not in found:
        faults.append("no cluster is named; sweep chip=v5p,h100 and chips=64, or machine=v5p-64")
    elif "chip" in found and "chips" not in found:
        faults.append("how many chips? sweep chips=16..512 too")
    if faults:
        raise SweepError("\n  - ".join(["the sweep is faulty:", *faults]))
    return found


def _begun(name: str, names: Sequence[str]) -> list[str]:
    return [one for one in names if one.startswith(name)]


def _values(name: str, text: str) -> list[Any]:
    found: list[Any] = []
    for word in (part.strip() for part in text.split(",")):
        match = re.fullmatch(r"(\d+)\.\.(\d+)(?:\+(\d+))?", word)
        if match:
            found += _range(int(match[1]), int(match[2]), int(match[3] or 0))
        elif ".." in word:
            raise ValueError(f"{word!r} is not a range; write 16..512, or 64..256+64")
        elif word:
            found.append(parse_size(word) if name == "limit" else value_of(word))
    if name == "chips" and any(not isinstance(one, int) or one < 1 for one in found):
        odd = next(one for one in found if not isinstance(one, int) or one < 1)
        raise ValueError(f"chips={odd} is not a whole number from 1 on; write chips=8,16")
    return found


def _range(first: int, last: int, step: int) -> list[int]:
    if not 0 < first <= last:
        raise ValueError(f"{first}..{last} must go up from at least 1; write 16..512")
    if step:
        if (last - first) // step >= MOST_VALUES:
            raise ValueError(
                f"{first}..{last}+{step} has more than {MOST_VALUES} values; take a larger step"
            )
        return list(range(first, last + 1, step))
    found = [first]
    while 2 * found[-1] <= last:
        found.append(2 * found[-1])
    return found
