"""Programs of other packages: `NAME:PROGRAM?SETTING=VALUE&...`, found by entry points.

A package that offers programs says so in its own `pyproject.toml`:

    [project.entry-points."autoshard.programs"]
    zoo = "zoo.planning:program"

and `zoo:resnet?batch=64` is then what `zoo.planning.program("resnet", target, batch=64)` returns:
`(fn, args)` or `(fn, args, options)`, as from any function (`autoshard.models.find`). The keyword
arguments of `program` are the sizes that a sweep may change. Where it takes any (`**settings`), an
attribute `program.settings` lists their names: a function of what stands before the question mark.

A framework whose own file says how a model is laid out offers to write it: an attribute
`program.own_file` is a function of the same name, target and settings, the machine, the
`SearchOptions`, and a callback for news. It returns an `OwnFile` (`autoshard search --as NAME`).

Values are numbers, `true`, `false`, `none`, or else texts. `%26` is an ampersand, as in addresses.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any
from urllib.parse import unquote

from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan
from autoshard.search.options import SearchOptions

GROUP = "autoshard.programs"


class ProgramError(ValueError):
    """A PROGRAM that is not found, or does not give a step and its arguments."""


@dataclass(frozen=True, slots=True)
class Target:
    """What of a machine a program may depend on.

    Attributes:
      devices: how many there are, as JAX counts them.
      platforms: what JAX calls those that the machine's compiler compiles for; none where nothing
        is known of it.
      kind: of the devices, as the machine calls its chips; nothing where no machine is known.
    """

    devices: int
    platforms: tuple[str, ...]
    kind: str = field(default="", compare=False)

    @property
    def hardware(self) -> str:
        """ "tpu", "gpu", or where nothing is known of the compiler "cpu"."""
        if not self.platforms:
            return "cpu"
        return self.platforms[0] if self.platforms[0] in ("tpu", "cpu") else "gpu"

    @classmethod
    def of_all(cls, machines: Sequence[Machine | str]) -> Target:
        """Of several machines that share a step, as `of`; kernels are chosen for the first."""
        targets = [cls.of(one) for one in machines]
        return cls(sum(one.devices for one in targets), targets[0].platforms, targets[0].kind)

    @classmethod
    def of(cls, machine: Machine | str | Target) -> Target:
        """Of a machine or its name.

        Raises:
          autoshard.machine.file.MachineError: there is no such machine.
        """
        if isinstance(machine, Target):
            return machine
        machine = load(machine) if isinstance(machine, str) else machine
        kind = machine.chip.name.removesuffix(" device")  # JAX's device is the chip of a TPU7x
        return cls(machine.chips, machine.chip.compiler.platforms, kind)


@dataclass(frozen=True, slots=True)
class OwnFile:
    """The best plan that a file of a framework can express.

    Attributes:
      text: of the file.
      plan: what it makes of the model, priced.
      summary: what was chosen, what it costs against the free plan and why, in lines.
    """

    text: str
    plan: Plan
    summary: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offered:
    """A program of another package.

    Attributes:
      reference: as the user wrote it.
      entry: that offers it.
      name: what stands between the colon and the question mark.
      settings: what stands behind it.
    """

    reference: str
    entry: EntryPoint
    name: str
    settings: Mapping[str, Any]

    def load(self) -> Callable[..., Any]:
        """The function of the package. Raises ProgramError."""
        try:
            function = self.entry.load()
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            raise ProgramError(
                f"{self.reference}: {self._whose} cannot be loaded: {why}"
            ) from error
        if not callable(function):
            kind = type(function).__name__
            raise ProgramError(f"{self.reference}: {self._whose} is a {kind!r}, no function")
        return function

    def factory(self, machine: Machine | str | Target | None) -> Callable[..., Any]:
        """A function of further settings that makes the program.

        Raises:
          ProgramError: the function cannot be loaded, or no machine is named.
          autoshard.machine.file.MachineError: the machine is none.
        """
        if machine is None:
            raise ProgramError(f"{self.reference} depends on the machine; say which")
        function, target = self.load(), Target.of(machine)

        def make(**sizes: Any) -> Any:
            return function(self.name, target, **{**self.settings, **sizes})

        return make

    def own_file(
        self, machine: Machine, asked: SearchOptions, heard: Callable[[str], None]
    ) -> OwnFile:
        """The best plan that a file of the framework can express.

        Args:
          machine: to plan for.
          asked: the options of the search; the time limit is that of each search.
          heard: is told what goes on.

        Raises:
          ProgramError: the package writes no file, or refuses the settings.
          InfeasibleError, NoPlanError: as `autoshard.search.search`.
        """
        write = getattr(self.load(), "own_file", None)
        if write is None:
            raise ProgramError(f"{self.reference}: {self._whose} writes no file of its own")
        target = Target.of(machine)
        return write(self.name, target, self.settings, machine=machine, asked=asked, heard=heard)

    def size_names(self) -> tuple[str, ...]:
        """The settings that the program has. Raises ProgramError."""
        function = self.load()
        if (listed := getattr(function, "settings", None)) is not None:
            return tuple(listed(self.name))
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in kinds]
        return tuple(one.name for one in parameters[2:])

    @property
    def _whose(self) -> str:
        package = self.entry.dist.name if self.entry.dist is not None else "an unknown package"
        return f"{self.entry.value} of {package}"


def offered(reference: str) -> Offered | None:
    """The program that a reference names, or None if no package offers one of that name.

    Raises:
      ProgramError: several packages do, or the settings cannot be read.
    """
    start, colon, rest = reference.partition(":")
    found = {one.value: one for one in entry_points(group=GROUP, name=start)} if colon else {}
    if not found:
        return None
    if len(found) > 1:
        who = ", ".join(f"{e.value} of {e.dist.name if e.dist else '?'}" for e in found.values())
        raise ProgramError(f"several packages offer programs of the name {start!r}: {who}")
    name, mark, settings = rest.partition("?")
    (entry,) = found.values()
    return Offered(reference, entry, unquote(name), _settings(reference, settings if mark else ""))


def entries() -> tuple[EntryPoint, ...]:
    """What packages offer, by name."""
    found = {(one.name, one.value): one for one in entry_points(group=GROUP)}
    return tuple(found[key] for key in sorted(found))


def value_of(word: str) -> Any:
    """A number, true, false, none, or else a text.

    >>> [value_of(word) for word in ("8", "0.5", "true", "flash")]
    [8, 0.5, True, 'flash']
    """
    named = {"true": True, "false": False, "none": None}
    if word.lower() in named:
        return named[word.lower()]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def _settings(reference: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    faults = []
    for word in filter(None, text.split("&")):
        name, equals, value = word.partition("=")
        name = unquote(name)
        if not equals or not name.isidentifier():
            faults.append(f"{word!r} is not a setting; write name=value")
        elif name in found:
            faults.append(f"{name!r} is given twice")
        else:
            found[name] = value_of(unquote(value))
    if faults:
        raise ProgramError("\n  - ".join([f"{reference}: the settings are faulty:", *faults]))
    return found
