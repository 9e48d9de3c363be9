"""The text reader against jaxlib's own parser on real modules, and on what printers may write."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jaxlib import _hlo

from autoshard.compiler.hlo.module import Module
from autoshard.compiler.hlo.shapes import ArrayShape, parse_shape, total_bytes
from autoshard.compiler.hlo.text import HloTextError, read_module
from tests.compiler.hlo.dumps import compiled, mesh_of, on


def step(weights, x):
    def layer(x, w):
        with jax.named_scope("layer"):
            return jnp.tanh(x @ w), jnp.sum(x)

    def loss(weights):
        out, sums = jax.lax.scan(layer, x, weights)
        return jnp.mean(out**2) + jnp.sum(sums)

    return jax.value_and_grad(loss)(weights)


@pytest.fixture(scope="module")
def both() -> tuple[str, str]:
    mesh = mesh_of({"x": 2, "y": 4})
    weights = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32, sharding=on(mesh, None, "x", "y"))
    x = jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=on(mesh, "x"))
    return compiled(step, weights, x)


@pytest.mark.parametrize("final", [False, True])
def test_instructions_are_those_of_jaxlibs_parser(both, final):
    text = both[final]
    module, theirs = read_module(text), _hlo.hlo_module_from_text(text)
    assert module.is_scheduled == final
    assert module.devices == 8
    names = {computation.name for computation in theirs.computations()}
    assert set(module.computations) == names
    instructions = 0
    for computation in theirs.computations():
        # Their parser writes elements of tuples by number in another way: `param#0` as `param_0`.
        mine = {
            i.name.replace("#", "_"): i for i in module.computations[computation.name].instructions
        }
        assert len(mine) == len(computation.instructions())
        for instruction in computation.instructions():
            read = mine[instruction.name]
            opcode = str(instruction.opcode).rsplit("k", 1)[-1].lower()
            assert read.opcode.replace("-", "") in (opcode, f"{opcode}start", f"{opcode}done")
            operands = tuple(name.replace("#", "_") for name in read.operands)
            assert operands == tuple(o.name for o in instruction.operands())
            instructions += 1
    assert instructions > 100


def test_lines_and_scopes_are_the_users(both):
    module = read_module(both[0])
    dots = [i for c in module.computations.values() for i in c.instructions if i.opcode == "dot"]
    assert dots
    for dot in dots:
        assert "layer" in dot.op_name
        line = module.users_line(dot)
        assert line.startswith("test_text.py:")
        number = int(line.rpartition(":")[2])
        assert "x @ w" in Path(__file__).read_text().split("\n")[number - 1]


ODD = """\
HloModule odd, is_scheduled=true, entry_computation_layout={(f32[2,3])->f32[]}, num_partitions=4

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(f32[] %a, f32[] %b), metadata={op_name="\\"}\\" (" source_file="/u/f.py"
      source_line=7}
}

