"""The shape of the package: imports run one way, and only `compat` knows JAX's inside."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import autoshard

ROOT = Path(autoshard.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# From what knows nothing of the others to what knows all. A module may import from its own layer
# and from those before it. The longest name that fits decides.
LAYERS = (
    ("compat", "network", "machine_file", "callable_module", "units", "whole_file",
     "subaxes", "quiet", "trace_events"),
    ("annotations",),
    ("machine", "layout"),
    ("machine_numbers",),
    ("better_machines",),
    ("cluster",),
    ("layout_pattern",),
    ("requirements",),
    ("statements",),
    ("cost.flops",),
    ("rule_record", "rule_factors", "rule_windows", "rule_partial", "rule_join", "rule_user",
     "rule_overrides", "rules"),
    ("graph",),
    ("flatten",),
    ("program",),
    ("program_constraints", "targets"),
    ("strategy", "coalescing"),
    ("siblings", "accumulation", "updates"),
    ("fusion", "order_maps", "transposition"),
    ("product_order",),
    ("innermost",),
    ("orders",),
    ("product_orders", "rows", "unbatched"),
    ("kernel_orders", "hiding", "views", "task_contents"),
    ("sequence", "readers"),
    ("slices", "liveness", "companions", "narrowed", "renewals"),
    ("dataflow", "repeats", "decisions"),
    ("copies", "choices", "sums"),
    ("cost",),
    ("calibrate",),
    ("schedule",),
    ("solve",),
    ("shared", "hubs", "folded"),
    ("domains",),
    ("build", "coding", "plan", "meshes"),
    ("chosen", "planned_moves"),
    ("binding", "collective_rows"),
    ("consistency",),
    ("occupancy", "first_dimensions", "decided", "vector_memory", "combining",
     "reckoned"),
    ("evaluate", "baselines", "kept", "narrow", "restrict"),
    ("task_graph",),
    ("softmax_kernels", "whole_sums", "waiting", "late_products"),
    ("scheduled",),
    ("demands", "conflicts"),
    ("types",),
    ("earlier",),
    ("assemble", "mesh_search"),
    ("alternatives", "baseline_rows", "exploration"),
    ("fitting",),
    ("finishing",),
    ("search",),
    ("replan", "provenance", "explanation", "closest"),
    ("explain",),
    ("mpmd",),
    ("lower",),
    ("hlo",),
    ("compiler",),
    ("variants", "residuals", "refine", "fidelity", "calibrate.compiled_rows"),
    ("models",),
    ("placement",),
    ("reference", "report_tree", "report_layouts", "report_moves", "report",
     "placement.report"),
    ("whatif", "robust"),
    ("figures",),
    ("display",),
    ("cli", "cli_errors", "cli_arguments", "cli_progress", "cli_rows", "cli_lists", "cli_search",
     "cli_replan", "cli_explain", "cli_search_meshes",
     "cli_verdict", "cli_verify", "cli_verify_meshes", "cli_numbers", "cli_numbers_meshes",
     "cli_device", "cli_solve", "cli_bench", "cli_calibrate",
     "cli_report", "cli_report_pages", "cli_report_parser", "cli_schedule", "cli_schedule_parser",
     "cli_calibrate_parser", "cli_command",
     "cli_sweep", "cli_whatif", "cli_whatif_parser", "cli_robust", "cli_robust_parser",
     "cli_serving", "cli_serving_parser",
     "cli_bench_all_parser", "cli_bench_parser", "__main__", ""),
)  # fmt: skip
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def name_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def rank_of(module: str) -> int | None:
    while module not in RANK:
        if "." not in module:
            return None
        module = module.rpartition(".")[0]
    return RANK[module]


def imports(file: Path) -> list[tuple[int, str]]:
    """Lines and full names of what a file imports, inside functions too."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def test_every_module_has_a_layer():
    assert [name_of(f) for f in FILES if rank_of(name_of(f)) is None] == []


def test_imports_run_one_way():
    wrong = []
    for file in FILES:
        rank = rank_of(name_of(file))
        if name_of(file) == "":  # the package itself offers names lazily
            continue
        for line, imported in imports(file):
            if not imported.startswith("autoshard."):
                continue
            other = rank_of(imported.removeprefix("autoshard."))
            if rank is not None and other is not None and other > rank:
                wrong.append(f"{name_of(file)}:{line} imports {imported}")
    assert wrong == []


def test_only_compat_knows_the_inside_of_jax():
    private = ("jax._src", "jaxlib", "jax.interpreters.mlir", "jax._")
    wrong = [
        f"{name_of(file)}:{line} imports {imported}"
        for file in FILES
        if name_of(file) != "compat"
        for line, imported in imports(file)
        if imported.startswith(private)
    ]
    assert wrong == []


def test_the_solver_knows_nothing_of_jax():
    wrong = [
        f"{name_of(file)}:{line} imports {imported}"
        for file in FILES
        if name_of(file).startswith("solve")
        for line, imported in imports(file)
        if imported.split(".")[0] in ("jax", "jaxlib", "flax", "optax")
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ["autoshard", "autoshard.cli", "autoshard.cli_search"])
def test_the_command_line_starts_without_jax(module):
    code = f"import sys, {module}; sys.exit(any(n in sys.modules for n in ('jax', 'numba')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
