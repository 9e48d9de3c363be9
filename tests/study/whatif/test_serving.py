"""Serving: decode steps over batches, prefill, requests, and the largest batch that fits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cli.main import main
from autoshard.machine.load import load
from autoshard.program.trace import trace
from autoshard.search.search import InfeasibleError, search
from autoshard.show.sweep.serving_file import read_serving
from autoshard.study.whatif.served import Serving
from autoshard.study.whatif.serving import serving
from autoshard.study.whatif.words import SweepError
from tests.kept import FOLDER

WIDTH = 64
PRICES = {"v5e": {"chip_hour": 1.2}, "v6e": {"chip_hour": 3.0}}
LIMIT = 2.0**22
SWEEP: dict[str, Any] = {
    "machine": ["v5e-4", "v6e-4"],
    "batch": [4, 16, 64],
    "sequence": [32],
    "limit": [LIMIT],
}


def decode(batch: int = 8, sequence: int = 32) -> Any:
    """A token for each sequence, from a cache of vectors."""

    def step(weights: Any, cache: Any, tokens: Any) -> Any:
        new = weights["embedding"][tokens]
        shares = jax.nn.softmax(jnp.einsum("bw,bsw->bs", new, cache))
        out = jnp.einsum("bs,bsw->bw", shares, cache) @ weights["out"]
        return out, jnp.concatenate([cache[:, 1:], new[:, None]], axis=1)

    cache = jax.ShapeDtypeStruct((batch, sequence, WIDTH), jnp.float32)
    tokens = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return step, (weights(), cache, tokens), {"donate_argnums": (1,)}


def prefill(batch: int = 1, sequence: int = 32) -> Any:
    """The cache of a prompt."""
    tokens = jax.ShapeDtypeStruct((batch, sequence), jnp.int32)
    return lambda weights, tokens: weights["embedding"][tokens] @ weights["out"], (
        weights(),
        tokens,
    )


def weights() -> Any:
    shapes = {"embedding": (512, WIDTH), "out": (WIDTH, WIDTH)}
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def found() -> Serving:
    return serving(
        decode,
        SWEEP,
        prefill=prefill,
        prompt=16,
        generate=100,
        prices=PRICES,
        gap=0.0,
        latency=1.0,
        keep=False,
    )


def test_a_row_says_what_a_token_and_a_request_take(found: Serving):
    assert len(found.rows) == 6
    for one in found.rows:
        row = one.row
        assert row.step_seconds is not None
        assert one.first_seconds is not None
        batch = row.sizes["batch"]
        assert row.tokens_per_second == pytest.approx(batch / row.step_seconds)
        seconds = one.first_seconds + 100 * row.step_seconds / batch
        assert one.requests_per_second == pytest.approx(1 / seconds)
        hourly = row.chips * PRICES[row.chip]["chip_hour"]
        cost = hourly / 3600 * seconds / 100 * 1e6
        assert one.cost_per_million_tokens == pytest.approx(cost)
    plan = search(_traced(prefill(1, 16)), "v5e-4", gap=0.0, memory_limit=LIMIT)
    first = {one.row.machine: one.first_seconds for one in found.rows}
    assert first["v5e-4"] == pytest.approx(plan.estimate.step_seconds)


def test_the_best_within_a_latency_is_the_largest_batch_that_is_quick_enough(found: Serving):
    for one in found.within(None):
        assert one.row.sizes["batch"] == 64
    seconds = {
        one.row.sizes["batch"]: one.row.step_seconds or 0.0
        for one in found.rows
        if one.row.machine == "v5e-4"
    }
    assert seconds[4] < seconds[64]
    quick = found.within((seconds[16] + seconds[64]) / 2)
    (ours,) = [one for one in quick if one.row.machine == "v5e-4"]
    assert ours.row.sizes["batch"] == 16
    assert found.within(1e-12) == []


def test_the_largest_batch_fits_and_the_refused_one_does_not(found: Serving):
    assert [one.machine for one in found.limits] == ["v5e-4", "v6e-4"]
    for one in found.limits:
        assert one.refused is not None
        assert one.batch < one.refused <= 1.15 * one.batch + 1
        assert one.tokens == 32 * one.batch
        for batch, fits in ((one.batch, True), (one.refused, False)):
            asked = {"gap": 0.5, "memory_limit": LIMIT, "baselines": False}
            if fits:
                plan = search(_traced(decode(batch)), load(one.machine), **asked)
                assert plan.estimate.peak_bytes <= LIMIT
            else:
                with pytest.raises(InfeasibleError):
                    search(_traced(decode(batch)), load(one.machine), **asked)


def _traced(built: Any) -> Any:
    fn, args, *options = built
    return trace(fn, *args, name="step", **(options[0] if options else {}))


def test_it_comes_as_a_table_as_data_and_as_text(found: Serving):
    frame = found.frame()
    assert len(frame) == 6
    assert frame.best_within_latency.sum() == 2
    assert frame.first_seconds.notna().all()
    text = str(found)
    assert text.startswith(
        "decode: 6 decode steps, 6 with a plan\nmost tokens/s/chip within 1.000 s"
    )
    assert "tokens cached  does not fit" in text
    assert "USD/Mtok" in text
    assert "..." not in text  # nothing is cut where there is no terminal
    assert "…" not in text


def test_what_is_not_asked_for_is_left_out():
    one = serving(decode, {**SWEEP, "machine": "v5e-4"}, largest=False, keep=False)
    assert one.prefill is None
    assert one.limits == ()
    assert all(row.first_seconds is None for row in one.rows)
    assert "first token" not in str(one)


def test_faulty_questions_are_refused():
    with pytest.raises(SweepError, match="serving is about batches; sweep batch="):
        serving(decode, {"machine": "v5e-4"})
    with pytest.raises(SweepError, match="which program reads the prompts"):
        serving(decode, SWEEP, prompt=16)
    with pytest.raises(SweepError, match="has a prompt; say how long"):
        serving(decode, SWEEP, generate=16)
    with pytest.raises(SweepError, match="the prefill step has no size sequence"):
        serving(decode, SWEEP, prefill=lambda batch=1: None, prompt=16)


def test_the_command_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    answer, html = tmp_path / "serving.json", tmp_path / "serving.html"
    words = [
        "serving",
        "tests.study.whatif.test_serving:decode",
        "--sweep",
        "machine=v5e-4",
        "--quiet",
    ]
    words += ["--sweep", "batch=8,64", "--sweep", "seq=32", "--workers", "1"]
    words += ["--keep", str(tmp_path / "rows"), "--no-largest"]
    prompt = ["--prefill", "tests.study.whatif.test_serving:prefill", "--prompt", "16"]
    assert main([*words, *prompt, "-o", str(answer), "--latency", "1"]) == 0
    assert "first token after" in capsys.readouterr().out
    assert json.loads(answer.read_text())["prompt"] == 16
    assert main(["report", str(answer), "-o", str(html)]) == 0
    text = html.read_text()
    assert "Serving tests.study.whatif.test_serving:decode" in text
    assert "milliseconds a token" in text
    assert main([*words, "--latency", "1e-9"]) == 3
    assert "no decode step has a plan with at most 1e-09 s a token" in capsys.readouterr().err
    assert main([*words, "--prompt", "16"]) == 2
    assert "--prefill PROGRAM" in capsys.readouterr().err
    assert callable(autoshard.serving)


def test_rows_whose_copies_take_long_say_so(tmp_path: Path):
    kept = read_serving((FOLDER / "serving.json").read_text())
    note = "copies that the compiler makes take 31 % of the step: lists need no slices"
    rows = tuple(
        replace(one, row=replace(one.row, copies=note if k < 2 else None))
        for k, one in enumerate(kept.rows)
    )
    decode = replace(kept.decode, rows=tuple(one.row for one in rows))
    told = replace(kept, rows=rows, decode=decode)
    text = str(told)
    said = f"copies: {rows[0].row} and 1 more row: {note}"
    assert said.split() == text[text.index("copies:") :].split()[: len(said.split())]
    assert "copies:" not in str(kept)
    told.save(str(tmp_path / "serving.json"))
    again = read_serving((tmp_path / "serving.json").read_text())
    assert [one.row.copies for one in again.rows][:3] == [note, note, None]
