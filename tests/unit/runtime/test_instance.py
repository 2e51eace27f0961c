"""An instance under its coordinator and its gateway: what it reports, what may end it, and the cores of each batch."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_runtime.compute_thread import ComputeThread
from gnomon_runtime.coordinator_guard import CoordinatorGuard
from gnomon_runtime.coordinator_link import CoordinatorLink
from gnomon_runtime.http_app import create_app
from gnomon_runtime.instance import FrameSocket, Instance
from gnomon_runtime.pair.partner import MAX_CORRECTION, Predictions, WaitTimeout, slack, wait_timeout
from tests.unit.runtime.conftest import forget_handlers
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("predicted_s", "slack_s", "wait"),
    [
        (0.020, None, WaitTimeout(0.040, blames=True)),
        (0.020, 0.100, WaitTimeout(0.040, blames=True)),
        (0.001, None, WaitTimeout(0.005, blames=True)),
        (0.0, 1.0, WaitTimeout(0.005, blames=True)),
        (0.030, 0.040, WaitTimeout(0.040, blames=True)),
        (0.030, 0.020, WaitTimeout(0.020, blames=False)),
        (0.001, 0.004, WaitTimeout(0.004, blames=False)),
        (0.020, -0.1, WaitTimeout(0.0, blames=False)),
    ],
)
def test_the_wait(predicted_s: float, slack_s: float | None, wait: WaitTimeout) -> None:
    assert wait_timeout(predicted_s, slack_s) == wait


@pytest.mark.parametrize(
    ("left_s", "wait_s"),
    [
        (None, None),
        (0.090, 0.040),  # 40 ms again and 10 of the rest are kept back
        (0.065, 0.015),
        (0.060, 0.050),  # 10 would be over before the Body's own 15: nothing but an answer is in time
        (0.005, -0.005),
    ],
)
def test_time_to_compute_it_here_is_kept_back_while_there_is_any(left_s: float | None, wait_s: float | None) -> None:
    assert slack(left_s, spent_s=0.015, again_s=0.040, remaining_s=0.010) == (wait_s if wait_s is None else pytest.approx(wait_s))


def test_the_profile_predicts() -> None:
    """Run 1 with 3 samples: third column of the second row, in milliseconds. The Body's own 50 ms for 2 samples do not matter."""
    known = Predictions(((1.0, 2.0), (10.0, 20.0, 30.0)))
    assert known.seconds(1, 3, 0.050, 2) == pytest.approx(0.030)


@pytest.mark.parametrize("table", [(), ((1.0, 2.0),), ((), (1.0,))])
def test_without_a_profile_a_sample_takes_the_shadow_what_it_took_the_body(table: tuple[tuple[float, ...], ...]) -> None:
    assert Predictions(table).seconds(1, 3, 0.050, 2) == pytest.approx(0.075)


def test_a_shadow_that_takes_longer_is_waited_for_longer_up_to_a_bound() -> None:
    known = Predictions(((10.0,), (10.0,)))
    known.learn(0, 1, 0.020)
    assert known.seconds(0, 1, 0.0, 1) == pytest.approx(0.013)  # 0.7 × 1 + 0.3 × 2 times 10 ms
    for _ in range(100):
        known.learn(0, 1, 60.0)
    assert known.seconds(0, 1, 0.0, 1) == pytest.approx(0.010 * MAX_CORRECTION)
    assert known.seconds(1, 1, 0.0, 1) == pytest.approx(0.010)
    for _ in range(100):
        known.learn(0, 1, 0.001)
    assert known.seconds(0, 1, 0.0, 1) == pytest.approx(0.010)


TOKEN = {"Authorization": "Bearer t0ken"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    forget_handlers()
    (tmp_path / "handler.py").write_text("def handle(event, context):\n    return str(context.cores)\n")
    app = create_app({"GNOMON_HANDLER_FOLDER": str(tmp_path), "GNOMON_BATCH_TOKEN": "t0ken", "GNOMON_CORES": "1"})
    yield app.test_client()
    forget_handlers()


def resize(**head: object) -> bytes:
    return encode(Frame(Kind.RESIZE, head=json.dumps(head).encode()))


def cores(client: FlaskClient) -> str:
    return client.get("/", environ_overrides={"RAW_URI": "/"}).text


def test_the_next_request_uses_the_new_cores(client: FlaskClient) -> None:
    assert cores(client) == "1"
    assert client.post("/gnomon/resize", data=resize(cores=4), headers=TOKEN).status_code == 204
    assert cores(client) == "4"


def test_only_the_gateway_may_say_so(client: FlaskClient) -> None:
    assert client.post("/gnomon/resize", data=resize(cores=4)).status_code == 401
    assert client.post("/gnomon/resize", data=resize(cores=4), headers={"Authorization": "Bearer x"}).status_code == 401
    assert cores(client) == "1"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "bad_frame"),
        (b"nonsense", "bad_frame"),
        (encode(Frame(Kind.PROBE)), "bad_cores"),
        (encode(Frame(Kind.RESIZE, head=b"[")), "bad_frame"),
        (resize(), "bad_cores"),
        (resize(cores=0), "bad_cores"),
        (resize(cores="2"), "bad_cores"),
        (resize(cores=True), "bad_cores"),
        (resize(cores=10**6), "bad_cores"),
    ],
)
def test_invalid_core_count_is_refused(client: FlaskClient, body: bytes, code: str) -> None:
    answer = client.post("/gnomon/resize", data=body, headers=TOKEN)
    assert (
        answer.status_code,
        answer.get_json()["error"]["code"] if "error" in answer.get_json() else answer.get_json()["code"],
    ) == (400, code)
    assert cores(client) == "1"


