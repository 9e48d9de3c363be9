"""The parser of words: what it refuses, it names, with what is near and the command's own help.

argparse hands words that a command does not know up to the parser of all commands, which knows
neither the command's options nor its help. Here each command refuses its own, and before it asks
for what is missing: who writes `--machne v5p-64` has misspelled `--machine`, not forgotten it.

Why argparse: `--help` takes 0.2 s of the 0.3 s that it may. Typer 0.29 needs 0.36 s at its import;
click 8.5 with 0.07 s and cyclopts 5.5 with 0.10 s would fit (argparse: 0.01 s; Python 3.13), but
have no use: parsers are data here already, from which completion, references and tests are made.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from autoshard.cli.common import CommandError
from autoshard.near import did_you_mean

_OPTION = re.compile(r"(--?[A-Za-z][\w-]*)(=.*)?", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `CommandError`s."""

    _words: Sequence[str] = ()

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parse the words, and refuse what is left of them.

        Raises:
          CommandError: names each option that is not known, and what is near to it, or else the
            words that are too many.
        """
        self._words = sys.argv[1:] if args is None else list(args)
        parsed, rest = super().parse_known_args(self._words, namespace)
        rest = [word for word in rest if word != "--"]
        if rest:
            options = self._unknown_options()
            self.error("" if options else f"{self.prog} takes no further {_listed(rest)}")
        return parsed, rest

    def _match_arguments_partial(self, actions: Any, arg_strings_pattern: str) -> list[int]:
        """Leave words that may be missing (`[PROGRAM]`, `[VALUE ...]`) for after the next option.

        Until Python 3.13 argparse takes them for missing where an option comes before them, so that
        `report plan.json -o plan.html PROGRAM` had a word too many.
        """
        counts = super()._match_arguments_partial(actions, arg_strings_pattern)
        if "O" in arg_strings_pattern[sum(counts) :]:
            while counts and counts[-1] == 0:
                counts.pop()
        return counts

    def error(self, message: str) -> NoReturn:
        """Raise a `CommandError` of the message, after all options that are not known."""
        lines = [*self._unknown_options(), *([message] if message else [])]
        raise CommandError("\n  ".join([*lines, f"see {self.prog} --help"]))

    def _unknown_options(self) -> list[str]:
        """A line for each option among the words that is none of this parser's."""
        known = sorted(option for option in self._option_string_actions if option.startswith("--"))
        lines = []
        for word in self._own_words():
            match = _OPTION.fullmatch(word)
            if match is None or self._knows(match[1]):
                continue
            asked = did_you_mean(match[1], known)
            lines.append(f"{self.prog} has no option {match[1]}{f'; {asked}' if asked else ''}")
        return list(dict.fromkeys(lines))

    def _own_words(self) -> Sequence[str]:
        """The words up to `--`, or up to the first of a command of this parser."""
        for k, word in enumerate(self._words):
            if word == "--" or (self._subparsers is not None and not word.startswith("-")):
                return self._words[:k]
        return self._words

    def _knows(self, option: str) -> bool:
        """Whether argparse reads this as an option: whole, cut short, or `-oFILE`."""
        if option.startswith("--"):
            return any(known.startswith(option) for known in self._option_string_actions)
        return option[:2] in self._option_string_actions

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Say what is near to a word that is none of those that may stand here."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        hint = did_you_mean(str(value), known) or f"known: {', '.join(known)}"
        raise argparse.ArgumentError(action, f"{value!r} is not known; {hint}")


def _listed(words: Sequence[str]) -> str:
    return f"word{'s' if len(words) > 1 else ''} {', '.join(map(repr, words))}"
