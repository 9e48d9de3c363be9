"""Add the zero-cost nodes between the kernels of a computation: parameters, tuples, bitcasts.

Some nodes of a compiler's graph only name an existing array: an input, a tuple element, a bitcast
to another shape. They run nothing. But the scheduler works from the end, so each such node makes
the producer of its array ready one step later, and other ready tasks are placed before it.

    input     a parameter of the step
    taken     a tuple element: of a loop, of a kernel with several results, or of a library product,
              whose tuple also holds its workspace
    grouped   a bitcast to the matrix that a product reads or writes, where others see more
              dimensions
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.program.dim_order import operand_groups
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op, Program
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Role, Task


class Views:
    """The views (zero-cost nodes) of one region's arrays.

    Args:
      program: the step.
      kernels: the kernels of the region.
      tasks: the task of every kernel; kernels that run as one share a task in the end.
      maker: by value, the number of the kernel that computes it.
      library: whether products are library calls.
      counted: whether views are nodes of the compiler's graph, each one scheduling step.
    """

    def __init__(
        self,
        program: Program,
        kernels: Sequence[Kernel],
        tasks: list[Task],
        maker: dict[int, int],
        *,
        library: bool,
        counted: bool,
    ) -> None:
        self.program, self.kernels, self.tasks, self.maker = program, kernels, tasks, maker
        self.library, self.counted = library, counted
        self._made: dict[int, Task] = {}
        self._taken: dict[Task, None] = {}
        self._grouped: dict[tuple[object, ...], Task] = {}

    def made(self, value: int) -> Task:
        """Return the view that readers of a kernel's result, or of an input, depend on."""
        if value not in self._made:
            view = Task(None, Role.NOTHING, 0.0)
            if value in self.maker:
                view.reads(self.tasks[self.maker[value]])
                self._taken[view] = None
                op = self.program.ops[self.program.values[value].producer]
                if self.is_product(op) and len(operand_groups(op.rule)[0][1]) > 1:
                    view = _view_of([view])
            self._made[value] = view
        return self._made[value]

    def operand(self, op: Op, position: int, makers: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks that a product depends on for an operand that `makers` compute."""
        groups = operand_groups(op.rule)[position]
        if all(len(group) < 2 for group in groups[1:]):
            return makers
        key = op.inputs[position], groups, *makers
        if key not in self._grouped:
            self._grouped[key] = _view_of(makers)
        return (self._grouped[key],)

    def is_product(self, op: Op) -> bool:
        """Whether `op` is a product that the library computes."""
        return self.library and op.primitive == "dot_general"

    def of(self, maker: Task, reader: Task) -> list[Task]:
        """Return the views through which `reader` reads the results of `maker`."""
        return [one for one in reader.before if one in self._taken and one.before == [maker]]

    def settle(self) -> None:
        """Remove views that have no readers or take from no tuple; all views if not `counted`."""
        if not self.counted:
            for view in (*self._made.values(), *self._grouped.values(), *self._taken):
                _leave_out(view)
            return
        for view in self._taken:
            (maker,) = view.before
            if not view.after:
                maker.after.remove(view)
            elif not self._makes_tuple(maker):
                maker.after.remove(view)
                for reader in view.after:
                    place = reader.before.index(view)
                    if maker in reader.before:
                        del reader.before[place]
                    else:
                        reader.before[place] = maker
                        maker.after.append(reader)

    def _makes_tuple(self, task: Task) -> bool:
        kernels = [self.kernels[number] for number in task.kernels]
        if len(kernels) > 1 or any(kernel.inner is not None for kernel in kernels):
            return True
        return self.library and is_matrix_op(self.program.ops[kernels[0].first].primitive)


def _leave_out(view: Task) -> None:
    """Remove a view: its readers depend on its producers directly."""
    for maker in view.before:
        maker.after.remove(view)
    for reader in view.after:
        reader.before.remove(view)
        for maker in view.before:
            reader.reads(maker)
    view.before, view.after = [], []


def _view_of(makers: Sequence[Task]) -> Task:
    view = Task(None, Role.NOTHING, 0.0)
    for one in makers:
        view.reads(one)
    return view
