"""The arguments of `autoshard bench`."""

from __future__ import annotations

from typing import Any

from autoshard.cli.common import command
from autoshard.cli.parsers import arguments as cli_arguments
from autoshard.cli.parsers.bench_all import add_all
from autoshard.cli.parsers.bench_measured import add_measured
from autoshard.cli.parsers.bench_served import add_served


def add_bench(commands: Any) -> None:
    """Add the command, and one below it for each benchmark."""
    parser = command(commands, "bench", "bench:bench_command", "run a benchmark")
    kinds = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    adders = (
        _add_layers,
        _add_iopddl,
        _add_solvers,
        _add_resolve,
        _add_fidelity,
        _add_habits,
        _add_kernels,
        _add_plans,
        add_measured,
        add_served,
        _add_schedules,
        add_all,
    )
    for add in adders:
        add(kinds)
    for benchmark in kinds.choices.values():
        benchmark.add_argument(
            "--json", action="store_true", help="print the rows as JSON, and the table to stderr"
        )


def _add_layers(kinds: Any) -> None:
    layers = command(
        kinds, "layers", "bench:layers_command", "planning time over layers and mesh axes"
    )
    layers.add_argument("--model", choices=("8b", "405b", "both"), default="both")
    layers.add_argument("--layers", metavar="N,N,...", default="2,8,32,126")
    layers.add_argument("--axes", metavar="N,N,...", default="1,2,3")
    layers.add_argument("--forms", metavar="FORM,FORM", default="scan,unrolled")
    layers.add_argument("--time-limit", metavar="S", type=cli_arguments.seconds, default=60.0)
    layers.add_argument("--gap", metavar="SHARE", type=cli_arguments.fraction, default=0.001)
    layers.add_argument("--csv", metavar="FILE", help="also write the rows to this file")
    cli_arguments.add_overwrite(layers)


def _add_iopddl(kinds: Any) -> None:
    contest = command(kinds, "iopddl", "bench:iopddl_command", "instances of the IOPDDL contest")
    contest.add_argument(
        "paths", metavar="PATH", nargs="+", help=".json or .json.gz files, or folders of them"
    )
    contest.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.contest_seconds,
        default=60.0,
        help="seconds for each, or `contest` for what the contest gave it (default 60)",
    )
    contest.add_argument("--csv", metavar="FILE", help="also write the rows to this file")
    cli_arguments.add_overwrite(contest)


def _add_solvers(kinds: Any) -> None:
    solvers = command(
        kinds, "solvers", "bench:solvers_command", "our solver beside CP-SAT, HiGHS, CBC, SCIP"
    )
    solvers.add_argument(
        "problems",
        metavar="PROBLEM",
        nargs="*",
        help="contest files, folders of them, or PROGRAM@MACHINE@MESH such as "
        "llama3-8b@v5p-64@8x8; by default the contest files that are there, and three programs",
    )
    solvers.add_argument("--time-limit", metavar="S", type=cli_arguments.seconds, default=60.0)
    solvers.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=cli_arguments.size,
        default=8 * 2.0**30,
        help="what a solver may take (default 8GiB)",
    )
    solvers.add_argument(
        "--solvers",
        metavar="NAME,NAME,...",
        type=cli_arguments.some_of("autoshard", "CP-SAT", "HiGHS", "CBC", "SCIP"),
        default="autoshard,CP-SAT,HiGHS,CBC,SCIP",
    )
    solvers.add_argument(
        "--forms",
        metavar="FORM,FORM",
        type=cli_arguments.some_of("given", "presolved"),
        default="given,presolved",
    )
    solvers.add_argument("--threads", metavar="N", type=cli_arguments.count, default=2)
    solvers.add_argument("--csv", metavar="FILE", help="also write the rows to this file")
    cli_arguments.add_overwrite(solvers)


def _add_resolve(kinds: Any) -> None:
    again = command(
        kinds, "resolve", "bench:resolve_command", "solving again after a change, cold and warm"
    )
    again.add_argument(
        "problems",
        metavar="PROBLEM",
        nargs="*",
        help="as in `bench solvers`; by default three contest files and two programs",
    )
    again.add_argument("--time-limit", metavar="S", type=cli_arguments.seconds, default=60.0)
    again.add_argument(
        "--gap",
        metavar="SHARE",
        type=cli_arguments.fraction,
        default=0.0,
        help="when to stop (default: proven optimal)",
    )
    again.add_argument(
        "--pins", metavar="N", type=cli_arguments.count, default=3, help="pins to try (default 3)"
    )
    again.add_argument("--seed", metavar="N", type=int, default=0)
    again.add_argument("--csv", metavar="FILE", help="also write the rows to this file")
    cli_arguments.add_overwrite(again)


def _add_habits(kinds: Any) -> None:
    habits = command(
        kinds, "habits", "bench:habits_command", "what is believed of compilers, held to them"
    )
    habits.add_argument(
        "--compile",
        metavar="gpu,tpu,partitioner",
        type=cli_arguments.some_of("gpu", "tpu", "partitioner"),
        default="gpu,tpu,partitioner",
        help="whose habits; faults of XLA's partitioner (default all)",
    )
    habits.add_argument(
        "--only", metavar="PATTERN", default="*", help="habits whose names fit, as 'gpu.gathers-*'"
    )
    habits.add_argument(
        "--without",
        metavar="NAME",
        nargs="+",
        help="say what each of these buys over the plans of --kept; `all` for all",
    )
    habits.add_argument(
        "--kept", metavar="FOLDER", help="where `bench fidelity --keep` kept its plans"
    )
    habits.add_argument(
        "--plans",
        metavar="N",
        type=cli_arguments.count,
        help="at most so many of each group, the best first (default all)",
    )
    habits.add_argument(
        "--workers",
        metavar="N",
        type=cli_arguments.count,
        help="groups at once (default one a core)",
    )
    habits.add_argument(
        "--known",
        metavar="FILE",
        help="measure nothing twice: what was found lies there, and what is found is added",
    )
    habits.add_argument(
        "--enough",
        action="store_true",
        help="leave a habit that is worth it in one group out of those that come later",
    )
    habits.add_argument("--csv", metavar="FILE", help="also write the rows to this file")
    cli_arguments.add_overwrite(habits)
    habits.add_argument(
        "--markdown", metavar="FILE", help="with --without: write what each buys as a page"
    )


