"""A model that a Body shares with one or more Shadows, honest or wrong in one of many ways."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnomon_core import packets, shared_memory
from gnomon_core.blocks import Block, Layers
from gnomon_core.pairs import Pair
from gnomon_core.program import Program
from gnomon_runtime.engine import Executor, LoadedProgram
from gnomon_runtime.engine.segments import Flow, Segment
from gnomon_runtime.engine.weights import LoadedWeights
from gnomon_runtime.pair.headers import MAX_BYTES, Kind, Message, encode
from gnomon_runtime.pair.link import MAX_PENDING, Link, Outcome
from gnomon_runtime.pair.partner import MAX_HURRIED, MAX_MISSES, Partner, Predictions
from gnomon_runtime.pair.split_model import SplitModel

WEIGHTS = {"w": torch.arange(16.0).reshape(4, 4) / 8 - 1, "v": torch.arange(16.0).reshape(4, 4) / 16}
CALLS: list[tuple[Any, ...]] = [
    ("aten.mul.Tensor", ("%x", 2.0), "a"),
    ("aten.linear.default", ("%a", "%w"), "b"),
    ("aten.relu.default", ("%b",), "c"),
    ("aten.add.Tensor", ("%c", "%a"), "d"),
    ("aten.linear.default", ("%d", "%v"), "e"),
    ("aten.relu.default", ("%e",), "f"),
    ("aten.add.Tensor", ("%f", "%d"), "y"),
]
SIZE = 1 << 16


class Provoked(Link):
    """A Body's link whose Shadow acts as soon as it has been told."""

    act: Callable[[], None]

    def hand_over(self, begin: int, end: int, values: Sequence[Tensor], first_row: int) -> Outcome | None:
        outcome = super().hand_over(begin, end, values, first_row)
        self.act()
        return outcome


Peer: TypeAlias = "Callable[[Stage, Message], None]"


class Stage:
    """A Body with one block for each operation, and a Shadow that is played by the test."""

    partner: Partner

    def __init__(self, program: Program) -> None:
        self.program = program
        flow = Flow(program)
        borders = [flow.border(index, index + 1) for index in range(len(program.operations))]
        blocks = [Block("", b.begin, b.end, b.reads, b.makes, b.weights, 1, 1, splittable=True) for b in borders]
        names = {name for border in borders for name in (*border.reads, *border.makes)}
        self.layers = Layers("", program.outputs, tuple(blocks), dict.fromkeys(names, 16))
        weights = LoadedWeights(WEIGHTS, "shared", 0, 0.0)
        self.model = LoadedProgram(program.signature, Executor(program, WEIGHTS), weights, program)
        body, shadow = packets.socket_pair()
        to, back = shared_memory.make("to", SIZE), shared_memory.make("back", SIZE)
        to_read, back_read = shared_memory.reader(to), shared_memory.reader(back)
        self.body = Provoked([body.detach(), to, back_read], body=True)
        self.shadow = Link([shadow.detach(), to_read, back], body=False)
        self.flow = flow
        self.peer: Peer = honest

    def split(
        self,
        blocks: Sequence[int],
        split: Sequence[int] = (0, 1, 1, 2, 2, 3, 3, 4),
        expected_ms: Sequence[Sequence[float]] = (),
        second_stage: "Stage | None" = None,
    ) -> SplitModel:
        """A model with this Shadow, and with the one of another stage beside it."""
        pair = Pair(1, tuple(blocks), tuple(split))
        self.partner = Partner("s", pair, self.body, Predictions(expected_ms), self.layers)
        self.body.act = self.act
        return SplitModel(self.model, self.layers, [self.partner, *([second_stage.partner] if second_stage else [])], blocks)

    def act(self) -> None:
        for request in self.shadow.pending():
            if request.kind is Kind.COMPUTE:
                self.peer(self, request)

    def compute(self, request: Message) -> tuple[Tensor, ...]:
        segment = Segment(self.program, self.flow.border(request.begin, request.end), WEIGHTS)
        return segment.run(request.samples, self.shadow.to.read(request.rows))

    def answer(self, request: Message, outputs: Sequence[Tensor], **changes: Any) -> Message:
        rows = self.shadow.back.write(outputs)
        assert rows is not None
        return replace(replace(request, kind=Kind.DONE, rows=rows, compute_s=0.001), **changes)

    def raw(self, data: bytes) -> None:
        self.shadow._socket.send(data)

    def close(self) -> None:
        self.body.close()
        self.shadow.close()


