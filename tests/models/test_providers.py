"""Programs that another package offers: one made here, as pip would install it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoshard.cli.main import main
from autoshard.machine.load import load
from autoshard.models.find import ProgramError, find, size_names
from autoshard.models.providers import Target, entries
from autoshard.study.whatif.sweep import whatif

ZOO = """\
import jax
import jax.numpy as jnp

from autoshard.models.find import ProgramError


def program(name, target, *, batch=1, kind="tanh", scale=1.0, even=False):
    if name != "layer":
        raise ProgramError(f"the zoo has no {name!r}; it has 'layer'")
    rows = batch * target.devices

    def step(w, x):
        return jnp.sum(getattr(jnp, kind)(x @ w) * scale)

    shapes = (8, 16), (rows, 8)
    note = f"{rows} rows on {target.hardware}"
    return step, tuple(jax.ShapeDtypeStruct(one, "float32") for one in shapes), {"notes": [note]}


def own_file(name, target, settings, *, machine, asked, heard):
    from autoshard.models.providers import OwnFile
    from autoshard.program.trace import trace
    from autoshard.search.search import search

    heard("planning")
    step, args, _ = program(name, target, **settings)
    plan = search(trace(step, *args), machine, gap=0.1, baselines=False)
    return OwnFile(f"# autoshard: of the zoo\\nmesh: {plan.mesh}\\n", plan, ("a layer",))


program.own_file = own_file


def broken(name, target, **settings):
    raise ValueError(f"nothing works with {settings}")


def listed(name):
    return ("batch", "depth")


broken.settings = listed
number = 3
"""


@pytest.fixture(autouse=True)
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where packages lie, with one of them."""
    (tmp_path / "zoo.py").write_text(ZOO)
    install(tmp_path, "zoo", "zoo = zoo:program", "broken = zoo:broken", "number = zoo:number")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def install(folder: Path, package: str, *entries: str) -> None:
    """What pip writes of a package."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[autoshard.programs]", *entries, ""]))


def test_a_program_is_made_for_the_machine_with_its_settings():
    found = find("zoo:layer?batch=4&kind=sin&scale=0.5&even=true", machine="v5e-8")
    assert [one.shape for one in found.args] == [(8, 16), (32, 8)]
    assert found.notes == ("32 rows on tpu",)
    assert found.plan_options == {}
    again = find("zoo:layer?batch=4", {"batch": 2}, machine=load("h100-8"))
    assert again.notes == ("16 rows on gpu",)
    assert size_names("zoo:layer?batch=4") == ("batch", "kind", "scale", "even")
    assert size_names("broken:it") == ("batch", "depth")
    assert {"zoo", "broken"} < {one.name for one in entries()}


def test_several_meshes_are_one_target():
    assert Target.of_all(["v5e-8", load("v5e-4")]) == Target(12, ("tpu",))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("zoo:lion", "zoo:lion: the zoo has no 'lion'; it has 'layer'"),
        (
            "zoo:layer?batch",
            "zoo:layer?batch: the settings are faulty:\n  - 'batch' is not a setting",
        ),
        ("zoo:layer?batch=1&batch=2", "  - 'batch' is given twice"),
        ("zoo:li%26on?kind=a%26b", "the zoo has no 'li&on'"),
        ("zoo:layer?depth=1", "unexpected keyword argument 'depth'"),
        ("broken:it?x=1", "ValueError: nothing works with {'x': 1}"),
        ("number:it", "number:it: zoo:number of zoo is a 'int', no function"),
    ],
)
def test_what_is_wrong_is_said_of_the_reference(reference, words):
    with pytest.raises(ProgramError) as caught:
        find(reference, machine="v5e-8")
    assert words in str(caught.value)


def test_the_machine_must_be_known():
    with pytest.raises(ProgramError, match=r"^zoo:layer depends on the machine; say which$"):
        find("zoo:layer")
    with pytest.raises(ProgramError, match=r"^zoo:layer depends on the machine: .*nowhere"):
        find("zoo:layer", machine="nowhere.toml")


def test_two_packages_of_one_name_are_refused(zoo):
    install(zoo, "menagerie", "zoo = menagerie:program")
    with pytest.raises(ProgramError, match="zoo:program of zoo") as caught:
        find("zoo:layer", machine="v5e-8")
    assert "menagerie:program of menagerie" in str(caught.value)


def test_a_package_that_does_not_import_is_named(zoo):
    install(zoo, "ark", "ark = ark:program")
    with pytest.raises(ProgramError, match=r"^ark:it: ark:program of ark cannot be loaded: Module"):
        find("ark:it", machine="v5e-8")


def test_a_sweep_traces_it_for_each_number_of_devices():
    rows = whatif("zoo:layer", {"chip": "v5e", "chips": [4, 8], "batch": 2}, keep=False).rows
    assert {row.chips: row.fits for row in rows} == {4: True, 8: True}
    seconds = {row.chips: row.step_seconds for row in rows}
    assert seconds[4] == pytest.approx(seconds[8], rel=0.2)  # as many rows on each device


def test_the_commands_take_it(zoo, capsys):
    search = "search zoo:layer?batch=8 --machine v5e-4 --mesh x=4 --quiet --no-baselines"
    assert main([*search.split(), "-o", "plan.json"]) == 0
    assert "note: 32 rows on tpu" in capsys.readouterr().out
    assert json.loads((zoo / "plan.json").read_text())["program"] == "zoo:layer?batch=8"
    assert main(["verify", "plan.json"]) == 0  # it was named in this folder
    assert "numbers      ok" in capsys.readouterr().out
    assert main(["check", "plan.json", "--machine", "v5p-4"]) == 0
    assert main(["programs"]) == 0
    assert "zoo:..." in capsys.readouterr().out


def test_a_framework_writes_its_own_file(zoo, capsys):
    words = ["search", "zoo:layer?batch=4", "--machine", "v5e-8", "--as", "zoo"]
    assert main([*words, "-o", "own.yml", "--quiet"]) == 0
    assert capsys.readouterr().out == "a layer\n"
    assert (zoo / "own.yml").read_text() == "# autoshard: of the zoo\nmesh: x=8\n"
    assert main([*words, "-o", "own.yml", "--quiet"]) == 0  # it replaces what it wrote
    capsys.readouterr()
    (zoo / "own.yml").write_text("steps: 10\n")
    assert main([*words, "-o", "own.yml", "--quiet"]) == 2
    assert "'own.yml' is there already, and is not a file of a framework" in capsys.readouterr().err
    assert main([*words, "--quiet", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"].startswith("# autoshard:")
    assert told["plan"]["mesh"] == {"x": 8}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("mlp:tiny --as zoo", "--as zoo is for programs zoo:..., and 'mlp:tiny' is none"),
        ("zoo:layer --as maxtext", "--as maxtext is for programs maxtext:..., and 'zoo:layer'"),
        ("broken:it --as broken", "broken:it: zoo:broken of zoo writes no file of its own"),
        (
            "zoo:layer --as zoo --refine 2",
            "--as writes cannot express --refine: leave it out",
        ),
    ],
)
def test_what_no_file_can_say_is_refused(words, told, capsys):
    assert main(["search", *words.split(), "--machine", "v5e-8", "--quiet"]) == 2
    assert told in capsys.readouterr().err
