"""Rows that a user's `shard_map` sends by `jax.lax.ragged_all_to_all`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec as P

from autoshard.compat.row_exchange import ROW_EXCHANGE, exchange_rows
from autoshard.cost.row_exchange import sent_rows
from autoshard.lower.verify import verify
from autoshard.plan.plan import Plan
from autoshard.program.rules.ragged import sending_factor
from autoshard.program.rules.record import FactorKind
from autoshard.program.shard_maps.in_place import run_shard_maps
from autoshard.program.strategies import enumerate_strategies
from autoshard.program.trace import Program
from tests.helpers import Case, case, random_plan
from tests.lower.parts.one_op import OneOp
from tests.program.shard_maps.steps import grid, line, normal

ROWS, WIDTH = 24, 4


def as_defined(
    operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name
):
    """As `jax.lax.ragged_all_to_all` is defined, which XLA:CPU has not."""
    told = (operand, input_offsets, send_sizes, output_offsets)
    rows, starts, counts, ends = (lax.all_gather(one, axis_name) for one in told)
    parts, me, row = rows.shape[0], lax.axis_index(axis_name), jnp.arange(output.shape[0])
    pieces = starts.shape[1] // parts
    for sender in range(parts):
        for piece in range(pieces):
            n = me * pieces + piece
            place = row - ends[sender, n]
            here = (place >= 0) & (place < counts[sender, n])
            found = rows[sender][jnp.clip(starts[sender, n] + place, 0, rows.shape[1] - 1)]
            output = jnp.where(here[:, None], found, output)
            agreed = counts[sender, n] == recv_sizes[sender * pieces + piece]
            output = jnp.where(agreed, output, jnp.nan)
    return output


def numbers(seed: int, parts: int, pieces: int = 1) -> tuple[jax.Array, ...]:
    """Offsets and sizes `[parts, parts x pieces]` of what parts send, some of it nothing."""
    dice = np.random.default_rng(seed)
    most = ROWS // (parts * pieces)
    counts = dice.integers(0, most + 1, (parts, parts, pieces))
    begin = counts.reshape(parts, -1).cumsum(1).reshape(counts.shape) - counts
    arrived = counts.transpose(1, 0, 2)
    place = (arrived.reshape(parts, -1).cumsum(1).reshape(counts.shape) - arrived).transpose(
        1, 0, 2
    )
    flat = (one.reshape(parts, -1) for one in (begin, counts, place, arrived))
    return tuple(jnp.asarray(one, jnp.int32) for one in flat)


def sending(send: Callable[..., Any], mesh: Any, over: Any, spec: P) -> Callable[..., Any]:
    """A function of rows, places and numbers whose parts send rows over some axes."""

    def part(rows: Any, places: Any, *told: Any) -> Any:
        return send(jnp.tanh(rows), places, *(one[0] for one in told), axis_name=over)

    return jax.shard_map(part, mesh=mesh, in_specs=(spec,) * 6, out_specs=spec, check_vma=False)


CASES: dict[str, tuple[Callable[[], Any], Any, P, int, int]] = {
    "one axis": (line, "x", P("x"), 8, 1),
    "two pieces": (line, "x", P("x"), 8, 2),
    "two axes": (grid, ("a", "b"), P(("a", "b")), 8, 1),
    "two axes turned": (grid, ("b", "a"), P(("a", "b")), 8, 1),
    "major axis": (grid, "a", P(("a", "b")), 4, 1),
    "minor axis": (grid, "b", P(("a", "b")), 2, 3),
}


def arguments(name: str) -> tuple[jax.Array, ...]:
    _, _, _, parts, pieces = CASES[name]
    groups = [numbers(seed, parts, pieces) for seed in range(8 // parts)]
    turn = 1 if name == "major axis" else 0  # where parts that send to each other lie apart
    told = (jnp.stack(one, turn).reshape(8, -1) for one in zip(*groups, strict=True))
    return normal(0, 8 * ROWS, WIDTH), normal(1, 8 * ROWS, WIDTH), *told


@pytest.mark.parametrize("name", CASES)
def test_rows_arrive_as_the_collective_is_defined(name: str) -> None:
    mesh, over, spec, *_ = CASES[name]
    args = arguments(name)
    if name == "two axes turned":
        args = args[:2] + _turned(args[2:])
    opened = run_shard_maps(
        jax.jit(sending(lax.ragged_all_to_all, mesh(), over, spec)).trace(*args).jaxpr
    )
    (found,) = jaxpr_as_fun(opened)(*args)
    wanted = jax.jit(sending(as_defined, mesh(), over, spec))(*args)
    assert not np.isnan(wanted).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert not np.array_equal(found, args[1])


def _turned(told: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Numbers of parts counted along b first, where they lie as the mesh counts them."""
    return tuple(one.reshape(2, 4, -1).swapaxes(0, 1).reshape(8, -1) for one in told)


