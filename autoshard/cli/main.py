"""The command line: `autoshard search | verify | calibrate | show | solve | bench | ...`.

Tables and JSON go to stdout, progress and messages to stderr. Exit codes:

    0    fine
    2    usage: something named on the command line is not there, is damaged or does not fit
    3    infeasible: no plan satisfies what was asked
    4    the time limit passed before any plan was found
    5    verification failed
    130  interrupted before any plan was found, or before another answer

JAX is imported when a command first needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from autoshard.cli.common import INTERRUPTED, USAGE, CommandError, command
from autoshard.cli.parsers import arguments as cli_arguments
from autoshard.cli.parsers.arguments import MACHINE, PROGRAM
from autoshard.cli.parsers.bench import add_bench
from autoshard.cli.parsers.calibrate import add_calibrate
from autoshard.cli.parsers.examples import epilog
from autoshard.cli.parsers.explain import add_explain
from autoshard.cli.parsers.frontier import add_frontier, add_rewrites
from autoshard.cli.parsers.refusing import Parser
from autoshard.cli.parsers.report import add_report
from autoshard.cli.parsers.robust import add_robust
from autoshard.cli.parsers.schedule import add_schedule
from autoshard.cli.parsers.serving import add_serving
from autoshard.cli.parsers.verify import add_verify
from autoshard.cli.parsers.whatif import add_whatif
from autoshard.extras import MissingExtraError
from autoshard.interrupts import acknowledge, interrupts
from autoshard.units import visible

PLANNERS = frozenset({"frontier", "robust", "schedule", "search", "serving", "solve", "whatif"})
"""Commands that an interrupt ends without a plan, where it comes early."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""What fails where something is written, and never where it is read."""
DEEPEST_CALLS = 10_000
"""Functions that may call each other: JAX traces each of nested loops with some twenty calls."""


