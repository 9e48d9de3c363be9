"""What lies between the kernels of a computation, though nothing runs for it.

A compiler's graph has nodes that only say where an array lies: an input, an element that is taken
out of a tuple, an array under another shape. They cost nothing, but what makes an array is ready
one step later for each of them, and whatever else is ready then goes first.

    input     of the step
    taken     from a loop, from a kernel with several results, from a product of the library, which
              comes with its workspace
    grouped   what a product reads or makes as a matrix, and others do not
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.program.dim_order import operand_groups
from autoshard.program.flops import is_matrix_op
from autoshard.program.graph import Op, Program
from autoshard.xla.kernel_orders import Kernel
from autoshard.xla.latency_hiding import Role, Task


class Views:
    """The views of one region's arrays.

    Args:
      program: the step.
      kernels: of the region.
      tasks: of every kernel; those that run as one are one in the end.
      maker: by value, the number of the kernel that makes it.
      library: whether products are calls of a library.
      counted: whether views are nodes of the compiler's graph, each one step.
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
        """What a reader of a value waits for that a kernel makes, or that the step is given."""
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
        """What a product waits for to read an operand, which `makers` make."""
        groups = operand_groups(op.rule)[position]
        if all(len(group) < 2 for group in groups[1:]):
            return makers
        key = op.inputs[position], groups, *makers
        if key not in self._grouped:
            self._grouped[key] = _view_of(makers)
        return (self._grouped[key],)

    def is_product(self, op: Op) -> bool:
        """Whether the library makes what `op` makes."""
        return self.library and op.primitive == "dot_general"

    def of(self, maker: Task, reader: Task) -> list[Task]:
        """The views through which `reader` reads what `maker` makes."""
        return [one for one in reader.before if one in self._taken and one.before == [maker]]

    def settle(self) -> None:
        """Leave out what is taken from no tuple, and what nobody reads; all if none is counted."""
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
    """Let readers of a view read what it is of."""
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
