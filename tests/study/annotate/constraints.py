"""The constraints that a function is lowered with."""

from __future__ import annotations

import re

import jax
from jax.sharding import PartitionSpec as P


def constraints_of(function, *shapes):
    """The layouts of all constraints of a lowered function, in order."""
    text = jax.jit(function).trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()
    found = re.findall(r"sdy.sharding_constraint \S+ <@mesh, \[(.*?)\]> :", text)
    return [P(*map(_axes, re.findall(r"\{(.*?)\}", one))) for one in found]


def _axes(dimension):
    names = tuple(name.strip(' "') for name in dimension.split(",") if name)
    return names[0] if len(names) == 1 else names or None
