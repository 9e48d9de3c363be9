"""What XLA:GPU leaves out of its own timeline: starts of kernels, and what it does not know."""

from __future__ import annotations

import pytest

from autoshard.compiler.hlo.schedule import Schedule, ScheduledComputation
from tests.compiler.hlo.test_timeline import ByBytes, busy, run


def test_kernels_of_the_compilers_timeline_start_in_its_pauses():
    """Three kernels of which the second reads what the first writes: 1 us passes between them."""
    kernels = "".join(
        f"  {'ROOT ' * (name == 'three')}%{name} = f32[1]{{0}} fusion(%{of}), kind=kLoop, "
        "calls=%busy.0\n"
        for name, of in (("one", "p"), ("two", "one"), ("three", "two"))
    )
    starts = {"one": 0.0, "two": 6e-6, "three": 8e-6}
    ends = {"one": 5e-6, "two": 8e-6, "three": 9e-6}
    main = ScheduledComputation(9e-6, starts, ends)
    found = run(kernels, ByBytes(launch=2e-6), schedule=Schedule({"main": main}))
    assert found.seconds == pytest.approx(9e-6 + 2e-6 + 1e-6 + 2e-6)
    assert found.compute_seconds == pytest.approx(8e-6 + 3 * 2e-6)
    assert found.exposed_seconds == pytest.approx(0.0, abs=1e-12)
    assert found.known_share == 1.0


@pytest.mark.parametrize(
    ("kernel", "seconds"),
    [
        ("copy(%p)", 12.0),
        ("fusion(%p), kind=kCustom, calls=%busy.0", 12.0),
        ("fusion(%p), kind=kLoop, calls=%busy.0", 9.0),
        ("negate(%p)", 9.0),
    ],
)
def test_what_the_compilers_timeline_gives_no_time_is_priced(kernel, seconds):
    """Copies and kernels of Triton, which take what they move."""
    untimed = f"  %untimed = f32[1]{{0}} {kernel}\n"
    ends = {"untimed": 1e-8, "work": 6.0}
    main = ScheduledComputation(9.0, {"untimed": 0.0, "work": 1e-8}, ends)
    found = run(
        untimed + busy("work", "untimed", 6, root=True),
        ByBytes(compute=3.0),
        schedule=Schedule({"main": main}),
    )
    assert found.seconds == seconds
    assert found.compute_seconds == pytest.approx(9.0 if seconds > 9 else 6.0)
    assert found.exposed_seconds == pytest.approx(3.0, abs=1e-6)
