"""The HTTP channel to a pod, and batches that take longer than their requests allow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from urllib3.connection import HTTPSConnection

from gnomon_core.wire import NOT_TAKEN, Frame, Kind, Member, encode
from gnomon_platforms.common import open_session
from gnomon_platforms.kubernetes import channel as http_channel
from gnomon_platforms.kubernetes.channel import CANARY_S, OWN_SHARE, HttpChannel, NodeContact
from gnomon_platforms.kubernetes.client import Api, Unreachable, connect
from gnomon_runtime.serve import APPLICATION, SETTINGS
from tests.integration.kubernetes_platform.instance_server import InstanceServer
from tests.integration.runtime.conftest import free_port
from tests.platform_testing import answers, request_frame, send
from tests.waiting import eventually, until

HANDLER = """
def handle(event, context):
    return str(context.cores) if event.path == "/cores" else event.body
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """An instance: the real application behind an HTTP server."""
    folder = tmp_path / "function"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    server = InstanceServer("127.0.0.1", 0, folder, "t0ken")
    yield server.address
    server.end()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as opened:
        yield opened


class Lost(list[str]):
    """Why a channel has ended."""


def channel(session: aiohttp.ClientSession, address: str, lost: Lost, token: str = "t0ken") -> HttpChannel:
    return HttpChannel(session, address, token, 30.0, lost.append)


async def test_batches_go_there_and_back(session: aiohttp.ClientSession, address: str) -> None:
    lost = Lost()
    opened = channel(session, address, lost)
    for number in range(1, 4):
        frame = await send(opened, request_frame(b"a", b"b" * number, batch_id=number))
        assert answers(frame) == [(200, b"a"), (200, b"b" * number)]
        assert frame is not None
        assert frame.batch_id == number
    assert await opened.probe(10.0)
    assert lost == []


async def test_a_batch_of_photographs_goes_as_any_other(session: aiohttp.ClientSession, address: str) -> None:
    """aiohttp warns of more than a megabyte in one piece; a warning is an error here, and nobody was told of the batch's end."""
    body = bytes(2 << 20)
    async with asyncio.timeout(60.0):
        frame = await send(channel(session, address, Lost()), request_frame(body))
    assert answers(frame) == [(200, body)]


async def test_only_connecting_has_a_bound_of_its_own(session: aiohttp.ClientSession) -> None:
    """A batch may take as long as its deadline allows, up to a day: the library's own bound would be five minutes."""
    assert session.timeout.total is None
    assert session.timeout.sock_read is None
    assert session.timeout.sock_connect


async def test_refused_connection_means_nothing_was_read() -> None:
    """A node that has died answers nothing, not even that nobody listens."""
    lost = Lost()
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for full in (first, second):
            full.setblocking(False)  # noqa: FBT003 - the socket library has no other
            full.connect_ex(listener.getsockname())
        async with open_session(connect_timeout_s=0.2) as session:
            opened = channel(session, f"http://127.0.0.1:{listener.getsockname()[1]}", lost)
            assert await send(opened, request_frame(b"a")) is None
    assert opened.unread
    assert len(lost) == 1


async def test_another_functions_token_is_refused_and_ends_the_channel(session: aiohttp.ClientSession, address: str) -> None:
    lost = Lost()
    opened = channel(session, address, lost, "another functions")
    assert await send(opened, request_frame(b"a")) is None
    assert len(lost) == 1
    assert "401" in lost[0]
    # It may not have been run, but nobody can be sure that knows only the status.
    assert not opened.unread


