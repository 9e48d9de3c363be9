"""Finding a PROGRAM: a built-in by name, or a function of the user's.

    llama3-8b                  a built-in (`autoshard programs` lists them)
    llama3-8b:tiny             the same code, small enough to run anywhere
    maxtext:llama3.1-8b?...    of another package (`autoshard.models.providers`), for a machine
    package.module:function    found as `python` would find it, from the current folder too
    path/to/file.py:function   found by its path
    llama3-8b,batch=24,attention=flash     any of them, with other sizes and settings

What stands behind commas are keyword arguments: whole numbers, numbers, `true`, `false`, `none`, or
else texts. Of a built-in, `attention=flash` becomes the kernel of the machine's platform, and the
program's name says which.

The function returns `(fn, args)` or `(fn, args, options)`: the step, the tuple of its arguments
(pytrees of arrays or `jax.ShapeDtypeStruct`s), and a dictionary that may hold `donate_argnums`,
`trip_counts`, `user_rules` and `host`, as `autoshard.trace` takes them, and `notes`: sentences for
whoever reads a plan. It can be called with nothing; its keyword arguments, such as `batch=64`, are
the sizes of the program, which a sweep may change.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from autoshard import compat, models
from autoshard.machine.file import MachineError
from autoshard.machine.machine import Machine
from autoshard.models import providers
from autoshard.models.attention import kernel_of
from autoshard.models.providers import ProgramError, Target
from autoshard.near import did_you_mean, hint
from autoshard.program.trace import TraceError, donated_positions
from autoshard.units import counted

__all__ = ["Found", "ProgramError", "call", "find", "is_builtin", "size_names", "target_of"]

OPTIONS = ("donate_argnums", "trip_counts", "user_rules", "host", "notes")


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A step that was found.

    Attributes:
      reference: as the user wrote it.
      fn, args, options: the step, its arguments, and how it is traced.
      builtin: name of the built-in, or an empty string.
      notes: what a reader of a plan should know of how the step was made, a sentence each.
    """

    reference: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any]
    builtin: str = ""
    notes: tuple[str, ...] = ()

    @property
    def plan_options(self) -> dict[str, Any]:
        """The options beside the user's rules, which a trace keeps as plain data itself."""
        return {key: value for key, value in self.options.items() if key != "user_rules"}


def find(
    reference: str,
    sizes: Mapping[str, Any] | None = None,
    *,
    machine: Machine | str | Target | None = None,
) -> Found:
    """Find the step that `reference` names; see the module's grammar.

    Args:
      reference: the PROGRAM.
      sizes: keyword arguments for the function, or for the factory of the built-in, beside those
        that `reference` says.
      machine: that the step is planned for, or its name. Programs of other packages need it;
        `attention=flash` is by default for the platform on which JAX runs here, also where the
        machine is not known here.

    Raises:
      ProgramError: there is no such built-in, module, file or function (near matches are
        proposed), it fails (with the line at which it does), or it returns something else.
    """
    place, settings = _settings(reference)
    settings |= sizes or {}
    name, tiny = _builtin(place)
    if not name:
        if (other := providers.offered(place)) is None:
            return call(_function(place), settings, reference)
        try:
            return call(other.factory(machine), settings, reference)
        except MachineError as error:
            raise ProgramError(f"{reference} depends on the machine: {error}") from error
    try:
        platforms = _platforms(machine)
        if settings.get("attention") == "flash" and platforms:
            settings["attention"] = kernel_of(platforms)
            reference = reference.replace("attention=flash", f"attention={settings['attention']}")
        step = (models.tiny if tiny else models.build)(name, **settings)
    except ValueError as error:
        raise ProgramError(str(error)) from error
    return Found(reference, step.fn, tuple(step.args), dict(step.options), name)


def offered_program(reference: str) -> providers.Offered | None:
    """The program of another package that a reference names, or None. Raises ProgramError."""
    place, settings = _settings(reference)
    found = providers.offered(place)
    return None if found is None else replace(found, settings={**found.settings, **settings})