@pytest.mark.parametrize("as_on_cpu", [True, False])
@pytest.mark.parametrize(("batch", "parts", "pieces"), [(0, 8, 1), (0, 4, 2), (1, 4, 1), (2, 2, 2)])
def test_every_cut_sends_the_same_rows(
    batch: int, parts: int, pieces: int, as_on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (2, 3)[:batch]
    groups = [numbers(seed, parts, pieces) for seed in range(math.prod(before))]
    told = [jnp.stack(one).reshape(*before, parts, -1) for one in zip(*groups, strict=True)]
    shape = (*before, parts, ROWS)
    arrays = normal(0, *shape, WIDTH), normal(1, *shape, WIDTH), *told
    fn = partial(_whole, batch=batch)
    wanted, one = fn(*arrays), OneOp(fn, arrays, ROW_EXCHANGE)
    if not as_on_cpu:
        monkeypatch.setattr(lax, "platform_dependent", lambda *a, cpu, default: default(*a))
        monkeypatch.setattr(lax, "ragged_all_to_all", as_defined)
    kinds = [factor.kind for factor in one.rule.factors]
    cuts = [row for row in one.assignments((2, 2)) if row == tuple(sorted(row))]
    assert any(kinds[f] is FactorKind.EXCHANGE for row in cuts for f in row if f >= 0)
    for assignment in cuts:
        found = one.on_parts(assignment, (2, 2), *arrays)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=str(assignment))


def _whole(*arrays: Any, batch: int) -> Any:
    return exchange_rows(arrays, batch)


def dropless(tokens: int = 256, width: int = 16, hidden: int = 32, experts: int = 8) -> Any:
    """A step of experts that drop no token: rows go to them and come back, with gradients."""

    def part(router: Any, up: Any, down: Any, x: Any) -> Any:
        parts, own = lax.axis_size("b"), up.shape[0]
        scores = jax.nn.softmax(x @ router)
        order = jnp.argsort(expert := jnp.argmax(scores, -1))
        counts = lax.all_gather(jnp.bincount(expert, length=experts).astype(jnp.int32), "b")
        counts, me = counts.reshape(parts, parts, own), lax.axis_index("b")
        sent, mine = counts.sum(-1), counts[:, me]
        before, there = (jnp.cumsum(sent, axis) - sent for axis in (1, 0))
        going, coming = sent[me], sent[:, me]
        places = jnp.zeros((x.shape[0] * parts, width), x.dtype)
        told = before[me], going, there[me], coming
        rows = lax.ragged_all_to_all(x[order], places, *told, axis_name="b")
        groups = jnp.tile(jnp.arange(own), parts)
        group = jnp.repeat(groups, mine.ravel(), total_repeat_length=len(places))
        group = jnp.where(jnp.arange(len(places)) < mine.sum(), group, own)
        lies = jnp.argsort(group)
        made = lax.ragged_dot(
            jnp.tanh(lax.ragged_dot(rows[lies], up, mine.sum(0))), down, mine.sum(0)
        )
        made = jnp.zeros_like(made).at[lies].set(made)
        told = there[:, me], coming, before[:, me], going
        back = lax.ragged_all_to_all(made, jnp.zeros_like(x), *told, axis_name="b")
        return jnp.zeros_like(x).at[order].set(back) * scores.max(-1, keepdims=True)

    def step(weights: Any, x: Any) -> Any:
        spec = P(("a", "b"))
        mapped = jax.shard_map(
            part,
            mesh=grid(),
            in_specs=(P(), P("b"), P("b"), spec),
            out_specs=spec,
            check_vma=False,
        )
        return jax.value_and_grad(lambda w: jnp.mean((x + mapped(*w, x)) ** 2))(weights)

    shapes = (width, experts), (experts, width, hidden), (experts, hidden, width)
    weights = tuple(0.3 * normal(k, *shape) for k, shape in enumerate(shapes))
    return step, (weights, normal(3, tokens, width))