def honest(stage: Stage, request: Message) -> None:
    stage.shadow.send(stage.answer(request, stage.compute(request)))


def staged(program: Callable[..., Program]) -> Iterator[Stage]:
    """A stage for as long as a test lasts."""
    made = Stage(program(CALLS, "y", weights=WEIGHTS))
    yield made
    made.close()


def batch(samples: int, seed: int = 0) -> Tensor:
    """Whole numbers: with weights in sixteenths every sum is exact, in whatever order a kernel adds."""
    return torch.randint(-8, 9, (samples, 4), generator=torch.Generator().manual_seed(seed)).float()


def silent(stage: Stage, request: Message) -> None:
    """Nothing comes back."""


def late(stage: Stage, request: Message) -> None:
    """The answer to the hand-over before this one, with numbers that are wrong for this one."""
    stage.shadow.send(stage.answer(request, [torch.full((request.samples, 4), 7.0)], sequence=request.sequence - 1))


def future(stage: Stage, request: Message) -> None:
    stage.shadow.send(stage.answer(request, [torch.full((request.samples, 4), 7.0)], sequence=request.sequence + 1))


def more_rows(stage: Stage, request: Message) -> None:
    stage.shadow.send(stage.answer(request, [torch.ones(request.samples + 1, 4)], samples=request.samples + 1))


def other_shape(stage: Stage, request: Message) -> None:
    stage.shadow.send(stage.answer(request, [torch.ones(request.samples, 5)]))


def other_type(stage: Stage, request: Message) -> None:
    stage.shadow.send(stage.answer(request, [torch.ones(request.samples, 4, dtype=torch.int32)]))


def more_tensors(stage: Stage, request: Message) -> None:
    stage.shadow.send(stage.answer(request, [torch.ones(request.samples, 4)] * 2))


def no_tensors(stage: Stage, request: Message) -> None:
    stage.shadow.send(stage.answer(request, []))


def outside(stage: Stage, request: Message) -> None:
    answer = stage.answer(request, stage.compute(request))
    stage.shadow.send(replace(answer, rows=(replace(answer.rows[0], offset=SIZE),)))


def echo(stage: Stage, request: Message) -> None:
    stage.shadow.send(request)


def noise(stage: Stage, request: Message) -> None:
    stage.raw(b"\xff" * 100)


def huge(stage: Stage, request: Message) -> None:
    stage.raw(b"GNP1" + bytes(MAX_BYTES))


def failed(stage: Stage, request: Message) -> None:
    stage.shadow.send(replace(request, kind=Kind.FAILED, rows=()))


def refused(stage: Stage, request: Message) -> None:
    stage.shadow.send(replace(request, kind=Kind.REFUSED, rows=()))


def hang_up(stage: Stage, request: Message) -> None:
    stage.shadow._socket.close()


def flood(stage: Stage, request: Message) -> None:
    """Send as many old answers as the socket takes."""
    while stage.shadow.send(stage.answer(request, [torch.full((request.samples, 4), 7.0)], sequence=request.sequence - 1)):
        pass


MISSES: list[tuple[Peer, Outcome]] = [
    (silent, Outcome.LATE),
    (late, Outcome.LATE),
    (future, Outcome.LATE),
    (flood, Outcome.LATE),
    (more_rows, Outcome.NONSENSE),
    (other_shape, Outcome.NONSENSE),
    (other_type, Outcome.NONSENSE),
    (more_tensors, Outcome.NONSENSE),
    (no_tensors, Outcome.NONSENSE),
    (outside, Outcome.NONSENSE),
    (echo, Outcome.NONSENSE),
    (noise, Outcome.NONSENSE),
    (huge, Outcome.NONSENSE),
    (failed, Outcome.FAILED),
    (refused, Outcome.REFUSED),
]


