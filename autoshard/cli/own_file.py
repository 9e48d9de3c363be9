"""The best plan that a framework's own file can express: `autoshard search PROGRAM --as NAME`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from autoshard.cli.common import INFEASIBLE, TIME_LIMIT, CommandError
from autoshard.cli.progress import ProgressLine
from autoshard.units import listed, them

if TYPE_CHECKING:
    from autoshard.machine.machine import Machine
    from autoshard.models.providers import OwnFile


def refuse_what_no_file_says(options: argparse.Namespace) -> None:
    """Refuse options of a search that have no meaning here. Raises CommandError."""
    refused = {
        "--meshes": options.meshes,
        "--require": options.require,
        "--from": options.start,
        "--max-changes": options.max_changes,
        "--refine": options.refine,
    }
    if given := [name for name, value in refused.items() if value]:
        raise CommandError(
            f"the file that --as writes cannot express {listed(given)}: leave {them(given)} out"
        )


def best_own_file(options: argparse.Namespace, machine: Machine, line: ProgressLine) -> OwnFile:
    """The file, by the package that offers the program. Raises CommandError."""
    from autoshard.models.find import ProgramError, offered_program
    from autoshard.models.providers import entries
    from autoshard.program.select import RequirementError
    from autoshard.program.trace import TraceError
    from autoshard.search.options import SearchOptions
    from autoshard.search.search import InfeasibleError, MeshError, NoPlanError

    asked = SearchOptions(
        mesh=options.mesh,
        memory_limit=options.memory_limit,
        time_limit=options.time_limit,
        gap=options.gap,
        by_schedule=False,
        join_sums=options.join_sums,
        remat=options.remat,
        accumulate=options.accumulate,
    )
    try:
        program = offered_program(options.program)
        if program is None or program.entry.name != options.own:
            known = ", ".join(one.name for one in entries()) or "none here"
            raise CommandError(
                f"--as {options.own} is for programs {options.own}:..., and {options.program!r} is "
                f"none; packages that offer programs: {known}"
            )
        return program.own_file(machine, asked, lambda news: line.show(news, group=news))
    except (MeshError, ProgramError, RequirementError, TraceError) as error:
        raise CommandError(str(error)) from error
    except InfeasibleError as error:
        raise CommandError(str(error), INFEASIBLE) from error
    except NoPlanError as error:
        raise CommandError(str(error), TIME_LIMIT) from error
