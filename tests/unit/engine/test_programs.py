"""Layer programs: the document, what is refused of it, what it computes whole or in parts, and what it holds meanwhile."""

import itertools
import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gnomon_core.errors import GnomonError
from gnomon_core.program import (
    ALLOWED_OPERATORS,
    BatchSize,
    Constant,
    Operation,
    Program,
    Value,
    Weight,
    dump_program,
    parse_program,
)
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_runtime.engine import Executor, Limits
from gnomon_runtime.engine.segments import MAX_PLANS, Flow, Segment, segments_between
from gnomon_runtime.engine.sizes import RULES
from tests.refusals import refused

SPEC = TensorSpec("x", "FP32", (3,))
PROGRAM = Program(
    torch_version="2.6.0",
    schema_sha256="00",
    signature=ModelSignature("m", "1", (SPEC,), (TensorSpec("y", "FP32", (3,)),)),
    inputs=("x",),
    outputs=("y",),
    weights={"w": Weight("FP32", (3,))},
    operations=(Operation("aten.add.Tensor", (Value("x"), Value("w")), ("y",)),),
)


def document(**changes: Any) -> bytes:
    return json.dumps(json.loads(dump_program(PROGRAM)) | changes).encode()


def operation(**changes: Any) -> bytes:
    return document(operations=[{"op": "aten.add.Tensor", "args": [{"value": "x"}, {"value": "w"}], "results": ["y"]} | changes])


def test_a_program_survives_its_document() -> None:
    assert parse_program(dump_program(PROGRAM)) == PROGRAM
    assert dump_program(parse_program(dump_program(PROGRAM))) == dump_program(PROGRAM)


def test_a_size_follows_the_batch() -> None:
    assert [BatchSize(49).at(batch) for batch in (1, 2, 16)] == [49, 98, 784]
    assert [BatchSize(64, 3, 4).at(batch) for batch in (1, 2)] == [16, 32]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80\x04K\x01.", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "format"),
        (document(format="gnomon-layer-program/99"), "gnomon-layer-program/99"),
        (document(operations=None), "lacks a field"),
        (document(signature={}), "lacks a field"),
        (document(inputs=["../x"], outputs=["y" * 300]), "not a name"),
        (document(outputs=["z"]), "No operation makes"),
        (document(inputs=["w"]), "same name"),
        (document(inputs=["x", "x2"]), "another number"),
        (document(weights={"w": {"datatype": "OBJECT", "shape": [3]}}), "'OBJECT'"),
        (document(weights={"w": {"datatype": "FP32", "shape": [-1]}}), "(-1,)"),
        (document(weights={"w": {"datatype": "FP32", "shape": [3], "order": [1]}}), "order (1,)"),
        (operation(op="os.system"), "not the name of an ATen overload"),
        (operation(op="aten.add.Tensor; import os"), "not the name of an ATen overload"),
        (operation(args=[{"value": "y"}]), "before anything makes it"),
        (operation(results=["x"]), "a second time"),
        (operation(args=[{"eval": "1"}]), "not an argument"),
        (operation(args=["/etc/passwd"]), "not an argument"),
        (operation(args=[[[[[[1]]]]]]), "not an argument"),
        (operation(args=[2**63]), "64-bit"),
        (operation(args=[{"batch": -1}]), "does not grow"),
        (operation(args=[{"batch": 1, "over": 0}]), "does not grow"),
        (operation(args=[{"batch": 2**41}]), "does not grow"),
        (operation(args=[list(range(5000))]), "not an argument"),
    ],
)
def test_invalid_program_is_refused_with_the_reason(data: bytes, says: str) -> None:
    with refused(422, "invalid_program", message=says):
        parse_program(data)


def test_infinities_are_written_as_words() -> None:
    program = parse_program(operation(op="aten.clamp.default", args=[{"value": "x"}, {"float": "-inf"}, {"float": "inf"}]))
    assert program.operations[0].args[1:] == (float("-inf"), float("inf"))
    assert b"Infinity" not in dump_program(program)


pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "op",
    [
        "aten.from_file.default",
        "aten.set_.source_Tensor",
        "aten.resize_.default",
        "aten.as_strided.default",
        "aten.relu_.default",
        "aten.copy_.default",
        "aten.rand.default",
        "aten.nonzero.default",
        "aten.unique2.default",
        "prims.convert_element_type.default",
        "quantized.linear.default",
    ],
)
def test_an_operator_outside_the_list_is_refused_by_name(op: str, program: Callable[..., Program]) -> None:
    with refused(code="invalid_program", match=op.replace(".", r"\.")):
        Executor(program([(op, ("%x",), "y")], "y"), {})


def test_every_allowed_operator_exists_changes_nothing_and_has_a_size_rule() -> None:
    for name in ALLOWED_OPERATORS:
        _, base, overload = name.split(".")
        schema = getattr(getattr(torch.ops.aten, base), overload)._schema
        assert not schema.is_mutable, name
        assert "Generator" not in str(schema), name
        assert name in RULES


@pytest.mark.parametrize("name", ["__and__.Tensor", "__or__.Tensor", "max.other", "min.other"])
def test_results_of_two_tensors_are_bounded_by_what_they_broadcast_to(name: str) -> None:
    column, row = torch.ones(300, 1, dtype=torch.int64), torch.ones(1, 500, dtype=torch.int64)
    base, overload = name.split(".")
    result = getattr(getattr(torch.ops.aten, base), overload)(column, row)
    assert result.numel() <= RULES[f"aten.{name}"]([column, row]) <= 2 * result.numel()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("aten.relu.default", ("/etc/passwd",), "y"), "needs Tensor as self"),
        (("aten.softmax.int", ("%x", "one"), "y"), "needs int as dim"),
        (("aten.softmax.int", ("%x", True), "y"), "needs int as dim"),
        (("aten.softmax.int", ("%x",), "y"), "lacks dim"),
        (("aten.softmax.int", ("%x", 1, Constant("dtype", "float32"), 4), "y"), "has 4 arguments"),
        (("aten.softmax.int", ("%x", 1, Constant("layout", "strided")), "y"), "needs Optional[ScalarType] as dtype"),
        (("aten.softmax.int", ("%x", 1, Constant("dtype", "quint8")), "y"), "'quint8' is not known"),
        (("aten.full.default", ([4], 0.0), "y", {"device": Constant("device", "cuda")}), "'cuda' is not known"),
        (("aten.add.Tensor", ("%x", "%x"), "y", {"out": 1}), "no argument 'out'"),
        (("aten.add.Tensor", ("%x", "%x"), ("y", "z")), "names 2 results"),
        (("aten.cat.default", (["%x", 3],), "y"), "number"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused(call: tuple[Any, ...], says: str, program: Callable[..., Program]) -> None:
    if call[0] == "aten.cat.default":
        # A number where torch takes one for a tensor passes the types; the size rule and torch decide.
        executor = Executor(program([call], "y"), {})
        with pytest.raises(Exception, match=r"(?i)tensor|number"):
            executor.run([torch.zeros(1, 4)])
        return
    with refused(message=says):
        Executor(program([call], "y"), {})


@pytest.mark.parametrize(
    "call",
    [
        ("aten.full.default", ([1 << 40], 1.0), "y"),
        ("aten.full.default", ([1 << 20, 1 << 20, 1 << 20], 1.0), "y"),
        ("aten.arange.default", (1 << 40,), "y"),
        ("aten.arange.start_step", (0, 1, 1e-12), "y"),
        ("aten.linspace.default", (0, 1, 1 << 40), "y"),
        ("aten.eye.default", (1 << 20,), "y"),
        ("aten.repeat.default", ("%x", [1 << 20, 1 << 20]), "y"),
        ("aten.repeat_interleave.self_int", ("%x", 1 << 40), "y"),
        ("aten.pad.default", ("%x", [0, 1 << 40]), "y"),
        ("aten.constant_pad_nd.default", ("%x", [1 << 30, 1 << 30]), "y"),
        ("aten.new_zeros.default", ("%x", [1 << 40]), "y"),
        ("aten.conv1d.default", ("%x", "%w", None, [1], [1 << 40]), "y"),
        ("aten.conv_transpose1d.default", ("%x", "%w", None, [1 << 40]), "y"),
        ("aten.adaptive_avg_pool2d.default", ("%x4", [1 << 20, 1 << 20]), "y"),
        ("aten.upsample_nearest2d.vec", ("%x4", [1 << 20, 1 << 20], None), "y"),
        ("aten.upsample_nearest2d.vec", ("%x4", None, [1e6, 1e6]), "y"),
        ("aten.einsum.default", ("ab,cd->abcd", ["%column", "%row"]), "y"),
        ("aten.mul.Tensor", ("%row", "%column"), "y"),
        ("aten.matmul.default", ("%column", "%row"), "y"),
        ("aten.unbind.int", ("%long", 0), ("y",)),
        ("aten.split.Tensor", ("%long", 1), ("y",)),
    ],
    ids=lambda call: call[0],
)
def test_sizes_without_a_bound_are_refused_before_anything_is_allocated(
    call: tuple[Any, ...], program: Callable[..., Program]
) -> None:
    shapes: list[tuple[Any, ...]] = [
        ("aten.reshape.default", ("%x", [1, 1, 2, 2]), "x4"),
        ("aten.expand.default", ("%one", [1 << 20, 1]), "column"),
        ("aten.expand.default", ("%one", [1, 1 << 20]), "row"),
        ("aten.expand.default", ("%single", [1 << 40]), "long"),
    ]
    weights = {"w": torch.ones(1, 4, 1), "one": torch.ones(1, 1), "single": torch.ones(1)}
    if call[0].startswith("aten.conv"):
        weights["w"] = torch.ones(4, 4, 1) if "transpose" in call[0] else torch.ones(1, 1, 1)
    executor = Executor(program([*shapes, call], "y", weights=weights), weights)
    with refused(code="invalid_program", match=r"could make|pieces"):
        executor.run([torch.zeros(1, 4)])


def test_values_that_are_alive_together_are_bounded(executor: Callable[..., Executor]) -> None:
    calls = [("aten.repeat.default", ("%x", [1, 1000]), f"big{index}") for index in range(20)]
    calls.append(("aten.cat.default", ([f"%big{index}" for index in range(20)],), "y"))
    with pytest.raises(GnomonError, match="bytes that are alive"):
        executor(calls, "y", limits=Limits(max_live_bytes=200_000)).run([torch.zeros(1, 4)])


def test_a_mask_whose_result_follows_the_values_is_refused(executor: Callable[..., Executor]) -> None:
    calls = [
        ("aten.sum.dim_IntList", ("%x", [1]), "sums"),
        ("aten.ge.Scalar", ("%sums", 0), "mask"),
        ("aten.index.Tensor", ("%x", ["%mask"]), "y"),
    ]
    with pytest.raises(GnomonError, match="depend on values"):
        executor(calls, "y").run([torch.zeros(2, 4)])


def test_an_output_that_is_not_what_the_signature_says_is_refused(executor: Callable[..., Executor]) -> None:
    with pytest.raises(GnomonError, match="not a batch of"):
        executor([("aten.sum.dim_IntList", ("%x", [1]), "y")], "y").run([torch.zeros(2, 4)])


def test_a_program_of_other_operators_than_ours_is_refused(program: Callable[..., Program]) -> None:
    made = program([("aten.relu.default", ("%x",), "y")], "y")
    object.__setattr__(made, "schema_sha256", "0" * 64)
    with pytest.raises(GnomonError, match="captured with torch"):
        Executor(made, {})


Make = Callable[..., Executor]
Ramp = Callable[..., Tensor]


def test_runs_at_any_batch_size_twice_with_the_same_answer(executor: Make, ramp: Ramp) -> None:
    weights = {"w": torch.ones(3, 4), "b": torch.arange(3.0)}
    made = executor(
        [("aten.linear.default", ("%x", "%w", "%b"), "h"), ("aten.relu.default", ("%h",), "y")],
        "y",
        weights=weights,
        out_shape=(3,),
    )
    for batch in (1, 2, 3, 8, 16):
        x = ramp(batch, 4)
        expected = torch.relu(x.sum(1, keepdim=True) + torch.arange(3.0))
        for _ in range(3):
            assert torch.equal(made.run([x])[0], expected)


def test_sizes_follow_the_batch(executor: Make, ramp: Ramp) -> None:
    made = executor(
        [
            ("aten.view.default", ("%x", [BatchSize(2), 2]), "halves"),
            ("aten.sum.dim_IntList", ("%halves", [1]), "sums"),
            ("aten.view.default", ("%sums", [BatchSize(1), 2]), "y"),
        ],
        "y",
        out_shape=(2,),
    )
    for batch in (1, 2, 5):
        x = ramp(batch, 4)
        assert torch.equal(made.run([x])[0], x.view(batch, 2, 2).sum(2))


def test_several_results_lists_and_constants(executor: Make, ramp: Ramp) -> None:
    made = executor(
        [
            ("aten.split.Tensor", ("%x", 2, 1), ("left", "right")),
            ("aten.max.dim", ("%left", 1, True), ("largest", None)),
            ("aten.to.dtype", ("%right", Constant("dtype", "float64")), "wide"),
            ("aten.clamp.default", ("%wide", float("-inf"), 3.0), "clamped"),
            ("aten._to_copy.default", ("%clamped",), "narrow", {"dtype": Constant("dtype", "float32")}),
            ("aten.cat.default", (["%largest", "%narrow"], 1), "y"),
        ],
        "y",
        out_shape=(3,),
    )
    x = ramp(3, 4)
    expected = torch.cat([x[:, :2].max(1, keepdim=True).values, x[:, 2:].clamp(max=3.0)], 1)
    assert torch.equal(made.run([x])[0], expected)


def test_memory_is_reused_only_where_nothing_reads_it_again(executor: Make, ramp: Ramp) -> None:
    """`b` is read after the ReLU of it, `view` looks into `c`: neither may be written over."""
    made = executor(
        [
            ("aten.mul.Tensor", ("%x", 2.0), "a"),
            ("aten.relu.default", ("%a",), "b"),
            ("aten.relu.default", ("%b",), "again"),
            ("aten.add.Tensor", ("%again", "%b"), "c"),
            ("aten.view.default", ("%c", [-1, 2, 2]), "view"),
            ("aten.mul.Tensor", ("%c", -1.0), "d"),
            ("aten.view.default", ("%view", [-1, 4]), "flat"),
            ("aten.add.Tensor", ("%flat", "%d"), "zero"),
            ("aten.add.Tensor", ("%zero", "%flat"), "y"),
        ],
        "y",
    )
    x = ramp(3, 4)
    expected = 2 * torch.relu(2 * x)
    for _ in range(3):
        assert torch.equal(made.run([x])[0], expected)


def test_inputs_and_weights_are_never_written(executor: Make, ramp: Ramp) -> None:
    weights = {"w": torch.full((4,), 3.0)}
    made = executor(
        [
            ("aten.relu.default", ("%x",), "h"),
            ("aten.view.default", ("%w", [1, 4]), "row"),
            ("aten.expand.default", ("%row", [BatchSize(1), 4]), "rows"),
            ("aten.add.Tensor", ("%rows", "%h"), "s"),
            ("aten.view.default", ("%x", [-1, 4]), "alias"),
            ("aten.hardtanh.default", ("%alias", -1.0, 1.0), "t"),
            ("aten.add.Tensor", ("%s", "%t"), "y"),
        ],
        "y",
        weights=weights,
    )
    x = ramp(2, 4)
    before = x.clone()
    for _ in range(3):
        made.run([x])
    assert torch.equal(x, before)
    assert torch.equal(weights["w"], torch.full((4,), 3.0))


def test_an_input_may_be_an_output(executor: Make, ramp: Ramp) -> None:
    made = executor([("aten.relu.default", ("%x",), "unused")], "x")
    x = ramp(2, 4)
    assert torch.equal(made.run([x])[0], x)


def test_a_value_is_freed_after_its_last_use(executor: Make) -> None:
    """Thirty values of 1 MB in a chain: never more than two live at once, in the checked run and in those after it."""
    chain: list[tuple[Any, ...]] = [("aten.exp.default", ("%x",), "v0")]
    chain += [("aten.exp.default", (f"%v{index}",), f"v{index + 1}") for index in range(30)]
    made = executor(chain, "v30", shape=(1 << 18,))
    x = torch.full((1, 1 << 18), -1e9)
    made.run([x])
    assert made.peak_bytes(1) == 2 * 4 * (1 << 18)

    alive: list[weakref.ref[Tensor]] = []
    most = 0
    plan = made._plans[1]
    steps = []
    for call, *rest in plan.steps:

        def watched(*arguments: Any, call: Any = call) -> Any:
            nonlocal most
            result = call(*arguments)
            alive.append(weakref.ref(result))
            most = max(most, sum(reference() is not None for reference in alive))
            return result

        steps.append((watched, *rest))
    object.__setattr__(plan, "steps", tuple(steps))
    made.run([x])
    assert len(alive) == 31
    assert most == 2


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [torch.zeros(2, 5)],
        [torch.zeros(0, 4)],
        [torch.zeros(())],
        [torch.zeros(2, 4, dtype=torch.float64)],
        [torch.zeros(2, 4), torch.zeros(2, 4)],
    ],
)
def test_inputs_that_do_not_fit_are_a_value_error(inputs: list[Tensor], executor: Make) -> None:
    with pytest.raises(ValueError, match="input"):
        executor([("aten.relu.default", ("%x",), "y")], "y").run(inputs)