pytestmark = pytest.mark.torch


@pytest.fixture
def stage(program: Callable[..., Program]) -> Iterator[Stage]:
    yield from staged(program)


@pytest.mark.parametrize("blocks", [[0], [6], [1, 2], [0, 1, 2, 3, 4, 5, 6], [0, 2, 4, 6], [1, 2, 5], [0, 5, 6]])
def test_the_answer_is_that_of_the_whole_model(stage: Stage, blocks: list[int]) -> None:
    split = stage.split(blocks)
    runs = len(stage.layers.runs(blocks))
    for samples in range(2, 9):
        for again in range(3):
            x = batch(samples, again)
            assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
            assert [timing.outcome for timing in split.timings] == [Outcome.ANSWERED] * runs
            assert {timing.samples for timing in split.timings} == {(0, 1, 1, 2, 2, 3, 3, 4)[samples - 1]}


def test_split_follows_the_table(stage: Stage) -> None:
    split = stage.split([1], (0, 1, 2, 9))
    assert [split.samples(size) for size in (1, 2, 3, 4, 8)] == [0, 1, 2, 3, 7]


@pytest.mark.parametrize(("peer", "outcome"), MISSES, ids=[peer.__name__ for peer, _ in MISSES])
def test_a_miss_costs_time_and_no_answer_and_three_end_the_pair(stage: Stage, peer: Peer, outcome: Outcome) -> None:
    split = stage.split([1, 2, 3])
    stage.peer = peer
    for miss in range(1, MAX_MISSES + 2):
        x = batch(5, miss)
        assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
        assert [timing.outcome for timing in split.timings] == ([outcome] if miss <= MAX_MISSES else [])
        assert (stage.partner.over is not None) == (miss >= MAX_MISSES)
    assert split.samples(8) == 0


def test_an_answer_in_between_forgives(stage: Stage) -> None:
    split = stage.split([1, 2, 3])
    for turn in range(12):
        stage.peer = honest if turn % MAX_MISSES == MAX_MISSES - 1 else noise
        x = batch(4, turn)
        assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
    assert stage.partner.over is None


def test_a_shadow_that_has_gone_ends_the_pair_at_once(stage: Stage) -> None:
    split = stage.split([1, 4])
    stage.peer = hang_up
    x = batch(6)
    assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
    assert [timing.outcome for timing in split.timings] == [Outcome.GONE]
    assert stage.partner.over == "the Shadow has gone"


def test_a_shadow_that_reads_nothing_stops_nobody(stage: Stage) -> None:
    """The socket fills up with what is never read; each hand-over is then a miss at once."""
    stage.body.act = lambda: None
    while stage.body.send(Message(Kind.COMPUTE, 0, 0, 1, 1)):
        pass
    split = stage.split([1], (0, 1))
    stage.body.act = lambda: None
    x = batch(2)
    assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
    assert [timing.outcome for timing in split.timings] == [Outcome.FULL]


def test_buffers_that_are_too_small_are_a_miss(program: Callable[..., Program], stage: Stage) -> None:
    stage.body.to.size_bytes = 31
    split = stage.split([1])
    x = batch(4)
    assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
    assert [timing.outcome for timing in split.timings] == [Outcome.FULL]


def test_a_batch_without_time_does_not_wait_and_blames_nobody(stage: Stage) -> None:
    """The profile says 10 s, the batch has 20 ms."""
    split = stage.split([1, 2], (0, 1, 1, 2), [[10_000.0] * 4])
    stage.peer = silent
    for turn in range(2 * MAX_MISSES):
        x = batch(4, turn)
        began_s = time.monotonic()
        assert torch.equal(split.run([x], 0.02)[0], stage.model.executor.run([x])[0])
        assert time.monotonic() - began_s < 5.0
        assert [timing.outcome for timing in split.timings] == [Outcome.HURRIED]
    assert stage.partner.over is None


