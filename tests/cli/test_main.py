"""The command line in process: every message whole, every exit code, nothing lost on the way."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autoshard.cli.main import main
from autoshard.cli.progress import ProgressLine
from autoshard.plan.plan import Plan
from autoshard.solve import Progress

STEPS = """\
import jax
import jax.numpy as jnp


def abstract(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def good():
    def step(w, x):
        return jnp.sum(jnp.tanh(x @ w) @ w.T)

    return step, (abstract(8, 16), abstract(32, 8))


def broken():
    def step(w, x):
        return x @ w

    return step, (abstract(8, 16), abstract(32, 7))


def odd():
    return jnp.tanh, (abstract(7, 3),)


def kernel():
    from jax.experimental import pallas

    def body(x, out):
        out[...] = x[...] * 2

    def double(x):
        return pallas.pallas_call(body, out_shape=abstract(32, 8), name="double")(x)

    return double, (abstract(32, 8),)


def ruled():
    return *kernel(), {"user_rules": {"double": "rows columns -> rows columns"}}


def lambda_rule():
    return *kernel(), {"user_rules": {"double": lambda equation: None}}


def loop():
    def step(x):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))

    return step, (abstract(32, 8),)


def counted():
    return *loop(), {"trip_counts": 3, "donate_argnums": (0,)}


def nothing():
    return 3


def one():
    return (good,)


def wrong():
    return 1, 2, {"donate": 1}


def raising():
    return {}["a"]


number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = "search mlp:tiny --machine v5e-8 --mesh data=2,model=4 --memory-limit 60KiB --gap 0.1"
    assert main([*words.split(), "--no-baselines", "--quiet", "-o", str(path)]) == 0
    return path


