"""Less memory costs time: the front of a step, and what a GiB is worth along it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autoshard.cli.main import main
from autoshard.plan.plan import Plan
from autoshard.program.trace import trace
from autoshard.search.search import InfeasibleError
from autoshard.study.frontier import frontier
from tests.helpers import toy_machine

LAYERS, BATCH, WIDTH = 4, 128, 32


def loss(params, x):
    def layer(x, weights):
        return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None

    x, _ = lax.scan(jax.checkpoint(layer), x, params)
    return jnp.sum(x * x)


def step(params, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


@pytest.fixture(scope="module")
def program():
    up, down = np.ones((LAYERS, WIDTH, 2 * WIDTH)), np.ones((LAYERS, 2 * WIDTH, WIDTH))
    arrays = {"up": up, "down": down}, np.ones((BATCH, WIDTH))
    return trace(step, *jax.tree.map(np.float32, arrays), donate_argnums=0)


@pytest.fixture(scope="module")
def front(program):
    heard: list[str] = []
    options = {"mesh": {"x": 8}, "points": 3, "heard": heard.append}
    found = frontier(program, toy_machine(), **options)
    assert heard
    return found


def test_along_the_front_the_step_grows_as_memory_shrinks(front):
    assert len(front.plans) >= 2
    peaks = [plan.estimate.peak_bytes for plan in front.plans]
    steps = [plan.estimate.step_seconds for plan in front.plans]
    assert peaks == sorted(peaks, reverse=True)
    assert steps == sorted(steps)
    assert len(set(peaks)) == len(set(steps)) == len(peaks)
    assert "saved" in front.plans[0].options


def test_the_price_of_a_gib_is_the_slope(front):
    first, second = (plan.estimate for plan in front.plans[:2])
    price = front.price(0)
    assert price is not None
    assert price > 0
    lost = (first.peak_bytes - second.peak_bytes) / 2**30 * price
    assert first.step_seconds + lost == pytest.approx(second.step_seconds)
    assert front.price(len(front.plans) - 1) is None


def test_the_table_and_the_file_say_each_point(front):
    text = str(front)
    assert "a GiB less costs" in text
    points = front.to_json()["points"]
    assert [Plan.from_json(one["plan"]) for one in points] == list(front.plans)
    assert text.count("\n") >= len(points) + 2


def test_limits_that_have_no_plan_do_not_end_the_front(program, monkeypatch):
    least, asked = 0.7e9, []

    def stood(program, machine, *, memory_limit, **rest):
        limit = memory_limit or 1e9
        asked.append(limit)
        if limit < least:
            known = None if len(asked) < 3 else least
            raise InfeasibleError("it does not fit", least_bytes=known)
        estimate = SimpleNamespace(
            peak_bytes=limit / 2, scheduled_bytes=limit, step_seconds=1e9 / limit
        )
        return SimpleNamespace(estimate=estimate, proof=SimpleNamespace(limit_hit=None))

    monkeypatch.setattr("autoshard.study.frontier.search", stood)
    found = frontier(program, toy_machine(), points=3)
    assert asked == pytest.approx([1e9, 2e9 / 3, 5e9 / 6], rel=1e-3)
    assert [plan.estimate.scheduled_bytes for plan in found.plans] == asked[::2]
    assert found.nothing_within == asked[1]
    assert found.price(0) == pytest.approx(0.2 / (1e9 / 6 / 2**30), rel=1e-3)
    asked.clear()
    found = frontier(program, toy_machine(), points=6)
    assert len(found.plans) == 5  # once it is known, the last limit is the least one
    assert found.plans[-1].estimate.scheduled_bytes == pytest.approx(least)


def test_where_nothing_fits_the_search_says_so(program):
    with pytest.raises(InfeasibleError):
        frontier(program, toy_machine(), mesh={"x": 8}, memory_limit=1000.0)


def test_the_command_prints_and_writes_the_front(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "frontier mlp:tiny --machine h100-8 --mesh x=8 --points 1 --remat respect"
    assert main([*words.split(), "--quiet", "-o", "front.json"]) == 0
    assert "mlp:tiny on h100-8" in capsys.readouterr().out
    points = json.loads((tmp_path / "front.json").read_text())["points"]
    assert points[0]["seconds_per_gib"] is None or points[0]["seconds_per_gib"] > 0
