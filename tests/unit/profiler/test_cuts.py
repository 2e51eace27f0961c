"""Where programs are cut: the worked examples of the choice, without a tensor library."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from gnomon_core.program import Operation, Program, Value, Weight
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_profiler.layers import Costs, choose_cuts
from gnomon_profiler.layers_file import Flow

SPEC = TensorSpec("x", "FP32", (4,))


def program(*operations: tuple[str, str], weights: Sequence[str] = (), inputs: str = "x") -> Program:
    """Operations as (result, "what it reads"); the last result is the output."""
    made = tuple(
        Operation("aten.relu.default", tuple(Value(name) for name in reads.split()), (result,)) for result, reads in operations
    )
    signature = ModelSignature("m", "1", (SPEC,) * len(inputs.split()), (SPEC,))
    return Program(
        "2", "", signature, tuple(inputs.split()), (operations[-1][0],), {name: Weight("FP32", (4,)) for name in weights}, made
    )


def cuts(
    made: Program, macs: Sequence[int], parameters: Sequence[int], sizes: Mapping[str, int] | None = None, without: str = ""
) -> list[int]:
    flow = Flow.of(made)
    names = frozenset(flow.made) - set(without.split())
    return choose_cuts(flow, Costs(macs, parameters, {name: (sizes or {}).get(name, 16) for name in flow.made}, names))


def test_flow_knows_what_crosses_a_border() -> None:
    flow = Flow.of(program(("a", "x"), ("b", "a w"), ("c", "b"), ("d", "a c"), weights=["w"]))
    border = flow.border(1, 3)
    assert (border.reads, border.makes, border.weights) == (("a",), ("c",), ("w",))
    assert set(flow.crossing(2)) == {"a", "b"}
    assert flow.border(0, 4).makes == ("d",)


def test_activations_stay_with_the_layer_before_them() -> None:
    chain = program(
        ("conv1", "x"), ("norm1", "conv1"), ("relu1", "norm1"), ("conv2", "relu1"), ("norm2", "conv2"), ("relu2", "norm2")
    )
    assert cuts(chain, (10, 0, 0, 10, 0, 0), (800, 8, 0, 800, 8, 0)) == [0, 3, 6]


def test_a_normalisation_is_not_cut_off_to_make_a_small_neighbour_larger() -> None:
    chain = program(
        *(
            (f"{kind}{n}", f"conv{n}" if kind == "norm" else f"norm{n - 1}" if n else "x")
            for n in range(80)
            for kind in ("conv", "norm")
        )
    )
    assert all(at % 2 == 0 for at in cuts(chain, (10, 0) * 80, (800, 80) * 80))


def test_a_cut_goes_behind_the_pooling_where_less_crosses() -> None:
    chain = program(("conv1", "x"), ("pool", "conv1"), ("conv2", "pool"))
    assert cuts(chain, (10, 0, 10), (8, 0, 8), {"pool": 4}) == [0, 2, 3]


def test_a_residual_is_one_block() -> None:
    """Between its convolutions two tensors would be alive."""
    body = [("a", "x"), ("a1", "a"), ("a2", "a1"), ("a3", "a a2"), ("b1", "a3"), ("b2", "b1"), ("b3", "a3 b2"), ("c", "b3")]
    assert cuts(program(*body), (10, 10, 10, 0, 10, 10, 0, 10), (8, 8, 8, 0, 8, 8, 0, 8)) == [0, 1, 4, 7, 8]


def test_branches_that_meet_again_are_one_block() -> None:
    stem = [("s1", "x"), ("s2", "s1"), ("s3", "s2")]
    branches = [("one", "s3"), ("two", "s3"), ("three", "s3"), ("cat", "one two three"), ("head", "cat")]
    assert cuts(program(*stem, *branches), (10, 10, 10, 5, 5, 5, 0, 10), (8, 8, 8, 4, 4, 4, 0, 8)) == [0, 1, 2, 3, 7, 8]


def test_where_no_cut_is_narrow_a_model_is_cut_all_the_same() -> None:
    """Everything reads the two values before it, so two tensors cross wherever it is cut."""
    braid = [(f"v{n}", f"v{n - 1} v{n - 2}") for n in range(2, 42)]
    found = cuts(program(*braid, inputs="v0 v1"), [10] * 40, [8] * 40)
    assert 2 <= len(found) - 1 <= 5


def test_a_feature_that_is_only_passed_by_does_not_keep_blocks_together() -> None:
    """A detection backbone: early features are read again by heads at the end, and the blocks between do not touch them."""
    backbone = [("a", "x"), ("b", "a"), ("c", "b"), ("head_a", "a"), ("head_c", "c"), ("out", "head_a head_c")]
    assert cuts(program(*backbone), (10, 10, 10, 10, 10, 0), (8, 8, 8, 8, 8, 0))[:4] == [0, 1, 2, 3]


def test_no_cut_where_a_value_is_not_one_row_for_each_sample() -> None:
    """`folded` holds windows of all samples, `table` belongs to none of them."""
    chain = program(("a", "x"), ("folded", "a"), ("b", "folded"), ("table", "w"), ("c", "b table"), ("d", "c"), weights=["w"])
    assert cuts(chain, (10, 10, 10, 0, 10, 10), (8, 8, 8, 0, 8, 8), without="folded table") == [0, 1, 3, 5, 6]


def test_small_neighbours_are_one_block() -> None:
    many = program(*((f"v{n}", f"v{n - 1}" if n else "x") for n in range(1000)))
    sizes = [end - begin for begin, end in pairwise(cuts(many, [1] * 1000, [1] * 1000))]
    assert 40 <= len(sizes) <= 50
    assert max(sizes) < 60


def test_nothing_without_parameters_stands_alone() -> None:
    chain = program(("a", "x"), ("b", "a"), ("c", "b"), ("d", "c"))
    assert cuts(chain, (10, 10, 10, 10), (0, 8, 0, 8)) == [0, 2, 4]
    assert cuts(chain, (10, 10, 10, 10), (0, 0, 0, 0)) == [0, 1, 2, 3, 4]


def test_a_program_without_work_is_cut_by_its_operations() -> None:
    assert cuts(program(("a", "x"), ("b", "a")), (0, 0), (0, 0)) == [0, 1, 2]
