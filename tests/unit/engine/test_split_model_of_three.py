"""Two Shadows of one Body: whatever either of them does, the answer is right and costs the other nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from gnomon_core.program import Program
from gnomon_runtime.pair.link import Outcome
from gnomon_runtime.pair.partner import MAX_MISSES
from gnomon_runtime.pair.split_model import SplitModel
from tests.unit.engine.split_stage import MISSES, Peer, Stage, batch, silent, staged

pytestmark = pytest.mark.torch


@pytest.fixture
def stage(program: Callable[..., Program]) -> Iterator[Stage]:
    yield from staged(program)


ONE = (0, 0, 1, 1, 1, 2, 2, 2)
TWO = (0, 0, 0, 1, 2, 2, 2, 3)


@pytest.fixture
def other(program: Callable[..., Program]) -> Iterator[Stage]:
    """A second Shadow of the same model."""
    yield from staged(program)


def with_both(stage: Stage, other: Stage, blocks: Sequence[int], others: Sequence[int] | None = None) -> SplitModel:
    other.split(blocks if others is None else others, TWO)
    return stage.split(blocks, ONE, beside=other)


@pytest.mark.parametrize("blocks", [[0], [1, 2], [0, 1, 2, 3, 4, 5, 6], [0, 2, 4, 6], [0, 5, 6]])
def test_two_shadows_answer_as_the_whole_model_does(stage: Stage, other: Stage, blocks: list[int]) -> None:
    split = with_both(stage, other, blocks)
    runs = len(stage.layers.runs(blocks))
    for samples in range(2, 9):
        x = batch(samples, samples)
        assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
        given_away = [share for share in (ONE[samples - 1], TWO[samples - 1]) if share]
        assert [timing.samples for timing in split.timings] == given_away * runs
        assert {timing.outcome for timing in split.timings} <= {Outcome.ANSWERED}


@pytest.mark.parametrize(("peer", "outcome"), MISSES, ids=[peer.__name__ for peer, _ in MISSES])
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
def test_what_one_of_two_does_costs_the_other_nothing(
    stage: Stage, other: Stage, peer: Peer, outcome: Outcome, *, first: bool
) -> None:
    split = with_both(stage, other, [1, 2, 3])
    bad, good = (stage, other) if first else (other, stage)
    bad.peer = peer
    for miss in range(1, MAX_MISSES + 2):
        x = batch(8, miss)
        assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
        assert (bad.partner.over is not None) == (miss >= MAX_MISSES)
        outcomes = (
            [Outcome.ANSWERED] if miss > MAX_MISSES else [outcome, Outcome.ANSWERED] if first else [Outcome.ANSWERED, outcome]
        )
        assert [timing.outcome for timing in split.timings] == outcomes
    assert good.partner.over is None
    # The share of the one that has ended is the Body's now.
    assert split.samples(8) == (TWO if first else ONE)[7]


def test_two_that_are_silent_are_waited_for_once(stage: Stage, other: Stage) -> None:
    """Each is predicted to take 300 ms, from its hand-over on: both are given up 600 ms later, not 1200."""
    other.split([1, 2], TWO, [[300.0] * 8])
    split = stage.split([1, 2], ONE, [[300.0] * 8], beside=other)
    stage.peer = other.peer = silent
    began_s = time.monotonic()
    x = batch(8)
    assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
    assert 0.59 < time.monotonic() - began_s < 1.19


def test_a_shadow_with_other_blocks_has_no_part_in_the_runs_that_it_lacks(stage: Stage, other: Stage) -> None:
    """While blocks change: one Shadow has its new ones before the other."""
    split = with_both(stage, other, [1, 2], [2, 3])
    x = batch(8)
    assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
    assert [timing.samples for timing in split.timings] == [ONE[7]]
    split = with_both(stage, other, [0, 2, 3], [2, 3])
    assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
    assert [timing.samples for timing in split.timings] == [ONE[7], ONE[7], TWO[7]]


def test_splits_that_are_too_much_together_leave_the_body_a_sample(stage: Stage, other: Stage) -> None:
    """While splits change: the sum is too large for a moment."""
    other.split([1], (0, 1, 2, 3))
    split = stage.split([1], (0, 1, 2, 3), beside=other)
    for samples in (2, 3, 4, 8):
        x = batch(samples)
        assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
        assert split.samples(samples) == samples - 1