def call(factory: Callable[..., Any], sizes: Mapping[str, Any], reference: str) -> Found:
    """The step that a function makes of these sizes.

    Raises:
      ProgramError: it fails, or returns something else.
    """
    try:
        result = factory(**sizes)
    except ProgramError as error:
        raise ProgramError(f"{reference}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ProgramError(f"{reference} fails{_failure(error)}") from error
    return _checked(reference, result)


def is_builtin(reference: str) -> bool:
    """Whether a reference names a built-in program, which runs no code but autoshard's own."""
    return bool(_builtin(without_settings(reference))[0])


def _platforms(machine: Machine | str | Target | None) -> tuple[str, ...]:
    """What JAX calls the platforms of a machine; none where it is not known here."""
    try:
        return () if machine is None else Target.of(machine).platforms
    except MachineError:
        return ()


def target_of(program: str | Callable[..., Any], machine: Machine) -> Target:
    """What of a machine a program depends on: where no other package offers it, not on its size."""
    target = Target.of(machine)
    if isinstance(program, str) and not is_builtin(program):
        return target if providers.offered(program) else replace(target, devices=0)
    return replace(target, devices=0)


def without_settings(reference: str) -> str:
    """What a reference names, without the sizes and settings behind it."""
    return _settings(reference)[0]


def size_names(program: str | Callable[..., Any]) -> tuple[str, ...]:
    """The keyword arguments of the function that a reference names, or of a function.

    Raises:
      ProgramError: there is no such function.
    """
    if isinstance(program, str):
        place = without_settings(program)
        name, _ = _builtin(place)
        if name:
            return models.sizes(name)
        if (other := providers.offered(place)) is not None:
            return other.size_names()
        program = _function(place)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(program).parameters.values()
    return tuple(one.name for one in parameters if one.kind in kinds)


def _settings(reference: str) -> tuple[str, dict[str, Any]]:
    """What a reference names, and the keyword arguments that stand behind it."""
    place, *words = re.split(r",(?=[A-Za-z_]\w*=)", reference)
    pairs = (word.split("=", 1) for word in words)
    return place, {name: providers.value_of(text.strip()) for name, text in pairs}


def _builtin(reference: str) -> tuple[str, bool]:
    """The name of the built-in, or an empty one; and whether the tiny one is meant."""
    place, colon, function = reference.rpartition(":")
    name = place if colon else reference
    known = name in models.names() and function in ("tiny", reference)
    return (name if known else ""), bool(colon)


def _function(reference: str) -> Callable[..., Any]:
    place, colon, function = reference.rpartition(":")
    if not colon or not place or not function:
        raise ProgramError(_unknown(reference))
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    factory = getattr(module, function, None)
    if callable(factory):
        return factory
    functions = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
    if factory is not None:
        kind = type(factory).__name__
        raise ProgramError(f"{reference} is not a function but a value of type {kind!r}")
    raise ProgramError(f"{place} has no function {function!r}{hint(function, functions)}")


def _unknown(reference: str) -> str:
    if reference.endswith(".py"):
        return f"{reference!r} names no function; write {reference}:function"
    known = [*models.names(), *(f"{one.name}:..." for one in providers.entries())]
    return (
        f"no built-in program is called {reference!r}{hint(reference, known)}\n"
        "  `autoshard programs` lists them; your own is module:function or path/to/file.py:function"
    )


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        folder = path.parent
        files = [str(folder / p.name) for p in folder.glob("*.py")] if folder.is_dir() else []
        raise ProgramError(f"there is no file {str(path)!r}{hint(str(path), files)}")
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that it can import its neighbours, as a script would
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Pickles and dataclasses look a module up by its name; what is there already stays.
    mine = sys.modules.setdefault(path.stem, module) is module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if mine:
            del sys.modules[path.stem]
        raise ProgramError(f"{path} cannot be imported{_failure(error)}") from error
    return module


def _load_module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            asked = did_you_mean(name, models.names())
            said = f"; {asked}" if asked else ""
            raise ProgramError(f"there is no module {name!r}{said}") from error
        raise ProgramError(f"{name} cannot be imported{_failure(error)}") from error
    except (Exception, SystemExit) as error:
        raise ProgramError(f"{name} cannot be imported{_failure(error)}") from error


def _failure(error: BaseException) -> str:
    """` at file:line: Type: message`, with the innermost line that is the user's own."""
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {_short(error.filename)}:{error.lineno}"
        return f"{where}: {type(error).__name__}: {error.msg}"
    package = compat.PACKAGE_FOLDER
    for frame in traceback.extract_tb(error.__traceback__):
        theirs = "site-packages" in frame.filename or frame.filename.startswith(("<", package))
        if not theirs:
            where = f" at {_short(frame.filename)}:{frame.lineno}"
    return f"{where}: {type(error).__name__}: {error}"


def _short(filename: str) -> str:
    """A path as seen from the current folder, where it lies inside of it."""
    folder = os.path.join(os.getcwd(), "")
    return filename.removeprefix(folder)


def _checked(reference: str, result: Any) -> Found:
    form = "it must return (fn, args) or (fn, args, options)"
    if not isinstance(result, tuple | list) or len(result) not in (2, 3):
        what = f"a value of type {type(result).__name__!r}"
        if isinstance(result, tuple | list):
            what = counted(len(result), "value")
        elif callable(result):
            form += ": the function that trains or runs it, and the arguments of that"
        raise ProgramError(f"{reference} returned {what}; {form}")
    fn, args = result[0], result[1]
    options = result[2] if len(result) == 3 else {}
    faults = []
    if not callable(fn):
        faults.append(f"fn is of type {type(fn).__name__!r}, not a function")
    if not isinstance(args, tuple | list):
        faults.append(
            f"args is of type {type(args).__name__!r}, not a tuple with one entry per argument"
        )
    if not isinstance(options, Mapping):
        faults.append(f"options is of type {type(options).__name__!r}, not a dictionary")
    else:
        faults += [
            f"options has the key {key!r}; known: {', '.join(OPTIONS)}"
            for key in options
            if key not in OPTIONS
        ]
        if isinstance(args, tuple | list) and "donate_argnums" in options:
            try:
                given = donated_positions(options["donate_argnums"], len(args))
                options = {**options, "donate_argnums": given}
            except TraceError as error:
                faults.append(str(error))
    if faults:
        raise ProgramError("\n  ".join([f"{reference}: {form}:", *faults]))
    notes = tuple(options.get("notes", ()))
    options = {key: value for key, value in options.items() if key != "notes"}
    return Found(reference, fn, tuple(args), options, notes=notes)
