"""Schedule problems: what they accept, what they refuse, and in which words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance_json import instance_from_json, instance_to_json
from tests.solve.schedule.peer import public_instances
from tests.solve.schedule.random_instances import instances

SMALL = {"p": 2, "m": 3, "F": 2, "B": 3, "W": 1, "comm": 1}


def test_defaults():
    instance = instance_from_json(SMALL)
    assert instance.stages == 2
    assert instance.placement == (0, 1)
    assert instance.transfer == ((0, 1), (1, 0))
    assert instance.edges == ((0, 1),)
    assert (instance.memory("F", 0), instance.memory("BW", 0)) == (1, -1)
    assert instance.time("BW", 1) == 4
    assert instance.memory_limit is None


def test_named_limits():
    instance = instance_from_json(SMALL | {"mem_F": [2, 5], "mem_W": [-2, -5]})
    assert [instance.limit_named(name) for name in ("1f1b", "2x", "none")] == [10, 20, None]
    own = instance_from_json(SMALL | {"mem_limits": {"1f1b": 7, "mine": 3}})
    assert [own.limit_named(name) for name in ("1f1b", "2x", "mine")] == [7, 14, 3]
    with pytest.raises(ScheduleError, match="it is none of 1f1b, 2x, none; nor is it a number"):
        instance.limit_named("3x")


@given(instances())
def test_json_goes_there_and_back(instance):
    assert instance_from_json(json.loads(json.dumps(instance_to_json(instance)))) == instance


def test_public_instances_can_be_read():
    for written in public_instances().values():
        instance = instance_from_json(written)
        assert instance.is_chain
        assert instance.limit_named("1f1b") == written["mem_limits"]["1f1b"]
        assert instance.limit_named("2x") == written["mem_limits"]["2x"]


def refusal(**fields: object) -> str:
    with pytest.raises(ScheduleError) as caught:
        instance_from_json(SMALL | fields)
    return str(caught.value)


def test_all_faults_are_named_at_once():
    assert refusal(F=[1, 0], B=-1, comm=-2, mem_F=2, placement=[0, 2]) == (
        "this instance cannot be used:\n"
        "  placement[1] is 2; the meshes are 0 to 1\n"
        "  F[1] is 0; it must take some time\n"
        "  B[0] is -1; a time is at least 0\n"
        "  B[1] is -1; a time is at least 0\n"
        "  comm[0][1] is -2; it must be at least 0\n"
        "  comm[1][0] is -2; it must be at least 0\n"
        "  stage 0: mem_F + mem_B + mem_W is 1; what F takes must be given back, so it must be 0\n"
        "  stage 1: mem_F + mem_B + mem_W is 1; what F takes must be given back, so it must be 0"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"F": [1, 2, 3], "B": [1, 2]}, "B has 2 entries and F has 3; give one for each stage"),
        ({"W": "long"}, "W[0] is 'long'; give a finite number"),
        ({"W": float("nan")}, "W[0] is nan; give a finite number"),
        ({"W": 1e308}, "W[0] is 1e+308; give 0, or a number from 1e-12 to 1e+18"),
        ({"comm": 1e-320}, "comm[0][1] is 1e-320; give 0, or a number from 1e-12 to 1e+18"),
        ({"p": 10**9}, "p is 1000000000; give a whole number from 1 to 4,096"),
        ({"m": 2**20, "S": 2**16}, "are too many tasks; the most are 4,194,304 pairs"),
        ({"p": 0}, "p is 0; give a whole number from 1 to 4,096"),
        ({"m": 1.5}, "m is 1.5; give a whole number from 1 to 1,048,576"),
        ({"speed": 2}, "'speed' is not a field; known are p, m, F"),
        ({"placement": [[0, 1], 1]}, "placement[0] is [0, 1]; a stage is on one mesh"),
        ({"comm": [[0, 1]]}, "comm is not a matrix of 2 x 2; give that, or one number"),
        ({"dev_scale": [1, 1, 1]}, "dev_scale has 3 entries; give one for each of 2 meshes"),
        ({"dev_scale": [1, 0]}, "dev_scale[1] is 0; it must be more than 0"),
        ({"mem_limit": [1]}, "mem_limit has 1 entry; give one for each of 2 meshes"),
        ({"mem_B": 1}, "F takes memory (0 or more), B and W give it back (0 or less)"),
        ({"edges": [[0, 1], [1, 0]]}, "form a cycle; data flows one way"),
        ({"edges": [[0, 5]]}, "edges: [0, 5] is not a pair of stages 0 to 1"),
        ({"edges": [0, 1]}, "edges is not a list of pairs; write [[0, 1], [1, 2]]"),
        ({"BW": [9, 3]}, "BW[0] is 9, more than B and W apart (4); leave it out"),
        ({"mem_limits": 3}, "mem_limits is 3; give limits by name"),
    ],
)
def test_refusals(fields, words):
    assert words in refusal(**fields)


def test_what_is_missing_or_no_object_is_said():
    with pytest.raises(ScheduleError) as caught:
        instance_from_json({"name": "half", "p": 2, "F": 1})
    assert str(caught.value) == (
        "the instance 'half' cannot be used:\n"
        "  there is no m; give it\n  there is no B; give it\n  there is no W; give it"
    )
    with pytest.raises(ScheduleError, match="it is a list; give an object"):
        instance_from_json([SMALL])
