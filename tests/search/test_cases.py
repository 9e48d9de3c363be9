"""The small programs of `../shared/data/cases`, where they lie: planned, lowered and judged.

Each of their functions returns a step and its arguments. What a rule of theirs may not say is
refused, with the repair.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from autoshard.problem.requirements.records import RequirementError
from autoshard.program.rules.ask_shardy import NoRuleError
from autoshard.program.trace import trace
from autoshard.search.search import search

CASES = Path(__file__).parents[3] / "shared" / "data" / "cases"
FILES = (
    *("annotate_under_vmap", "callbacks", "clamped_update", "complex_sum", "constraints_in_a_row"),
    *("grouped_convolution", "linear_solve", "logical_rules", "ragged_dot", "segment_sums"),
    *("sequence_parallel_constraints", "shard_map_rule", "vmapped_update", "while_loops"),
    "bias_before_batch_norm",
)
MESHES = ({"x": 8}, {"x": 4, "y": 2}, {"data": 2, "model": 4}, {"model": 8}, {"devices": 8})
REFUSED = {
    "forward_ruled": "needs no rule",  # a shard_map is planned op by op
    "revorder": "or give the mesh in that order: --mesh y=2,x=4",
}
SMALL = 5e6
"""Bytes of arguments of which numbers are compared."""
pytestmark = [
    pytest.mark.filterwarnings("ignore:autoshard.rules is now:DeprecationWarning"),
    pytest.mark.long,
    pytest.mark.skipif(not CASES.exists(), reason="there is no ../shared/data/cases here"),
]


def steps(file: str) -> Iterator[tuple[str, Any]]:
    """The functions of a file that take no argument and return a step."""
    spec = importlib.util.spec_from_file_location(file, CASES / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, made in vars(module).items():
        if inspect.isclass(made) or name.startswith("_") or not callable(made):
            continue
        own = isinstance(made, partial) or getattr(made, "__module__", "") == file
        needed = [
            one for one in inspect.signature(made).parameters.values() if one.default is one.empty
        ]
        if own and not needed and isinstance(found := made(), tuple) and callable(found[0]):
            yield name, found


@pytest.mark.parametrize("file", FILES)
def test_every_step_is_planned_and_computes_what_it_did(file, monkeypatch) -> None:
    monkeypatch.setattr(
        jax.sharding,
        "AbstractMesh",
        lambda sizes, names: AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names)),
    )
    found = list(steps(file))
    assert found
    for name, (fn, args, *options) in found:
        given = {"trip_counts": 5, **(options[0] if options else {})}
        if name in REFUSED:
            with pytest.raises((NoRuleError, RequirementError), match=re.escape(REFUSED[name])):
                judge(name, fn, args, given)
        else:
            judge(name, fn, args, given)


def judge(name: str, fn: Any, args: Any, options: dict[str, Any]) -> None:
    program = trace(fn, *args, **options)
    small = sum(program.values[value].bytes for value in program.inputs) < SMALL
    plan = None
    for mesh in MESHES:
        try:
            machine = str(CASES / "slow.toml") if small else "h100-8"
            plan = search(program, machine, mesh=mesh, baselines=False, gap=0.01)
            break
        except RequirementError:  # of axes that this mesh has not
            if (name in REFUSED and mesh == MESHES[1]) or mesh == MESHES[-1]:
                raise
    assert plan is not None
    lowered = lower(plan, fn, *args)
    comparison = verify_collectives(lowered)
    assert comparison.agrees, f"{name}\n{comparison}"
    if small and all(isinstance(one, jax.Array) for one in jax.tree.leaves(args)):
        assert numeric_differences(lowered, fn, args) == [], name
