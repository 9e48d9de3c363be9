"""What binds a step: what each resource of the machine would save if there were a tenth more of it.

The plan is priced again, as it is, on the machine with that resource scaled: the peak of the
arithmetic units, the bandwidth of the memory, or the bandwidth of one level of the network. The
best plan of that machine is at least as good, so the saving is a lower bound, and to first order it
is exact: while the plan stays the best, its own slope is that of the optimum (the envelope theorem;
see `autoshard.solve.sensitivity.scales`). For memory it is the other way round. Its price comes
from the relaxation, which says what a byte more saves at most, to first order
(`autoshard.solve.sensitivity.limit`).

The resource whose tenth saves most is said to **bind**.
"""

from __future__ import annotations

from autoshard.machine.improvements import better_machines
from autoshard.machine.machine import Machine
from autoshard.plan.evaluate import step_seconds
from autoshard.plan.plan import Plan
from autoshard.program.facts import Facts
from autoshard.program.trace import Program
from autoshard.search.assemble import prices_of

CAPACITY = "memory capacity"


def saved_seconds(plan: Plan, program: Program, flow: Facts, machine: Machine) -> dict[str, float]:
    """Seconds that a tenth more of each rate takes off the step, the plan staying as it is."""
    now = plan.estimate.step_seconds
    saved = {}
    for better in better_machines(machine):
        if not better.is_rate:
            continue
        prices = prices_of(plan, program, better.machine, analysed=flow)
        again = step_seconds(prices, plan.decisions, plan.mesh.names)
        saved[better.part] = max(now - again, 0.0)
    return saved


def binding(saved: dict[str, float], capacity: float) -> str:
    """The resource whose tenth saves most; `capacity` is what a tenth more memory saves.

    >>> binding({"the matrix unit": 0.2, "ICI": 0.05}, 0.0)
    'the matrix unit'
    """
    return max({**saved, CAPACITY: capacity}.items(), key=lambda pair: pair[1])[0]
