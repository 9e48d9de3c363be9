"""What a plan consists of beside its decisions: collectives, price, proof, baselines, its mesh."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files import Count, NotNegative
from autoshard.program.subaxes import coarse
from autoshard.solve.limit_hit import LimitHit, limit_hit


@dataclass(frozen=True, slots=True)
class Move:
    """One planned collective.

    Attributes:
      kind: all_gather, all_reduce, reduce_scatter, all_to_all, collective_permute or all_slice.
      axes: names of the mesh axes that it runs over.
      bytes: per device and execution; of the result for all_gather and all_slice, else of the
        operand.
      count: how often it runs in a step.
      seconds: all executions together, none hidden.
      exposed_seconds: what of that adds to the step.
      scope, line: where in the user's program.
      value: the type before and after, as `bf16[8@x, 4] -> bf16[8, 4]`.
      sent_bytes: where the compiler converts before it sends, what `bytes` comes to then.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: Count
    count: Count
    seconds: NotNegative
    exposed_seconds: NotNegative
    scope: str
    line: str
    value: str
    sent_bytes: Count | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """One planned transfer between the memory of a chip and that of its host.

    Attributes:
      kind: to_host or from_host.
      bytes: per device and execution.
      count: how often it runs in a step.
      seconds: all executions together, none hidden.
      exposed_seconds: what of that adds to the step.
      scope, line: where in the user's program.
      value: the type, as `bf16[8@x, 4]`.
    """

    kind: str
    bytes: Count
    count: Count
    seconds: NotNegative
    exposed_seconds: NotNegative
    scope: str
    line: str
    value: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """The price of one step, by the independent evaluator.

    Attributes:
      step_seconds: compute plus exposed collectives and transfers; this is what the solver
        minimises.
      lower_seconds: every collective and transfer hidden behind compute.
      upper_seconds: none hidden; where compiled plans waited longer than collectives are said to
        take (`autoshard.cost.corrections`), as long as they did.
      compute_seconds, collective_seconds, transfer_seconds: the parts of the upper bound.
      peak_bytes: per device, over all program points.
      peak_at: the op at which the peak stands.
      scheduled_bytes: the peak in the order in which the compiler runs this very plan, see
        `autoshard.xla.forecast.forecast`; None where that is the order of `peak_bytes`, which the
        solver and its limit count in.
      scheduled_seconds: of a step in that order, which says what each collective is hidden behind;
        nothing where the chip's memory does not suffice; None where the compiler hides none.
      host_bytes: per device, of what lies in the memory of its host, over all program points.
    """

    step_seconds: NotNegative
    lower_seconds: NotNegative
    upper_seconds: NotNegative
    compute_seconds: NotNegative
    collective_seconds: NotNegative
    peak_bytes: Count
    peak_at: str = ""
    scheduled_bytes: Count | None = None
    scheduled_seconds: NotNegative | None = None
    transfer_seconds: NotNegative = 0.0
    host_bytes: Count = 0

    @property
    def expected_seconds(self) -> float:
        """What a step of the compiled plan is expected to take."""
        return self.step_seconds if self.scheduled_seconds is None else self.scheduled_seconds

    @property
    def expected_bytes(self) -> int:
        """What the compiled plan is expected to take, per device."""
        return self.peak_bytes if self.scheduled_bytes is None else self.scheduled_bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """How good the plan is known to be, within the space of `docs/explanation/space.md`.

    Attributes:
      status: "optimal", "feasible" (stopped with a gap).
      objective, bound: seconds per step of the plan, and that no plan can undercut.
      gap: (objective - bound) / objective.
      seconds: spent in the solver.
      limit_hit: what stopped it, or None.
      meshes: for every mesh shape that was considered, its bound and, where solved, objective.
    """

    status: str
    objective: float
    bound: float
    gap: float
    seconds: NotNegative
    limit_hit: LimitHit | None = None
    meshes: tuple[tuple[str, float, float | None], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit_hit", limit_hit(self.limit_hit))


@dataclass(frozen=True, slots=True)
class Baseline:
    """A well-known scheme on the same mesh, completed by the same solver at the same prices."""

    name: str
    step_seconds: NotNegative | None
    peak_bytes: Count | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """What a program does in a step, whatever the plan; see `autoshard.plan.work`.

    Attributes:
      tokens: that a step reads, where the program has an input of tokens.
      peak_seconds: what the model's products take at the peak of all chips together, none of them
        computed twice.
    """

    tokens: Count | None
    peak_seconds: NotNegative

    def utilisation(self, step_seconds: float) -> float:
        """Model FLOP utilisation (MFU) of a step, in [0, 1]."""
        return self.peak_seconds / step_seconds if step_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A forward value that the backward pass needs: saved for it, or computed again there.

    Attributes:
      name: in `autoshard.program.keep`.
      type: of one turn of its loop, as `bf16[8,4]`.
      turns: of the loop; 1 where there is none.
      bytes: of all turns, unsharded.
      lines: of the user's program that make it, the innermost first.
      label: its `checkpoint_name`, or an empty string.
      saved: which of the two.
      offloaded: whether it waits in the memory of the host, if it is saved.
    """

    name: str
    type: str
    turns: Count
    bytes: Count
    lines: tuple[str, ...]
    label: str
    saved: bool
    offloaded: bool = False


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Named mesh axes, major to minor."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        axes = coarse(self.names, self.sizes)
        return ", ".join(f"{name}={'*'.join(map(str, parts))}" for name, parts in axes.items())
