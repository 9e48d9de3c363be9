"""Chains that are timed: every compiler keeps every link, and a link computes what it says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies

from autoshard.compiler.target import target_of, why_missing
from autoshard.machine.load import load
from autoshard.plan.plan import MeshShape
from autoshard.study.calibrate import chains
from autoshard.study.calibrate.measure_collectives import KINDS
from autoshard.study.calibrate.timing import (
    Effort,
    LostLinksError,
    compile_on,
    device_mesh,
    link_seconds,
    on_each_device,
    random_parts,
    require_links,
)

LINKS = 5
PARTS = {
    "elementwise": (chains.elementwise(LINKS), ((4096,),) * 3, "fusion"),
    **{
        kind: (
            chains.collective(kind, 4, LINKS),
            ((1 if kind == "all_gather" else 4, 2048),),
            chains.hlo_name(kind),
        )
        for kind in KINDS
    },
    "beside": (
        chains.beside("all_reduce", 4, LINKS),
        ((256, 256), (256, 256), (4, 2048)),
        "all-reduce",
    ),
}


def mesh_of(kind: str) -> jax.sharding.Mesh:
    """Four devices of a kind, which need not be there."""
    if kind == "cpu":
        return device_mesh(jax.devices("cpu")[:4], 4)
    if missing := why_missing(kind):  # type: ignore[arg-type]
        pytest.skip(missing)
    machine = load("h100-4" if kind == "gpu" else "v5e-4")
    target = target_of(machine, MeshShape(("x",), (4,)), kind)  # type: ignore[arg-type]
    return device_mesh(topologies.get_topology_desc(**target.topology).devices, 4)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("part", PARTS)
def test_compilers_keep_every_link(kind, part):
    program, shapes, name = PARTS[part]
    mesh = mesh_of(kind)
    if kind == "cpu":
        starts = [random_parts(mesh, shape, "float32", seed) for seed, shape in enumerate(shapes)]
        launch = compile_on(mesh, program, [starts], wanted=(name, LINKS))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(launch(0)))
        with pytest.raises(LostLinksError, match=f"left {LINKS} of {LINKS + 1} "):
            compile_on(mesh, program, [starts], wanted=(name, LINKS + 1))
        return
    structs = [jax.ShapeDtypeStruct((4, *shape), jnp.float32) for shape in shapes]
    lowered = (
        jax.jit(on_each_device(program, mesh)).trace(*structs).lower(lowering_platforms=("cuda",))
    )
    text = lowered.compile(compiler_options={"xla_gpu_autotune_level": 0}).as_text()
    require_links(text, name, LINKS)


def test_matmuls_go_there_and_back():
    dice = np.random.default_rng(0)
    x, w, v = (dice.normal(size=shape).astype("float32") for shape in ((4, 6), (6, 2), (2, 6)))
    assert np.allclose(chains.matmul(1)(x, w, v), x @ w)
    assert np.allclose(chains.matmul(2)(x, w, v), x @ w @ v)
    assert np.allclose(chains.matmul(3)(x, w, v), x @ w @ v @ w, rtol=1e-4)


def test_links_without_collectives():
    x, a, b = jnp.arange(4.0), jnp.ones(4), jnp.full(4, 2.0)
    assert chains.elementwise(2)(x, a, b).tolist() == (0.5 * (0.5 * x + a) + b).tolist()
    y = np.array([0.5])
    for _ in range(chains.MULTIPLY_ADDS):
        y = y * 0.5 + 0.125
    assert chains.multiply_adds(1)(jnp.array([0.5])) == pytest.approx(y)
    q = jnp.zeros((1, 2, 3))
    values = jnp.arange(6.0).reshape(1, 2, 3)
    mean = [[[1.5, 2.5, 3.5]] * 2]
    assert chains.attention(1)(q, q, values).tolist() == mean


def test_collectives_are_what_they_are_called():
    mesh = device_mesh(jax.devices("cpu")[:4], 2)  # two groups of two
    whole = jnp.arange(4 * 2 * 3.0).reshape(4, 2, 3)
    shard = whole[:, :1]

    def run(kind, x):
        return np.asarray(jax.jit(on_each_device(chains.collective(kind, 2, 1), mesh))(x))

    sums = np.repeat(np.asarray(whole).reshape(2, 2, 2, 3).sum(axis=1), 2, axis=0)
    assert (run("all_reduce", whole) == sums).all()
    scattered = run("reduce_scatter", whole)
    assert (scattered[:, 0] == sums[[0, 1, 2, 3], [0, 1, 0, 1]]).all()
    assert (scattered[:, 1] == whole[:, 1]).all()
    assert (run("all_gather", shard) == np.asarray(shard)[[0, 0, 2, 2]]).all()
    assert (run("collective_permute", whole) == np.asarray(whole)[[1, 0, 3, 2]]).all()
    exchanged = np.asarray(whole).reshape(2, 2, 2, 3).swapaxes(1, 2).reshape(4, 2, 3)
    assert (run("all_to_all", whole) == exchanged).all()


def test_inputs_differ_on_every_device_and_between_calls():
    mesh = device_mesh(jax.devices("cpu")[:4], 2)
    one, two = (np.asarray(random_parts(mesh, (8,), "float32", seed, 0.5)) for seed in (1, 2))
    parts = [tuple(row) for row in (*one, *two)]
    assert len(set(parts)) == 8
    assert np.abs(one).max() <= 0.5


class Clock:
    """A clock that only chains advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def chain(self, call: float, link: float):
        def compile_chain(links: int):
            def launch(number: int):
                self.now += call + link * links

            return launch

        return compile_chain


@pytest.mark.parametrize("link", [2e-2, 1e-4, 3e-7])
def test_what_a_call_costs_is_no_part_of_a_link(monkeypatch, link):
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", lambda: clock.now)
    seconds = link_seconds(clock.chain(3e-4, link), Effort(largest_bytes=1.0))
    assert seconds == pytest.approx(link, rel=1e-6)


def test_what_drowns_is_not_reported(monkeypatch):
    clock = Clock()
    dice = np.random.default_rng(0)
    monkeypatch.setattr("time.perf_counter", lambda: clock.now + dice.uniform(0, 1.0))
    with pytest.warns(UserWarning, match=r"^512 operations of .* drown in calls of .*left out$"):
        assert link_seconds(clock.chain(1e-1, 1e-9), Effort(largest_bytes=1.0)) is None


def test_what_the_compiler_leaves_out_is_not_reported():
    def compile_chain(links):
        require_links("ENTRY { %a = f32[] add(b, c) }", "fusion", links)

    with pytest.warns(UserWarning, match="left 0 of 1 fusion operations"):
        assert link_seconds(compile_chain, Effort(largest_bytes=1.0)) is None
