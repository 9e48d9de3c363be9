"""Lines under `jax.vmap`: they say what the code there sees, and leave mapped dimensions open."""

from __future__ import annotations

import functools
import re
import runpy
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from autoshard.lower.spmd import lower, make_mesh
from autoshard.lower.verify import verify_collectives
from autoshard.program.trace import trace
from autoshard.study.annotate.fewest import fewest
from autoshard.study.annotate.sites import sites_of, written
from tests.helpers import toy_machine
from tests.problem.requirements.programs import array, plan_of
from tests.study.annotate.constraints import constraints_of

MANY = array(4, 64, 64), array(4, 32, 64)
HIDDEN = P("data", None, "model")
"""How the results of `tanh` are pinned; the mapped dimension is the first."""
HIDE = "pin scope **/hide:tanh [data, None, model]"


def dense(w, h):
    with jax.named_scope("hide"):
        return jnp.tanh(h @ w)


def twice(w, h):
    return dense(w, h) @ w


def last(w, h):
    return jax.vmap(twice, in_axes=(0, 0), out_axes=-1)(w, h)


def gradient(w, h):
    return w - jax.grad(lambda w: jnp.mean(jax.vmap(twice)(w, h) ** 2))(w)


def ticks(w, h):
    def tick(b, _):
        return jnp.roll(jax.vmap(lambda w, h: h + twice(w, h))(w, b), 1, 0), None

    return jax.lax.scan(tick, h, None, length=3)[0]


def laid_over(w, h):
    return jax.vmap(twice, spmd_axis_name="data")(w, h)


def in_two(w, h):
    return jax.vmap(lambda w, h: jax.vmap(functools.partial(twice, w))(h))(w, h[:, :, None])


def remat(w, h):
    return jax.grad(lambda w: jnp.sum(jax.vmap(jax.checkpoint(twice))(w, h)))(w)


STEPS = [jax.vmap(twice), last, gradient, ticks, laid_over, in_two, remat]
NAMES = ["twice", "last", "gradient", "ticks", "laid_over", "in_two", "remat"]


def made(step, *requirements):
    program = trace(step, *MANY)
    plan = plan_of(program, *requirements)
    return program, plan, make_mesh(plan, None)


@pytest.mark.parametrize("step", STEPS, ids=NAMES)
def test_every_line_there_can_be_written(step):
    program, plan, mesh = made(step)
    sites = sites_of(program, plan, mesh, step, *MANY)
    assert sites.lines
    for line in sites.lines:
        for spot, said in line.places:
            specs = said.spec if isinstance(said.spec, tuple) else (said.spec,)
            assert all(len(spec or ()) <= len(spot.shape) for spec in specs)
    jax.eval_shape(written(step, sites.planned, mesh), *MANY)
    jax.eval_shape(sites.marked(step, mesh), *MANY)


@pytest.mark.parametrize("step", [jax.vmap(twice), last], ids=["first", "last"])
def test_it_says_what_the_code_sees(step):
    """`tanh` sees `[32, 64]` of `[4, 32, 64]`."""
    program, plan, mesh = made(step, HIDE)
    lines = sites_of(program, plan, mesh, step, *MANY).planned
    (line,) = [one for one in lines if one.names[0].startswith("tanh")]
    ((spot, said),) = line.places
    assert spot.shape == (32, 64)
    assert (said.spec, str(said)) == (
        P(None, "model"),
        "with_sharding_constraint(x, P(None, 'model'))",
    )
    assert constraints_of(written(step, [line], mesh), *MANY) == [P("?", None, "model")]


def test_axes_that_vmap_lays_over_what_it_maps_are_not_said_again():
    program, plan, mesh = made(laid_over, "pin scope **/hide:tanh [model, data, None]")
    lines = sites_of(program, plan, mesh, laid_over, *MANY).lines
    said = {str(one) for line in lines for one in line.says if "tanh" in line.names[0]}
    assert not any("data" in one for one in said)


MODULE = """
import jax
import jax.numpy as jnp
import autoshard
from jax.lax import with_sharding_constraint
from jax.sharding import PartitionSpec as P


def block(x):
    x = jnp.sin(x)
    x = jnp.cumsum(x, axis=0)
    x = jnp.cos(x)
    x = jnp.cumsum(x, axis=1)
    return x


step = jax.vmap(block, in_axes={axis}, out_axes={axis})
"""


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_lines_of_a_mapped_function_make_the_plan_when_they_are_pasted(tmp_path, axis):
    def step_of(text, name):
        path = tmp_path / f"{name}_{axis}.py"
        path.write_text(text)
        return runpy.run_path(str(path))["step"]

    text = MODULE.format(axis=axis)
    step, cube = step_of(text, "plain"), array(32, 32, 32)
    whole = ["model" if k == axis else "None" for k in range(3)]
    rows = ["data" if k == (axis == 0) else one for k, one in enumerate(whole)]
    asked = [f"pin x [{', '.join(whole)}]", f"pin result [{', '.join(whole)}]"]
    plan = plan_of(
        trace(step, cube), *asked, f"pin line plain_{axis}.py:12:cos [{', '.join(rows)}]"
    )
    lowered = lower(plan, step, cube)
    found = fewest(lowered, step, machine=toy_machine())
    assert found.exact
    assert found.lines
    lines = text.splitlines()
    for line in sorted(found.lines, key=lambda one: -int(re.findall(r":(\d+)", str(one))[0])):
        number, what = re.match(r"\w+\.py:(\d+): (.*)", str(line)).groups()
        place = int(number) - ("operand" in what)
        lines.insert(place, f"    {what}")
    pasted = step_of("\n".join(lines), "pasted")
    with jax.set_mesh(lowered.mesh):
        assert verify_collectives(replace(lowered, fn=pasted)).agrees
