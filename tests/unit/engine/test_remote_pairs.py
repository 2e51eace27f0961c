"""A Body and a Shadow on another node: right answers in bounded time, and a refusal to everybody else."""

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gnomon_core import packets
from gnomon_core.blocks import Block, Layers
from gnomon_core.launch import Launch
from gnomon_core.pairs import Pair
from gnomon_core.program import Program
from gnomon_core.wire import Frame, Kind, Member
from gnomon_profiler.extractor import Description, capture
from gnomon_runtime.engine import Executor, LoadedProgram
from gnomon_runtime.engine.segments import Flow, Segment
from gnomon_runtime.engine.weights import LoadedWeights
from gnomon_runtime.pair.headers import Kind as Say
from gnomon_runtime.pair.headers import Message, NonsenseError, encode
from gnomon_runtime.pair.link import Outcome, OwnBuffer
from gnomon_runtime.pair.micro_batches import BlocksApplication
from gnomon_runtime.pair.orders import REFUSALS
from gnomon_runtime.pair.partner import MAX_MISSES, Partner, Predictions
from gnomon_runtime.pair.remote_link import SWITCHING, Incoming, Outgoing, RemoteLink, data_path
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


class FakeShadow:
    """A node of its own, in a thread: agrees to the upgrade and does with each hand-over what the test says."""

    def __init__(self, program: Program) -> None:
        self.program, self.flow = program, Flow(program)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.answer: bytes = SWITCHING
        self.act: Callable[[FakeShadow, Message], None] = honest
        self.received = b""
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
                    self.received = connection.recv(4096)
                    connection.sendall(self.answer)
                    incoming = Incoming(self.to)
                    while (message := incoming.take(connection)) is not None:
                        self.act(self, message)
        except OSError:
            return

    def compute(self, request: Message) -> Sequence[Tensor]:
        segment = Segment(self.program, self.flow.border(request.begin, request.end), WEIGHTS)
        return segment.run(request.samples, self.to.read(request.rows))

    def done(self, request: Message, outputs: Sequence[Tensor], **changes: Any) -> Message:
        rows = self.back.write(outputs)
        assert rows is not None
        return replace(replace(request, kind=Say.DONE, rows=rows, compute_s=0.001), **changes)

    def send(self, message: Message) -> None:
        assert self.connection is not None
        assert Outgoing(message, self.back).push(self.connection)

    def raw(self, data: bytes) -> None:
        self.connection.sendall(data)

    def close(self) -> None:
        self.listener.close()
        if self.connection is not None:
            self.connection.close()


def honest(shadow: FakeShadow, request: Message) -> None:
    shadow.send(shadow.done(request, shadow.compute(request)))


class Stage:
    """A Body with one block for each operation."""

    def __init__(self, program: Program) -> None:
        flow = Flow(program)
        borders = [flow.border(index, index + 1) for index in range(len(program.operations))]
        blocks = [Block("", b.begin, b.end, b.reads, b.makes, b.weights, 1, 1, splittable=True) for b in borders]
        names = {name for border in borders for name in (*border.reads, *border.makes)}
        self.layers = Layers("", program.outputs, tuple(blocks), dict.fromkeys(names, 16))
        self.model = LoadedProgram(
            program.signature,
            Executor(program, WEIGHTS),
            LoadedWeights(WEIGHTS, "shared", 0, 0.0),
            program,
        )
        self.shadow = FakeShadow(program)
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


def silent(shadow: FakeShadow, request: Message) -> None:
    """Nothing comes back."""


def late(shadow: FakeShadow, request: Message) -> None:
    """The answer to the hand-over before this one, with numbers that are wrong for this one."""
    shadow.send(shadow.done(request, [torch.full((request.samples, 4), 7.0)], sequence=request.sequence - 1))


def more_rows(shadow: FakeShadow, request: Message) -> None:
    shadow.send(shadow.done(request, [torch.ones(request.samples + 1, 4)], samples=request.samples + 1))


def other_type(shadow: FakeShadow, request: Message) -> None:
    shadow.send(shadow.done(request, [torch.ones(request.samples, 4, dtype=torch.int32)]))


