"""A Body here and a Shadow on a node of its own, played: what it may do with a hand-over."""

import select
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gnomon_core.blocks import Block, Layers
from gnomon_core.pairs import Pair
from gnomon_core.program import Program
from gnomon_runtime.engine import Executor, LoadedProgram
from gnomon_runtime.engine.segments import Flow, Segment
from gnomon_runtime.engine.weights import LoadedWeights
from gnomon_runtime.pair.headers import Kind, Message, encode
from gnomon_runtime.pair.link import Outcome, OwnBuffer
from gnomon_runtime.pair.partner import Partner, Predictions
from gnomon_runtime.pair.remote_link import SWITCHING, Incoming, Outgoing, RemoteLink
from gnomon_runtime.pair.split_model import SplitModel

WEIGHTS = {"w": torch.arange(16.0).reshape(4, 4) / 8 - 1}
CALLS: list[tuple[Any, ...]] = [
    ("aten.mul.Tensor", ("%x", 2.0), "a"),
    ("aten.linear.default", ("%a", "%w"), "b"),
    ("aten.relu.default", ("%b",), "c"),
    ("aten.add.Tensor", ("%c", "%a"), "y"),
]
SPLIT = (0, 1, 1, 2, 2, 3, 3, 4)
TOKEN = "of-the-shadow"


class PlayedShadow:
    """A node of its own, in a thread: agrees to the upgrade and does with each hand-over what the test says."""

    def __init__(self, program: Program) -> None:
        self.program, self.flow = program, Flow(program)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.answer: bytes = SWITCHING
        self.act: Callable[[PlayedShadow, Message], None] = honest
        self.heard = b""
        self.connection: socket.socket | None = None
        self.to, self.back = OwnBuffer(1 << 20), OwnBuffer(1 << 20)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def _serve(self) -> None:
        try:
            while True:
                connection, _ = self.listener.accept()
                self.connection = connection
                with connection:
                    connection.settimeout(10)
                    self.heard = connection.recv(4096)
                    connection.sendall(self.answer)
                    incoming = Incoming(self.to)
                    while (message := incoming.take(connection)) is not None:
                        self.act(self, message)
        except OSError:
            return

    def compute(self, asked: Message) -> Sequence[Tensor]:
        segment = Segment(self.program, self.flow.border(asked.begin, asked.end), WEIGHTS)
        return segment.run(asked.samples, self.to.read(asked.rows))

    def done(self, asked: Message, outputs: Sequence[Tensor], **changes: Any) -> Message:
        rows = self.back.write(outputs)
        assert rows is not None
        return replace(replace(asked, kind=Kind.DONE, rows=rows, compute_s=0.001), **changes)

    def send(self, message: Message) -> None:
        assert self.connection is not None
        assert Outgoing(message, self.back).push(self.connection)

    def raw(self, data: bytes) -> None:
        self.connection.sendall(data)

    def close(self) -> None:
        self.listener.close()
        if self.connection is not None:
            self.connection.close()


def honest(shadow: PlayedShadow, asked: Message) -> None:
    shadow.send(shadow.done(asked, shadow.compute(asked)))


class Stage:
    """A Body with one block for each operation."""

    def __init__(self, program: Program) -> None:
        flow = Flow(program)
        borders = [flow.border(index, index + 1) for index in range(len(program.operations))]
        blocks = [Block("", b.begin, b.end, b.reads, b.makes, b.weights, 1, 1, splittable=True) for b in borders]
        names = {name for border in borders for name in (*border.reads, *border.makes)}
        self.layers = Layers("", program.outputs, tuple(blocks), dict.fromkeys(names, 16))
        self.model = LoadedProgram(
            program.signature, Executor(program, WEIGHTS), LoadedWeights(WEIGHTS, "shared", 0, 0.0), program
        )
        self.shadow = PlayedShadow(program)
        self.links: list[RemoteLink] = []

    def link(self, token: str = TOKEN) -> RemoteLink:
        self.links.append(RemoteLink(self.shadow.url, token))
        return self.links[-1]

    def pair(self, link: RemoteLink, expected_ms: float = 500.0) -> tuple[SplitModel, Partner]:
        pair = Pair(1, (1, 2), SPLIT, "n2")
        partner = Partner("s-1", pair, link, Predictions(((expected_ms,) * 8,)), self.layers)
        return SplitModel(self.model, self.layers, [partner], pair.blocks), partner

    def expected(self, x: Tensor) -> Tensor:
        return self.model.executor.run([x])[0]

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.shadow.close()


def batch(samples: int, seed: int = 0) -> Tensor:
    """Whole numbers: with weights in eighths every sum is exact."""
    return torch.randint(-8, 9, (samples, 4), generator=torch.Generator().manual_seed(seed)).float()


def await_ready(link: RemoteLink) -> RemoteLink:
    assert select.select([link.fileno()], [], [], 5)[0]
    assert link.pending() == []
    assert link.ready
    return link


def silent(shadow: PlayedShadow, asked: Message) -> None:
    """Nothing comes back."""


def late(shadow: PlayedShadow, asked: Message) -> None:
    """The answer to the hand-over before this one, with numbers that are wrong for this one."""
    shadow.send(shadow.done(asked, [torch.full((asked.samples, 4), 7.0)], sequence=asked.sequence - 1))


def more_rows(shadow: PlayedShadow, asked: Message) -> None:
    shadow.send(shadow.done(asked, [torch.ones(asked.samples + 1, 4)], samples=asked.samples + 1))


def other_type(shadow: PlayedShadow, asked: Message) -> None:
    shadow.send(shadow.done(asked, [torch.ones(asked.samples, 4, dtype=torch.int32)]))


def half(shadow: PlayedShadow, asked: Message) -> None:
    """An answer that stops in its middle, and stays there."""
    answer = shadow.done(asked, shadow.compute(asked))
    shadow.raw(encode(answer) + b"\0")


def failed(shadow: PlayedShadow, asked: Message) -> None:
    shadow.send(replace(asked, kind=Kind.FAILED, rows=()))


def refused(shadow: PlayedShadow, asked: Message) -> None:
    shadow.send(replace(asked, kind=Kind.REFUSED, rows=()))


def hang_up(shadow: PlayedShadow, asked: Message) -> None:
    shadow.connection.shutdown(socket.SHUT_RDWR)


MISSES = [
    (silent, Outcome.LATE),
    (late, Outcome.LATE),
    (more_rows, Outcome.NONSENSE),
    (other_type, Outcome.NONSENSE),
    (failed, Outcome.FAILED),
    (refused, Outcome.REFUSED),
]