def refused(capsys: pytest.CaptureFixture[str], words: str, code: int = 2) -> str:
    """The message of a command that must fail with `code` and print nothing to stdout."""
    assert main(words.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    start = err.index("autoshard: error: ")
    assert "Traceback" not in err
    return err[start:].removeprefix("autoshard: error: ").removesuffix("\n")


SEARCH = "search {} --machine v5e-8 --quiet"


def test_search_prints_a_report_and_writes_the_plan(folder, capsys):
    words = "search steps.py:good --machine v5e-8 --mesh data=2,model=4 --quiet -o plan.json"
    assert main(words.split()) == 0
    out, err = capsys.readouterr()
    assert out.startswith("steps.py:good on v5e-8, mesh data=2, model=4 (8 devices)\n")
    for name in ("data parallel", "FSDP", "tensor parallel", "FSDP x TP", "FSDP x TP x sequence"):
        assert f"\n  {name} " in out
    assert err == ""
    plan = Plan.load("plan.json")
    assert (plan.program, plan.machine) == ("steps.py:good", "v5e-8")
    assert main(["show", "plan.json"]) == 0
    assert capsys.readouterr().out == out


def test_json_is_all_that_goes_to_stdout(folder, capsys):
    words = "search steps:counted --machine v5e-8 --mesh x=8 --json --no-baselines --gap 5%"
    assert main(words.split()) == 0
    out, err = capsys.readouterr()
    plan = Plan.from_json(json.loads(out))
    assert dict(plan.options) == {"trip_counts": 3, "donate_argnums": [0]}
    assert plan.baselines == ()
    assert "tracing steps:counted" in err


def test_the_mesh_is_searched_and_the_limit_is_kept(folder, capsys):
    words = "search steps.py:good --machine v5e-8 --memory-limit 7.25KiB --json --no-baselines"
    assert main([*words.split(), "--quiet"]) == 0
    plan = Plan.from_json(json.loads(capsys.readouterr().out))
    assert plan.memory_limit == 7424
    assert plan.estimate.peak_bytes <= 7424
    assert {name for name, _, _ in plan.proof.meshes} >= {"x=2, y=2, z=2"}


def test_a_machine_file_stays_in_the_plan(folder, capsys):
    from importlib import resources

    text = (resources.files("autoshard") / "machines" / "v5e.toml").read_text()
    (folder / "mine.toml").write_text(f'topology = "2x4"\n{text}')
    words = "search steps.py:good --machine mine.toml --mesh x=8 --quiet --no-baselines -o p.json"
    assert main(words.split()) == 0
    assert Plan.load("p.json").machine == "mine.toml"
    assert main(["verify", "p.json"]) == 0
    assert "price        ok" in capsys.readouterr().out


def test_verify_agrees(plan_file, capsys):
    assert main(["verify", str(plan_file)]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert [line.split()[:2] for line in lines] == [
        ["types", "ok"],
        ["price", "ok"],
        ["collectives", "ok"],
        ["numbers", "ok"],
    ]


def test_verify_explicit_judges_the_step_that_is_written_out(plan_file, capsys):
    assert main(["verify", str(plan_file), "--explicit", "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [v["judge"] for v in verdicts] == [
        "types", "price", "collectives", "numbers", "explicit",
    ]  # fmt: skip
    planned = sum(m.count for m in Plan.load(plan_file).moves if m.kind != "all_slice")
    assert verdicts[-1]["text"].startswith(f"{planned} as planned, 0 missing, 0 unplanned; on ")


def test_verify_refutes(plan_file, tmp_path, capsys):
    data = json.loads(plan_file.read_text())
    gather = next(move for move in data["moves"] if move["kind"] == "all_gather")
    gather["bytes"] *= 2
    data["estimate"]["step_seconds"] *= 2
    path = tmp_path / "forged.json"
    path.write_text(json.dumps(data))
    assert main(["verify", str(path), "--json"]) == 5
    out, err = capsys.readouterr()
    verdicts = {v["judge"]: v for v in json.loads(out)["verdicts"]}
    assert verdicts["price"]["agrees"] is False
    assert "step_seconds" in verdicts["price"]["text"]
    assert verdicts["types"]["agrees"] is False
    assert "moves hold all_gather over" in verdicts["types"]["text"]
    assert verdicts.keys() == {"types", "price"}  # what is mis-typed is not lowered
    assert err.endswith(f"autoshard: error: {path} is refuted by its types and price\n")


def test_verify_says_what_it_does_not_run(folder, capsys):
    words = "search steps.py:good --machine v5e-32 --mesh x=32 --quiet --no-baselines -o p.json"
    assert main(words.split()) == 0
    capsys.readouterr()
    assert main(["verify", "p.json"]) == 0
    assert (
        "numbers      not run  the mesh has 32 devices; at most 16 are imitated\n"
        in capsys.readouterr().out
    )


def test_verify_refuses_another_program(plan_file, folder, capsys):
    plan = Plan.load(plan_file)
    message = refused(capsys, f"verify {plan_file} steps.py:good")
    assert message.startswith(
        f"the plan was made for program 'mlp:tiny' ({plan.fingerprint}), but 'steps.py:good' "
        "traces to "
    )
    assert message.endswith(": other shapes, other code or another version of JAX; search again")


def test_damaged_plans(folder, plan_file, capsys):
    assert refused(capsys, "verify none.json") == (
        "cannot read the plan 'none.json': No such file or directory"
    )
    Path("cut.json").write_text(plan_file.read_text()[:70])
    message = refused(capsys, "show cut.json")
    assert message.startswith("'cut.json' is damaged: no JSON at line 1, column ")
    data = json.loads(plan_file.read_text())
    del data["moves"]
    Path("lacks.json").write_text(json.dumps(data))
    assert refused(capsys, "verify lacks.json") == (
        "'lacks.json': the plan is damaged: it lacks moves"
    )
    Path("old.json").write_text('{"schema_version": 0}')
    assert refused(capsys, "verify old.json") == (
        "'old.json': the plan has schema version 0, this autoshard reads 3: search again"
    )


def test_unknown_programs(folder, capsys):
    assert refused(capsys, SEARCH.format("lama3-8b")) == (
        "no built-in program is called 'lama3-8b'; "
        "did you mean llama3-8b or llama3-1b or llama3-70b?\n"
        "  `autoshard programs` lists them; "
        "your own is module:function or path/to/file.py:function"
    )
    assert refused(capsys, SEARCH.format("steps.py")) == (
        "'steps.py' names no function; write steps.py:function"
    )
    assert refused(capsys, SEARCH.format("step.py:good")) == (
        "there is no file 'step.py'; did you mean steps.py?"
    )
    assert refused(capsys, SEARCH.format("steps.py:godo")) == (
        "steps.py has no function 'godo'; did you mean good or odd or loop?"
    )
    assert refused(capsys, SEARCH.format("steps.py:number")) == (
        "steps.py:number is no function but a value of type 'int'"
    )
    assert refused(capsys, SEARCH.format("no.such.module:good")) == (
        "there is no module 'no.such.module'"
    )


def test_functions_that_do_not_give_a_step(folder, capsys):
    assert refused(capsys, SEARCH.format("steps.py:raising")) == (
        f"steps.py:raising fails at {line_of(folder, 'return {}')}: KeyError: 'a'"
    )
    assert refused(capsys, SEARCH.format("steps.py:nothing")) == (
        "steps.py:nothing returned a value of type 'int'; "
        "it must return (fn, args) or (fn, args, options)"
    )
    assert refused(capsys, SEARCH.format("steps:one")) == (
        "steps:one returned 1 values; it must return (fn, args) or (fn, args, options)"
    )
    assert refused(capsys, SEARCH.format("steps.py:wrong")) == (
        "steps.py:wrong: it must return (fn, args) or (fn, args, options):\n"
        "  fn is of type 'int', not a function\n"
        "  args is of type 'int', not a tuple with one entry per argument\n"
        "  options has the key 'donate'; known: donate_argnums, trip_counts, user_rules"
    )


def line_of(folder: Path, text: str) -> str:
    numbers = [n for n, line in enumerate(STEPS.split("\n"), 1) if text in line]
    return f"steps.py:{numbers[0]}"


def test_files_that_do_not_import(folder, capsys):
    (folder / "syntax.py").write_text("def f(:\n    pass\n")
    assert refused(capsys, SEARCH.format("syntax.py:f")) == (
        "syntax.py cannot be imported at syntax.py:1: SyntaxError: invalid syntax"
    )
    (folder / "needs.py").write_text("import json\nimport no_such_thing\n")
    for program in ("needs.py:f", "needs:f"):
        message = refused(capsys, SEARCH.format(program))
        assert message.endswith("needs.py:2: ModuleNotFoundError: No module named 'no_such_thing'")


def test_a_function_that_does_not_trace(folder, capsys):
    message = refused(capsys, SEARCH.format("steps.py:broken"))
    assert message.startswith("step does not trace at ")
    assert f"{line_of(folder, '        return x @ w')}: TypeError: dot_general requires" in message


def test_an_op_without_a_rule(folder, capsys):
    message = refused(capsys, SEARCH.format("steps.py:kernel"))
    assert message.startswith(
        "no sharding rule for 1 equation(s):\n"
        "  - pallas_call 'double': (float32[32,8]) -> (float32[32,8]) at "
    )
    assert 'user_rules={"double": UserRule(' in message


def test_a_rule_of_the_user_is_kept_in_the_plan(folder, capsys):
    words = "search steps.py:ruled --machine v5e-8 --mesh x=8 --quiet --no-baselines --json"
    assert main(words.split()) == 0
    plan = Plan.from_json(json.loads(capsys.readouterr().out))
    assert dict(plan.options) == {"user_rules": {"double": "rows columns -> rows columns"}}


def test_unknown_machines(capsys):
    message = refused(capsys, "search mlp:tiny --machine v5q-64")
    assert message.startswith("no machine 'v5q-64'\n  did you mean v5p or v5e?\n")
    assert refused(capsys, "search mlp:tiny --machine none.toml") == (
        "no machine file 'none.toml'; give the path of a TOML file, or a name"
    )


def test_meshes_that_do_not_fit(folder, capsys):
    assert refused(capsys, SEARCH.format("mlp:tiny") + " --mesh data=3,model=4") == (
        "mesh data=3, model=4 has 12 devices, but v5e-8 has 8 chips; "
        "give axes whose sizes multiply to 8"
    )
    assert refused(capsys, SEARCH.format("steps.py:odd") + " --mesh data=8") == (
        "mesh data=8 cannot be used by steps.py:odd:\n"
        "  axis data=8 divides no dimension of any value\n"
        "choose axis sizes that divide the batch or the model's dimensions"
    )


def test_infeasible_names_the_smallest_limit(capsys):
    words = SEARCH.format("mlp:tiny") + " --mesh x=8 --memory-limit 1KiB"
    message = refused(capsys, words, code=3)
    assert message.startswith("no plan fits the memory limit of 1.00 KiB per device on ")
    assert "found is 0 B" not in message
    assert re.search(r"try --memory-limit [1-9]\d*KiB$", message)


def test_requirements_from_a_file_and_in_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short name, which the report prints whole
    path = Path("asked.toml")
    path.write_text('requirements = ["limit all_gather count 0"]\n')
    words = SEARCH.format("mlp:tiny") + f" --mesh x=8 --no-baselines --require {path}"
    assert main([*words.split(), "--require", "p0: pin params.layers[0].up [x, None]"]) == 0
    printed = capsys.readouterr().out
    assert f"{path}: limit all_gather count 0" in printed
    assert re.search(r"(kept|dropped) +--require: p0: pin params.layers\[0\].up", printed)
    message = refused(capsys, f"{words} --require limit", code=2)
    assert "'limit': write `limit memory SIZE`" in message


def test_conflicts_are_named(capsys):
    pins = "pin params.layers[0].up [x, None]", "pin params.layers[0].up [None, ?]"
    words = [*(SEARCH.format("mlp:tiny") + " --mesh x=8").split()]
    assert main([*words, *(word for pin in pins for word in ("--require", pin))]) == 3
    message = capsys.readouterr().err
    assert "these cannot be kept together:" in message
    assert all(f"  - {pin} (--require)\n" in message for pin in pins)


def test_time_limit_without_a_plan(folder, capsys, monkeypatch):
    search = importlib.import_module("autoshard.search")

    def nothing_found(*_: object, **options: float) -> None:
        raise search.NoPlanError(f"nothing in {options['time_limit']:g} s")

    monkeypatch.setattr(search, "search", nothing_found)
    words = SEARCH.format("steps.py:good") + " --time-limit 7s"
    assert refused(capsys, words, code=4) == "nothing in 7 s"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: PROGRAM\n"),
        ("mlp:tiny", "one of the arguments --machine --meshes is required\n"),
        (
            "mlp:tiny --machine v5e-8 --mesh data",
            "argument --mesh: 'data' is no mesh axis; "
            "write names and sizes such as data=2,model=4\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --mesh x=2,x=4",
            "argument --mesh: the mesh axis 'x' is given twice\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --memory-limit lots",
            "argument --memory-limit: 'lots' is no size; write 60GiB, 80GB or bytes\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --memory-limit 0GiB",
            "argument --memory-limit: '0GiB' is no memory at all; write 60GiB\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --gap wide",
            "argument --gap: 'wide' is no gap; write 1% or 0.01\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --gap 100%",
            "argument --gap: '100%' is no gap; write a share of 0% to 99%\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --time-limit soon",
            "argument --time-limit: 'soon' is no number of seconds\n",
        ),
        (
            "mlp:tiny --machine v5e-8 --time-limit 0",
            "argument --time-limit: '0' must be more than 0 seconds\n",
        ),
    ],
)
def test_words_that_mean_nothing(capsys, words, message):
    assert refused(capsys, f"search {words}") == f"{message}  see autoshard search --help"


def test_unwritable_outputs_are_refused_before_the_search(folder, capsys):
    # The program is unknown too: that it is not the one complained of shows the order.
    for path, why in (
        ("none/plan.json", "there is no folder 'none'"),
        (".", "it is a folder"),
        ("/dev/null", "it is not a regular file"),
    ):
        message = refused(capsys, f"search unknown --machine v5e-8 -o {path}")
        assert message == f"cannot write {path!r}: {why}"


def test_a_file_that_is_there_outlives_a_failed_search(folder, capsys):
    Path("plan.json").write_text("precious")
    refused(capsys, SEARCH.format("steps.py:broken") + " -o plan.json")
    assert Path("plan.json").read_text() == "precious"
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == ["plan.json", "steps.py"]


def test_an_interrupt_leaves_the_best_plan(folder, capsys, monkeypatch):
    search = importlib.import_module("autoshard.search.one_shape")
    real = search.solve
    solved = []

    def interrupted_later(*args: object, **options: object) -> object:
        if solved:
            raise KeyboardInterrupt
        solved.append(1)
        return real(*args, **options)

    monkeypatch.setattr(search, "solve", interrupted_later)
    words = "search steps.py:good --machine v5e-8 --quiet -o plan.json"
    assert main(words.split()) == 0
    assert capsys.readouterr().err == "autoshard: interrupted; this is the best plan so far\n"
    plan = Plan.load("plan.json")
    assert plan.proof.limit_hit == "interrupted"
    assert plan.baselines == ()


def test_an_interrupt_before_any_plan(folder, capsys, monkeypatch):
    search = importlib.import_module("autoshard.search.one_shape")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "solve", interrupted)
    assert (
        main(["search", "steps.py:good", "--machine", "v5e-8", "--quiet", "-o", "plan.json"]) == 130
    )
    assert capsys.readouterr().err == "autoshard: interrupted before any plan was found\n"
    assert not Path("plan.json").exists()