def half(shadow: FakeShadow, request: Message) -> None:
    """An answer that stops in its middle, and stays there."""
    answer = shadow.done(request, shadow.compute(request))
    shadow.raw(encode(answer) + b"\0")


def failed(shadow: FakeShadow, request: Message) -> None:
    shadow.send(replace(request, kind=Say.FAILED, rows=()))


def refused(shadow: FakeShadow, request: Message) -> None:
    shadow.send(replace(request, kind=Say.REFUSED, rows=()))


def hang_up(shadow: FakeShadow, request: Message) -> None:
    shadow.connection.shutdown(socket.SHUT_RDWR)


MISSES = [
    (silent, Outcome.LATE),
    (late, Outcome.LATE),
    (more_rows, Outcome.NONSENSE),
    (other_type, Outcome.NONSENSE),
    (failed, Outcome.FAILED),
    (refused, Outcome.REFUSED),
]


pytestmark = pytest.mark.torch


@pytest.fixture
def stage(program: Callable[..., Program]) -> Iterator[Stage]:
    made = Stage(program(CALLS, "y", weights=WEIGHTS))
    yield made
    made.close()


def test_the_answer_is_that_of_the_whole_model(stage: Stage) -> None:
    link = await_ready(stage.link())
    split, partner = stage.pair(link)
    for samples in range(2, 9):
        x = batch(samples, samples)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
        assert [(timing.outcome, timing.samples) for timing in split.timings] == [(Outcome.ANSWERED, SPLIT[samples - 1])]
    assert partner.over is None
    assert b"GET /gnomon/pair HTTP/1.1\r\n" in stage.shadow.received
    assert b"Authorization: Bearer of-the-shadow\r\n" in stage.shadow.received


def test_until_the_shadow_has_agreed_the_body_computes_alone(stage: Stage) -> None:
    link = stage.link()
    split, _ = stage.pair(link)
    x = batch(4)
    if not link.ready:
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
    await_ready(link)
    split.run([x], None)
    assert len(split.timings) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 401 UNAUTHORIZED\r\nContent-Length: 0\r\n\r\n", "401"),
        (b"nonsense\r\n\r\n", "refuses"),
        (b"", "does not answer"),
        (b"x" * 9000, "does not answer"),
    ],
)
def test_a_shadow_that_refuses_is_gone_with_the_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str
) -> None:
    monkeypatch.setattr("gnomon_runtime.pair.remote_link.CONNECT_S", 0.3)
    stage.shadow.answer = answer
    link = stage.link()
    assert select.select([link.fileno()], [], [], 5)[0]
    for _ in range(2):
        with pytest.raises(packets.PeerGoneError, match=reason):
            link.pending()
    assert not link.ready


def test_unreachable_partner_counts_as_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    link = RemoteLink(f"http://127.0.0.1:{port}", TOKEN)
    assert select.select([link.fileno()], [], [], 5)[0]
    with pytest.raises(packets.PeerGoneError, match="cannot be reached"):
        link.pending()
    link.close()


def test_an_order_names_its_way(stage: Stage) -> None:
    link = data_path({"url": stage.shadow.url, "token": TOKEN}, [])
    assert isinstance(link, RemoteLink)
    await_ready(link)
    link.close()
    with pytest.raises(ValueError, match="url"):
        data_path({"url": "ftp://x", "token": TOKEN}, [])
    with pytest.raises(KeyError):
        data_path({"url": stage.shadow.url}, [])
    with pytest.raises(ValueError, match="descriptors"):
        data_path({}, [])


@pytest.mark.parametrize(("act", "outcome"), MISSES, ids=[act.__name__ for act, _ in MISSES])
def test_a_miss_costs_time_and_no_answer_and_three_end_the_pair(
    stage: Stage, act: Callable[[FakeShadow, Message], None], outcome: Outcome
) -> None:
    split, partner = stage.pair(await_ready(stage.link()), expected_ms=25.0 if outcome is Outcome.LATE else 500.0)
    stage.shadow.act = act
    for miss in range(1, MAX_MISSES + 2):
        x = batch(5, miss)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
        assert [timing.outcome for timing in split.timings] == ([outcome] if miss <= MAX_MISSES else [])
        assert (partner.over is not None) == (miss >= MAX_MISSES)


