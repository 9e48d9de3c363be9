"""Matmuls that XLA:TPU cuts into rings of permutes, compiled for chips that are not there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.compiler.compiled import Compiled, compile_lowered
from autoshard.compiler.hlo.collectives import HloCollective, collectives
from autoshard.compiler.hlo.groups import parse_groups
from autoshard.compiler.hlo.text import read_module
from autoshard.machine.load import load
from autoshard.plan.plan import MeshShape

needs_tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="the TPU compiler is not installed: pip install 'autoshard[tpu]'",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


def matmul(kind: str, devices: int, size: int, cache: Path) -> Compiled:
    """A matmul whose left side must be gathered, or whose result must be scattered."""
    mesh = AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,))

    def on(*spec):
        return NamedSharding(mesh, PartitionSpec(*spec))

    into, out = ((on(None, "x"), on("x")), on("x"))
    if kind == "all_gather":
        into, out = ((on("x"), on(None, "x")), on(None, "x"))
    struct = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    traced = jax.jit(lambda a, b: a @ b, in_shardings=into, out_shardings=out).trace(struct, struct)
    stage = traced.lower(lowering_platforms=("tpu",))
    machine = load(f"v5e-{devices}")
    return compile_lowered(stage, MeshShape(("x",), (devices,)), machine, cache=cache)


def brief(records: tuple[HloCollective, ...]) -> list[tuple[object, ...]]:
    return [(r.kind, r.axes, r.bytes, r.count) for r in records]


@needs_tpu
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_a_ring_counts_as_the_collective_that_it_implements(kind, cache):
    compiled = matmul(kind, 8, 8192, cache)
    wanted = [(kind, ("x",), 8192 * 8192 * 2, 1)]
    assert brief(compiled.partitioned) == wanted
    assert brief(compiled.final) == wanted
    (one,) = compiled.final
    assert (one.opcode, one.asynchronous, one.group_size) == ("collective-permute", True, 8)
    assert "dot_general" in one.scope
    assert one.line.startswith("test_rings.py:")
    # The ring takes what its collective takes, and most of it hides behind the matmul.
    time = compiled.timeline
    assert time is not None
    assert time.known_share > 0.8
    assert time.collective_seconds > time.exposed_seconds > 0
    assert time.seconds == pytest.approx(time.compute_seconds + time.exposed_seconds)


@needs_tpu
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_a_small_matmul_is_left_whole(kind, cache):
    compiled = matmul(kind, 4, 1024, cache)
    for records in (compiled.partitioned, compiled.final):
        assert [(r.kind, r.axes, r.opcode != "collective-permute") for r in records] == [
            (kind, ("x",), True)
        ]


def test_a_permute_is_no_ring_where_no_matmul_meets_it():
    """A plain shift along an axis of two has as many permutes as a ring of two would."""
    text = """\
HloModule shift, num_partitions=2

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %moved = f32[8]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}, channel_id=1
  ROOT %sum = f32[8]{0} add(%moved, %p)
}
"""
    (one,) = collectives(read_module(text), MeshShape(("x",), (2,)))
    assert (one.kind, one.bytes) == ("collective_permute", 32)


RING = """\
HloModule ring, num_partitions=3

%body (s: (f32[4,8], f32[8,8], f32[4,8], s32[])) -> (f32[4,8], f32[8,8], f32[4,8], s32[]) {
  %s = (f32[4,8], f32[8,8], f32[4,8], s32[]) parameter(0)
  %piece = f32[4,8] get-tuple-element(%s), index=0
  %w = f32[8,8] get-tuple-element(%s), index=1
  %done = f32[4,8] get-tuple-element(%s), index=2
  %i = s32[] get-tuple-element(%s), index=3
  %product = f32[4,8] dot(%piece, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %sum = f32[4,8] maximum(%done, %product)
  %next = f32[4,8] collective-permute(%piece), source_target_pairs={{0,1},{1,2},{2,0}}, channel_id=1
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  ROOT %t = (f32[4,8], f32[8,8], f32[4,8], s32[]) tuple(%next, %w, %sum, %j)
}

%condition (s: (f32[4,8], f32[8,8], f32[4,8], s32[])) -> pred[] {
  %s = (f32[4,8], f32[8,8], f32[4,8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=3
  %n = s32[] constant(TURNS)
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (a: f32[4,8], w: f32[8,8]) -> f32[4,8] {
  %a = f32[4,8] parameter(0)
  %w = f32[8,8] parameter(1)
  %zero = s32[] constant(0)
  %t = (f32[4,8], f32[8,8], f32[4,8], s32[]) tuple(%a, %w, %a, %zero)
  %loop = (f32[4,8], f32[8,8], f32[4,8], s32[]) while(%t), condition=%condition, body=%body
  ROOT %out = f32[4,8] get-tuple-element(%loop), index=2
}
"""


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (3, ("all_gather", 3 * 4 * 8 * 4, 1)),
        (2, ("all_gather", 3 * 4 * 8 * 4, 1)),
        (1, ("collective_permute", 4 * 8 * 4, 1)),
    ],
)
def test_a_loop_that_passes_pieces_around(turns, expected):
    module = read_module(RING.replace("TURNS", str(turns)))
    (one,) = collectives(module, MeshShape(("x",), (3,)))
    assert (one.kind, one.bytes, one.count) == expected


def test_groups_of_a_ring_are_its_cycles():
    assert parse_groups("{{0,1,2}}", 3) == ((0, 1, 2),)
