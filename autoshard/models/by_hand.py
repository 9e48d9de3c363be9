"""Well-known shardings by hand, as rules for the built-in transformers.

The logical names and the axes on which they lie are those of MaxText's configuration
(https://github.com/AI-Hypercomputer/maxtext, `configs/base.yml`; its axes `fsdp`, `tensor`,
`tensor_sequence`, `context` and `expert`). On N chips, T of them to a tensor axis, H to a host:

    parameters only        FSDP x TP for the parameters and the batch; nothing else is said
    FSDP                   fsdp=N: parameters and batch
    HSDP                   replica=N/H, fsdp=H: parameters inside of a host, batch over all
    FSDP x TP              fsdp=N/T, tensor=T: heads, hidden widths and vocabulary over `tensor`
    FSDP x TP x embed      the same, and the model width between the parts of a layer over `tensor`
    FSDP x TP x sequence   the same, and there the positions over `tensor` (sequence parallelism,
                           https://arxiv.org/abs/2205.05198)
    FSDP x context         fsdp=N/T, context=T: batch and positions; keys and values are gathered
    FSDP x expert          fsdp=N/E, expert=E: experts over `expert`, all else over both
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoshard.machine.machine import Machine
from autoshard.machine.network import Switch
from autoshard.models.annotate import LogicalAxes, Rules

__all__ = ["HAND_MADE", "HandMade", "chips_of_a_host"]

MOST_EXPERT_PARTS = 8
"""Of an expert axis: Mixtral's experts, and the GPUs of a host."""

_TENSOR = dict.fromkeys(("heads", "kv_heads", "mlp", "vocab", "classes"), "tensor")


@dataclass(frozen=True, slots=True)
class HandMade:
    """A well-known sharding.

    Attributes:
      name: as people call it.
      rules: from the chips, those of a host, and those of the tensor axis, to rules.
      degrees: whether it has an axis of a size to be chosen, called `tensor` or `context`.
      hosts: whether it needs several hosts.
      experts: whether it needs a mixture of experts.
    """

    name: str
    rules: Callable[[int, int, int], Rules]
    degrees: bool = False
    hosts: bool = False
    experts: bool = False

    def suits(self, axes: LogicalAxes, chips: int, host: int) -> bool:
        """Whether there is what it shards: several hosts, or experts."""
        if self.experts and not any("expert" in names for names in axes.parameters.values()):
            return False
        return not self.hosts or 1 < host < chips


def _fsdp(chips: int, host: int, degree: int) -> Rules:
    return Rules({"fsdp": chips}, {"embed": "fsdp"}, {"batch": "fsdp"})


def _hybrid(chips: int, host: int, degree: int) -> Rules:
    mesh = {"replica": chips // host, "fsdp": host}
    return Rules(mesh, {"embed": "fsdp"}, {"batch": ("replica", "fsdp")})


def _tensor(
    stream: Mapping[str, str], *, constrains: bool = True
) -> Callable[[int, int, int], Rules]:
    """FSDP x TP; `stream` says what lies over `tensor` between the parts of a layer."""

    def rules(chips: int, host: int, degree: int) -> Rules:
        mesh = {"fsdp": chips // degree, "tensor": degree}
        norm = {"norm": "tensor"} if "embed" in stream else {}
        parameters = {"embed": "fsdp", **_TENSOR, **norm}
        return Rules(mesh, parameters, {"batch": "fsdp", **_TENSOR, **stream}, constrains)

    return rules


def _context(chips: int, host: int, degree: int) -> Rules:
    return Rules(
        {"fsdp": chips // degree, "context": degree},
        {"embed": ("fsdp", "context")},
        {"batch": "fsdp", "length": "context", "norm_length": "context"},
    )


def _expert(chips: int, host: int, degree: int) -> Rules:
    parts = math.gcd(chips, MOST_EXPERT_PARTS)
    return Rules(
        {"fsdp": chips // parts, "expert": parts},
        {"expert": "expert", "embed": ("fsdp", "expert")},
        {"expert": "expert", "batch": ("fsdp", "expert")},
    )


HAND_MADE = (
    HandMade("parameters only", _tensor({}, constrains=False), degrees=True),
    HandMade("FSDP", _fsdp),
    HandMade("HSDP", _hybrid, hosts=True),
    HandMade("FSDP x TP", _tensor({}), degrees=True),
    HandMade("FSDP x TP x embed", _tensor({"embed": "tensor"}), degrees=True),
    HandMade("FSDP x TP x sequence", _tensor({"norm_length": "tensor"}), degrees=True),
    HandMade("FSDP x context", _context, degrees=True),
    HandMade("FSDP x expert", _expert, experts=True),
)
"""All of them."""


def chips_of_a_host(machine: Machine) -> int:
    """Chips on the innermost switch; all of them where there is a torus."""
    innermost = machine.network[0]
    return innermost.chips if isinstance(innermost, Switch) else machine.chips