def test_network_latency_is_learned_by_the_body(stage: Stage) -> None:
    """The Shadow says 1 ms, and its answers are much longer on their way: they are waited for longer, after the first."""

    def slow_way(shadow: FakeShadow, request: Message) -> None:
        time.sleep(0.3)
        honest(shadow, request)

    link = await_ready(stage.link())
    split, _ = stage.pair(link, expected_ms=50.0)
    stage.shadow.act = slow_way
    expected_s = []
    for turn in range(2):
        x = batch(4, turn)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
        [timing] = split.timings
        expected_s.append(timing.expected_s)
        if timing.outcome is Outcome.LATE:
            assert select.select([link.fileno()], [], [], 5)[0]
    assert expected_s[0] == 0.05
    assert expected_s[1] > 0.05


def test_an_answer_that_stalls_in_its_middle_is_late(stage: Stage) -> None:
    split, partner = stage.pair(await_ready(stage.link()), expected_ms=25.0)
    stage.shadow.act = half
    for turn in range(MAX_MISSES):
        x = batch(4, turn)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
    # The first byte of the second answer is taken for one of the first: whatever comes then is nonsense or late.
    assert partner.over is not None


@pytest.mark.parametrize("raw", [b"\xff" * 200, b"GNP1" + b"\xff" * 60, b"HTTP/1.1 200 OK\r\n\r\n" + b"0" * 60])
def test_noise_ends_the_pair(stage: Stage, raw: bytes) -> None:
    split, partner = stage.pair(await_ready(stage.link()))
    stage.shadow.act = lambda shadow, _: shadow.raw(raw)
    outcomes = []
    for turn in range(4):
        x = batch(4, turn)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
        outcomes += [timing.outcome for timing in split.timings]
    assert outcomes[0] is Outcome.NONSENSE
    assert outcomes[-1] in (Outcome.NONSENSE, Outcome.GONE)
    assert partner.over is not None


def test_a_connection_that_breaks_ends_the_pair_at_once(stage: Stage) -> None:
    split, partner = stage.pair(await_ready(stage.link()))
    stage.shadow.act = hang_up
    x = batch(6)
    assert torch.equal(split.run([x], None)[0], stage.expected(x))
    assert [timing.outcome for timing in split.timings] == [Outcome.GONE]
    assert partner.over == "the Shadow has gone"


def test_a_flood_of_answers_is_nonsense_and_bounded(stage: Stage) -> None:
    link = await_ready(stage.link())
    old = encode(Message(Say.FAILED, 0, 0, 1, 1))
    stage.shadow.raw(old * 1000)
    # Nothing is taken before the flood has ended: a reader that keeps pace on a busy machine would see no flood.
    link._thread.join(30.0)
    for _ in range(2):
        with pytest.raises(NonsenseError):
            link.pending()


def test_a_hand_over_that_is_still_on_its_way_is_not_overtaken(stage: Stage) -> None:
    """The Shadow stops reading: what was handed over fills the kernel's buffers, and each next one is a miss at once."""
    held = threading.Event()

    def stop_reading(_shadow: FakeShadow, _asked: Message) -> None:
        held.wait(10)

    stage.shadow.act = stop_reading
    link = await_ready(stage.link())
    link.to.prepare(64 << 20)
    stage.shadow.to.prepare(64 << 20)
    rows = [torch.ones(2, 8 << 20)]
    assert link.hand_over(0, 1, [torch.ones(1, 4)], 0) is None
    assert link.hand_over(0, 1, rows, 0) is None
    began_s = time.monotonic()
    assert [link.hand_over(0, 1, rows, 0) for _ in range(3)] == [Outcome.FULL] * 3
    # Nobody reads for ten seconds.
    assert time.monotonic() - began_s < 5.0
    held.set()


def test_links_leave_no_thread_and_no_descriptor(stage: Stage) -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    await_ready(stage.link())
    before = held()
    for turn in range(20):
        link = RemoteLink(stage.shadow.url if turn % 2 else "http://127.0.0.1:1", TOKEN)
        if turn % 4 == 3:
            time.sleep(0.01)
        link.close()
    until_s = time.monotonic() + 10
    while held() > before and time.monotonic() < until_s:
        time.sleep(0.01)
    assert held() <= before
    assert os.getpid()


