"""A part of a program computes what the whole does, on any rows, and never writes over what crosses its borders."""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gnomon_core.errors import GnomonError
from gnomon_core.program import BatchSize, Program
from gnomon_runtime.engine import Executor, Limits
from gnomon_runtime.engine.segments import MAX_PLANS, Flow, Segment, segments_between

pytestmark = pytest.mark.torch
Make = Callable[..., Program]
Ramp = Callable[..., Tensor]

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
def residual(program: Make) -> Program:
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


def test_a_peer_that_invents_forms_fills_no_memory(program: Make) -> None:
    segment = Segment(made := program([("aten.relu.default", ("%x",), "y")], "y"), Flow(made).border(0, 1), {})
    for width in range(1, 3 * MAX_PLANS):
        assert segment.run(1, [torch.ones(1, width)])[0].shape == (1, width)
    assert len(segment._plans) <= MAX_PLANS


def test_a_segment_keeps_the_limits(program: Make) -> None:
    made = program([("aten.repeat.default", ("%x", [1, 1 << 20]), "y")], "y")
    segment = Segment(made, Flow(made).border(0, 1), {}, Limits(max_elements=1 << 10))
    with pytest.raises(GnomonError, match="could make"):
        segment.run(1, [torch.ones(1, 4)])
