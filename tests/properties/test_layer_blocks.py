"""For any program: its blocks follow each other, cover it, and can be handed over."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_core.program import Operation, Program, Value
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_profiler.layers import Costs, choose_cuts
from gnomon_profiler.layers_file import Flow

SPEC = TensorSpec("x", "FP32", (4,))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Each operation reads one to three of the values before it; the last value is the output."""
    names = ["x"]
    operations = []
    for number in range(draw(st.integers(1, 25))):
        reads = draw(st.lists(st.sampled_from(names[-6:]), min_size=1, max_size=3, unique=True))
        names.append(f"v{number}")
        operations.append(Operation("aten.relu.default", tuple(map(Value, reads)), (names[-1],)))
    return Program("2", "", ModelSignature("m", "1", (SPEC,), (SPEC,)), ("x",), (names[-1],), {}, tuple(operations))


@settings(max_examples=200, deadline=None)
@given(programs(), st.data())
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