def test_a_body_that_may_have_no_thread_refuses_the_shadow_and_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        # What Python says where a pod has as many as it may.
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    before = eventfds()
    with pytest.raises(REFUSALS, match="no thread"):
        data_path({"url": "http://127.0.0.1:9", "token": TOKEN}, [])
    # Those of other tests' links may be closed meanwhile.
    assert eventfds() <= before


def eventfds() -> int:
    """The open eventfds of this process."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += "eventfd" in str(path.readlink())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    first, second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)
    module = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.Flatten(), torch.nn.Linear(1152, 5)).eval()
    for name, data in capture(module, (torch.zeros(2, 3, 16, 16),), Description("small", "1")).items():
        (made / name).write_bytes(data)
    return made


def application(folder: Path, blocks: tuple[int, ...]) -> BlocksApplication:
    options = {"program": folder / "program.json", "weights": folder / "weights.safetensors", "layers": folder / "layers.json"}
    names: Mapping[str, Any] = {name: str(path) for name, path in options.items()}
    return BlocksApplication(Launch("shadow", "f", "s", max_batch=8, options={**names, "blocks": blocks}))


def operations(folder: Path, first: int, last: int) -> list[int]:
    blocks = json.loads((folder / "layers.json").read_bytes())["blocks"]
    return [blocks[first]["operations"][0], blocks[last]["operations"][1]]


@dataclass
class Client:
    """A Body as the test plays it."""

    connection: socket.socket
    to: OwnBuffer = field(default_factory=lambda: OwnBuffer(1 << 20))
    back: OwnBuffer = field(default_factory=lambda: OwnBuffer(1 << 20))
    sequence: int = 0

    def __post_init__(self) -> None:
        self.incoming = Incoming(self.back)
        self.connection.settimeout(10)
        assert self.connection.recv(len(SWITCHING)) == SWITCHING

    def message(self, operations: list[int], *tensors: torch.Tensor) -> Message:
        rows = self.to.write(tensors)
        assert rows is not None
        self.sequence += 1
        return Message(Say.COMPUTE, self.sequence, operations[0], operations[1], tensors[0].shape[0], rows)

    def send(self, message: Message) -> None:
        assert Outgoing(message, self.to).push(self.connection)

    def take(self) -> Message:
        answer = self.incoming.take(self.connection)
        assert answer is not None
        return answer

    def ask(self, operations: list[int], *tensors: torch.Tensor) -> tuple[Message, list[torch.Tensor]]:
        self.send(self.message(operations, *tensors))
        answer = self.take()
        return answer, [tensor.clone() for tensor in self.back.read(answer.rows)]


@dataclass
class Serving:
    """A Shadow with its connections, each served by a thread as in an image."""

    shadow: BlocksApplication
    ending: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self) -> Client:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            mine = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        self.threads.append(threading.Thread(target=self._serve, args=(theirs,)))
        self.threads[-1].start()
        self.clients.append(Client(mine))
        return self.clients[-1]

    def _serve(self, connection: socket.socket) -> None:
        def turn(task: Callable[[], Message]) -> Message:
            with self.lock:
                return task()

        with connection:
            self.shadow.serve_body(connection, turn, self.ending.is_set)


@contextmanager
def serving(folder: Path, blocks: tuple[int, ...]) -> Iterator[Serving]:
    made = Serving(application(folder, blocks))
    yield made
    made.ending.set()
    for client in made.clients:
        client.connection.close()
    for thread in made.threads:
        thread.join(5)
        assert not thread.is_alive()


def test_a_run_is_computed_in_one_go_and_in_two(folder: Path) -> None:
    with serving(folder, (0, 1)) as served:
        assert served.shadow.hello()["blocks"] == [0, 1]
        client, pictures = served.connect(), torch.randn(6, 3, 16, 16)
        answer, whole = client.ask(operations(folder, 0, 1), pictures)
        assert (answer.kind, answer.sequence, answer.samples) == (Say.DONE, 1, 6)
        assert answer.compute_s > 0
        _, between = client.ask(operations(folder, 0, 0), pictures)
        _, parts = client.ask(operations(folder, 1, 1), *between)
        assert torch.equal(parts[0], whole[0])


def test_tensors_keep_their_layout(folder: Path) -> None:
    with serving(folder, (0,)) as served:
        client, pictures = served.connect(), torch.randn(2, 3, 16, 16)
        _, [straight] = client.ask(operations(folder, 0, 0), pictures)
        _, [last] = client.ask(operations(folder, 0, 0), pictures.to(memory_format=torch.channels_last))
        assert torch.allclose(straight, last, atol=1e-5)


def test_blocks_that_are_not_held_are_refused(folder: Path) -> None:
    with serving(folder, (1,)) as served:
        client, zeros = served.connect(), torch.zeros(2, 3, 16, 16)
        for wanted in (operations(folder, 0, 0), operations(folder, 0, 1), [0, 10**9]):
            assert client.ask(wanted, zeros)[0].kind is Say.REFUSED
        assert client.ask(operations(folder, 1, 1), zeros, zeros)[0].kind is Say.REFUSED


def test_values_of_another_form_fail_without_an_end(folder: Path) -> None:
    with serving(folder, (0,)) as served:
        client = served.connect()
        assert client.ask(operations(folder, 0, 0), torch.zeros(2, 7))[0].kind is Say.FAILED
        assert client.ask(operations(folder, 0, 0), torch.zeros(2, 3, 16, 16))[0].kind is Say.DONE


def test_of_hand_overs_that_wait_only_the_newest_is_computed(folder: Path) -> None:
    """The Body gave the others up."""
    with serving(folder, (0,)) as served:
        client, wanted = served.connect(), operations(folder, 0, 0)
        with served.lock:
            for _ in range(4):
                client.send(client.message(wanted, torch.rand(2, 3, 16, 16)))
            time.sleep(0.2)
        answered = [client.take().sequence]
        while answered[-1] != 4:
            answered.append(client.take().sequence)
    # One may have been begun before the others came.
    assert len(answered) <= 2


def test_a_body_that_comes_after_another_takes_its_place(folder: Path) -> None:
    with serving(folder, (0,)) as served:
        first = served.connect()
        second = served.connect()
        with pytest.raises(packets.PeerGoneError):
            first.take()
        assert second.ask(operations(folder, 0, 0), torch.zeros(2, 3, 16, 16))[0].kind is Say.DONE


@pytest.mark.parametrize(
    "noise", [b"\0" * 100, b"GNP1" + b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100], ids=["zeros", "ones", "a request"]
)
def test_nonsense_ends_the_connection_and_nothing_else(folder: Path, noise: bytes) -> None:
    with serving(folder, (0,)) as served:
        client = served.connect()
        client.connection.sendall(noise)
        with pytest.raises(packets.PeerGoneError):
            client.take()
        assert served.connect().ask(operations(folder, 0, 0), torch.zeros(2, 3, 16, 16))[0].kind is Say.DONE


def test_a_body_that_stalls_in_a_message_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnomon_runtime.pair.remote_link.STALL_S", 0.2)
    with serving(folder, (0,)) as served:
        client = served.connect()
        client.connection.sendall(encode(client.message(operations(folder, 0, 0), torch.zeros(2, 3, 16, 16))))
        with pytest.raises(packets.PeerGoneError):
            client.take()


def test_an_instance_that_ends_leaves_its_body_at_once(folder: Path) -> None:
    with serving(folder, (0,)) as served:
        client = served.connect()
        began_s = time.monotonic()
        served.ending.set()
        with pytest.raises(packets.PeerGoneError):
            client.take()
        assert time.monotonic() - began_s < 2


def test_requests_are_refused(folder: Path) -> None:
    refused = application(folder, (0,)).run(Frame(Kind.BATCH, 7, 2, members=[Member(0, 1, b"", b"x")] * 2))
    assert isinstance(refused, Frame)
    assert (refused.batch_id, [member.code for member in refused.members]) == (7, [415, 415])
