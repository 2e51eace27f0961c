"""A Shadow that is reached over a port: right answers to its Body, a refusal to everybody else, and no harm from nonsense."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from gnomon_core import packets
from gnomon_core.launch import Launch
from gnomon_core.wire import Frame, Kind, Member
from gnomon_profiler.extractor import Description, capture
from gnomon_runtime.pair.headers import Kind as Say
from gnomon_runtime.pair.headers import Message, encode
from gnomon_runtime.pair.link import OwnBuffer
from gnomon_runtime.pair.micro_batches import BlocksApplication
from gnomon_runtime.pair.remote_link import SWITCHING, Incoming, Outgoing

pytestmark = pytest.mark.torch


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
