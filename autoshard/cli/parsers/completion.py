"""`autoshard completion`: what a shell offers when TAB is pressed.

The script that a shell runs at its start hands the words typed so far to `autoshard completion
--of`, which answers with one candidate per line. All of it follows from the parser of the command
line. JAX is not imported. Where nothing is offered, the shell completes names of files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence

from autoshard.cli.common import CommandError

SCRIPTS = {
    "bash": """\
_autoshard() {
  local IFS=$'\\n'
  COMPREPLY=($(autoshard completion --of "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _autoshard autoshard
""",
    "zsh": """\
#compdef autoshard
_autoshard() {
  local -a found
  found=("${(@f)$(autoshard completion --of "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n "${found[1]}" ]] && compadd -a found || _files
}
compdef _autoshard autoshard
""",
    "fish": """\
complete -c autoshard -a "(autoshard completion --of (commandline -opc)[2..] (commandline -ct))"
""",
}
"""By shell: what makes it ask."""


def completion_command(options: argparse.Namespace) -> int:
    """Run `autoshard completion`."""
    from autoshard.cli.main import parser_of_commands

    if options.of is not None:
        print(*candidates(parser_of_commands(), options.of), sep="\n")
    elif options.json:
        shells = SCRIPTS if options.shell is None else (options.shell,)
        print(json.dumps({"scripts": {shell: SCRIPTS[shell] for shell in shells}}))
    elif options.shell is None:
        raise CommandError(f"no SHELL is named; give one of {', '.join(SCRIPTS)}")
    else:
        print(SCRIPTS[options.shell], end="")
    return 0


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """What may stand in place of the last word, which may be empty or begun.

    Args:
      parser: of all commands.
      words: after `autoshard`.
    """
    *before, last = words or [""]
    expected: argparse.Action | None = None
    given = 0
    for word in before:
        if expected is not None:
            expected = None
        elif word.startswith("-"):
            option = parser._option_string_actions.get(word)
            expected = option if option is not None and option.nargs != 0 else None
        elif (commands := _commands(parser)) is not None and word in commands.choices:
            parser, given = commands.choices[word], 0
        else:
            given += 1
    if expected is not None:
        offered = _values(expected)
    elif last.startswith("-"):
        offered = iter(parser._option_string_actions)
    else:
        places = [one for one in parser._actions if not one.option_strings]
        offered = _values(places[min(given, len(places) - 1)]) if places else iter(())
    given_options = {word for word in before if word.startswith("-")}
    return sorted({one for one in offered if one.startswith(last)} - given_options)


def _commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction | None:
    found = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return next(found, None)


def _values(action: argparse.Action) -> Iterator[str]:
    """What an option or an argument may be, as far as its names are known."""
    if action.choices is not None:
        yield from map(str, action.choices)
    elif action.metavar == "MACHINE":
        yield from _machines()
    elif action.metavar == "PROGRAM":
        from autoshard import models

        yield from models.names()


def _machines() -> Iterator[str]:
    from autoshard.machine.file import MachineError
    from autoshard.machine.load import load, presets

    for family in presets():
        sizes = (8, 64) if not family.endswith("nvl72") else (72,)
        for chips in sizes:
            with contextlib.suppress(MachineError):  # it does not come in that size
                yield load(f"{family}-{chips}").name
