"""What binds a step: what each resource of the machine would save if there were a tenth more of it.

The plan is priced again, as it is, on the machine with that resource scaled: the peak of the
arithmetic units, the bandwidth of the memory, or the bandwidth of one level of the network. The
best plan of that machine is at least as good, so the saving is a lower bound, and to first order it
is exact: while the plan stays the best, its own slope is that of the optimum (the envelope theorem;
see `autoshard.solve.sensitivity`). For memory it is the other way round. Its price comes from the
relaxation, which says what a byte more saves at most, to first order
(`autoshard.solve.limit_sensitivity`).

The resource whose tenth saves most is said to **bind**.
"""

from __future__ import annotations

from dataclasses import replace

from autoshard.assemble import prices_of
from autoshard.dataflow import Dataflow
from autoshard.evaluate import evaluate
from autoshard.machine import Machine
from autoshard.plan import Plan
from autoshard.program import Program

MORE = 0.1
"""How much more of each resource: a tenth."""
COMPUTE, BANDWIDTH, CAPACITY = "compute", "memory bandwidth", "memory capacity"


def with_more(machine: Machine, share: float = MORE) -> dict[str, Machine]:
    """The machine with `share` more of each of its resources, by the name of the resource."""
    chip = machine.chip
    factor = 1.0 + share
    faster = {dtype: factor * rate for dtype, rate in chip.peak_flops.items()}
    found = {
        COMPUTE: replace(chip, peak_flops=faster, vector_flops=factor * chip.vector_flops),
        BANDWIDTH: replace(chip, memory_bandwidth=factor * chip.memory_bandwidth),
    }
    machines = {name: replace(machine, chip=other) for name, other in found.items()}
    for number, level in enumerate(machine.network):
        if level.chips == 1:
            continue
        name = level.name if level.name not in machines else f"{level.name} {number}"
        levels = (*machine.network[:number], level.faster(factor), *machine.network[number + 1 :])
        machines[name] = replace(machine, network=levels)
    return machines


def saved_seconds(
    plan: Plan, program: Program, flow: Dataflow, machine: Machine
) -> dict[str, float]:
    """Seconds that a tenth more of each resource takes off the step, the plan staying as it is."""
    now = plan.estimate.step_seconds
    saved = {}
    for name, other in with_more(machine).items():
        prices = prices_of(plan, program, other, analysed=flow)
        again = evaluate(prices, plan.decisions, plan.mesh.names).estimate.step_seconds
        saved[name] = max(now - again, 0.0)
    return saved


def binding(saved: dict[str, float], capacity: float) -> str:
    """The resource whose tenth saves most; `capacity` is what a tenth more memory saves.

    >>> binding({"compute": 0.2, "ICI": 0.05}, 0.0)
    'compute'
    """
    return max({**saved, CAPACITY: capacity}.items(), key=lambda pair: pair[1])[0]
