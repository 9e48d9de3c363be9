"""The meshes on which the user wants inputs and results of a step, by tree path.

    {"params.embedding": 0, "params.layers[*].router": 1, "opt_state.**": 1}     inputs
    {"result[0]": 0}                                                             results

Paths are written as in requirements (`autoshard.program.select`): arguments by name or position,
results from `result` on. An input given a mesh is put there, and sent to who reads it; state is
updated and comes back where it is put. A result given a mesh is sent there once it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.lower.mpmd.cut.inference import PlacementError
from autoshard.near import hint
from autoshard.program.select import dotted_path, input_keys, path_keys, path_matches


@dataclass(frozen=True, slots=True)
class Homes:
    """The meshes of inputs and results that have one, by position."""

    inputs: Mapping[int, int] = field(default_factory=dict)
    outputs: Mapping[int, int] = field(default_factory=dict)


def find_homes(
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    *,
    in_paths: Sequence[str],
    out_paths: Sequence[str],
    argument_names: Sequence[str],
    ties: Mapping[int, int],
    meshes: int,
) -> Homes:
    """The homes that patterns give; state comes back where it is put.

    Args:
      inputs, outputs: patterns of tree paths, and the number of the mesh.
      in_paths, out_paths: tree paths of the step's inputs and results.
      argument_names: of the step's parameters, by position.
      ties: positions of inputs, and of the results that replace them.
      meshes: how many there are.

    Raises:
      PlacementError: naming all patterns that name nothing (with near names), meshes that there are
        not, and inputs or results that are given two meshes.
    """
    faults: list[str] = []
    arguments = [input_keys(path, argument_names) for path in in_paths]
    results = [[["result", *path_keys(path)]] for path in out_paths]
    given = _given(inputs, arguments, meshes, faults)
    wanted = _given(outputs, results, meshes, faults)
    for before, after in ties.items():
        if before in given and wanted.setdefault(after, given[before]) != given[before]:
            faults.append(
                f"{dotted_path(arguments[before][0])} is put on mesh {given[before]}, and what "
                f"replaces it, {dotted_path(results[after][0])}, on mesh {wanted[after]}: give "
                "both the same"
            )
        elif after in wanted:
            given.setdefault(before, wanted[after])
    if faults:
        raise PlacementError(
            "inputs and results cannot be put so:" + "".join(f"\n  * {fault}" for fault in faults)
        )
    return Homes(given, wanted)


def _given(
    asked: Mapping[str, int],
    known: Sequence[Sequence[Sequence[str]]],
    meshes: int,
    faults: list[str],
) -> dict[int, int]:
    result: dict[int, int] = {}
    for pattern, mesh in asked.items():
        if not 0 <= mesh < meshes:
            faults.append(f"{pattern!r}: there is no mesh {mesh}, but meshes 0 to {meshes - 1}")
            continue
        wanted = path_keys(pattern)
        found = [
            number
            for number, spellings in enumerate(known)
            if any(path_matches(wanted, keys) for keys in spellings)
        ]
        if not found:
            near = hint(pattern, [dotted_path(spellings[0]) for spellings in known])
            faults.append(f"{pattern!r} names nothing{near}")
        for number in found:
            if result.setdefault(number, mesh) != mesh:
                faults.append(
                    f"{dotted_path(known[number][0])} is given mesh {result[number]}, and mesh "
                    f"{mesh} by {pattern!r}"
                )
    return result