async def test_unreachable_pod_has_read_nothing(session: aiohttp.ClientSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    lost = Lost()
    opened = channel(session, f"http://127.0.0.1:{port}", lost)
    assert await send(opened, request_frame(b"a")) is None
    assert opened.unread
    assert len(lost) == 1
    assert not await opened.probe(1.0)


async def test_pod_that_refuses_connections_still_answers_on_those_that_it_has() -> None:
    """A pod that is about to end refuses connections, if nobody has been told yet."""
    asked, answering, lost = asyncio.Event(), asyncio.Event(), Lost()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await answering.wait()
        result = encode(Frame(Kind.RESULT, 1, members=[Member(200, 1, b"", b"answer")]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(result) + result)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with open_session() as session, asyncio.timeout(60.0):
        opened = HttpChannel(session, f"http://127.0.0.1:{port}", "t0ken", 30.0, lost.append, concurrency=3)
        answer = send(opened, request_frame(b"a", batch_id=1))
        await asked.wait()
        server.close()
        others = [send(opened, request_frame(b"b", batch_id=number)) for number in (2, 3)]
        for other in others:
            assert await other is NOT_TAKEN
        assert (lost, opened.closed) == ([], False)
        answering.set()
        assert answers(await answer) == [(200, b"answer")]
        await asyncio.sleep(0)
    assert len(lost) == 1


async def test_a_fault_that_nobody_has_foreseen_ends_its_batch_and_is_logged(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Lost()
    async with aiohttp.ClientSession() as session, asyncio.timeout(60.0):
        opened = channel(session, address, lost)
        await session.close()  # aiohttp says so by a RuntimeError
        assert await send(opened, request_frame(b"a")) is None
    assert lost == ["RuntimeError: Session is closed"]
    assert "Internal error while sending a batch" in caplog.text
    assert "Traceback" in caplog.text
    assert not opened.busy


async def test_a_batch_whose_channel_is_closed_before_it_was_sent_is_done_and_was_not_read(
    session: aiohttp.ClientSession, address: str
) -> None:
    opened = channel(session, address, Lost())
    answer = send(opened, request_frame(b"a"))
    opened.close()
    async with asyncio.timeout(60.0):
        assert await answer is None
    assert opened.unread


async def test_pod_silent_on_batch_and_probe_is_lost(session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnomon_platforms.kubernetes.channel.ANSWER_S", 0.1)
    # A listener that nobody serves: connections are taken by the kernel, and stay silent.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lost = Lost()
        opened = channel(session, f"http://127.0.0.1:{listener.getsockname()[1]}", lost)
        frame = request_frame(b"a")
        silent = Frame(frame.kind, frame.batch_id, frame.epoch, -1.9, members=frame.members)
        assert await send(opened, silent) is None
        assert lost == ["it did not answer in time"]
        assert not opened.unread


async def test_a_channel_that_is_retired_ends_with_its_batch_and_takes_no_other(
    session: aiohttp.ClientSession, address: str
) -> None:
    lost = Lost()
    opened = channel(session, address, lost)
    answer = send(opened, request_frame(b"a" * 4))
    opened.drain("its pod was told to end")
    assert answers(await answer) == [(200, b"aaaa")]
    await asyncio.sleep(0)
    assert lost == ["its pod was told to end"]
    assert await send(opened, request_frame(b"b")) is None
    assert opened.unread


async def test_an_idle_channel_is_retired_at_once(session: aiohttp.ClientSession, address: str) -> None:
    lost = Lost()
    channel(session, address, lost).drain("its pod was told to end")
    assert lost == ["its pod was told to end"]


async def test_closed_channel_reports_nothing(session: aiohttp.ClientSession, address: str) -> None:
    lost = Lost()
    opened = channel(session, address, lost)
    opened.close()
    assert await send(opened, request_frame(b"a")) is None
    assert opened.unread
    assert lost == []


async def test_a_pod_is_told_how_many_threads_to_use(session: aiohttp.ClientSession, address: str) -> None:
    opened = channel(session, address, Lost())
    for cores in (2, 3, 1):
        await opened.resize(cores)
        assert answers(await send(opened, request_frame(b"", meta=b"POST\n/cores\n\n"))) == [(200, str(cores).encode())]


async def test_pod_that_cannot_be_resized_goes_on(
    session: aiohttp.ClientSession, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Lost()
    await channel(session, address, lost, "another functions").resize(2)
    await channel(session, "http://127.0.0.1:1", lost).resize(2)
    assert lost == []
    assert "it answered 401" in caplog.text
    assert caplog.text.count("could not be set to 2 cores") == 2
    opened = channel(session, address, lost)
    assert answers(await send(opened, request_frame(b"", meta=b"POST\n/cores\n\n"))) == [(200, b"1")]


async def test_pod_status_is_trusted_for_a_while(session: aiohttp.ClientSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    said = [True]
    opened = HttpChannel(session, address, "t0ken", 30.0, Lost().append, is_healthy=lambda: said[0])
    assert opened.is_known_healthy()
    assert await opened.probe(1.0)
    said[0] = False
    assert not opened.is_known_healthy()
    assert not await opened.probe(1.0)
    said[0] = True
    # Nothing was heard of it for too long: it is asked itself, and nobody is there.
    opened._node.at_s -= CANARY_S
    assert not opened.is_known_healthy()
    assert not await opened.probe(1.0)
    opened.close()
    opened._node.at_s += CANARY_S
    assert not await opened.probe(1.0)


async def test_a_node_that_was_heard_speaks_for_its_pods_but_not_for_ever(session: aiohttp.ClientSession, address: str) -> None:
    node = NodeContact()
    first, second = (
        HttpChannel(session, address, "t0ken", 30.0, Lost().append, is_healthy=lambda: True, node=node) for _ in range(2)
    )
    for channel in (first, second):
        channel._last_contact_s -= CANARY_S
    assert first.is_known_healthy()
    node.at_s -= CANARY_S
    assert [channel.is_known_healthy() for channel in (first, second)] == [False, False]
    assert await first.probe(5.0)
    assert second.is_known_healthy(), "one answer was of its node"
    second._last_contact_s -= OWN_SHARE * CANARY_S
    assert not second.is_known_healthy(), "it has said nothing itself for too long"
    assert await second.probe(5.0)
    assert second.is_known_healthy()


async def test_the_pod_of_a_node_that_was_silent_for_longest_is_asked_first(session: aiohttp.ClientSession, address: str) -> None:
    node = NodeContact()
    first, second = (
        HttpChannel(session, address, "t0ken", 30.0, Lost().append, is_healthy=lambda: True, node=node) for _ in range(2)
    )
    first._canary_s = second._canary_s = CANARY_S
    first._last_contact_s -= 0.9 * OWN_SHARE * CANARY_S
    assert [channel.is_known_healthy() for channel in (first, second)] == [True, True]
    node.at_s -= 0.2 * CANARY_S
    assert [channel.is_known_healthy() for channel in (first, second)] == [False, True]
    assert await first.probe(5.0)
    assert first.is_known_healthy()


AT_ONCE = struct.pack("ii", 1, 0)
"""Of a socket that lingers for no time at all: closing it resets the connection, as the end of a process does."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def api(tmp_path: Path, listener: socket.socket) -> Iterator[Api]:
    server = {"server": f"https://127.0.0.1:{listener.getsockname()[1]}", "insecure-skip-tls-verify": True}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(document))
    made = connect(kubeconfig)
    yield made
    made.close()


@pytest.fixture
def reset_before_the_handshake(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends when a connection has been made and nothing was sent."""
    plain = HTTPSConnection._new_conn

    def connected(connection: HTTPSConnection) -> socket.socket:
        made = plain(connection)
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        accepted.close()
        eventually(lambda: not has_peer(made))
        return made

    monkeypatch.setattr(HTTPSConnection, "_new_conn", connected)


def has_peer(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add(str(descriptor.readlink()))
    return {target for target in found if target.startswith("socket:")}


@pytest.mark.usefixtures("reset_before_the_handshake")
def test_a_connection_that_is_reset_before_its_handshake_is_closed(api: Api) -> None:
    before = sockets()
    # Held, as a watch holds what its trouble is, the error keeps whatever its frames have.
    with pytest.raises(Unreachable) as caught:
        api.call("GET", "/version")
    assert sockets() == before, caught.value


WORDS = [f"word-{number}" for number in range(16)]


def at_once(answer: Callable[[str], str], words: Iterable[str]) -> list[str]:
    with ThreadPoolExecutor(8) as nodes:
        return list(nodes.map(answer, words))


@pytest.mark.parametrize("each", [map, at_once])
def test_each_instance_runs_its_own_handler(each: Callable[..., Iterable[str]], tmp_path: Path) -> None:
    def answer_of(word: str) -> str:
        folder = tmp_path / word
        folder.mkdir()
        (folder / "handler.py").write_text(f"def handle(event, context):\n    return {word!r}\n")
        server = InstanceServer("127.0.0.1", 0, folder, "token")
        with urllib.request.urlopen(server.address, b"") as answer:
            said: bytes = answer.read()
        server.end()
        return said.decode()

    assert list(each(answer_of, WORDS)) == WORDS


TOKEN = "of-the-gateway"
COMPUTING = """
import pathlib

def handle(event, context):
    if event.path != "/compute":
        return event.body
    folder = pathlib.Path(event.body.decode())
    (folder / "begun").touch()
    while not (folder / "released").exists():
        sum(range(10_000))
    return "computed"
"""


class Instance:
    """A handler as its image runs it, which computes until it is released."""

    def __init__(self, folder: Path) -> None:
        self._folder, port = folder, free_port()
        self.address = f"http://127.0.0.1:{port}"
        (folder / "function").mkdir()
        (folder / "function" / "handler.py").write_text(COMPUTING)
        environment = {"PATH": os.environ["PATH"], "GNOMON_PORT": str(port), "GNOMON_BATCH_TOKEN": TOKEN}
        command = [sys.executable, "-m", "gunicorn", "--config", SETTINGS, APPLICATION, "--bind", f"127.0.0.1:{port}"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._stopped = False

    def frame(self, path: str = "/compute") -> Frame:
        """A batch without a deadline of its own: how long it may take is the channel's to say."""
        return Frame(Kind.BATCH, 1, 1, 0.0, members=[Member(0, 1, f"POST\n{path}\n\n".encode(), str(self._folder).encode())])

    def computes(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        return (self._folder / "begun").exists()

    def release(self) -> None:
        (self._folder / "released").touch()

    def freeze(self) -> None:
        """Stop all of its processes, as when its node is suspended."""
        self._stopped = True
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        self.release()
        if self._stopped:
            self._signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def _signal(self, number: int) -> None:
        pid = self._process.pid
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process_id in (pid, *map(int, workers)):
            os.kill(process_id, number)


@dataclass
class Stage:
    instance: Instance
    channel: HttpChannel
    lost: list[str]
    asked: list[int]
    """The statuses of its answers beside the batch."""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path)
    yield made
    made.end()


@pytest.fixture
async def stage(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(http_channel, "GRACE_S", 0.02)
    async with aiohttp.ClientSession() as session:
        lost: list[str] = []
        opened = HttpChannel(session, instance.address, TOKEN, 0.01, lost.append)
        made = Stage(instance, opened, lost, [])
        ask = opened._health_check

        async def noted(timeout_s: float) -> int:
            made.asked.append(await ask(timeout_s))
            return made.asked[-1]

        while not await opened.probe(20.0):
            instance.computes()
            await asyncio.sleep(0.05)
        monkeypatch.setattr(opened, "_health_check", noted)
        yield made


async def test_an_instance_that_computes_is_waited_for_as_long_as_it_answers_beside_its_batch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_channel, "ANSWER_S", 60.0)
    answer = send(stage.channel, stage.instance.frame())
    await until(lambda: stage.instance.computes() and len(stage.asked) >= 5)
    assert not answer.done()
    stage.instance.release()
    assert answers(await answer) == [(200, b"computed")]
    assert set(stage.asked) == {200}
    assert stage.lost == []
    assert not stage.channel.busy
    asked = len(stage.asked)
    await asyncio.sleep(10 * http_channel.GRACE_S)
    assert len(stage.asked) == asked, "nobody asks any more"
    assert answers(await send(stage.channel, stage.instance.frame("/")))[0][0] == 200


async def test_an_instance_that_is_frozen_while_it_computes_is_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_channel, "ANSWER_S", 0.5)
    answer = send(stage.channel, stage.instance.frame())
    await until(stage.instance.computes)
    stage.instance.freeze()
    assert await answer is None
    assert stage.asked[-1] == 0
    assert stage.lost == ["it did not answer in time"]
    assert not stage.channel.unread, "it may have run"
    assert not await stage.channel.probe(0.5)