def _add_fidelity(kinds: Any) -> None:
    fidelity = command(
        kinds, "fidelity", "bench:fidelity_command", "predicted against compiled, plan by plan"
    )
    fidelity.add_argument(
        "--compiler",
        choices=("gpu", "tpu", "all"),
        default="gpu",
        help="seconds a plan for gpu (the default), up to minutes for tpu",
    )
    fidelity.add_argument(
        "--programs", metavar="NAME,NAME", help="only these (see `autoshard programs`)"
    )
    fidelity.add_argument("--machines", metavar="NAME,NAME", help="only these, as h100-8,a100-16")
    fidelity.add_argument(
        "--distortions",
        metavar="X,X",
        type=cli_arguments.numbers,
        default=(0.5, 1.5, 3.0),
        help="how strongly the prices of the odd plans are distorted (default 0.5,1.5,3)",
    )
    fidelity.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=10.0,
        help="seconds of search for each plan (default 10)",
    )
    fidelity.add_argument(
        "--keep",
        metavar="FOLDER",
        help="keep the plans there; those that are there are priced anew",
    )
    fidelity.add_argument("--csv", metavar="FILE", help="also write the rows to this file")
    cli_arguments.add_overwrite(fidelity)
    fidelity.add_argument("--svg", metavar="FILE", help="draw predicted against compiled")


def _add_kernels(kinds: Any) -> None:
    kernels = command(
        kinds,
        "kernels",
        "bench:kernels_command",
        "random Pallas kernels, cut and held to the whole",
    )
    kernels.add_argument(
        "--count",
        metavar="N",
        type=cli_arguments.count,
        default=500,
        help="of kernels (default 500)",
    )
    kernels.add_argument("--seed", metavar="N", type=int, default=0)
    kernels.add_argument("--only", metavar="N", type=int, help="the number of one kernel")
    kernels.add_argument(
        "--workers", metavar="N", type=cli_arguments.count, default=1, help="processes (default 1)"
    )


def _add_plans(kinds: Any) -> None:
    plans = command(
        kinds, "plans", "bench:plans_command", "our plans beside hand-made ones, all compiled"
    )
    plans.add_argument(
        "--rows",
        metavar="ROW",
        nargs="+",
        help="PROGRAM[/LAYERS][:BATCH[xSEQUENCE]]@MACHINE[@SIZE,SIZE,...], with the sizes of the "
        "tensor axis to try, such as llama3-8b:64x4096@h100-64@4,8; by default those of the peers",
    )
    plans.add_argument(
        "--machines",
        metavar="NAME,NAME",
        default="h100-8,h100-64",
        help="of the default rows (default h100-8,h100-64; also v5e-16, v5p-64 and v6e-64, where "
        "a compile takes minutes)",
    )
    plans.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=60.0,
        help="seconds for each search (default 60)",
    )
    plans.add_argument(
        "--refine",
        metavar="N",
        type=cli_arguments.count,
        default=0,
        help="also the plan of `search --refine N`, the best of those that were compiled",
    )
    plans.add_argument(
        "--compile-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=1800.0,
        help="seconds for each compile (default 1800)",
    )
    plans.add_argument(
        "--auto-sharding",
        metavar="FOLDER",
        nargs="?",
        const="",
        help="also the plans of XLA's own deleted auto-sharder, which runs with an old JAX that is "
        "installed into FOLDER once (1 GB; default ~/.cache/autoshard/auto-sharding); minutes each",
    )
    plans.add_argument(
        "--auto-sharding-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=3600.0,
        help="seconds for each of its plans (default 3600)",
    )
    plans.add_argument("--csv", metavar="FILE", help="also write the rows to this file")
    cli_arguments.add_overwrite(plans)


def _add_schedules(kinds: Any) -> None:
    schedules = command(
        kinds, "schedules", "bench:schedules_command", "our pipeline schedules beside others"
    )
    schedules.add_argument(
        "instances", metavar="FILE", nargs="*", help="JSON lists of schedule problems"
    )
    schedules.add_argument("--peers", metavar="FILE", help="the best known for each instance")
    schedules.add_argument(
        "--peers-by-problem", metavar="FILE", help="the best known for each, placement free"
    )
    schedules.add_argument(
        "--large", action="store_true", help="also 32 meshes with 128 microbatches"
    )
    schedules.add_argument(
        "--only", metavar="PART", nargs="+", default=[], help="instances whose names hold all of it"
    )
    schedules.add_argument(
        "--limits",
        metavar="NAME,NAME",
        type=cli_arguments.some_of("1f1b", "2x", "none"),
        default="1f1b,2x,none",
    )
    schedules.add_argument(
        "--objectives",
        metavar="NAME,NAME",
        type=cli_arguments.some_of("makespan", "span"),
        default="makespan,span",
    )
    schedules.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=60.0,
        help="seconds for each row (default 60)",
    )
    schedules.add_argument("--threads", metavar="N", type=cli_arguments.count)
    schedules.add_argument(
        "--cold", action="store_true", help="solve each row from nothing but the named schedules"
    )
    schedules.add_argument("--csv", metavar="FILE", help="also write the rows to this file")
    cli_arguments.add_overwrite(schedules)
