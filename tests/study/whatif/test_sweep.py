"""Sweeps from end to end on a small program: against cold searches, over processes, resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import autoshard
from autoshard.cli.main import main
from autoshard.machine.improvements import better_machines
from autoshard.machine.load import load
from autoshard.machine.network import Switch
from autoshard.program.trace import trace
from autoshard.search.all_shapes import InfeasibleError
from autoshard.study.whatif.answering import Work
from autoshard.study.whatif.answers import break_even, efficient, largest_sizes, smallest_clusters
from autoshard.study.whatif.cases import Case, cases_of
from autoshard.study.whatif.gains import saved_seconds
from autoshard.study.whatif.kept import own_digest
from autoshard.study.whatif.prices import prices_of
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.solver import Asked, Solver
from autoshard.study.whatif.sweep import SweepProgress, _groups, whatif
from autoshard.study.whatif.table import WhatIf
from autoshard.study.whatif.words import SweepError
from autoshard.study.whatif.workers import answer
from autoshard.xla import analyse
from tests.helpers import LONG
from tests.study.whatif import programs


def known(value: float | None) -> float:
    """A value that a row with a plan has."""
    assert value is not None
    return value


SWEEP = {"chip": ["v5e", "h100"], "chips": [4, 8], "batch": [64, 128]}
PRICES = {"v5e": {"chip_hour": 1.0, "watts": 100}, "h100": {"chip_hour": 3.0, "watts": 700}}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> WhatIf:
    folder = tmp_path_factory.mktemp("rows")
    return whatif(
        programs.step,
        {**SWEEP, "limit": [2.0**14, 2.0**30]},
        gap=0.0,
        prices=PRICES,
        objective="tokens-per-dollar",
        folder=folder,
    )


def test_every_row_is_as_good_as_a_cold_search(sweep: WhatIf):
    fits = [row for row in sweep.rows if row.fits]
    assert len(fits) == 8
    for row in fits[::3]:
        fn, args, options = programs.step(**row.sizes)
        program = trace(fn, *args, **options)
        plan = autoshard.search(program, row.machine, gap=0.0, baselines=False)
        assert row.step_seconds == pytest.approx(plan.estimate.step_seconds, rel=1e-6)
        assert row.bound_seconds == pytest.approx(plan.proof.bound, rel=1e-6)
        assert row.tokens == row.sizes["batch"]
        machine = load(row.machine)
        flow = analyse(program, machine.chip)
        saved = saved_seconds(plan, program, flow, machine)
        assert row.saved_seconds == pytest.approx(saved, abs=1e-9)
        assert row.binds == max(saved, key=lambda name: saved[name])


def test_what_does_not_fit_says_why_and_is_right(sweep: WhatIf):
    row = next(row for row in sweep.rows if not row.fits)
    assert row.status == "infeasible"
    assert row.why is not None
    assert "are alive at once" in row.why
    assert "more than the limit of 16.0 KiB" in row.why
    fn, args, options = programs.step(**row.sizes)
    with pytest.raises(InfeasibleError):
        autoshard.search(trace(fn, *args, **options), row.machine, memory_limit=row.limit_bytes)


def test_a_tenth_more_of_a_resource_is_a_tenth_more():
    machine = load("h100-16")
    more = {one.part: one.machine for one in better_machines(machine) if one.is_rate}
    compute = {"the matrix unit", "the vector unit", "memory bandwidth"}
    assert set(more) == {*compute, "NVLink", "InfiniBand"}
    wide, before = more["InfiniBand"].network, machine.network[1]
    assert isinstance(wide[1], Switch)
    assert isinstance(before, Switch)
    assert wide[1].chip_bandwidth == pytest.approx(1.1 * before.chip_bandwidth)
    assert wide[0] == machine.network[0]


def test_rows_are_found_again_and_changed_questions_are_not(tmp_path: Path):
    news: list[SweepProgress] = []

    def ask(limit: float = 2.0**30, batch: int = 64) -> Row:
        cluster = {"machine": "v5e-4", "batch": batch, "limit": limit}
        return whatif(programs.step, cluster, folder=tmp_path, progress=news.append).rows[0]

    first, again = ask(), ask()
    assert first == again
    other = ask(limit=2.0**29)
    assert (other.step_seconds, other.key != first.key) == (first.step_seconds, True)
    ask(batch=128)
    assert [one.known for one in news] == [False, True, False, False]
    file = tmp_path / f"{first.key}.json"
    file.write_text(file.read_text()[:100])  # as if the machine had gone down
    assert ask().step_seconds == first.step_seconds
    assert json.loads(file.read_text())["plan"]["mesh"]
    assert len(list(tmp_path.iterdir())) == 3


def test_an_interrupt_keeps_what_is_done(tmp_path: Path):
    def stop(news: SweepProgress) -> None:
        if news.done == 2:
            raise KeyboardInterrupt

    cut = whatif(programs.step, SWEEP, folder=tmp_path, progress=stop)
    assert (len(cut.rows), cut.asked, cut.interrupted) == (2, 8, True)
    assert "interrupted, 6 not answered" in str(cut)
    known: list[bool] = []
    whole = whatif(
        programs.step, SWEEP, folder=tmp_path, progress=lambda news: known.append(news.known)
    )
    assert (sum(known), len(whole.rows), whole.interrupted) == (2, 8, False)


def test_processes_answer_as_this_one_does(sweep: WhatIf):
    words = {**SWEEP, "limit": [2.0**30]}
    spread = whatif("tests.study.whatif.programs:step", words, gap=0.0, workers=2, keep=False)
    alone = [row for row in sweep.rows if row.fits]
    assert [str(row) for row in spread.rows] == [str(row) for row in alone]
    for one, other in zip(spread.rows, alone, strict=True):
        assert one.step_seconds == pytest.approx(other.step_seconds)


def test_a_dask_cluster_answers(sweep: WhatIf):
    distributed = pytest.importorskip("distributed")
    words = {"machine": ["v5e-4", "v5e-8"], "batch": 64}
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as cluster:
        found = whatif(
            "tests.study.whatif.programs:step",
            words,
            scheduler=cluster.scheduler_address,
            keep=False,
        )
    before = {row.machine: row for row in sweep.rows if row.fits and row.sizes["batch"] == 64}
    for row in found.rows:
        assert row.step_seconds == pytest.approx(before[row.machine].step_seconds)


def test_ranks_and_the_front_follow_the_prices(sweep: WhatIf):
    costs = [known(sweep.cost_per_million_tokens(row)) for row in sweep.ranked()]
    assert costs == sorted(costs)
    front = efficient(sweep)
    points = {
        number: (
            known(row.step_seconds) / known(row.tokens),
            known(sweep.cost_per_million_tokens(row)),
        )
        for number, row in enumerate(sweep.rows)
        if row.fits
    }
    beaten = {
        number
        for number, (time, cost) in points.items()
        if any((t <= time and c <= cost) and (t, c) != (time, cost) for t, c in points.values())
    }
    assert front == set(points) - beaten
    frame = sweep.frame()
    assert set(frame[frame.pareto].index) == front
    assert frame.cost_per_hour[0] == 4.0


def test_answers_come_from_the_rows(sweep: WhatIf):
    least = {(one["chip"], one["sizes"]["batch"], one["limit_bytes"]): one["chips"]
             for one in smallest_clusters(sweep)}  # fmt: skip
    assert least["v5e", 64, 2.0**30] == 4
    assert least["v5e", 64, 2.0**14] is None
    largest = {(one["machine"], one["limit_bytes"]): one["largest"] for one in largest_sizes(sweep)}
    assert largest["h100-8", 2.0**30] == 128
    assert largest["h100-8", 2.0**14] is None
    for one in break_even(sweep):  # at that price the kinds cost the same for a token
        prices = {**PRICES, one["chip"]: {"chip_hour": one["chip_hour"]}}
        even = WhatIf("", sweep.rows, "step", prices_of(prices, where=""))
        best = {
            chip: min(
                known(even.cost_per_million_tokens(r))
                for r in sweep.rows
                if r.fits and r.chip == chip
            )
            for chip in PRICES
        }
        assert best["v5e"] == pytest.approx(best["h100"]) or one["chip"] == "v5e"


def test_the_report_is_whole(sweep: WhatIf):
    text = str(sweep)
    assert text.startswith("step: 16 rows, 8 with a plan; best by tokens-per-dollar: ")
    assert "USD/Mtok" in text
    assert "  v5e-4 batch=64 limit=16.0KiB: " in text.replace("\n      ", " ")
    assert all(len(line) <= 120 for line in text.splitlines())
    data = json.loads(json.dumps(sweep.to_json()))
    assert len(data["rows"]) == 16
    assert sweep.to_csv().count("\n") == 17


def test_what_an_objective_needs_is_asked_for_before_any_work():
    with pytest.raises(SweepError, match="energy needs the watts of v5e"):
        whatif(programs.step, {"machine": "v5e-4"}, objective="energy")
    with pytest.raises(SweepError, match="no objective 'speed'; known: step, tokens-per-second"):
        whatif(programs.step, {"machine": "v5e-4"}, objective="speed")
    with pytest.raises(SweepError, match="has no input called `tokens`"):
        whatif(programs.nameless, {"machine": "v5e-4"}, objective="tokens-per-second", keep=False)
    found = whatif(
        programs.nameless, {"machine": "v5e-4", "batch": 64}, tokens=["batch"], keep=False
    )
    assert found.rows[0].tokens == 64


def test_the_command_line_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["whatif", "tests.study.whatif.programs:step", "--sweep", "machine=v5e-4", "--quiet"]
    kept = ["--keep", str(tmp_path / "rows"), "--workers", "1"]
    csv = ["--csv", str(tmp_path / "rows.csv"), "-o", str(tmp_path / "rows.json")]
    assert main([*words, "--sweep", "bat=64", *kept, *csv]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("tests.study.whatif.programs:step: 1 row, 1 with a plan")
    assert (tmp_path / "rows.csv").read_text().startswith("batch,chip,")
    assert json.loads((tmp_path / "rows.json").read_text())["answers"]["best"] == "v5e-4 batch=64"
    assert main([*words, "--sweep", "limit=1KiB", *kept]) == 3
    assert main([*words, "--sweep", "depth=3", *kept]) == 2
    assert "'depth' is neither of the cluster nor a size" in capsys.readouterr().err


def test_a_lower_limit_is_answered_by_a_higher_one(sweep: WhatIf):
    limits = [2.0**20, 2.0**30, 2.0**40]
    words = {"machine": "v5e-4", "batch": 64, "limit": [*limits, 2.0**14, 2.0**13]}
    rows = whatif(programs.step, words, gap=0.0, keep=False).rows
    assert [row.limit_bytes for row in rows] == words["limit"]
    fitting = next(row for row in sweep.rows if row.fits)
    for row in rows[:3]:
        assert row.step_seconds == pytest.approx(fitting.step_seconds)
        assert row.peak_bytes is not None
        assert row.peak_bytes <= row.limit_bytes
    assert [row.status for row in rows[3:]] == ["infeasible", "infeasible"]


def test_a_training_run_has_days_and_a_cost(sweep: WhatIf):
    run = replace(sweep, train_tokens=1e12)
    row = next(row for row in run.rows if row.machine == "h100-8" and row.fits)
    days = 1e12 / known(row.tokens_per_second) / 86400
    assert run.days(row) == pytest.approx(days)
    assert run.run_cost(row) == pytest.approx(days * 24 * 3.0 * 8)
    assert "days" in str(run).splitlines()[2]
    assert run.frame().train_days.notna().sum() == 8


def test_rows_beyond_the_latency_are_not_ranked(sweep: WhatIf):
    seconds = sorted(known(row.step_seconds) for row in sweep.rows if row.fits)
    served = replace(sweep, latency=seconds[3], objective="tokens-per-second")
    assert max(known(row.step_seconds) for row in served.ranked()) == seconds[3]
    rates = [known(row.tokens_per_second) for row in served.ranked()]
    assert rates == sorted(rates, reverse=True)
    assert "slower than" in str(served)
    assert replace(sweep, latency=seconds[0] / 2).best is None


def test_a_killed_sweep_goes_on_and_leaves_no_process(tmp_path: Path):
    words = ["whatif", "tests.study.whatif.programs:step", "--sweep", "machine=v5e-4"]
    words += ["--sweep", "batch=64..4096", "--keep", str(tmp_path), "--workers", "1"]
    command = [sys.executable, "-m", "autoshard", *words, "--quiet"]
    code = own_digest()
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[3])
    while not list(tmp_path.glob("[!.]*.json")) and running.poll() is None:
        time.sleep(0.01)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    workers = children.read_text().split() if children.exists() else []
    running.kill()
    running.wait()
    done = len(list(tmp_path.glob("[!.]*.json")))
    assert done
    known: list[bool] = []
    whole = whatif(
        "tests.study.whatif.programs:step",
        {"machine": "v5e-4", "batch": [64 * 2**k for k in range(7)]},
        folder=tmp_path,
        progress=lambda news: known.append(news.known),
    )
    assert len(whole.rows) == 7
    assert sum(known) >= done or own_digest() != code  # files that changed answer otherwise
    assert [pid for pid in workers if _is_at_work(pid)] == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (signal.SIGKILL, r"was killed \(SIGKILL\), as the system does where memory runs out"),
        (signal.SIGTERM, r"was killed \(SIGTERM\); rows that were done are kept"),
    ],
)
def test_a_worker_that_is_killed_is_told_from_an_interrupt(how: signal.Signals, said: str):
    def kill(news: SweepProgress) -> None:
        (worker,) = [
            process
            for process in multiprocessing.active_children()
            if process.name.startswith("SpawnProcess")
        ]
        assert worker.pid is not None
        os.kill(worker.pid, how)
        worker.join(10)

    batches = [64, 128, 256]
    with pytest.raises(SweepError, match=rf"the worker that planned .* {said}"):
        whatif(
            "tests.study.whatif.programs:step",
            {"machine": "v5e-4", "batch": batches},
            workers=1,
            keep=False,
            progress=kill,
        )


def test_an_interrupt_in_a_worker_is_told(monkeypatch: pytest.MonkeyPatch):
    def stop(self: Solver, case: Case) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Solver, "row", stop)
    case = cases_of({"machine": ("v5e-4",), "batch": (64,)})[0]
    asked = Asked("tests.study.whatif.programs:step", 60.0, 0.02, code=own_digest())
    with pytest.raises(SweepError, match=r"v5e-4.* was interrupted; rows that were done are kept"):
        answer("a sweep that is interrupted", asked, case)


def test_a_worker_of_another_version_is_refused():
    case = cases_of({"machine": ("v5e-4",), "batch": (64,)})[0]
    asked = Asked("tests.study.whatif.programs:step", 60.0, 0.02, code="of another version")
    with pytest.raises(SweepError, match="a worker has another autoshard than the process"):
        answer("a sweep of its own", asked, case)


@LONG
def test_rows_that_begin_with_others_are_as_good_as_cold_ones():
    """Chips of two makers and two batches, with a gap, one after another in one process."""
    sizes = {"batch": [64, 128]}
    found = whatif(
        programs.step,
        {"chip": ["v5e", "v5p", "h100", "b200"], "chips": [8], **sizes},
        gap=0.05,
        keep=False,
    )
    for row in found.rows:
        fn, args, options = programs.step(**row.sizes)
        program = trace(fn, *args, **options)
        best = autoshard.search(program, row.machine, gap=0.0, baselines=False)
        assert row.gap is not None
        assert row.gap <= 0.05
        assert known(row.bound_seconds) <= best.estimate.step_seconds * (1 + 1e-9)
        assert known(row.step_seconds) <= best.estimate.step_seconds / (1 - 0.05) * (1 + 1e-9)


def _is_at_work(pid: str) -> bool:
    """Whether the process is there, and is one that multiprocessing started."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_rows_of_as_many_chips_stay_together_and_idle_seats_take_over_half():
    chips = ["v5e", "h100", "v6e"]
    cases = cases_of({"chip": chips, "chips": [8, 16], "batch": [32, 64]})
    groups = _groups(cases)
    assert [{cases[number].machine.chips for number in group} for group in groups] == [{16}, {8}]
    said = [(cases[number].chip, dict(cases[number].sizes)["batch"]) for number in groups[0]]
    # Chips that compile alike, one after another; neighbours differ in the chip or in the size.
    assert said == [("v5e", 32), ("v5e", 64), ("v6e", 64), ("v6e", 32), ("h100", 32), ("h100", 64)]
    work = Work([[0, 1, 2, 3, 4], [5]])
    taken = [work.take(0), work.take(1), work.take(1)]  # the second seat is done with its own
    assert taken == [0, 5, 3]
    assert [work.take(0), work.take(0), work.take(1), work.take(0), work.take(1)] == [
        1, 2, 4, None, None
    ]  # fmt: skip
