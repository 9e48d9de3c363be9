"""What a cluster is: chips, network, compiler, numbers with their sources, presets."""

from autoshard.machine.chip import Chip
from autoshard.machine.cluster import Cluster, ClusterError, load_cluster
from autoshard.machine.file import MachineError
from autoshard.machine.host import Host
from autoshard.machine.load import load, parse, presets
from autoshard.machine.machine import Machine, Range
from autoshard.machine.network import Level, Network, Switch, Torus

__all__ = [
    "Chip",
    "Cluster",
    "ClusterError",
    "Host",
    "Level",
    "Machine",
    "MachineError",
    "Network",
    "Range",
    "Switch",
    "Torus",
    "load",
    "load_cluster",
    "parse",
    "presets",
]
