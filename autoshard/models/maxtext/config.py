"""From a reference to MaxText's configuration, without a device, a network or a word on stdout.

`pyconfig.initialize` reads the base configuration, the model's, and what the caller says. What is
set here lets `train_compile` build a step anywhere: the number of devices instead of a topology, no
data set, no checkpoints, no distributed system. A setting of the user's goes before these.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoshard.extras import install_line
from autoshard.models.providers import ProgramError, Target
from autoshard.near import did_you_mean

INSTALL = f"{install_line('maxtext')} (Python 3.12 or newer)"
BUILD_ANYWHERE = {
    "base_output_directory": "maxtext_output",
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "internal_compile": True,
    "log_config": False,
    "override_model_config": True,
    "run_name": "autoshard",
    "skip_jax_distributed_system": True,
}
_CHOICES = re.compile(r"\b(?:[Ss]upported|[Cc]hoose|[Oo]ptions|one of)\b")
"""With what a comment of MaxText's base.yml begins that lists the words that a key takes."""
_QUOTED = re.compile(r"['\"]([\w.]+)['\"]")
_ENVIRONMENT = {"DECOUPLE_GCLOUD": "TRUE", "HF_HUB_OFFLINE": "1"}
"""Read while MaxText is imported: it then asks for no packages of Google Cloud, and no network."""


def configured(name: str, target: Target, settings: Mapping[str, Any]) -> Any:
    """MaxText's `HyperParameters` of a model on so many devices.

    Args:
      name: of a model, or a YAML file that MaxText takes.
      target: the devices.
      settings: keys of the configuration.

    Raises:
      ProgramError: MaxText is not installed or refuses this, or there is no such model or file.
    """
    pyconfig = module("maxtext.configs.pyconfig")
    folder = Path(pyconfig.__file__).parent
    is_file = name.endswith((".yml", ".yaml"))
    if is_file and not Path(name).is_file():
        raise ProgramError(f"there is no file {name!r}; give one of MaxText's, or a model")
    if not is_file:
        _check_model(name, folder)
    words = {
        **BUILD_ANYWHERE,
        "hardware": target.hardware,
        "internal_compile_num_devices": target.devices,
        **({} if is_file else {"model_name": name}),
        **settings,
    }
    _check_keys([*words, *(_keys_of(name) if is_file else ())])
    told = io.StringIO()
    base = name if is_file else str(folder / "base.yml")
    try:
        with quiet(told):
            return pyconfig.initialize(["", base, *(f"{key}={one}" for key, one in words.items())])
    except (Exception, SystemExit) as error:  # it exits with 2, and tells why on stderr
        why = error.__context__ if isinstance(error, SystemExit) else error
        what = "MaxText refuses this configuration"
        raise ProgramError(f"{what}: {_reasons(why) or told.getvalue()}") from error


def module(name: str) -> Any:
    """A module of MaxText. Raises ProgramError where it is not installed, or does not import."""
    if name in sys.modules:
        return sys.modules[name]
    told = io.StringIO()
    try:
        with quiet(told), _environment():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ProgramError(f"it needs {error.name}, which is not installed: {INSTALL}") from error
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        raise ProgramError(f"{name} does not import: {why}") from error


def keys() -> tuple[str, ...]:
    """The keys of MaxText's configuration. Raises ProgramError."""
    return tuple(sorted(module("maxtext.configs.types").MaxTextConfig.model_fields))


def model_keys(model: str) -> dict[str, Any]:
    """What MaxText's own file of a model says; nothing where there is none."""
    folder = Path(module("maxtext.configs.pyconfig").__file__).parent
    path = folder / "models" / f"{model.replace('-Instruct', '')}.yml"
    if not path.is_file():
        return {}
    read = module("omegaconf").OmegaConf
    return dict(read.to_container(read.load(path), resolve=True))


def remat_keys() -> tuple[str, ...]:
    """The tensors that `remat_policy: custom` saves, computes again or moves to the host.

    Layer inputs are not among them: MaxText always keeps them.

    Raises:
      ProgramError: as `module`.
    """
    fields = module("maxtext.configs.types").RematAndOffload.model_fields
    found = [name for name, one in fields.items() if "RematLocation" in str(one.annotation)]
    return tuple(name for name in found if name != "decoder_layer_input")