def test_a_run_that_failed_leaves_nothing_behind(executor: Make) -> None:
    weights = {"table": torch.arange(6.0).view(3, 2)}
    made = executor(
        [("aten.embedding.default", ("%table", "%x"), "rows"), ("aten.sum.dim_IntList", ("%rows", [1]), "y")],
        "y",
        weights=weights,
        datatype="INT64",
        shape=(2,),
        out_shape=(2,),
    )
    for _ in range(2):
        with pytest.raises(IndexError):
            made.run([torch.tensor([[0, 9]])])
        assert torch.equal(made.run([torch.tensor([[0, 2]])])[0], torch.tensor([[4.0, 6.0]]))


MakeProgram = Callable[..., Program]

RESIDUAL: list[tuple[Any, ...]] = [
    ("aten.mul.Tensor", ("%x", 2.0), "a"),
    ("aten.relu.default", ("%a",), "b"),
    ("aten.linear.default", ("%b", "%w"), "c"),
    ("aten.relu.default", ("%c",), "d"),
    ("aten.add.Tensor", ("%d", "%b"), "e"),
    ("aten.view.default", ("%e", [BatchSize(1), 2, 2]), "f"),
    ("aten.relu.default", ("%f",), "g"),
    ("aten.view.default", ("%g", [BatchSize(1), 4]), "h"),
    ("aten.add.Tensor", ("%h", "%e"), "i"),
    ("aten.relu.default", ("%i",), "y"),
]
WEIGHTS = {"w": torch.arange(16.0).reshape(4, 4) - 7}


