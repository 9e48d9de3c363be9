"""Shared parts of the commands: their declaration, their errors, and the verdicts of judges."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autoshard.cli.parsers.examples import epilog
from autoshard.units import format_unit

if TYPE_CHECKING:
    from autoshard.program.trace import Program


def command(
    commands: Any, name: str, handler: str, summary: str, *, quick: bool = False, **options: Any
) -> Any:
    """Return a subparser; its handler, `module:function`, is imported when the command runs.

    A `quick` one needs no JAX.
    """

    words = f"{commands._prog_prefix} {name}".split()[1:]

    def run(parsed: argparse.Namespace) -> int:
        import importlib

        from autoshard.cli.kinds.reads import refuse_other_kinds

        refuse_other_kinds(parsed, " ".join(words))
        if not quick:
            from autoshard.compat.quiet import start_jax_quietly

            start_jax_quietly()
        module, function = handler.split(":")
        return getattr(importlib.import_module(f"autoshard.cli.{module}"), function)(parsed)

    options["epilog"] = epilog(" ".join(words), options.get("epilog", ""))
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    parser.set_defaults(command=name, run=run)
    return parser


USAGE, INFEASIBLE, TIME_LIMIT, FAILED, INTERRUPTED = 2, 3, 4, 5, 130


class CommandError(Exception):
    """Ends the command with one message and an exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


def program_of(options: argparse.Namespace, kept: str) -> str:
    """Return the program that a command runs: as named on its command line, or in its plan file.

    Args:
      options: `plan`, `program`, and `trust`, of the command line.
      kept: what the plan file names.

    Raises:
      CommandError: only the file names it, and nobody has said that it may run.
    """
    from autoshard.models.trusted import is_trusted

    if options.program is not None:
        return options.program
    if not kept:
        raise CommandError(f"{options.plan!r} names no program; give PROGRAM")
    if options.trust or is_trusted(kept):
        return kept
    raise CommandError(
        f"{options.plan!r} names the program {kept!r}, which is not run for a file's word alone; "
        "give PROGRAM, or --trust"
    )


MOST_DEVICES = 16
MOST_BYTES = 2**30
MOST_FLOPS = 1e11
CONVOLUTIONS = 8
"""XLA:CPU takes so many times as long for a FLOP of a convolution in double precision."""
_WORDS = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("not run", "yellow")}
PRICE_TOLERANCE = 1e-9
"""A relative tolerance, because sums of many prices may be computed in another order."""


def too_much_work(program: Program) -> str:
    """Why the numbers of a program are not compared here, or an empty string."""
    flops = [0.0, 0.0]
    for op in program.ops:
        flops[op.primitive == "conv_general_dilated"] += op.flops * op.trips * op.weight
    if flops[0] + CONVOLUTIONS * flops[1] <= MOST_FLOPS:
        return ""
    most = MOST_FLOPS / CONVOLUTIONS if flops[1] else MOST_FLOPS
    of = " in convolutions" if flops[1] else ""
    return (
        f"the step has {format_unit(sum(flops), 'FLOP')}; at most {format_unit(most, 'FLOP')}{of} "
        f"are run here{SMALLER}"
    )


SMALLER = ": a plan of fewer examples or layers has its numbers compared"
"""What to do where a step is too large to run here."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one judge; `agrees` is None if the judge did not run, and `text` says why.

    `data` is the verdict as plain data, if there is more than the text.
    """

    judge: str
    agrees: bool | None
    text: str
    data: Any = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        data = {"judge": self.judge, "agrees": self.agrees, "text": self.text}
        return data if self.data is None else {**data, "data": self.data}

    def __str__(self) -> str:
        from autoshard.terminal import styled

        word, colour = _WORDS[self.agrees]
        word = styled(word, colour) + " " * (8 - len(word))
        lines = self.text.split("\n")
        rest = (f"  {line}".rstrip() for line in lines[1:])
        return "\n".join([f"{self.judge:<12} {word} {lines[0]}", *rest])


@dataclass(frozen=True, slots=True)
class WrittenVerdicts:
    """What `autoshard verify --json` prints."""

    verdicts: tuple[Verdict, ...]
    agrees: bool | None = None


WAITS_SECONDS = 3600
"""How long fake devices wait for each other: they share the cores, so one may come very late."""


def fake_devices(count: int) -> dict[str, str]:
    """The environment of a process that has so many devices, all of them on this CPU.

    XLA ends a process where a device waits 40 s for the others of a collective
    (`xla_cpu_collective_call_terminate_timeout_seconds`), as it does in large steps on few cores.
    """
    flags = (
        f"--xla_cpu_collective_call_terminate_timeout_seconds={WAITS_SECONDS} "
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    )
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def child_json(
    module: str,
    words: list[str],
    environment: dict[str, str],
    *,
    time_limit: float | None = None,
) -> dict[str, Any] | str:
    """Return the JSON that a child process prints last, or in words why there is none.

    After so many seconds it is ended, and the answer has only `skipped`: why, and what to do.
    """
    from autoshard.compiler.ask import NoAnswer, ask

    # Unfiltered, so that the error's own line is the last.
    environment = {**environment, "JAX_TRACEBACK_FILTERING": "off"}
    answer = ask(module, words, environment, time_limit=time_limit)
    if isinstance(answer, NoAnswer) and answer.late:
        return {"skipped": f"{answer.why}; give it longer by --numbers-limit{SMALLER}"}
    return answer.why if isinstance(answer, NoAnswer) else answer
