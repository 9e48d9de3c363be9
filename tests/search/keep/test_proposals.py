"""Choices of what to save: the minimum cut against all choices, and the price of memory."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.models.find import find
from autoshard.program.keep import Residual, find_residuals
from autoshard.program.trace import trace
from autoshard.search.keep.proposals import _cut, policies, proposals
from tests.helpers import toy_machine
from tests.program.keep.programs import CHECKPOINTS, PROGRAMS

BLANK = Residual(
    *("", (), "float32", 1, 8, "sin", "", (), "", 1.0, (), 8, False, False, False, False)
)


def random_values(dice: random.Random, count: int) -> tuple[Residual, ...]:
    names = [f"v{k}" for k in range(count)]
    return tuple(
        replace(
            BLANK,
            name=name,
            reads=tuple(n for n in names[:k] if dice.random() < 0.4),
            needed=k == count - 1 or dice.random() < 0.3,
            pinned=dice.random() < 0.1,
        )
        for k, name in enumerate(names)
    )


def cheapest(values, save, again):
    """The least cost over all choices, each value absent, saved or computed again."""
    best = float("inf")
    for choice in product("-sr", repeat=len(values)):
        of = dict(zip((one.name for one in values), choice, strict=True))
        allowed = all(
            not (one.needed and of[one.name] == "-")
            and not (one.pinned and of[one.name] == "r")
            and not (of[one.name] == "r" and any(of[read] == "-" for read in one.reads))
            for one in values
        )
        if allowed:
            costs = {"-": lambda name: 0.0, "s": save.__getitem__, "r": again.__getitem__}
            best = min(best, sum(costs[of[name]](name) for name in of))
    return best


def cost_of(values, saved, save, again):
    """What a set of saved values costs: those that are needed, and what makes the others."""
    by_name = {one.name: one for one in values}
    todo = [one.name for one in values if one.needed]
    seen, total = set(todo), 0.0
    while todo:
        name = todo.pop()
        total += save[name] if name in saved else again[name]
        if name not in saved:
            assert not by_name[name].pinned
            todo += [read for read in by_name[name].reads if read not in seen]
            seen.update(by_name[name].reads)
    return total


@pytest.mark.parametrize("seed", range(60))
def test_the_cut_is_the_cheapest_of_all_choices(seed):
    dice = random.Random(seed)
    values = random_values(dice, dice.randint(2, 7))
    save = {one.name: dice.randint(1, 9) * 1e-6 for one in values}
    again = {one.name: dice.randint(0, 9) * 1e-6 for one in values}
    saved = _cut(values, save, again)
    assert cost_of(values, saved, save, again) == pytest.approx(cheapest(values, save, again))


def test_stacks_fit_the_memory_that_is_left():
    fn, args = PROGRAMS["transformer"](CHECKPOINTS["checkpoint"])
    residuals = find_residuals(jax.jit(fn).trace(*args).jaxpr)
    size = {one.name: one.bytes for one in residuals.values}
    chip = toy_machine().chip
    free = sum(size.values()) / 10
    fit, large = proposals(residuals, chip, 1, free)
    assert [one.title for one in large][-1] == "everything"
    assert all(sum(size[name] for name in one.saved) <= free for one in fit)
    assert any(not one.saved for one in fit)
    assert len({one.saved for one in (*fit, *large)}) == len(fit) + len(large)


def test_policies_save_what_their_names_say():
    fn, args = PROGRAMS["transformer"](CHECKPOINTS["checkpoint"])
    residuals = find_residuals(jax.jit(fn).trace(*args).jaxpr)
    found = dict(policies(residuals))
    products = {one.name for one in residuals.values if one.primitive == "dot_general"}
    assert found["products"] == products
    batched = found["products"] - found["products without batch dimensions"]
    assert len(batched) == 2  # scores, and what they take of the values
    assert found["attention"] < batched
    assert len(found["attention"]) == 1
    assert found["products without batch dimensions, and attention"] == (
        found["products without batch dimensions"] | found["attention"]
    )
    assert found["nothing"] == frozenset()


def test_a_kernel_is_saved_by_what_the_backward_pass_reads_of_it():
    """Of splash attention's second result, one lane of 128."""
    step = find("llama3-8b:tiny,attention=splash,sequence=128", machine="v5e-8")
    residuals = find_residuals(trace(step.fn, *step.args, **step.options).written)
    saved = residuals.on_stacks(dict(policies(residuals))["attention"])
    by_name = {one.name: one for one in residuals.values}
    kernels = [one for one in residuals.values if one.primitive == "pallas_call"]
    stacks = [by_name[name] for name in saved]
    assert [one.primitive for one in stacks] == ["pallas_call", "slice"]
    assert stacks[1].bytes * 128 == kernels[1].bytes


def test_a_converted_weight_is_not_proposed():
    def body(x, weight):
        return jnp.sin(x @ weight.astype(jnp.bfloat16)), None

    def loss(weights, x):
        return jnp.sum(lax.scan(jax.checkpoint(body), x, weights)[0])

    shapes = (jnp.ones((3, 4, 4)), jnp.ones((2, 4), jnp.bfloat16))
    residuals = find_residuals(jax.jit(jax.grad(loss)).trace(*shapes).jaxpr)
    (weight,) = [one.name for one in residuals.values if one.tied]
    assert weight == "convert_element_type"
    fit, _ = proposals(residuals, toy_machine().chip, 1, 1e9)
    assert not any(weight in one.saved for one in fit)
