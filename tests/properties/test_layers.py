"""Any layer program survives its document, and its blocks follow each other, cover it, and can be handed over."""

import json
import math
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_core.program import Argument, BatchSize, Constant, Operation, Program, Value, Weight, dump_program, parse_program
from gnomon_core.signature import DATATYPE_BYTES, ModelSignature, TensorSpec
from gnomon_profiler.layers import Costs, choose_cuts
from gnomon_profiler.layers_file import Flow

names = st.text("abcdefghijklmnopqrstuvwxyz_.0123456789", min_size=1, max_size=12)
shapes = st.lists(st.integers(1, 1 << 20), max_size=4).map(tuple)
datatypes = st.sampled_from(sorted(DATATYPE_BYTES))
specs = st.builds(TensorSpec, names, datatypes, shapes)
details = st.dictionaries(names, st.text(max_size=5), max_size=3)
constants = st.builds(
    Constant, st.sampled_from(["dtype", "memory_format", "layout", "device"]), st.sampled_from(["float32", "cpu"])
)
batch_sizes = st.builds(BatchSize, st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 1 << 40))
floats = st.floats(allow_nan=False)
texts = st.text("abcdefghijABCDEFGHIJ_ ,.>-", max_size=20)


def arguments(values: list[str]) -> st.SearchStrategy[Argument]:
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 62), 1 << 62),
        floats,
        texts,
        constants,
        batch_sizes,
        st.sampled_from(values).map(Value),
    )
    return st.one_of(leaves, st.lists(leaves, max_size=4).map(tuple))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    made = draw(st.lists(names, min_size=3, max_size=12, unique=True))
    inputs, weights, results = made[:1], made[1:2], made[2:]
    known = inputs + weights
    operations = []
    for result in results:
        dead = draw(st.integers(0, 2))
        operations.append(
            Operation(
                op=f"aten.{draw(st.sampled_from(['add', '_softmax', 'conv2d']))}.{draw(st.sampled_from(['Tensor', 'default']))}",
                args=tuple(draw(st.lists(arguments(known), max_size=5))),
                results=(result, *[None] * dead),
                kwargs=draw(st.dictionaries(st.sampled_from(["dtype", "dim"]), constants, max_size=2)),
            )
        )
        known = [*known, result]
    signature = ModelSignature(draw(names), draw(names), (draw(specs),), (draw(specs),), draw(texts), draw(details))
    weight = Weight(draw(datatypes), shape := draw(shapes), tuple(draw(st.permutations(range(len(shape))))))
    return Program(draw(texts), draw(texts), signature, tuple(inputs), (known[-1],), {weights[0]: weight}, tuple(operations))


@given(programs())
def test_a_program_survives_its_document(program: Program) -> None:
    data = dump_program(program)
    again = parse_program(data)
    assert again == program
    assert repr(again) == repr(program), "0.0 and False, 1 and True are equal but not the same"
    assert dump_program(again) == data
    json.loads(data, parse_constant=no_json)


def no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), st.integers(1, 1 << 10), st.integers(1, 4096))
def test_a_size_never_shrinks_when_the_batch_grows(times: int, plus: int, over: int, batch: int) -> None:
    size = BatchSize(times, plus, over)
    assert size.at(batch) <= size.at(batch + 1)
    assert size.at(batch) == math.floor((times * batch + plus) / over)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["value", "batch", "over", "float", "dtype", "op"]), inner)
    ),
    max_leaves=10,
)


@given(programs(), st.sampled_from(["operations", "weights", "inputs", "outputs", "signature", "args", "results"]), json_values)
def test_a_changed_document_is_a_program_or_refused(program: Program, where: str, put: Any) -> None:
    document = json.loads(dump_program(program))
    if where in ("args", "results"):
        document["operations"][0][where] = put
    else:
        document[where] = put
    refused: GnomonError | None = None
    try:
        changed = parse_program(json.dumps(document).encode())
    except GnomonError as error:
        refused = error
    if refused is None:
        assert dump_program(parse_program(dump_program(changed))) == dump_program(changed)
    else:
        assert (refused.status, refused.code) == (422, "invalid_program")


SPEC = TensorSpec("x", "FP32", (4,))


@st.composite
def operation_programs(draw: st.DrawFn) -> Program:
    """Each operation reads one to three of the values before it; the last value is the output."""
    names = ["x"]
    operations = []
    for number in range(draw(st.integers(1, 25))):
        reads = draw(st.lists(st.sampled_from(names[-6:]), min_size=1, max_size=3, unique=True))
        names.append(f"v{number}")
        operations.append(Operation("aten.relu.default", tuple(map(Value, reads)), (names[-1],)))
    return Program("2", "", ModelSignature("m", "1", (SPEC,), (SPEC,)), ("x",), (names[-1],), {}, tuple(operations))


@settings(max_examples=200, deadline=None)
@given(operation_programs(), st.data())
def test_blocks_cover_the_program_and_hand_over_rows(program: Program, data: st.DataObject) -> None:
    flow = Flow.of(program)
    numbers = st.lists(st.integers(0, 100), min_size=flow.length, max_size=flow.length)
    by_rows = frozenset(name for name in flow.made if data.draw(st.integers(0, 9)) or name == "x")
    costs = Costs(data.draw(numbers), data.draw(numbers), dict.fromkeys(flow.made, 16), by_rows)
    cuts = choose_cuts(flow, costs)
    assert cuts[0] == 0
    assert cuts[-1] == flow.length
    assert cuts == sorted(set(cuts))
    known = set(program.inputs)
    for begin, end in pairwise(cuts):
        border = flow.border(begin, end)
        assert known.issuperset(border.reads), "everything a block reads was made by an earlier one"
        known.update(border.makes)
        if len(cuts) > 2:
            assert border.reads
            assert border.makes
    for at in cuts[1:-1]:
        assert by_rows.issuperset(flow.crossing(at))
    assert known.issuperset(program.outputs)