_EXIT_CODES = """\
exit codes: 0 fine, 2 usage, 3 infeasible, 4 time limit without a plan,
5 verification failed, 130 interrupted without a plan"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
      arguments: the words after `autoshard`; by default those of this process.
    """
    calls = sys.getrecursionlimit()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        sys.setrecursionlimit(max(calls, DEEPEST_CALLS))
        with interrupts(), warnings.catch_warnings():
            # Show warnings for users; hide those that libraries address to developers.
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            code = _run(words)
            sys.stdout.flush()
            return code
    except CommandError as error:
        print(f"{_said('error', 'bold red')} {visible(str(error))}", file=sys.stderr)
        return error.code
    except MissingExtraError as error:
        print(f"{_said('error', 'bold red')} {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt as interrupt:
        acknowledge(interrupt)
        planning = not words or words[0] in PLANNERS
        missing = "any plan was found" if planning else f"the end of `autoshard {words[0]}`"
        print(visible(f"autoshard: interrupted before {missing}"), file=sys.stderr)
        return INTERRUPTED
    except SystemExit as error:  # a user's function has ended Python
        from autoshard.compat.source_lines import user_line_of_error

        where = user_line_of_error(error)
        at = f" at {where}" if where else ""
        print(f"autoshard: error: the program ends Python{at}: exit {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _close_output()
        return 0
    except OSError as error:
        where = "the output" if error.filename is None else repr(error.filename)
        verb = "write" if error.filename is None or error.errno in FULL else "read or write"
        print(f"autoshard: error: cannot {verb} {where}: {error.strerror}", file=sys.stderr)
        _close_output()
        return USAGE
    finally:
        sys.setrecursionlimit(calls)


def _close_output() -> None:
    """Let nothing more be written to stdout, which takes no more: not even what still waits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"{_said('warning', 'yellow')} {message}", file=sys.stderr)


def _said(word: str, style: str) -> str:
    """How a message begins, in colour on a terminal."""
    from autoshard.terminal import styled

    return styled(f"autoshard: {word}:", style, sys.stderr)


def _run(arguments: Sequence[str]) -> int:
    parser = parser_of_commands()
    try:
        options = parser.parse_args(arguments)
    except SystemExit as done:  # --help and --version have printed their text
        return int(done.code or 0)
    if options.command is None:
        parser.print_help()
        return 0
    # Planning needs no accelerator, and must not take one from a job that does.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return options.run(options)


def parser_of_commands() -> argparse.ArgumentParser:
    """The parser of all commands; nothing that they need is imported."""
    parser = Parser(
        prog="autoshard",
        description="Automatic sharding for JAX: a step and a cluster in, a proven plan out.",
        epilog=epilog("", _EXIT_CODES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    adders = (
        _add_search,
        add_verify,
        _add_check,
        add_explain,
        _add_annotate,
        add_whatif,
        add_frontier,
        add_serving,
        add_robust,
        add_calibrate,
        _add_show,
        add_report,
        _add_solve,
        add_schedule,
        add_bench,
        _add_lists,
    )
    for add in adders:
        add(commands)
    return parser


def _version() -> str:
    from autoshard import __version__

    return f"autoshard {__version__}"


def _add_search(commands: Any) -> None:
    parser = command(
        commands,
        "search",
        "search:search_command",
        "find the best plan for a program on a machine",
    )
    parser.add_argument("program", metavar="PROGRAM", help=PROGRAM)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--machine", metavar="MACHINE", help=MACHINE)
    cli_arguments.add_meshes(parser, where)
    parser.add_argument(
        "--mesh",
        metavar="AXES",
        type=cli_arguments.mesh,
        help="fix the mesh, as data=2,model=4 or 2x4, or with split axes as model=2*4; without it, "
        "mesh shapes are searched",
    )
    _add_wishes(parser)
    _add_effort(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan to this file")
    cli_arguments.add_overwrite(parser)
    parser.add_argument(
        "--as",
        dest="own",
        metavar="NAME",
        help="write the best plan that a framework's own file can express, as maxtext for "
        "maxtext:..., and say what that costs",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument(
        "--no-baselines",
        action="store_true",
        help="do not price the well-known schemes, nor paddings of odd sizes",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _add_wishes(parser: Any) -> None:
    """Add the options for requirements on the plan and for the search space."""
    parser.add_argument(
        "--require",
        metavar="WORDS",
        action="append",
        default=[],
        help="what the plan must obey: a TOML file, or a statement such as "
        "'pin params.w1 [data, model?]'; may be given more than once",
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="PLAN",
        help="begin with this plan, of the same program or one like it",
    )
    parser.add_argument(
        "--max-changes",
        metavar="K",
        type=cli_arguments.whole,
        help="with --from: lay out at most K inputs of the state otherwise than that plan (those "
        "of repeated layers count once), and show what each change gains",
    )
    parser.add_argument(
        "--join-sums",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether terms of a sum of products may stay unreduced, and share one collective",
    )
    add_rewrites(parser, remat="respect")
    parser.add_argument(
        "--ignore-constraints",
        action="store_true",
        help="do not count shardings that the program itself asks for as requirements",
    )
    parser.add_argument(
        "--complete",
        action="store_true",
        help="let all that these shardings leave open lie as Shardy's propagation completes them: "
        "what the compiler makes of the program as it is",
    )
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=cli_arguments.size,
        help="per device, as 60GiB; default: what the chip has, less a reserve",
    )


def _add_effort(parser: Any) -> None:
    """Add the options for the time limit and the gap of the search."""
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=60.0,
        help="seconds for the search (default 60)",
    )
    parser.add_argument(
        "--gap",
        metavar="SHARE",
        type=cli_arguments.fraction,
        default=0.001,
        help="stop when proven to be this close to the best (default 0.1 %%)",
    )
    parser.add_argument(
        "--refine",
        metavar="N",
        type=cli_arguments.count,
        help="compile the N best different plans without the device, learn, and search again until "
        "the best compiled plan is stable",
    )


def _add_annotate(commands: Any) -> None:
    parser = command(
        commands,
        "annotate",
        "explain:annotate_command",
        "print the few with_sharding_constraints with which Shardy makes the plan by itself",
    )
    cli_arguments.add_plan(parser)
    parser.add_argument(
        "program", metavar="PROGRAM", nargs="?", help=f"{PROGRAM}; default: what the plan names"
    )
    parser.add_argument("--machine", metavar="MACHINE", help="default: what the plan names")
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=cli_arguments.seconds,
        default=300.0,
        help="seconds for the search; then the best lines that were tried (default 300)",
    )
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _add_check(commands: Any) -> None:
    parser = command(
        commands,
        "check",
        "replan:check_command",
        "price a plan anew, without a solver, and hold it to its requirements",
    )
    cli_arguments.add_plan(parser)
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        nargs="?",
        help=f"{PROGRAM}; of the same form as what the plan names, which is the default",
    )
    parser.add_argument(
        "--machine", metavar="MACHINE", help=f"{MACHINE}; default: what the plan names"
    )
    parser.add_argument("--memory-limit", metavar="SIZE", type=cli_arguments.size)
    parser.add_argument("--require", metavar="WORDS", action="append", default=[])
    parser.add_argument("--ignore-constraints", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")


def _add_show(commands: Any) -> None:
    parser = command(
        commands,
        "show",
        "kinds.text:show_command",
        "print the report of a file that a command wrote",
    )
    parser.add_argument("plan", metavar="FILE", help="such as a plan, a sweep or a schedule")
    parser.add_argument(
        "--moves", metavar="N", type=int, default=12, help="of a plan: collectives (default 12)"
    )
    parser.add_argument("--json", action="store_true", help="print what the file holds as JSON")


def _add_solve(commands: Any) -> None:
    parser = command(
        commands,
        "solve",
        "solve:solve_command",
        "solve a choice problem in the format of the IOPDDL contest",
    )
    parser.add_argument("file", metavar="FILE", help="a .json or .json.gz file")
    parser.add_argument("--time-limit", metavar="S", type=cli_arguments.seconds, default=60.0)
    parser.add_argument("--gap", metavar="SHARE", type=cli_arguments.fraction, default=0.0)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the solution to this file")
    cli_arguments.add_overwrite(parser)
    parser.add_argument("--json", action="store_true", help="print the solution as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _add_lists(commands: Any) -> None:
    programs = command(commands, "programs", "lists:programs_command", "list the built-in programs")
    programs.add_argument("--json", action="store_true", help="print the list as JSON")
    machines = command(
        commands,
        "machines",
        "lists:machines_command",
        "list the presets of machines, or every number of one with its source",
    )
    machines.add_argument(
        "machine", metavar="MACHINE", nargs="?", help=f"{MACHINE}; default: list the presets"
    )
    machines.add_argument("--json", action="store_true", help="print the numbers as JSON")
    completion = command(
        commands,
        "completion",
        "parsers.completion:completion_command",
        "print what a shell needs to complete commands, options and names",
        quick=True,
        epilog="Put what it prints where the shell looks for it:\n"
        "  bash  ~/.local/share/bash-completion/completions/autoshard\n"
        "  zsh   a file _autoshard in a folder of $fpath\n"
        "  fish  ~/.config/fish/completions/autoshard.fish",
    )
    completion.add_argument("shell", metavar="SHELL", nargs="?", choices=("bash", "zsh", "fish"))
    completion.add_argument("--json", action="store_true", help="print the script as JSON")
    completion.add_argument("--of", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
