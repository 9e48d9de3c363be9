"""The compiler's own schedule, read from its text."""

from __future__ import annotations

import pytest

from autoshard.compiler.hlo.schedule import read_schedule

SCHEDULE = """\
hlo_module {
  name: "jit_step"
  computations {
    name: "main"
    instructions {
      name: "start"
      opcode: "all-gather-start"
      id: 11
    }
    instructions {
      name: "dot"
      metadata {
        op_name: "jit(step)/dot"
      }
      id: 12
    }
    id: 5
    root_id: 12
  }
  id: 1
}
computation_schedules {
  computation_id: 5
  instructions {
    id: 11
    end_timestamp_cycles: 9
  }
  cycles_per_microsecond: 1
}
computation_schedules {
  computation_id: 5
  instructions {
    id: 11
    start_timestamp_cycles: 2
    end_timestamp_cycles: 3
    memory_usage_after: 7
  }
  instructions {
    id: 12
    start_timestamp_cycles: 3
    end_timestamp_cycles: 1.25e2
  }
  scheduler_statistics {
    total_cycles: 999
  }
  cycles_per_microsecond: 2
}
"""


def test_the_compilers_schedule_is_read():
    schedule = read_schedule(SCHEDULE)
    main = schedule.computations["main"]
    assert main.seconds == pytest.approx(61.5e-6)
    assert main.duration("start") == pytest.approx(0.5e-6)
    assert main.duration("dot") == pytest.approx(61e-6)
    assert main.duration("none") == 0
    assert schedule.is_measured


def test_rough_classes_are_no_times():
    assert not read_schedule(SCHEDULE.replace("microsecond: 2", "microsecond: 1")).is_measured


def test_a_schedule_of_nothing():
    with pytest.raises(ValueError, match="no schedule of a computation in a text of 1 line"):
        read_schedule("hlo_module {")