def test_silent_shadow_is_blamed_despite_urgent_batches(stage: Stage) -> None:
    """Predicted 200 ms, of which a batch that has 350 cannot wait twice: a frozen Shadow would cost each of them what it has."""
    split = stage.split([1, 2], (0, 1), [[200.0]])
    stage.peer = silent
    for turn in range(10 * MAX_MISSES):  # one that is held up itself has no time left, and blames nobody
        if stage.partner.over is None:
            split.run([batch(2, turn)], 0.35)
    assert stage.partner.over == f"{MAX_MISSES} misses in a row, the last one late"


def test_unused_shadow_is_ended(stage: Stage) -> None:
    """Predicted 10 s, and each batch has 2 ms: nobody can say that it is frozen, and it would cost each of them those."""
    split = stage.split([1, 2], (0, 1, 1, 2), [[10_000.0] * 4])
    for turn in range(2 * MAX_HURRIED):
        assert stage.partner.over is None
        stage.peer = honest if turn == MAX_HURRIED - 1 else silent
        x = batch(4, turn)
        assert torch.equal(split.run([x], 0.002)[0], stage.model.executor.run([x])[0])
    assert stage.partner.over.startswith(f"no answer to {MAX_HURRIED} hand-overs")


def test_a_batch_that_only_the_shadow_can_save_waits_for_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Body takes 300 ms for its row: of 580 there are not 300 left to compute the Shadow's as well."""
    split = stage.split([1, 2], (0, 1), [[1000.0]])
    compute, take_back, waits_s = split._segments[1].run, stage.body.take_back, list[float]()

    def slowly(*handed: Any) -> tuple[Tensor, ...]:
        time.sleep(0.3)
        return compute(*handed)

    def taken(until_s: float) -> Message | Outcome:
        waits_s.append(until_s - time.monotonic())
        return take_back(until_s)

    monkeypatch.setattr(split._segments[1], "run", slowly)
    monkeypatch.setattr(stage.body, "take_back", taken)
    split.run([batch(2)], 0.58)
    assert waits_s[0] > 0


def test_body_waits_for_its_shadow_as_long_as_the_profile_says(stage: Stage) -> None:
    """Predicted 50 ms: a miss takes 100 ms, and not the 5 ms that nothing predicted would."""
    split = stage.split([1, 2], (0, 1), [[50.0]])
    stage.peer = silent
    split.run([batch(2)], None)
    [timing] = split.timings
    assert timing.expected_s == pytest.approx(0.05)
    # The time limit begins at the hand-over, so that the Body's own rows count: a busy machine computes them slowly.
    assert timing.own_s is not None
    assert 0.09 < timing.own_s + timing.waited_s < 5.0


def test_a_batch_that_raises_leaves_nothing_for_the_next(program: Callable[..., Program]) -> None:
    """The Body's own rows raise while the Shadow computes; its answer comes later, and belongs to nobody."""
    calls = [
        ("aten.embedding.default", ("%w", "%x"), "rows"),
        ("aten.sum.dim_IntList", ("%rows", [1]), "y"),
    ]
    stage = Stage(program(calls, "y", weights=WEIGHTS, datatype="INT64", shape=(2,), out_shape=(4,)))
    split = stage.split([0, 1])
    good, bad = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 9], [2, 3]])
    for _ in range(5):
        with pytest.raises(IndexError):
            split.run([bad], None)
        assert torch.equal(split.run([good], None)[0], stage.model.executor.run([good])[0])
        assert [timing.outcome for timing in split.timings] == [Outcome.ANSWERED]
    stage.close()