@pytest.fixture
def residual(program: MakeProgram) -> Program:
    """Elementwise operations that could overwrite almost anything, a view, and a value that is read twice."""
    return program(RESIDUAL, "y", weights=WEIGHTS)


def pieces(model: Program, runs: Sequence[tuple[int, int]]) -> list[Segment]:
    return segments_between(model, WEIGHTS, runs)


def in_pieces(segments: Sequence[Segment], x: Tensor, cut: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """The answer piece by piece, each of them on the rows before and after `cut`; and all that crossed a border, as it was."""
    values, seen = {"x": x}, {"x": x.clone()}
    for segment in segments:
        given = [values[name] for name in segment.border.reads]
        if cut is None:
            made = segment.run(len(x), list(given))
        else:
            first = segment.run(cut, [value[:cut] for value in given])
            second = segment.run(len(x) - cut, [value[cut:] for value in given])
            made = tuple(torch.cat(both) for both in zip(first, second, strict=True))
        for name in segment.border.reads:
            assert torch.equal(values[name], seen[name]), f"{name} was written over"
        values |= dict(zip(segment.border.makes, made, strict=True))
        seen |= {name: tensor.clone() for name, tensor in zip(segment.border.makes, made, strict=True)}
    return values["y"], seen


@pytest.mark.parametrize("cut", [None, 1, 3])
def test_cut_anywhere_it_is_the_same_program(residual: Program, ramp: Ramp, cut: int | None) -> None:
    """Each of the 36 ways to cut ten operations into three, three times each: planned runs differ from the first."""
    x = ramp(4, 4)
    expected = Executor(residual, WEIGHTS).run([x])[0]
    for begin, end in itertools.combinations(range(len(RESIDUAL) + 1), 2):
        segments = pieces(residual, [(begin, end)])
        for _ in range(3):
            assert torch.equal(in_pieces(segments, x, cut)[0], expected), (begin, end)


def test_borders_follow_from_the_program(residual: Program) -> None:
    flow = Flow(residual)
    middle = flow.border(2, 5)
    assert (middle.reads, middle.makes, middle.passing, middle.weights) == (("b",), ("e",), ("b",), ("w",))
    early = flow.border(2, 4)
    assert (early.reads, early.makes, early.passing) == (("b",), ("d",), ())
    assert flow.border(0, 10).makes == ("y",)


@pytest.mark.parametrize("ends", [(-1, 3), (4, 4), (5, 2), (3, 11)])
def test_operations_that_are_not_there_are_refused(residual: Program, ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="operations"):
        Flow(residual).border(*ends)


@pytest.mark.parametrize("runs", [[(0, 3), (2, 5)], [(4, 6), (1, 2)], [(1, 3), (3, 5)]])
def test_runs_must_be_apart(residual: Program, runs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="apart"):
        segments_between(residual, WEIGHTS, runs)


def test_a_value_that_only_the_run_holds_is_freed_after_its_last_use(residual: Program, ramp: Ramp) -> None:
    (_, tail) = pieces(residual, [(0, 2)])
    for _ in range(2):
        value = torch.relu(ramp(3, 4)).clone()
        gone = weakref.ref(value)
        alive_at_the_end: list[bool] = []
        given = [value]
        del value
        tail.run(3, given)
        alive_at_the_end.append(gone() is not None)
    assert given == []
    assert alive_at_the_end == [False]


def test_another_form_of_the_same_rows_gets_a_plan_of_its_own(residual: Program, ramp: Ramp) -> None:
    """A plan made for contiguous values would be wrong for transposed ones: what is a view and what a copy differs."""
    segment = Segment(residual, Flow(residual).border(4, 9), {})
    d, b = torch.relu(ramp(4, 4)), torch.relu(ramp(4, 4) + 1)
    straight = [segment.run(4, [d, b])[0] for _ in range(3)]
    turned = [segment.run(4, [d.t().contiguous().t(), b.t().contiguous().t()])[0] for _ in range(2)]
    assert all(torch.equal(straight[0], other) for other in (*straight, *turned))


def test_a_peer_that_invents_forms_fills_no_memory(program: MakeProgram) -> None:
    segment = Segment(made := program([("aten.relu.default", ("%x",), "y")], "y"), Flow(made).border(0, 1), {})
    for width in range(1, 3 * MAX_PLANS):
        assert segment.run(1, [torch.ones(1, width)])[0].shape == (1, width)
    assert len(segment._plans) <= MAX_PLANS


def test_a_segment_keeps_the_limits(program: MakeProgram) -> None:
    made = program([("aten.repeat.default", ("%x", [1, 1 << 20]), "y")], "y")
    segment = Segment(made, Flow(made).border(0, 1), {}, Limits(max_elements=1 << 10))
    with pytest.raises(GnomonError, match="could make"):
        segment.run(1, [torch.ones(1, 4)])
