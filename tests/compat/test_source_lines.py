"""Lines are those of the user's code, whatever library it calls."""

from __future__ import annotations

import os

import pytest

from autoshard import compat

LIBRARY = "/venv/lib/python3.11/site-packages/flax/nnx/linear.py"
OWN = os.path.join(compat.PACKAGE_FOLDER, "program", "trace.py")
BUILT_IN = os.path.join(compat.PACKAGE_FOLDER, "models", "llama.py")


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ([(LIBRARY, 192), ("/home/me/model.py", 41), ("/home/me/train.py", 7)], "model.py:41"),
        ([(LIBRARY, 192), (OWN, 80), ("/home/me/train.py", 7)], "linear.py:192"),
        ([(OWN, 12), (LIBRARY, 192), ("/home/me/model.py", 41)], "model.py:41"),
        ([(LIBRARY, 192), (BUILT_IN, 5)], "llama.py:5"),
        ([(os.__file__, 1), ("/home/me/model.py", 41)], "model.py:41"),
        ([(OWN, 12)], ""),
        ([], ""),
    ],
)
def test_the_innermost_outside_of_installed_packages(frames, line):
    assert compat.users_line(frames) == line


def test_a_layer_of_flax_is_at_the_line_that_calls_it():
    flax = pytest.importorskip("flax")
    from flax import nnx

    from autoshard.program.trace import trace

    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))

    def step(model, x):
        return model(x)  # this line

    x = model.kernel.get_value().T
    program = trace(step, model, x)
    product = next(op for op in program.ops if op.primitive == "dot_general")
    number = step.__code__.co_firstlineno + 1
    assert product.line == f"test_source_lines.py:{number}", flax.__version__
