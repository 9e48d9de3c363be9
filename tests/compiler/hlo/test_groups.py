"""Replica groups in every notation, and back to the axes of the mesh: all against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.compiler.hlo.axes import FineMesh
from autoshard.compiler.hlo.groups import joined, parse_groups, parse_pairs, ring_length
from autoshard.plan.plan import MeshShape

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ((0, 1, 2, 3),)),
        ("{{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("{{0,2,1,3}}", ((0, 2, 1, 3),)),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3))),
        ("mesh[a=2,b=2] {a,b}", ((0, 1, 2, 3),)),
        ("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
        ("mesh['a'=4] {'a':(1)2}", ((0, 2), (1, 3))),
        ("mesh['a'=4] {'a':(2)2}", ((0, 1), (2, 3))),
        ("mesh['a'=1,'b'=4] {'b'}", ((0, 1, 2, 3),)),
        ("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2], device_ids=([2,2]<=[2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2], device_ids=({{3,2},{1,0}}) {'b'}", ((3, 2), (1, 0))),
    ],
)
def test_notations(text, groups):
    assert parse_groups(text, 4) == groups


def test_a_notation_that_is_none():
    with pytest.raises(ValueError, match=r"replica groups 'all' are in no known notation"):
        parse_groups("all", 4)
    with pytest.raises(ValueError, match="hold 3 devices, an odd number"):
        parse_pairs("{{0,1},{2}}")


@st.composite
def meshes_with_axes(draw):
    sizes = draw(SIZES)
    names = tuple("abcd"[: len(sizes)])
    used = draw(st.sets(st.sampled_from(names)))
    return MeshShape(names, tuple(sizes)), used


def groups_along(mesh: MeshShape, used: set[str]) -> tuple[tuple[int, ...], ...]:
    """Brute force: devices whose other coordinates agree."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, place in enumerate(itertools.product(*map(range, mesh.sizes))):
        rest = tuple(c for c, name in zip(place, mesh.names, strict=True) if name not in used)
        groups.setdefault(rest, []).append(device)
    return tuple(map(tuple, groups.values()))


@given(meshes_with_axes())
@settings(deadline=None)
def test_axes_of_groups_are_found_again(case):
    mesh, used = case
    wanted = groups_along(mesh, used)
    listed = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in wanted) + "}"
    axes = ",".join(f"'{n}'={s}" for n, s in zip(mesh.names, mesh.sizes, strict=True))
    named = f"mesh[{axes}] {{{','.join(repr(n) for n in mesh.names if n in used)}}}"
    order = [n for n, name in enumerate(mesh.names) if name not in used]
    order += [n for n, name in enumerate(mesh.names) if name in used]
    sizes, turned = ",".join(map(str, mesh.sizes)), ",".join(map(str, order))
    iota = f"[{len(wanted)},{len(wanted[0])}]<=[{sizes}]T({turned})"
    fine = FineMesh(mesh)
    for text in (listed, named, iota):
        assert parse_groups(text, math.prod(mesh.sizes)) == wanted
    found = fine.of_groups(wanted)
    assert found is not None
    real = {name for name, size in zip(mesh.names, mesh.sizes, strict=True) if size > 1}
    assert fine.printed(found) == tuple(n for n in mesh.names if n in used & real)
    assert fine.size(found) == len(wanted[0])
    assert fine.of_names(used) == found


@given(SIZES, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_groups_that_no_axes_make(sizes, dice):
    mesh = MeshShape(tuple("abcd"[: len(sizes)]), tuple(sizes))
    devices = list(range(math.prod(sizes)))
    dice.shuffle(devices)
    size = dice.choice([n for n in range(1, len(devices) + 1) if len(devices) % n == 0])
    groups = tuple(tuple(sorted(devices[n : n + size])) for n in range(0, len(devices), size))
    fine = FineMesh(mesh)
    found = fine.of_groups(groups)
    # Every set of fine axes is tried: the groups are found exactly where some set makes them.
    places = np.stack(np.unravel_index(np.arange(len(devices)), tuple(fine.sizes) or (1,)), axis=1)
    fitting = []
    for count in range(len(fine.sizes) + 1):
        for axes in itertools.combinations(range(len(fine.sizes)), count):
            rest = [axis for axis in range(places.shape[1]) if axis not in axes]
            made: dict[tuple[int, ...], list[int]] = {}
            for device in range(len(devices)):
                made.setdefault(tuple(places[device, rest]), []).append(device)
            if sorted(map(tuple, made.values())) == sorted(groups):
                fitting.append(frozenset(axes))
    assert [found] == fitting if found is not None else fitting == []


def test_parts_of_axes_are_printed_as_shardy_does():
    fine = FineMesh(MeshShape(("x", "y"), (8, 3)))
    groups = parse_groups("mesh['x'=8,'y'=3] {'x':(2)2,'y'}", 24)
    found = fine.of_groups(groups)
    assert found is not None
    assert fine.printed(found) == ("x:(2)2", "y")
    assert fine.owners(found) == (0, 1)


def test_devices_outside_of_the_mesh():
    fine = FineMesh(MeshShape(("x",), (4,)))
    with pytest.raises(ValueError, match=r"names devices \[7\], but the mesh \(x=4\) has 4"):
        fine.of_groups(((0, 7),))


@given(SIZES, st.data())
@settings(deadline=None)
def test_permutes(sizes, data):
    mesh = MeshShape(tuple("abcd"[: len(sizes)]), tuple(sizes))
    axis = data.draw(st.integers(0, len(sizes) - 1))
    shift = data.draw(st.integers(0, sizes[axis] - 1))
    places = list(itertools.product(*map(range, sizes)))
    pairs = []
    for device, place in enumerate(places):
        target = list(place)
        target[axis] = (target[axis] + shift) % sizes[axis]
        pairs.append((device, places.index(tuple(target))))
    text = "{" + ",".join(f"{{{a},{b}}}" for a, b in pairs) + "}"
    assert parse_pairs(text) == tuple(pairs)
    fine = FineMesh(mesh)
    moved = {fine.mesh.names[owner] for owner in fine.owners(fine.of_pairs(tuple(pairs)))}
    assert moved == ({mesh.names[axis]} if shift else set())
    if shift:
        length = sizes[axis] // math.gcd(shift, sizes[axis])
        assert ring_length(tuple(pairs)) == length
        assert {len(group) for group in joined(tuple(pairs))} == {length}


def test_what_is_no_ring():
    assert ring_length(parse_pairs("{{0,1},{1,2}}")) is None
    assert ring_length(parse_pairs("{{0,1},{1,0},{2,2}}")) is None
    assert joined(parse_pairs("{{0,4},{4,1},{2,3}}")) == ((0, 1, 4), (2, 3))


@given(SIZES, st.data())
@settings(deadline=None)
def test_axes_on_which_values_depend(sizes, data):
    mesh = MeshShape(tuple("abcd"[: len(sizes)]), tuple(sizes))
    weights = data.draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    values = np.array(
        [
            sum(w * c for w, c in zip(weights, place, strict=True))
            for place in itertools.product(*map(range, sizes))
        ]
    )
    fine = FineMesh(mesh)
    wanted = tuple(
        name
        for name, size, weight in zip(mesh.names, sizes, weights, strict=True)
        if size > 1 and weight
    )
    assert fine.printed(fine.of_values(values)) == wanted