KILLER = """
import socket, sys
from gnomon_core import packets
supervisor = socket.socket(fileno=int(sys.argv[1]))
for name in ("risen", "shadow"):
    packets.send(supervisor, {"do": "kill", "id": name})
supervisor.recv(1)
"""


def test_promoted_body_is_not_killed_by_an_outdated_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator gave the Body up, because it did not listen, in the moment in which it answered its first batch."""
    said: list[Mapping[str, Any]] = []
    with selectors.DefaultSelector() as selector:
        guard = CoordinatorGuard(selector, lambda *_, **__: None, lambda message, _: said.append(message))
        ends = [guard.open(name, "shadow") for name in ("risen", "shadow")]
        guard.promoted("risen")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
            guard.begin({"command": [sys.executable, "-c", KILLER], "environment": environment}, [theirs.fileno()])
            while not said:
                for key, _ in selector.select():
                    key.data()
        assert said == [{"do": "kill", "id": "shadow"}]
        pid = guard.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        # It is the last one.
        monkeypatch.setattr(guard, "_start", lambda: None)
        assert guard.ended(*os.waitpid(pid, 0))
        for name, end in zip(("risen", "shadow"), ends, strict=True):
            guard.gone(name)
            end.close()


def test_reconnects_back_off_while_connections_end_at_once(tmp_path: Path) -> None:
    """Two Bodies that share a pod's socket take each other's place: they did so hundreds of times a second."""
    came, over = [], threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "coordination.sock"))
        listening.listen(8)

        def end_each() -> None:
            while not over.is_set():
                connection, _ = listening.accept()
                connection.close()
                came.append(connection)

        threading.Thread(target=end_each, daemon=True).start()
        CoordinatorLink(tmp_path / "coordination.sock", ComputeThread("body"), lambda connection: connection.close())
        eventually(lambda: len(came) >= 3)
        # 0.25 + 0.5 s lie between the first and the third, and a second before the fourth.
        assert len(came) <= 4
        over.set()


class Recording:
    """An application that records the number of cores before each batch. After each batch it calls `ran`."""

    def __init__(self, ran: Callable[[], None]) -> None:
        self.events: list[str] = []
        self._ran = ran

    def hello(self) -> Mapping[str, Any]:
        return {}

    def resize(self, cores: int) -> None:
        self.events.append(f"{cores} cores")

    def run(self, batch: Frame) -> Frame:
        self.events.append(f"batch {batch.batch_id}")
        self._ran()
        return Frame(Kind.RESULT, batch.batch_id, members=[Member(200, 1, b"", b"")])


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def batch(number: int, cores: int = 0) -> Frame:
    return Frame(Kind.BATCH, number, members=[Member(0, 1, b"", b"")], cores=cores)


def resize_frame(cores: int) -> Frame:
    return Frame(Kind.RESIZE, head=json.dumps({"cores": cores}).encode())


def events_of(*frames: Frame) -> list[str]:
    """The work of an instance that gets these frames, up to one batch at a time."""
    ours, theirs = socket.socketpair()
    left = list(frames)

    def send() -> None:
        while left:
            frame = left.pop(0)
            ours.sendall(encode(frame))
            if frame.kind is Kind.BATCH:
                return
        ours.shutdown(socket.SHUT_WR)

    with ours, theirs:
        application = Recording(send)
        send()
        Instance(FrameSocket(theirs), application).serve()
    return application.events


def test_each_batch_has_the_cores_that_it_has_borrowed() -> None:
    found = events_of(batch(1, 4), batch(2, 4), batch(3, 1), batch(4, 4))
    assert found == ["4 cores", "batch 1", "batch 2", "1 cores", "batch 3", "4 cores", "batch 4"]


def test_a_batch_without_a_number_has_all_the_cores_of_its_instance() -> None:
    assert events_of(batch(1), resize_frame(2), batch(2)) == ["batch 1", "2 cores", "batch 2"]


def test_a_batch_after_a_resize_has_what_it_has_borrowed_again() -> None:
    found = events_of(batch(1, 4), resize_frame(2), batch(2, 4))
    assert found == ["4 cores", "batch 1", "2 cores", "4 cores", "batch 2"]


def test_a_frame_keeps_its_number_of_cores() -> None:
    assert decode(encode(batch(1, 3))).cores == 3
    assert decode(encode(batch(1))).cores == 0
