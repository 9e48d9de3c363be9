"""What a compiler is asked: a module, its target, and the hash under which the answer is kept.

The hash is over the module's text, the target with its options, and the versions of the compilers.
Source lines and name stacks are left out: they depend on what a process has traced before. So the
lines in an answer are those of the program that asked first; `use_cache=False` asks anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import metadata

from autoshard.compiler.target import Target

FORMAT = 1
"""Of what the child writes; another one is another question."""

LARGEST_PRINTED_MODULE = 2**26
"""Bytes of a module above which constants are left out of the dumps: they would be huge."""

_PACKAGES = (
    "jax",
    "jaxlib",
    "libtpu",
    "jax-cuda12-pjrt",
    "jax-cuda12-plugin",
    "jax-cuda13-pjrt",
    "jax-cuda13-plugin",
    "nvidia-cuda-nvcc-cu12",
)


@dataclass(frozen=True, slots=True)
class Request:
    """A module and its target.

    Attributes:
      module: MLIR bytecode, source lines included.
      text: its text, without source lines.
      target: where it is compiled for.
    """

    module: bytes
    text: str
    target: Target

    @property
    def key(self) -> str:
        """The hash of the question, hexadecimal."""
        digest = hashlib.sha256(self.text.encode())
        question = {"target": self.target.to_json(), "versions": versions(), "format": FORMAT}
        digest.update(json.dumps(question, sort_keys=True).encode())
        return digest.hexdigest()

    @property
    def prints_constants(self) -> bool:
        """Whether the dumps may hold all constants."""
        return len(self.module) <= LARGEST_PRINTED_MODULE


def versions() -> dict[str, str]:
    """The versions of the packages that compile, where they are installed."""
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
