"""Which values of a program a pattern names.

    params.layers[*].w1           an argument, by its name (or position) and tree path
    result[1].up                  a result, by its tree path
    scope layer_*/attention       what ops under these scopes make, in the forward pass
    scope **/mlp:dot_general      only what this primitive makes
    line model.py:41              what a line of the user's code makes, in the forward pass
    line model.py:41:dot_general  only what this primitive makes
    backward scope ..., backward line ...    the same in the backward pass

`*` stands for any part of a name, `**` for any number of names. What names nothing so is read as a
shell reads a file's name: `*w1*` is whatever has `w1` in its path or scope. Tree paths may be
written with dots or brackets alike: `params.layers[0].w1`, `params["layers"][0]["w1"]`. A scope
stands for everything inside of it. Values that are computed wherever they are needed (constants)
have no layout, and are not named.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

from autoshard.near import hint
from autoshard.program.keep.names import is_part
from autoshard.program.trace import Op, Program

_KEY = re.compile(r"\[\s*(['\"]?)(.*?)\1\s*\]|\.?([^.\[\]]+)")
_NUMBERS = re.compile(r"\d+(:\d+)?")
_TRANSFORM = re.compile(
    r"^(?:jvp|transpose|vmap|rematted_computation|checkpoint|remat|jit)\((.*)\)$"
)
_SILENT = frozenset({"", "jvp()", "rematted_computation", "checkpoint", "remat", "while", "body"})


class RequirementError(ValueError):
    """Requirements that make no sense for a program or mesh; the message lists all of them."""


def find_values(program: Program, target: str) -> tuple[int, ...]:
    """The values that `target` names, in program order.

    Raises:
      RequirementError: it names nothing; near names are proposed.
    """
    words = target.split(None, 1)
    backward = words[0] == "backward"
    rest = words[1] if backward and len(words) > 1 else target
    kind, _, pattern = rest.partition(" ")
    if kind in ("scope", "line"):
        found, known = _made_at(program, kind, pattern.strip(), backward)
    elif backward:
        raise RequirementError(f"{target!r}: write `backward scope ...` or `backward line ...`")
    else:
        found, known = _at_path(program, target)
    found = tuple(value for value in found if not program.values[value].free)
    if not found:
        raise RequirementError(f"{target!r} names no value of {program.name}{hint(rest, known)}")
    return found


def is_inside(pattern: str, scope: str) -> bool:
    """Whether an op's scope is what a pattern stands for, or inside of it.

    >>> is_inside("layer_*/mlp", "jit(step)/transpose(jvp(layer_3))/mlp/gelu")
    True
    """
    return _within([key for key in pattern.split("/") if key], scope_names(scope))


def ops_inside(program: Program, pattern: str) -> tuple[Op, ...]:
    """The ops under the scopes that a pattern stands for, forward and backward.

    Raises:
      RequirementError: there are none; near scopes are proposed.
    """
    scopes = dict.fromkeys(op.scope for op in program.ops if not op.boundary)
    inside = {scope for scope in scopes if is_inside(pattern, scope)}
    found = tuple(op for op in program.ops if op.scope in inside)
    if not found:
        known = ["/".join(scope_names(scope)) for scope in scopes]
        near = hint(pattern, [name for name in known if name])
        raise RequirementError(f"{program.name} has no scope {pattern!r}{near}")
    return found


def path_keys(path: str) -> list[str]:
    """The keys of a tree path in either notation.

    >>> path_keys("params.layers[0]['w1']")
    ['params', 'layers', '0', 'w1']
    """
    return [key if bare is None else bare for _, key, bare in _keys(path)]


def input_keys(path: str, argument_names: Sequence[str]) -> list[list[str]]:
    """The keys of an input's path: by the argument's name, if it has one, and by its position."""
    first, *rest = path_keys(path)
    number = int(first)
    return [[name, *rest] for name in (*argument_names[number : number + 1], first)]


def named_path(path: str, argument_names: Sequence[str]) -> str:
    """An input's tree path with the argument's name, if it has one, in place of its position.

    >>> named_path("[0]['layers'][3]", ["params"])
    "params['layers'][3]"
    """
    first = path[1 : path.index("]")] if path.startswith("[") else ""
    if not first.isdigit() or int(first) >= len(argument_names):
        return path
    return argument_names[int(first)] + path[len(first) + 2 :]


def shown_path(program: Program, value: int) -> str:
    """How a user would name an input or a result: `params.layers[0].w1`; else an empty string."""
    path = program.values[value].path
    if value in program.inputs:
        return dotted_path(input_keys(path, program.argument_names)[0])
    return dotted_path(["result", *path_keys(path)]) if value in program.outputs else ""


def group_path(path: str) -> str:
    """A tree path with `*` for every number but the argument's: what repeated blocks share.

    >>> group_path("[0]['layers'][3]['w1']")
    '[0].layers.*.w1'
    """
    first, *rest = path_keys(path)
    return ".".join([f"[{first}]", *("*" if key.isdigit() else key for key in rest)])


def scope_names(scope: str) -> list[str]:
    """The user's names of a scope, without what transforms and parts of loops write there.

    >>> scope_names("jit(step)/transpose(jvp(layer_3))/mlp")
    ['step', 'layer_3', 'mlp']
    """
    names = []
    for part in _split(scope):
        while match := _TRANSFORM.match(part):
            part = match[1]
        if part not in _SILENT:
            names += [name for name in part.split("/") if not is_part(name)]
    return names


def _keys(path: str) -> Iterable[tuple[str, str, str | None]]:
    for quote, key, bare in _KEY.findall(path):
        yield quote, key, bare or None


def dotted_path(keys: Sequence[str]) -> str:
    """A tree path as a user writes it: `params.layers[0].w1`, or rows of it, `params.w1[0:8]`."""
    parts = [f"[{key}]" if _NUMBERS.fullmatch(key) else f".{key}" for key in keys[1:]]
    return keys[0] + "".join(parts)


def _at_path(program: Program, target: str) -> tuple[list[int], list[str]]:
    wanted = path_keys(target)
    found = []
    for value in program.inputs:
        spellings = input_keys(program.values[value].path, program.argument_names)
        if any(path_matches(wanted, keys) for keys in spellings):
            found.append(value)
    for value in program.outputs:
        if path_matches(wanted, ["result", *path_keys(program.values[value].path)]):
            found.append(value)
    paths = {value: shown_path(program, value) for value in (*program.inputs, *program.outputs)}
    if not found and "*" in target:
        whole = as_in_a_shell(dotted_path(wanted))
        found = [value for value, path in paths.items() if whole.fullmatch(path)]
    return list(dict.fromkeys(found)), list(paths.values())


def as_in_a_shell(pattern: str) -> re.Pattern[str]:
    """A pattern of a whole path, in which `*` stands for any text and all else for itself."""
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", pattern))))


def _made_at(
    program: Program, kind: str, pattern: str, backward: bool
) -> tuple[list[int], list[str]]:
    ops = [op for op in program.ops if op.backward == backward and not op.boundary]
    if kind == "scope":
        place, _, primitive = pattern.partition(":")
        wanted = [key for key in place.split("/") if key]
        names = {scope: scope_names(scope) for scope in {op.scope for op in ops}}
        known = {"/".join(names[op.scope]): None for op in ops}
        inside = {scope for scope, parts in names.items() if _within(wanted, parts)}
        if not inside and "*" in place:
            whole = as_in_a_shell(place)
            inside = {scope for scope, parts in names.items() if whole.fullmatch("/".join(parts))}
        ops = [op for op in ops if op.scope in inside]
    else:
        place, primitive = _place_and_primitive(pattern)
        known = {op.line: None for op in ops if op.line}
        ops = [op for op in ops if _is_line(op, place)]
    if primitive:
        known = {op.primitive: None for op in ops}
        ops = [op for op in ops if fnmatch.fnmatchcase(op.primitive, primitive)]
        return [v for op in ops for v in op.outputs], [f"{kind} {place}:{name}" for name in known]
    return [v for op in ops for v in op.outputs], [f"{kind} {name}" for name in known if name]


def _place_and_primitive(pattern: str) -> tuple[str, str]:
    match = re.fullmatch(r"(.*?:\d+)(?::(.+))?", pattern)
    return (pattern, "") if match is None else (match[1], match[2] or "")


def _is_line(op: Op, place: str) -> bool:
    """Whether the op stands at `file.py:41`, where the file may be given with its folders."""
    if not op.line:
        return False
    here, there = op.line.rpartition(":"), place.rpartition(":")
    if here[2] != there[2]:
        return False
    parts, wanted = here[0].split("/"), there[0].split("/")
    shared = min(len(parts), len(wanted))
    return all(
        fnmatch.fnmatchcase(a, b) for a, b in zip(parts[-shared:], wanted[-shared:], strict=True)
    )


def _within(wanted: Sequence[str], names: Sequence[str]) -> bool:
    """Whether some run of the names, from any place on, is what is wanted."""
    return any(
        path_matches(wanted, names[first:last])
        for first in range(len(names))
        for last in range(first + 1, len(names) + 1)
    )


def path_matches(wanted: Sequence[str], keys: Sequence[str]) -> bool:
    """Whether a path has the keys of a pattern, where `*` and `**` stand for others."""
    if not wanted:
        return not keys
    if wanted[0] == "**":
        return any(path_matches(wanted[1:], keys[k:]) for k in range(len(keys) + 1))
    return (
        bool(keys)
        and fnmatch.fnmatchcase(keys[0], wanted[0])
        and path_matches(wanted[1:], keys[1:])
    )


def _split(scope: str) -> list[str]:
    """The parts of a scope; a slash inside of parentheses divides nothing."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(scope):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0:
            parts.append(scope[start:at])
            start = at + 1
    return [*parts, scope[start:]]
