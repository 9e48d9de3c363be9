"""The shape of the package: imports run one way, and only `compat` knows JAX's inside."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import autoshard

ROOT = Path(autoshard.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

LAYERS = (
    (
        "compat",
        "units",
        "files",
        "trace_events",
        "extras",
        "near",
        "native",
        "terminal",
        "interrupts",
    ),
    ("machine",),
    ("program",),
    ("cost",),
    ("solve",),
    ("plan",),
    ("xla",),
    ("problem",),
    ("lower",),
    ("compiler",),
    ("search",),
    ("models",),
    ("study",),
    ("show",),
    ("cli",),
    ("__main__",),
)
"""From what knows nothing of the others to what knows all: a package imports from its own layer and
from those before it, by whatever kind of import. The package itself offers names of all of them."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(file): file for file in FILES}


def package_of(module: str) -> str:
    return module.split(".")[1]


@functools.cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """All that a file is made of."""
    return tuple(ast.walk(ast.parse(file.read_text())))


@functools.cache
def imports(file: Path) -> tuple[tuple[int, str], ...]:
    """Lines and modules that a file imports: inside of functions, for types alone, by name too."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node.lineno, full if full in MODULES else str(node.module)
        elif isinstance(node, ast.Call):
            yield from by_name(node)


def by_name(call: ast.Call) -> Iterator[tuple[int, str]]:
    """The module that `import_module("...")` or `import_module(f"...{}")` names, or its package."""
    called = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if called not in ("import_module", "__import__") or not call.args:
        return
    text = call.args[0]
    if isinstance(text, ast.JoinedStr):
        text = text.values[0]
    if isinstance(text, ast.Constant) and str(text.value).startswith("autoshard."):
        yield call.lineno, str(text.value).rstrip(".")


def graph() -> nx.DiGraph:
    """Which module imports which."""
    found = nx.DiGraph()
    for module, file in MODULES.items():
        if module != "autoshard":
            found.add_edges_from(
                (module, other)
                for _, other in imports(file)
                if other.startswith("autoshard.") and other != module
            )
    return found


def test_every_module_has_a_layer():
    flat = {path.stem for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert flat - {"__pycache__", "__init__", "benchmarks"} == set(RANK)


def test_imports_run_one_way():
    wrong = [
        f"{name_of(file)}:{line} imports {other}"
        for file in FILES
        if name_of(file) != "autoshard"
        for line, other in imports(file)
        if other.startswith("autoshard.")
        and RANK[package_of(other)] > RANK[package_of(name_of(file))]
    ]
    assert wrong == []


def test_cycles_stay_small_and_inside_of_a_package():
    """A package's own `__init__` and the module that asks it for a name are not a cycle."""
    found = graph()
    found.remove_nodes_from([one for one, file in MODULES.items() if file.name == "__init__.py"])
    cycles = [sorted(one) for one in nx.strongly_connected_components(found) if len(one) > 1]
    assert [one for one in cycles if len(one) > 3] == []
    assert [one for one in cycles if len({package_of(module) for module in one}) > 1] == []


def test_imports_by_name_and_for_types_are_seen(tmp_path: Path):
    file = tmp_path / "one.py"
    file.write_text(
        "import importlib\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from autoshard.show import page\n"
        "def late():\n    from autoshard.cli.main import main\n"
        "    return importlib.import_module('autoshard.study.refine')\n"
        "def named(name):\n    return importlib.import_module(f'autoshard.models.{name}')\n"
    )
    seen = {module for _, module in imports(file) if module.startswith("autoshard.")}
    assert seen == {
        "autoshard.show.page",
        "autoshard.cli.main",
        "autoshard.study.refine",
        "autoshard.models",
    }


def test_only_compat_knows_the_inside_of_jax():
    private = ("jax._src", "jaxlib", "jax.interpreters.mlir", "jax._")
    wrong = [
        f"{name_of(file)}:{line} imports {imported}"
        for file in FILES
        if not name_of(file).startswith("autoshard.compat")
        for line, imported in imports(file)
        if imported.startswith(private)
    ]
    assert wrong == []


def test_the_compiler_model_shows_two_functions_and_its_habits():
    wrong = [
        f"{name_of(file)}:{line} imports {imported}"
        for file in FILES
        if not name_of(file).startswith("autoshard.xla")
        for line, imported in imports(file)
        if imported.startswith("autoshard.xla.") and imported != "autoshard.xla.forecast"
    ]
    assert wrong == []


def test_the_solver_knows_nothing_of_jax():
    wrong = [
        f"{name_of(file)}:{line} imports {imported}"
        for file in FILES
        if name_of(file).startswith("autoshard.solve")
        for line, imported in imports(file)
        if imported.split(".")[0] in ("jax", "jaxlib", "flax", "optax")
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ["autoshard", "autoshard.cli", "autoshard.cli.search"])
def test_the_command_line_starts_without_jax(module):
    code = f"import sys, {module}; sys.exit(bool({{'jax', 'scipy.optimize'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_is_printed_without_numpy():
    code = (
        "import sys, autoshard.cli.main; autoshard.cli.main.main(['search', '--help']); "
        "sys.exit(bool({'jax', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert b"examples:" in done.stdout


MOST_LINES, MOST_FILES, MOST_LINES_OF_A_FUNCTION = 400, 25, 60


def all_files() -> list[Path]:
    """Those of the package, of the tests, and of the benchmarks where these lie beside them."""
    tests = Path(__file__).parent
    return [*FILES, *(one for name in (tests, tests.parent / "benchmarks") for one in code(name))]


def code(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def test_files_and_folders_are_small():
    long = [
        f"{file}: {lines} lines"
        for file in all_files()
        if (lines := len(file.read_text().splitlines())) > MOST_LINES
    ]
    full = [
        f"{folder}: {count} files"
        for folder in sorted({file.parent for file in all_files()})
        if (count := sum(one.is_file() for one in folder.iterdir())) > MOST_FILES
    ]
    assert long + full == []


def test_tests_stand_where_their_modules_stand():
    """But for those of the whole: what stands at the top, and tests of benchmarks and documents."""
    tests = Path(__file__).parent
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}
    strange = [
        str(folder)
        for folder in sorted(folders)
        if not (ROOT / folder).is_dir() and folder.parts[0] not in ("benchmarks", "corpus", "docs")
    ]
    assert strange == []


def test_functions_are_short():
    found = []
    for file in all_files():
        for node in nodes(file):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = int(node.end_lineno or 0) - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    lines -= int(node.body[0].end_lineno or 0) - node.body[0].lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    found.append(f"{file}:{node.lineno} {node.name}: {lines} lines")
    assert found == []


def test_the_picture_of_the_packages_is_that_of_the_imports():
    from tests.draw_layers import drawn

    picture = ROOT.parent / "docs" / "architecture.svg"
    if not picture.exists():
        pytest.skip("the documents are not beside the package here")
    assert picture.read_text() == drawn(), "draw it anew: python -m tests.draw_layers"
