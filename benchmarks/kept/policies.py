"""What our plans keep for the backward pass, beside the policies that people use, all compiled.

A row is a program on a machine. Every policy of what to save is priced with every well-known scheme
on some meshes; of each policy the plans that are cheapest by our forecast, of those that fit, are
compiled, and so is the plan of a search over what is kept:

    policy            save everything, full recompute, dots saveable, dots without batch saveable,
                      attention saved; `ours` of `--remat search`, and of `--remat offload`;
                      with `--refine N` also the best of plans that were compiled for it
    step, peak        by the compiler: seconds, GiB on a device; `host` on the host
    predicted, GiB    by us
    ratio             our step over the best of a policy that fits when compiled

With `--mixed N` there are plans besides that keep what dice say, to hold peaks to what compilers
say. Everything is kept in the folder `--keep`: what is there is priced anew, and compilers are
asked nothing twice. Each part is a process of its own (`benchmarks/kept/row.py`).

    python benchmarks/kept/policies.py --keep FOLDER --rows llama3-8b,attention=flash@v5p-64
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

PART = Path(__file__).with_name("row.py")
PROGRAMS = (
    "llama3-8b,attention=flash",
    "vit-l16",
    "mixtral-8x7b,attention=flash",
    "llama3-70b,attention=flash",
)
MACHINES = ("v5p-64", "h100-8", "v6e-64", "v5e-16", "h100-64")
COLUMNS = (
    "program", "machine", "policy", "scheme", "mesh", "step", "peak", "fits", "predicted", "GiB",
    "peak/GiB", "unplanned", "ratio",
)  # fmt: skip
WIDTHS = (30, 8, 28, 21, 18, 9, 7, 5, 9, 7, 8, 9, 6)


def meshes_of(chips: int, degrees: Sequence[int]) -> list[list[int]]:
    """One axis, and data x model for each size of the model axis that leaves two."""
    two = [[chips // size, size] for size in degrees if not chips % size and chips // size > 1]
    return [[chips], *two]


def best_of(answers: Iterable[Mapping[str, Any]], policy: str | None = None) -> float | None:
    """The least compiled step of the policies, or of one, among what fits when compiled."""
    return min(
        (
            one["step"]
            for one in answers
            if one["policy"] not in ("ours", "mixed") and one.get("fits") and "step" in one
            if policy in (None, one["policy"])
        ),
        default=None,
    )


def table(answers: Mapping[str, Mapping[str, Any]], program: str, machine: str) -> list[dict]:
    """The rows of one program on one machine."""
    best = best_of(answers.values())
    rows = []
    for name, one in answers.items():
        if "step" not in one and "error" not in one and one["policy"] != "ours":
            continue
        step = one.get("step")
        ours = one["policy"] == "ours" and step is not None and best
        rows.append(
            {
                "program": program,
                "machine": machine,
                "policy": one["policy"],
                "scheme": one.get("scheme", name),
                "mesh": one.get("mesh", ""),
                "step": step or "",
                "peak": one.get("peak_gib", ""),
                "fits": {True: "yes", False: "no"}.get(one.get("fits"), ""),
                "predicted": one.get("predicted", ""),
                "GiB": one.get("predicted_gib", ""),
                "peak/GiB": one["peak_gib"] / one["predicted_gib"] if "peak_gib" in one else "",
                "unplanned": one.get("unplanned", ""),
                "ratio": step / best if ours else "",
                "error": one.get("error"),
                **{k: one[k] for k in ("host_gib", "predicted_host_gib", "faults") if k in one},
            }
        )
    return rows


def run(options: argparse.Namespace) -> int:
    """Measure and print all rows, then what they say together."""
    from autoshard import load_machine
    from autoshard.cli.bench import load_benchmark
    from autoshard.cli.rows import Rows, measure

    rows = Rows(COLUMNS, WIDTHS)
    for word in options.rows or [f"{p}@{m}" for p in PROGRAMS for m in MACHINES]:
        program, _, machine = word.partition("@")
        folder = Path(options.keep) / f"{program}-{machine}"
        question = {
            "program": program,
            "machine": machine,
            "folder": str(folder),
            "meshes": meshes_of(load_machine(machine).chips, options.degrees),
            "scheme_limit": options.scheme_limit,
            "time_limit": options.time_limit,
            "compile_limit": options.compile_limit,
            "mixed": options.mixed,
            "policies": options.policies,
        }
        there = load_benchmark("kept.row").read_folder(folder)
        asked = [] if (folder / "priced").exists() else ["price"]
        if options.mixed > sum(one["policy"] == "mixed" for one in there.values()):
            asked.append("mixed")
        anew = [r for r in options.remat if f"ours-{r}" not in there or options.anew]
        asked += [f"ours {remat}" for remat in anew]
        if options.refine:
            anew = [r for r in options.remat if f"ours-{r}-refined" not in there or options.anew]
            asked += [f"refined {remat} {options.refine}" for remat in anew]
        asked.append("compile")
        answer = measure(str(PART), {**question, "parts": asked, "schemes": options.schemes})
        if "error" in answer:
            print(f"    {word}: {answer['error']}", flush=True)
        for one in table(load_benchmark("kept.row").read_folder(folder), program, machine):
            rows.add(one)
        rows.write(options.csv, quiet=True)
    print(f"\n{summary(rows.kept)}")
    if options.markdown:
        Path(options.markdown).write_text(markdown(rows.kept))
    return 0


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was compiled, as a table; where a plan does not fit or was not found, it says so."""
    head = ("program", "machine", "policy", "scheme, mesh", "predicted", "compiled", "peak")
    lines = ["| " + " | ".join((*head, "compiled", "unplanned", "ours / best")) + " |"]
    lines.append("|" + "---|" * 4 + "---:|" * 6)
    for row in rows:
        if row["step"] == "":
            cells = [row.get("error") or "not compiled", "", "", "", "", ""]
        else:
            numbers = [f"{row[key]:.4g}" for key in ("predicted", "step", "GiB", "peak")]
            ratio = f"{row['ratio']:.3f}" if row["ratio"] != "" else ""
            cells = [*numbers, str(row["unplanned"]), ratio]
        place = ", ".join(filter(None, (row["scheme"], row["mesh"])))
        named = [f"`{row['program']}`", row["machine"], row["policy"], place]
        lines.append("| " + " | ".join([*named, *cells]) + " |")
    return "\n".join(lines) + f"\n\n{summary(rows)}.\n"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """How near peaks are, and where ours is below the best policy."""
    ratios = [row["peak/GiB"] for row in rows if row["peak/GiB"] != ""]
    near = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
    low = sum(ratio > 1.2 for ratio in ratios)
    ours = [row for row in rows if row["ratio"] != ""]
    below = sum(row["ratio"] <= 1.0 for row in ours)
    unplanned = sum(row["unplanned"] for row in rows if row["unplanned"] != "")
    return (
        f"{near} of {len(ratios)} peaks within 10 %, {low} more than 20 % too low; "
        f"{unplanned} unplanned collectives; ours below the best policy in {below} of {len(ours)}"
    )


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", nargs="+", metavar="PROGRAM@MACHINE")
    parser.add_argument("--keep", metavar="FOLDER", required=True)
    parser.add_argument("--degrees", type=int, nargs="+", default=[4], help="of the model axis")
    parser.add_argument("--schemes", type=int, default=1, help="of each policy to compile")
    parser.add_argument("--policies", nargs="+", metavar="TITLE", help="price these alone")
    parser.add_argument("--mixed", type=int, default=0, help="plans that keep what dice say")
    parser.add_argument("--remat", nargs="+", default=["search"], help="of our plans")
    parser.add_argument("--refine", type=int, metavar="N", help="also our plans by --refine N")
    parser.add_argument("--anew", action="store_true", help="search our plans again")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--scheme-limit", type=float, default=5.0)
    parser.add_argument("--compile-limit", type=float, default=600.0)
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as a page")
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
