"""Stages with stacks on the host compute what the plain step does, whatever the schedule."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from autoshard.lower.mpmd.cut.saving import StageChoice, bare
from autoshard.lower.mpmd.partition import trace_step
from autoshard.lower.mpmd.place import place_partition
from autoshard.lower.mpmd.runtime import Controller
from autoshard.lower.numbers.double import wide, widened
from autoshard.lower.numbers.numeric import compare_outputs
from autoshard.models import training
from tests.lower.mpmd.runs import FLOOR
from tests.search.meshes.chains import chains


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("prefetch", [False, True])
def test_stacks_wait_on_the_host(schedule, prefetch):
    step, found = chains(4, rows=64), set()
    args = training.sample(step.args, 0, {})

    def saved(staged):
        carried = staged.residuals[0]
        stacks = carried.stacks(carried.saved_as_written())
        more = frozenset(["layers/tanh", "layers/tanh#3"])
        return [
            StageChoice(None, frozenset(map(bare, stacks)), prefetch),
            StageChoice(more, frozenset(["layers/tanh#3"]), prefetch),
        ]

    with jax.enable_x64(True):
        fn, args = widened(step.fn, *args), wide(args)
        partition = trace_step(fn, *args, **step.options).cut((4, 4), saved=saved)
        pairs = np.array(jax.devices()[:4]).reshape(2, 2)
        meshes = [Mesh(pair, ("x",), axis_types=(AxisType.Auto,)) for pair in pairs]
        lowered = place_partition(partition, meshes, schedule=schedule, merge=())
        expected = jax.jit(fn)(*jax.tree.map(lambda leaf: leaf + 0, args))

        class Seen(Controller):
            def do(self, one) -> None:
                super().do(one)
                found.update(
                    (slot.mesh, array.shape, len(array.sharding.device_set))
                    for slot, array in self.slots.items()
                    if array.sharding.memory_kind == "pinned_host"
                )

        result = Seen(lowered).step(tuple(args))
        assert compare_outputs(expected, lowered.whole(result), floor=FLOOR) == []
    assert found == {(0, (4, 64, 16), 2), (1, (4, 64, 16), 2)}
