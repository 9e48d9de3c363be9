"""Random schedule problems: small, with all that an instance can have."""

from __future__ import annotations

from hypothesis import strategies as st

from autoshard.solve.schedule.instance import Instance, chain


@st.composite
def instances(
    draw: st.DrawFn,
    *,
    most_meshes: int = 3,
    most_stages: int = 4,
    most_microbatches: int = 4,
    limited: bool = True,
    longest: int = 9,
) -> Instance:
    """Instances whose memory limit, if any, holds at least one microbatch."""
    meshes = draw(st.integers(1, most_meshes))
    stages = draw(st.integers(1, most_stages))
    microbatches = draw(st.integers(1, most_microbatches))

    def numbers(least: int, most: int, count: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=count, max_size=count)))

    memory_forward = numbers(0, 4, stages)
    kept = tuple(draw(st.integers(0, take)) for take in memory_forward)
    placement = numbers(0, meshes - 1, stages)
    transfer = tuple(
        tuple(0 if a == b else draw(st.integers(0, 4)) for b in range(meshes))
        for a in range(meshes)
    )
    edges = chain(stages)
    if draw(st.booleans()) and stages > 2:
        pairs = [(a, b) for a in range(stages) for b in range(a + 1, stages)]
        edges = sorted(draw(st.sets(st.sampled_from(pairs))))
    whole = max(
        sum(take for take, place in zip(memory_forward, placement, strict=True) if place == mesh)
        for mesh in range(meshes)
    )
    limit = None
    if limited and draw(st.booleans()):
        limit = numbers(whole, whole + 8, meshes)
    return Instance(
        meshes=meshes,
        microbatches=microbatches,
        forward=numbers(1, longest, stages),
        backward=numbers(0, longest, stages),
        weight=numbers(0, longest, stages),
        placement=placement,
        transfer=transfer,
        time_scale=tuple(draw(st.sampled_from((1, 1, 1.5, 2))) for _ in range(meshes)),
        memory_forward=memory_forward,
        memory_backward=tuple(k - t for k, t in zip(kept, memory_forward, strict=True)),
        memory_weight=tuple(-k for k in kept),
        memory_limit=limit,
        edges=tuple(edges),
    )