def sends(plan: Plan, program: Program) -> int:
    """How many exchanges of rows a plan cuts between their parts."""
    found = 0
    for op in program.ops:
        factor = sending_factor(op.primitive, op.rule)
        found += factor is not None and factor in (plan.decisions.assignment[op.index] or ())
    return found


def drawn(given: Case) -> Plan:
    """The random plan, of a few, that sends rows most often."""
    return max((random_plan(given, seed) for seed in range(8)), key=partial(_sent, given))


def _sent(given: Case, plan: Plan) -> int:
    return sends(plan, given.program)


@pytest.mark.parametrize("explicit", [False, True])
def test_dropless_experts_compute_the_same_where_rows_are_sent(explicit: bool) -> None:
    step, args = dropless()
    given = case(step, *args, mesh={"x": 4, "y": 2})
    plan = drawn(given)
    assert sends(plan, given.program)
    verdict = verify(plan, step, *args, concrete=args, explicit=explicit)
    assert not verdict.differences, str(verdict)
    assert not [one for one in verdict.collectives.tallies if one.found > one.planned]


def there_and_back(*, w: Any, x: Any, told: Any) -> Any:
    """Rows that are sent, changed and sent back."""
    begin, count, place, taken = told

    def part(w: Any, x: Any, *told: Any) -> Any:
        begin, count, place, taken = (one[0] for one in told)
        empty = jnp.zeros_like(x)
        rows = lax.ragged_all_to_all(x, empty, begin, count, place, taken, axis_name="x")
        return jnp.tanh(rows @ w)

    mapped = jax.shard_map(
        part, mesh=line(), in_specs=(P(), *(P("x"),) * 5), out_specs=P("x"), check_vma=False
    )
    return jnp.sum(mapped(w, x, begin, count, place, taken) ** 2)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_random_plans_are_what_shardy_makes_and_compute_the_same(seed: int, explicit: bool) -> None:
    args = normal(0, WIDTH, 8), normal(1, 8 * ROWS, WIDTH), numbers(0, 8)

    def step(w: Any, x: Any, told: Any) -> Any:
        return jax.value_and_grad(lambda w, x: there_and_back(w=w, x=x, told=told), (0, 1))(w, x)

    plan = random_plan(case(step, *args, mesh={"x": 4, "y": 2}), seed)
    verdict = verify(plan, step, *args, concrete=args, explicit=explicit)
    assert verdict, str(verdict)


def test_it_takes_the_seconds_of_rows_that_fit_both_sides_and_the_bytes_of_its_operand() -> None:
    """Of 24 rows all fit into 48 places, and half of them into 12."""
    seconds, sizes = [], []
    for places in (2 * ROWS, ROWS // 2):

        def fn(x: Any, *told: Any, places: int = places) -> Any:
            empty = jnp.zeros((8, places, WIDTH))
            return exchange_rows([x, empty, *told], 0)

        given = case(fn, normal(0, 8, ROWS, WIDTH), *numbers(0, 8), mesh={"x": 8})
        (op,) = (one for one in given.program.ops if one.primitive == ROW_EXCHANGE)
        factor = sending_factor(op.primitive, op.rule)
        strategies = enumerate_strategies(op.rule, (8,), [(8, places, WIDTH)])
        (sent,) = sent_rows(given.built.prices, op, strategies)
        assert (strategies.assignment[sent.rows] == factor).all()
        sizes += sent.bytes.tolist()
        seconds += sent.seconds.tolist()
    assert sizes == [ROWS * WIDTH * 4] * 2
    assert seconds[1] == pytest.approx(seconds[0] / 2)  # the toy machine's links have no latency