def test_values_that_are_not_rows_of_samples_are_never_split(program: Callable[..., Program]) -> None:
    """The transposed weight of the second operation has 4 rows, whatever the batch."""
    calls = [
        ("aten.t.default", ("%w",), "turned"),
        ("aten.matmul.default", ("%x", "%turned"), "y"),
    ]
    stage = Stage(program(calls, "y", weights=WEIGHTS))
    split = stage.split([1])
    x = batch(5)
    for _ in range(2):
        assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
    assert stage.partner.over is not None
    assert "not one row a sample" in stage.partner.over
    stage.close()


def test_late_answers_make_the_body_wait_longer(stage: Stage) -> None:
    split = stage.split([1, 2], (0, 1), [[4.0]])
    stage.peer = lambda stage, request: None if request.sequence == 1 else late_truth(stage, request)
    expected = []
    for _ in range(3):
        split.run([batch(2)], None)
        expected.append(split.timings[0].expected_s)
    assert expected[0] == expected[1] == pytest.approx(0.004)
    # 0.7 + 0.3 · 12/4 times 4 ms: what the first one took is known when the third is predicted.
    assert expected[2] == pytest.approx(0.0064)


def late_truth(stage: Stage, request: Message) -> None:
    stage.shadow.send(stage.answer(request, stage.compute(request), sequence=request.sequence - 1, compute_s=0.012))


def test_blocks_that_are_not_the_models_are_refused(stage: Stage) -> None:
    with pytest.raises(ValueError, match="blocks"):
        stage.split([1, 7])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_damaged_answers_never_reach_a_batch(stage: Stage, data: st.DataObject) -> None:
    """Bytes of an honest answer changed, cut or added anywhere but in the tensors; several messages, some of them torn."""

    def peer(stage: Stage, request: Message) -> None:
        for _ in range(data.draw(st.integers(1, 3))):
            damaged = bytearray(encode(stage.answer(request, stage.compute(request))))
            for _ in range(data.draw(st.integers(1, 6))):
                damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
            stage.raw(bytes(damaged[: data.draw(st.integers(1, len(damaged)))] + bytes(data.draw(st.integers(0, 80)))))

    split = stage.split([1, 2, 5])
    stage.peer = peer
    x = batch(data.draw(st.integers(2, 8)))
    got = split.run([x], None)[0]
    # A changed offset or order that stays inside the buffer gives other numbers: that is a lying Shadow, which nothing can see.
    assert got.shape == x.shape
    stage.peer = honest
    if stage.partner.over is None:
        split = stage.split([1, 2, 5])
        assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])


def test_a_look_at_a_flooded_socket_is_bounded(stage: Stage) -> None:
    sent = 0
    while stage.shadow.send(Message(Kind.DONE, 0, 0, 1, 1)):
        sent += 1
    if sent <= MAX_PENDING:
        pytest.skip(f"the socket holds {sent} messages")
    with pytest.raises(ValueError, match="unexpected messages"):
        stage.body.pending()


ONE = (0, 0, 1, 1, 1, 2, 2, 2)
TWO = (0, 0, 0, 1, 2, 2, 2, 3)


@pytest.fixture
def other(program: Callable[..., Program]) -> Iterator[Stage]:
    """A second Shadow of the same model."""
    yield from staged(program)


def with_both(stage: Stage, other: Stage, blocks: Sequence[int], others: Sequence[int] | None = None) -> SplitModel:
    other.split(blocks if others is None else others, TWO)
    return stage.split(blocks, ONE, second_stage=other)


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
def test_one_shadow_never_delays_the_other(stage: Stage, other: Stage, peer: Peer, outcome: Outcome, *, first: bool) -> None:
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
    split = stage.split([1, 2], ONE, [[300.0] * 8], second_stage=other)
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
    split = stage.split([1], (0, 1, 2, 3), second_stage=other)
    for samples in (2, 3, 4, 8):
        x = batch(samples)
        assert torch.equal(split.run([x], None)[0], stage.model.executor.run([x])[0])
        assert split.samples(samples) == samples - 1
