"""Our plans beside those made by hand, as a real compiler sees them: `autoshard bench plans`.

Every row is one plan of one step on one machine, compiled without devices by XLA:GPU or XLA:TPU:

    step, peak          seconds of a step by the compiler's own timeline, GiB on one device
    fits                whether that is what the chip has, less its reserve
    compile             seconds, when it was compiled; answers are kept by the hash of the module
    predicted, pred.GiB what we say of our plan
    ratio               our step over the best step of another plan that fits

Hand-made plans are those of `autoshard.models.by_hand`: MaxText's logical names and rules. Ours is
that of `autoshard.search`, mesh free; with `--refine N` also that of `autoshard.study.refine`,
which has compiled the N best of every round. With `--auto-sharding` there are two rows more, of the
plan that XLA's own deleted auto-sharder makes (`benchmarks/auto_sharding`), for the mesh of FSDP
x TP:

    XLA auto-sharding        every operation lies as it says
    XLA auto-sharding, i/o   arguments and results lie as it says; the present propagation
                             completes the rest

A row is asked for as

    PROGRAM[/LAYERS][:BATCH[xSEQUENCE]]@MACHINE[@SIZE,SIZE,...]

with the sizes of the tensor (or context) axis that the hand-made plans try: `llama3-8b@v5p-64`,
`llama3-70b:64x4096@h100-64@4,8`, `mixtral-8x7b/16:16x4096@h100-8`. Each plan is a process of its
own (`benchmarks/plans_row.py`).
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROW = Path(__file__).with_name("plans_row.py")
OURS, REFINED = "autoshard", "autoshard refined"
AUTO = ("XLA auto-sharding", "XLA auto-sharding, i/o")
COLUMNS = (
    "program", "machine", "plan", "mesh", "step", "peak", "fits", "compile", "predicted",
    "pred.GiB", "ratio",
)  # fmt: skip
WIDTHS = (26, 8, 22, 24, 9, 7, 4, 7, 9, 8, 7)
DEFAULT_ROWS = (
    "llama3-8b:64x4096@h100-64@4",
    "llama3-8b:16x4096@h100-64@4",
    "llama3-8b:8x4096@h100-8@4",
    "llama3-70b:64x4096@h100-64@8",
    "llama3-8b:8x16384@h100-64@8",
    "mixtral-8x7b:64x4096@h100-64@4",
    "mixtral-8x7b/16:16x4096@h100-8@4",
    "vit-l16:1024@h100-64@4",
    "vit-l16:1024@h100-8@4",
    "llama3-8b:64x4096@v5p-64@4",
    "mixtral-8x7b:64x4096@v5p-64@4",
    "llama3-8b:64x4096@v6e-64@4",
    "llama3-1b:16x4096@v5e-16@4",
    "vit-l16:1024@v5e-16@4",
)
"""On the machines of `--machines`; sizes of the tensor axis as in the published meshes."""


class Asked(NamedTuple):
    """A step on a machine.

    Attributes:
      program: a built-in whose dimensions have logical names.
      layers: None for its own.
      sizes: batch, and sequence; empty for its own.
      machine: a preset or a file.
      degrees: sizes of the tensor axis.
    """

    program: str
    layers: int | None
    sizes: tuple[int, ...]
    machine: str
    degrees: tuple[int, ...]

    @property
    def name(self) -> str:
        """Program and sizes, as they were asked for."""
        layers = "" if self.layers is None else f"/{self.layers}"
        sizes = f":{'x'.join(map(str, self.sizes))}" if self.sizes else ""
        return f"{self.program}{layers}{sizes}"


_GRAMMAR = re.compile(
    r"(?P<program>[^/:@]+)(/(?P<layers>\d+))?(:(?P<sizes>\d+(x\d+)?))?"
    r"@(?P<machine>[^@]+)(@(?P<degrees>\d+(,\d+)*))?"
)


def default_rows(machines: Sequence[str]) -> list[str]:
    """The default rows on these machines.

    Raises:
      ValueError: there are none on some of them.
    """
    known = dict.fromkeys(word.split("@")[1] for word in DEFAULT_ROWS)
    strange = [machine for machine in machines if machine not in known]
    if strange:
        raise ValueError(
            f"there are no default rows on {', '.join(strange)}; there are on {', '.join(known)}; "
            "for others give --rows"
        )
    return [word for word in DEFAULT_ROWS if word.split("@")[1] in machines]


def read_rows(words: Sequence[str]) -> list[Asked]:
    """The rows that are named.

    Raises:
      ValueError: some cannot be read, or there is no such program; all of them are named.
    """
    from autoshard import models

    rows, faults = [], []
    for word in words:
        match = _GRAMMAR.fullmatch(word)
        if match is None:
            faults.append(f"{word!r} is not a row; write llama3-8b:64x4096@h100-64@4")
            continue
        try:
            models.logical_axes(match["program"])
        except ValueError as error:
            faults.append(str(error))
            continue
        rows.append(
            Asked(
                match["program"],
                int(match["layers"]) if match["layers"] else None,
                tuple(map(int, (match["sizes"] or "").split("x"))) if match["sizes"] else (),
                match["machine"],
                tuple(map(int, (match["degrees"] or "4").split(","))),
            )
        )
    if faults:
        raise ValueError("\n  ".join(faults))
    return rows


def plans_of(row: Asked, *, refine: bool = False, auto: bool = False) -> Iterator[tuple[str, int]]:
    """Name and size of the tensor axis of every plan of a row; ours come last, with size 0."""
    from autoshard import load_machine, models
    from autoshard.models.by_hand import HAND_MADE, chips_of_a_host

    machine, axes = load_machine(row.machine), models.logical_axes(row.program)
    for plan in HAND_MADE:
        if plan.suits(axes, machine.chips, chips_of_a_host(machine)):
            for degree in row.degrees if plan.degrees else (0,):
                yield plan.name, degree
    for degree in row.degrees if auto else ():
        for name in AUTO:
            yield name, degree
    yield OURS, 0
    if refine:
        yield REFINED, 0


def run(options: argparse.Namespace) -> int:
    """Measure and print all rows; an error of any makes it fail."""
    from autoshard.cli.common import INTERRUPTED, USAGE
    from autoshard.cli.rows import Rows, measure
    from autoshard.terminal import paragraph

    rows = Rows(COLUMNS, WIDTHS)
    options.told = rows.kept
    interrupted = False
    try:
        for asked in options.rows:
            others: list[Mapping[str, Any]] = []
            auto = options.auto_sharding is not None
            for name, degree in plans_of(asked, refine=options.refine > 0, auto=auto):
                question = {
                    **asked._asdict(), "plan": name, "degree": degree,
                    "time_limit": options.time_limit, "compile_limit": options.compile_limit,
                    "refine": options.refine,
                    "auto_folder": options.auto_sharding, "auto_limit": options.auto_sharding_limit,
                }  # fmt: skip
                started = time.monotonic()
                answer = measure(str(ROW), question)
                answer["seconds"] = time.monotonic() - started
                del answer["peak_gib"]  # of the process, which is of no interest here
                answer["ratio"] = ratio(answer, others) if name in (OURS, REFINED) else None
                if name not in (OURS, REFINED):
                    others.append(answer)
                about = {"program": asked.name, "machine": asked.machine, "plan": name}
                rows.add({**about, **answer, "ratio": answer["ratio"] or ""})
                if answer.get("note"):
                    print(f"    {answer['note']}", flush=True)
    except KeyboardInterrupt:
        interrupted = True
    note = (
        "step, compile, predicted: seconds; peak: GiB on a device; ratio: our step over the best "
        "other one that fits"
    )
    print(f"\n{paragraph(note)}")
    rows.write(options.csv)
    if interrupted:
        return INTERRUPTED
    return USAGE if any(row.get("error") for row in rows.kept) else 0


def ratio(ours: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> float | None:
    """Our step over the best step of another plan that fits; None where there is none."""
    best = min((row["step"] for row in others if row.get("fits") == "yes"), default=None)
    return None if best is None or "step" not in ours else ours["step"] / best
