"""A Body with one block for each operation, and a Shadow that is played by the test: honest, or wrong in one of many ways."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gnomon_core import packets, shared_memory
from gnomon_core.blocks import Block, Layers
from gnomon_core.pairs import Pair
from gnomon_core.program import Program
from gnomon_runtime.engine import Executor, LoadedProgram
from gnomon_runtime.engine.segments import Flow, Segment
from gnomon_runtime.engine.weights import LoadedWeights
from gnomon_runtime.pair.headers import MAX_BYTES, Kind, Message
from gnomon_runtime.pair.link import Link, Outcome
from gnomon_runtime.pair.partner import Partner, Predictions
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
        beside: "Stage | None" = None,
    ) -> SplitModel:
        """A model with this Shadow, and with the one of another stage beside it."""
        pair = Pair(1, tuple(blocks), tuple(split))
        self.partner = Partner("s", pair, self.body, Predictions(expected_ms), self.layers)
        self.body.act = self.act
        return SplitModel(self.model, self.layers, [self.partner, *([beside.partner] if beside else [])], blocks)

    def act(self) -> None:
        for asked in self.shadow.pending():
            if asked.kind is Kind.COMPUTE:
                self.peer(self, asked)

    def compute(self, asked: Message) -> tuple[Tensor, ...]:
        segment = Segment(self.program, self.flow.border(asked.begin, asked.end), WEIGHTS)
        return segment.run(asked.samples, self.shadow.to.read(asked.rows))

    def answer(self, asked: Message, outputs: Sequence[Tensor], **changes: Any) -> Message:
        rows = self.shadow.back.write(outputs)
        assert rows is not None
        return replace(replace(asked, kind=Kind.DONE, rows=rows, compute_s=0.001), **changes)

    def raw(self, data: bytes) -> None:
        self.shadow._socket.send(data)

    def close(self) -> None:
        self.body.close()
        self.shadow.close()


def honest(stage: Stage, asked: Message) -> None:
    stage.shadow.send(stage.answer(asked, stage.compute(asked)))


def staged(program: Callable[..., Program]) -> Iterator[Stage]:
    """A stage for as long as a test lasts."""
    made = Stage(program(CALLS, "y", weights=WEIGHTS))
    yield made
    made.close()


def batch(samples: int, seed: int = 0) -> Tensor:
    """Whole numbers: with weights in sixteenths every sum is exact, in whatever order a kernel adds."""
    return torch.randint(-8, 9, (samples, 4), generator=torch.Generator().manual_seed(seed)).float()


def silent(stage: Stage, asked: Message) -> None:
    """Nothing comes back."""


def late(stage: Stage, asked: Message) -> None:
    """The answer to the hand-over before this one, with numbers that are wrong for this one."""
    stage.shadow.send(stage.answer(asked, [torch.full((asked.samples, 4), 7.0)], sequence=asked.sequence - 1))


def future(stage: Stage, asked: Message) -> None:
    stage.shadow.send(stage.answer(asked, [torch.full((asked.samples, 4), 7.0)], sequence=asked.sequence + 1))


def more_rows(stage: Stage, asked: Message) -> None:
    stage.shadow.send(stage.answer(asked, [torch.ones(asked.samples + 1, 4)], samples=asked.samples + 1))


def other_shape(stage: Stage, asked: Message) -> None:
    stage.shadow.send(stage.answer(asked, [torch.ones(asked.samples, 5)]))


def other_type(stage: Stage, asked: Message) -> None:
    stage.shadow.send(stage.answer(asked, [torch.ones(asked.samples, 4, dtype=torch.int32)]))


def more_tensors(stage: Stage, asked: Message) -> None:
    stage.shadow.send(stage.answer(asked, [torch.ones(asked.samples, 4)] * 2))


def no_tensors(stage: Stage, asked: Message) -> None:
    stage.shadow.send(stage.answer(asked, []))


def outside(stage: Stage, asked: Message) -> None:
    answer = stage.answer(asked, stage.compute(asked))
    stage.shadow.send(replace(answer, rows=(replace(answer.rows[0], offset=SIZE),)))


def echo(stage: Stage, asked: Message) -> None:
    stage.shadow.send(asked)


def noise(stage: Stage, asked: Message) -> None:
    stage.raw(b"\xff" * 100)


def huge(stage: Stage, asked: Message) -> None:
    stage.raw(b"GNP1" + bytes(MAX_BYTES))


def failed(stage: Stage, asked: Message) -> None:
    stage.shadow.send(replace(asked, kind=Kind.FAILED, rows=()))


def refused(stage: Stage, asked: Message) -> None:
    stage.shadow.send(replace(asked, kind=Kind.REFUSED, rows=()))


def hang_up(stage: Stage, asked: Message) -> None:
    stage.shadow._socket.close()


def flood(stage: Stage, asked: Message) -> None:
    """As many old answers as the socket takes."""
    while stage.shadow.send(stage.answer(asked, [torch.full((asked.samples, 4), 7.0)], sequence=asked.sequence - 1)):
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