def unknown_words(config: Any) -> list[str]:
    """Of a configuration, values that MaxText's own comments do not name for their keys.

    MaxText takes any word for some keys, whose words `base.yml` lists in a comment behind the key
    or above it, and fails while it builds the step.
    """
    pyconfig = module("maxtext.configs.pyconfig")
    lines = (Path(pyconfig.__file__).parent / "base.yml").read_text(encoding="utf-8").splitlines()
    found: list[str] = []
    for number, line in enumerate(lines):
        key = re.match(r"(\w+):", line)
        given = getattr(config, key[1], None) if key else None
        if key is None or not isinstance(given, str) or not given or key[1] in BUILD_ANYWHERE:
            continue
        first = number
        while first and lines[first - 1].startswith("#"):
            first -= 1
        behind, above = line.partition("#")[2], " ".join(lines[first:number])
        told = next((one for one in (behind, above) if _CHOICES.search(one)), "")
        words = _QUOTED.findall(told) or re.split(r"[,\s]+", told.partition(":")[2].strip())
        words = [one for one in words if one and one != key[1]]
        written = line.partition("#")[0].partition(":")[2].strip(" '\"")
        if len(words) > 1 and given not in (*words, written):
            meant = did_you_mean(given, words) or f"it takes {', '.join(words)}"
            found.append(f"{key[1]}={given!r}; {meant}")
    return found


@contextlib.contextmanager
def quiet(told: io.StringIO) -> Iterator[None]:
    """Words of MaxText, and of what it imports, go to `told`; logging stays set as it is."""
    root = logging.getLogger()
    level, handlers, disabled = root.level, list(root.handlers), root.manager.disable
    silent = contextlib.redirect_stdout(told), contextlib.redirect_stderr(told)
    with silent[0], silent[1], warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)
            root.setLevel(level)
            root.handlers[:] = handlers


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """What MaxText reads from the environment while it is imported, where nobody has said it."""
    missing = [name for name in _ENVIRONMENT if name not in os.environ]
    os.environ.update({name: _ENVIRONMENT[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def _reasons(error: BaseException | None) -> str:
    """Why it is refused: of pydantic's errors the keys and the sentences, not all the values."""
    if error is None or not hasattr(error, "errors"):
        return str(error or "")
    found: list[dict[str, Any]] = error.errors()  # type: ignore[attr-defined]
    return "; ".join(": ".join((*map(str, one["loc"]), _sentence(one))) for one in found)


def _sentence(one: Mapping[str, Any]) -> str:
    """What one of pydantic's errors says; of a long list of words the nearest."""
    if one["type"] not in ("literal_error", "enum"):
        return one["msg"].removeprefix("Value error, ")
    given, known = str(one["input"]), re.findall(r"'([^']*)'", one["ctx"]["expected"])
    meant = did_you_mean(given, known) or f"it takes {', '.join(known)}"
    return f"it does not know {given!r}; {meant}"


def _check_model(name: str, folder: Path) -> None:
    known = sorted(path.stem for path in (folder / "models").glob("*.yml"))
    if name != "default" and name.replace("-Instruct", "") not in known:
        shown = did_you_mean(name, known) or f"it has {', '.join(known)}"
        raise ProgramError(f"MaxText has no model {name!r}; {shown}")


def _keys_of(path: str) -> list[str]:
    """What a user's file says itself, beside the file that it stands on."""
    config = module("omegaconf").OmegaConf
    try:
        read = config.to_container(config.load(path))
    except Exception:  # of that, and of files that are no YAML, MaxText tells the reason
        return []
    return [str(key) for key in read if key != "base_config"] if isinstance(read, dict) else []


def _check_keys(words: Iterable[str]) -> None:
    known = keys()
    if unknown := [key for key in words if key not in known]:
        asked = [(key, did_you_mean(key, known)) for key in unknown]
        raise ProgramError(
            "MaxText's configuration has no "
            + ", ".join(f"{key!r}" + (f" ({meant})" if meant else "") for key, meant in asked)
        )