def test_warnings_are_one_line(folder, capsys):
    words = SEARCH.format("steps.py:loop") + " --mesh x=8 --no-baselines"
    assert main(words.split()) == 0
    err = capsys.readouterr().err
    assert err.startswith("autoshard: warning: while loop 0 at (top) (steps.py:")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words", ["", "search", "verify", "show", "solve", "bench", "bench layers", "programs"]
)
def test_help(capsys, words):
    assert main([*words.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: autoshard {words}".strip())


def test_no_command_prints_help(capsys):
    assert main([]) == 0
    assert "exit codes: 0 fine" in " ".join(capsys.readouterr().out.split())


def test_unknown_command(capsys):
    message = refused(capsys, "serach")
    assert message.startswith("argument COMMAND: invalid choice: 'serach' (choose from ")


def test_lists(capsys):
    from autoshard.machine.machine import presets
    from autoshard.models import names

    assert main(["programs"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.split("\n")]
    assert all(any(row[:1] == [name] and len(row) > 1 for row in listed) for name in names())
    assert main(["machines"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.split("\n")]
    families = {row[0].rpartition("-")[0] for row in listed if row}
    assert set(presets()) <= families


class Screen:
    """A stream that remembers what was written, and may be a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_progress_on_a_terminal_is_one_line():
    screen = Screen(terminal=True)
    with ProgressLine(stream=screen) as line:
        line.show("first", group="a")
        line.show("too soon", group="a")
        line.show("x" * 500, group="b")
    assert "\n" not in screen.text
    assert "too soon" not in screen.text
    assert "x" * 500 not in screen.text
    assert screen.text.startswith("\r\x1b[Kfirst\r\x1b[Kxxx")
    assert screen.text.endswith("\r\x1b[K")


def test_progress_elsewhere_is_sparse():
    screen = Screen(terminal=False)
    with ProgressLine(stream=screen) as line:
        line.show("first", group="a")
        line.show("too soon", group="b")
    assert screen.text == "first\n"
    quiet = Screen(terminal=True)
    with ProgressLine(stream=quiet, quiet=True) as line:
        line.show("first", group="a")
    assert quiet.text == ""


def test_news_of_the_solver_can_be_shown():
    assert str(Progress("bound", 2.0, 1.0, 0.5, 3.0, 7))


def test_nothing_but_messages_on_stderr():
    """Not even of plugins for devices that are not there."""
    words = ["search", "mlp:tiny", "--machine", "h100-8", "--mesh", "x=8", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "autoshard", *words], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "mesh x=8" in done.stdout
