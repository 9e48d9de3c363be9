"""The compiler in the loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.cli.main import main
from autoshard.compiler import compiled as module
from autoshard.compiler.target import CompileError
from autoshard.plan.plan import Plan
from autoshard.search.search import InfeasibleError
from autoshard.study.refine import refine
from tests.compiler.test_compiled import needs


def step(weights, x):
    def loss(weights):
        y = x
        for number, weight in enumerate(weights):
            with jax.named_scope(f"layer_{number}"):
                y = jnp.tanh(y @ weight)
        return jnp.mean(jnp.square(y))

    gradients = jax.grad(loss)(weights)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients, strict=True)]


ARGS = (
    [jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)] * 3,
    jax.ShapeDtypeStruct((8192, 1024), jnp.bfloat16),
)


@pytest.fixture(scope="module")
def program():
    return autoshard.trace(step, *ARGS, donate_argnums=(0,))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


@needs("gpu")
def test_the_best_compiled_plan_comes_back(program, cache):
    heard = []
    refined = refine(
        program, "h100-8", step, *ARGS, count=3, cache=cache, heard=heard.append, time_limit=20.0
    )
    assert list(refined.trials) == heard
    compiled = [trial.compiled.timeline.seconds for trial in heard]
    assert len(heard) >= 3
    plan = refined.plan
    assert plan.compiled["step_seconds"] == min(compiled)
    assert plan.compiled["compiler"] == "gpu"
    assert plan.proof.bound <= plan.estimate.step_seconds
    decisions = {
        (
            t.plan.mesh.sizes,
            t.plan.decisions.stored,
            t.plan.decisions.copy,
            t.plan.decisions.assignment,
        )
        for t in heard
    }
    assert len(decisions) == len(heard)  # nothing is compiled twice
    assert Plan.from_json(plan.to_json()) == plan
    # What was learned keeps the prediction near the compiled step, or brings it there.
    best = heard[compiled.index(min(compiled))]
    plain = autoshard.search(
        program, "h100-8", mesh=dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    )
    before = abs(plain.estimate.step_seconds / min(compiled) - 1)
    after = abs(plan.estimate.step_seconds / min(compiled) - 1)
    assert after < max(before, 0.1)
    assert best.round == 1 or refined.stable or len(heard) > 3


def stacked(weights, x):
    """Layers of a loop, each under a checkpoint."""

    def layer(y, weight):
        with jax.named_scope("layer"):
            wide = jnp.tanh(y @ weight["up"])
            return y + jnp.sin(wide) @ weight["down"], None

    def loss(weights):
        return jnp.mean(jnp.square(jax.lax.scan(jax.checkpoint(layer), x, weights)[0]))

    gradients = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


@needs("gpu")
def test_several_choices_of_what_is_saved_are_compiled(cache):
    shapes = {"up": (4, 512, 1024), "down": (4, 1024, 512)}
    weights = {name: jax.ShapeDtypeStruct(one, jnp.bfloat16) for name, one in shapes.items()}
    args = (weights, jax.ShapeDtypeStruct((4096, 512), jnp.bfloat16))
    program = autoshard.trace(stacked, *args, donate_argnums=(0,))
    asked = {"mesh": {"x": 8}, "time_limit": 20.0, "remat": "search"}
    refined = refine(program, "h100-8", stacked, *args, count=3, cache=cache, **asked)
    first = [one for one in refined.trials if one.round == 1]
    assert len({one.plan.fingerprint for one in first}) > 1
    plan = refined.plan
    compiled = [one.compiled.timeline.seconds for one in refined.trials]
    assert plan.compiled["step_seconds"] == min(compiled)
    assert any("what is saved for the backward pass: " in note for note in plan.notes)
    assert plan.kept
    assert plan.proof.bound <= plan.estimate.step_seconds
    lowered = autoshard.lower(plan, stacked, *args)
    assert lowered.program.fingerprint == plan.fingerprint


@needs("gpu")
def test_a_plan_must_fit_as_compiled(program, cache, monkeypatch):
    real = module.Memory.peak_bytes.fget
    monkeypatch.setattr(module.Memory, "peak_bytes", property(lambda self: 2**40 + real(self)))
    with pytest.raises(InfeasibleError, match=r"none of the \d+ compiled plans fits .* 1\.00 TiB"):
        refine(program, "h100-8", step, *ARGS, count=1, rounds=1, cache=cache, time_limit=20.0)


def test_a_machine_without_a_compiler(program):
    with pytest.raises(CompileError, match="estimates no seconds for mi300x-8"):
        refine(program, "mi300x-8", step, *ARGS)


@needs("gpu")
def test_a_refined_plan_is_priced_again_by_verify(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "mine.py"
    source.write_text(
        "import jax, jax.numpy as jnp\n"
        "def program():\n"
        "    def step(w, x):\n"
        "        return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)\n"
        "    shapes = jax.ShapeDtypeStruct((64, 64), 'float32'),"
        " jax.ShapeDtypeStruct((128, 64), 'float32')\n"
        "    return step, shapes, {'donate_argnums': (0,)}\n"
    )
    plan = tmp_path / "plan.json"
    words = ["search", f"{source}:program", "--machine", "h100-8", "--mesh", "x=8"]
    assert main([*words, "--refine", "2", "-o", str(plan), "--quiet"]) == 0
    shown = capsys.readouterr()
    assert "by XLA:GPU" in shown.out
    assert "the best compiled plan is" in shown.err
    assert main(["verify", str(plan)]) == 0
    assert "price        ok" in capsys.readouterr().out