ENTRY %main (p: f32[2,3]) -> f32[] {
  %p = f32[2,3]{1,0:T(8,128)(2,1)S(1)} parameter(0), sharding={devices=[2,2]<=[4]}
  %table = s32[2,2]{1,0} constant({
    { 1, 2 },
    { 3, 4 }
  })
  %pair = (f32[2,3], /*index=1*/(s32[], pred[<=5])) sort(%p, /*index=1*/%table), target="a, b={"
  %zero = f32[] constant(0)
  ROOT %r = f32[] reduce(%p, %zero), dimensions={0,1}, to_apply=%sum
}, execution_thread="main"
"""


def test_what_printers_may_write():
    module = read_module(ODD)
    assert (module.name, module.entry, module.devices) == ("odd", "main", 4)
    entry = module.computations["main"]
    assert [i.opcode for i in entry.instructions] == [
        "parameter", "constant", "sort", "constant", "reduce",
    ]  # fmt: skip
    assert entry.by_name["table"].argument.split() == [
        "{",
        "{",
        "1,",
        "2",
        "},",
        "{",
        "3,",
        "4",
        "}",
        "}",
    ]
    assert entry.by_name["pair"].operands == ("p", "table")
    assert entry.by_name["pair"].attribute("target") == '"a, b={"'
    inner = (ArrayShape("s32", ()), ArrayShape("pred", (5,)))
    assert entry.by_name["pair"].shape == (ArrayShape("f32", (2, 3)), inner)
    assert entry.root.called("to_apply", "calls") == ("sum",)
    assert entry.root.attribute("replica_groups") is None
    addition = module.computations["sum"].root
    assert addition.operands == ("a", "b")
    assert addition.op_name == '\\"}\\" ('
    assert module.users_line(addition) == "f.py:7"
    assert [u.name for u in entry.users["p"]] == ["pair", "r"]
    assert entry.parameter(0) is entry.by_name["p"]
    assert entry.parameter(1) is None


def test_metadata_of_a_kernel_goes_over_lines_and_ends_no_computation():
    """As XLA:TPU writes it; a line of it begins with brackets that close."""
    module = read_module(
        "HloModule m\n\nENTRY %main (p: f32[1]) -> f32[1] {\n  %p = f32[1]{0} parameter(0)\n"
        '  %k = f32[1]{0} custom-call(%p), custom_call_target="tpu_custom_call", '
        'frontend_attributes={kernel_metadata={\n"xprof_metadata":"{\\"block_q\\": 512}"\n}}, '
        'metadata={op_name="step/kernel/pallas_call"}\n'
        "  ROOT %r = f32[1]{0} negate(%k)\n}\n"
    )
    entry = module.computations["main"]
    assert entry.root.name == "r"
    assert entry.by_name["k"].op_name == "step/kernel/pallas_call"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ENTRY main {", "no HLO module: it begins with 'ENTRY main {'"),
        (
            ODD[: ODD.index("}\n\nENTRY")],
            "the text of module 'odd' is cut off: computation 'sum' does not end",
        ),
        (
            ODD[: ODD.index("ENTRY")],
            "the text of module 'odd' is cut off: no ENTRY computation",
        ),
        (
            ODD.replace("= f32[] constant(0)", "= nothing"),
            "line 17: '%zero = nothing' is not an instruction",
        ),
    ],
)
def test_texts_that_are_no_modules(text, message):
    with pytest.raises(HloTextError) as caught:
        read_module(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4),
        ("bf16[8,128]{1,0:T(8,128)(2,1)}", 2048),
        ("pred[3]", 3),
        ("s4[3]", 2),
        ("f8e4m3fn[10]", 10),
        ("c64[2]", 16),
        ("token[]", 0),
        ("u8[0]{0}", 0),
        ("(f32[2], (bf16[4], s64[]), u32[])", 8 + 8 + 8 + 4),
    ],
)
def test_bytes_of_shapes(text, size):
    assert total_bytes(parse_shape(text)) == size


def test_a_shape_that_is_none():
    with pytest.raises(ValueError, match="'%x' is not an HLO shape"):
        parse_shape("%x")


def test_records_print_themselves(both):
    module: Module = read_module(both[1])
    root = module.computations[module.entry].root
    assert str(root) == f"{root.name} = {root.opcode}"
    assert str(parse_shape("f32[8,4]{1,0}")) == "f32[8, 4]"


ELEMENTS = """\
HloModule elements, is_scheduled=true, num_partitions=1

ENTRY %main (p: (f32[2], (s32[], f32[3]{0}))) -> f32[3] {
  %p = (f32[2]{0}, (s32[], /*index=1*/f32[3]{0})) parameter(0)
  %negate = f32[2]{0} negate(%p#0)
  ROOT %copy = f32[3]{0} copy(f32[3]{0} %p#1#1)
}
"""


def test_elements_of_tuples_by_number_are_instructions():
    computation = read_module(ELEMENTS).computations["main"]
    assert [(i.name, i.opcode, i.operands, i.shape_text) for i in computation.instructions] == [
        ("p", "parameter", (), "(f32[2]{0}, (s32[], /*index=1*/f32[3]{0}))"),
        ("p#0", "get-tuple-element", ("p",), "f32[2]{0}"),
        ("p#1", "get-tuple-element", ("p",), "(s32[], f32[3]{0})"),
        ("p#1#1", "get-tuple-element", ("p#1",), "f32[3]{0}"),
        ("negate", "negate", ("p#0",), "f32[2]{0}"),
        ("copy", "copy", ("p#1#1",), "f32[3]{0}"),
    ]
    assert computation.by_name["p#1#1"].attributes()["index"] == "1"
