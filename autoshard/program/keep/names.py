"""Names of values and loops: scopes without what transforms and parts of loops write there.

A part of a loop has a scope that says which of its turns it runs. That tells the parts apart, and
is not a name of the user's: a requirement on `layers/mlp` is one on each part of `layers`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

_TRANSFORMS = re.compile(r"\b(jvp|transpose|vmap|pmap)\(|\)")
_SAYS_NOTHING = frozenset({"", "rematted_computation", "checkpoint", "remat"})
_TURNS = re.compile(r"turns_(\d+)_(\d+)")
_INDEX = re.compile(r"(\[\d+:\d+\])+$")


def joined(scope: str, equation: Any) -> str:
    """`scope` and that of an equation in it, without the names of JAX's transforms."""
    parts = _TRANSFORMS.sub("", str(equation.source_info.name_stack)).split("/")
    return "/".join(part for part in (scope, *parts) if part not in _SAYS_NOTHING)


def named(scope: str, text: str, counts: Counter[str], mark: str = "") -> str:
    """The name of `text` in a scope, numbered where it is not the first, with its part of a loop.

    Args:
      counts: of the names so far; this one is added.
      mark: what stands before it.
    """
    names = [one for one in scope.split("/") if one and not is_part(one)]
    name, part = mark + "/".join([*names, *filter(None, [text])]), part_of(scope)
    counts[name + part] += 1
    number = counts[name + part]
    return (name if number == 1 else f"{name}#{number}") + part


def turns_scope(start: int, stop: int) -> str:
    """The scope of a part of a loop that runs turn `start` and those after it, before `stop`."""
    return f"turns_{start}_{stop}"


def is_part(name: str) -> bool:
    """Whether one name of a scope says which turns of a loop it is of."""
    return _TURNS.fullmatch(name) is not None


def part_of(scope: str) -> str:
    """The turns that a scope is of, as an index says them; empty for those of a whole loop.

    >>> part_of("jvp(layers)/turns_0_24/mlp")
    '[0:24]'
    """
    return "".join(turns_index(start, stop) for start, stop in _TURNS.findall(scope))


def without_part(name: str) -> tuple[str, str]:
    """The name of a value, and the turns that it is of; empty for those of a whole loop.

    >>> without_part("layers/mlp/dot_general#2[0:24]")
    ('layers/mlp/dot_general#2', '[0:24]')
    """
    bare = _INDEX.sub("", name)
    return bare, name[len(bare) :]


def turns_index(start: object, stop: object) -> str:
    """What stands behind the name of a value of these turns of a loop alone."""
    return f"[{start}:{stop}]"
