"""The application of an image under real gunicorn: the workload contract, batches, and its end, which loses nothing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from gnomon_core.wire import Frame, FrameReader, Kind, Member, decode, encode
from tests.integration.runtime.conftest import GUNICORN, TOKEN, Held, Served
from tests.waiting import eventually


def frame(*bodies: bytes, **fields: float) -> bytes:
    members = [Member(0, 1, b"POST\n/\n\nAccept: text/event-stream", body) for body in bodies]
    return encode(Frame(Kind.BATCH, 5, int(fields.get("epoch", 0)), fields.get("budget_s", 0.0), members=members))


def test_a_request_is_a_batch_of_one(served: Served) -> None:
    status, body = served.request("PATCH", "/a%20b//c?q=1%2B1", b"hello", X_Test="yes")
    assert status == 200
    assert json.loads(body) == {"method": "PATCH", "path": "/a b//c", "q": "1+1", "x": "yes", "body": "hello"}
    assert served.request("HEAD", "/") == (200, b"")
    assert json.loads(served.request("OPTIONS", "/")[1])["method"] == "OPTIONS"


def test_a_chunked_body_arrives(served: Served) -> None:
    status, body = served.request("POST", "/", iter([b"in ", b"pieces"]))
    assert (status, json.loads(body)["body"]) == (200, "in pieces")


def test_an_exception_is_a_500_without_its_text(served: Served) -> None:
    status, body = served.request("GET", "/fail")
    assert status == 500
    assert b"a secret detail" not in body
    assert "a secret detail" in served.log.read_text()


def test_a_handler_streams(served: Served) -> None:
    assert served.request("GET", "/stream", Accept="text/event-stream") == (200, b"data: 1\n\ndata: 2\n\n")


def test_a_stream_that_breaks_off_is_not_taken_for_a_whole_answer(served: Served) -> None:
    with pytest.raises(http.client.IncompleteRead):
        served.request("POST", "/stream", b"break", Accept="text/event-stream")


@pytest.mark.parametrize("path", ["/endless", "/gnomon/batch"])
def test_a_stream_ends_when_its_client_leaves(served: Served, tmp_path: Path, path: str) -> None:
    body = str(tmp_path).encode()
    member = Member(0, 1, b"POST\n/endless\n\nAccept: text/event-stream", body)
    with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)) as client:
        headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {TOKEN}"}
        sent = encode(Frame(Kind.BATCH, 5, members=[member])) if path == "/gnomon/batch" else body
        client.request("POST", path, sent, headers)
        assert client.getresponse().read(20)
    eventually((tmp_path / "closed").exists)
    assert served.request("POST", "/", b"next")[0] == 200


def test_requests_at_the_same_time_get_their_own_answers(served: Served) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: served.request("POST", "/", b"%d" % number), range(200)))
    assert [(status, json.loads(body)["body"]) for status, body in answers] == [(200, str(number)) for number in range(200)]


def test_a_batch_is_answered_as_a_frame(served: Served) -> None:
    status, data = served.batch(frame(b"a", b"b", b"c"))
    result = decode(data)
    assert (status, result.kind, result.batch_id) == (200, Kind.RESULT, 5)
    assert [(member.code, bytes(member.body)) for member in result.members] == [(200, b"aa"), (200, b"bb"), (200, b"cc")]


def test_a_batch_that_streams_is_answered_as_frames(served: Served) -> None:
    member = Member(0, 1, b"GET\n/stream\n\nAccept: text/event-stream", b"")
    _, data = served.batch(encode(Frame(Kind.BATCH, 5, members=[member])))
    kinds = [part.kind for part in FrameReader().feed(data)]
    assert kinds == [Kind.STREAM_START, Kind.STREAM_DATA, Kind.STREAM_DATA, Kind.STREAM_END]


def test_a_batch_whose_time_is_over_when_its_turn_comes_is_not_run(served: Served, tmp_path: Path) -> None:
    held = Held(served, tmp_path)
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(served.batch, frame(b"a", b"b", budget_s=0.001))
        time.sleep(0.4)  # it has long arrived, and one millisecond is over
        held.release()
        _, data = batch.result()
    assert [member.code for member in decode(data).members] == [504, 504]


def test_a_batch_of_an_older_epoch_is_refused(alone: Served) -> None:
    assert decode(alone.batch(frame(b"a", epoch=3))[1]).members[0].code == 200
    refused = decode(alone.batch(frame(b"a", b"b", epoch=2))[1])
    assert [member.code for member in refused.members] == [409, 409]
    assert json.loads(bytes(refused.members[0].body))["error"]["code"] == "stale_epoch"
    assert refused.epoch == 3  # by which the gateway knows that none of it was run
    assert decode(alone.batch(frame(b"a", epoch=3))[1]).members[0].code == 200


def test_a_request_of_its_own_is_of_no_epoch(alone: Served) -> None:
    assert decode(alone.batch(frame(b"a", epoch=3))[1]).members[0].code == 200
    assert alone.request("POST", "/", b"beside the queue")[0] == 200


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", "é"])
def test_a_batch_needs_the_token(served: Served, token: str | None) -> None:
    assert served.batch(frame(b"a"), token)[0] == 401


def test_without_a_token_there_are_no_batches(serve: Callable[..., Served]) -> None:
    assert serve(GNOMON_BATCH_TOKEN="").batch(frame(b"a"), "")[0] == 403


def test_the_token_can_be_a_secrets_file(serve: Callable[..., Served], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-the-file\n")
    served = serve(GNOMON_BATCH_TOKEN="", GNOMON_BATCH_TOKEN_FILE=str(tmp_path / "token"))
    assert served.batch(frame(b"a"), "from-the-file")[0] == 200


@pytest.mark.parametrize("data", [b"", b"GNM1", frame(b"a")[:-1], frame(b"a") + b"x", encode(Frame(Kind.STOP)), frame()])
def test_invalid_batch_answers_400(served: Served, data: bytes) -> None:
    status, body = served.batch(data)
    assert (status, json.loads(body)["error"]["code"]) == (400, "bad_frame")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_a_413(serve: Callable[..., Served], *, chunked: bool) -> None:
    served = serve(GNOMON_MAX_BODY_BYTES="1000")
    if chunked:
        status, body = served.request("POST", "/", iter([bytes(600)] * 2))
    else:
        status, body = served.request("POST", "/", bytes(1001))
    assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")
    assert served.request("POST", "/", b"x" * 1000)[0] == 200


SLOW_TO_LOAD = """
import pathlib
import time

pathlib.Path("loading").touch()
end_s = time.monotonic() + 50.0
while time.monotonic() < end_s:
    try:
        time.sleep(0.01)
    except Exception:
        pass

def handle(event, context):
    return event.body
"""


def test_sigterm_ends_readiness_first_and_what_is_in_flight_last(alone: Served, tmp_path: Path) -> None:
    held = Held(alone, tmp_path)
    alone.process.send_signal(signal.SIGTERM)
    eventually(lambda: alone.request("GET", "/_/ready")[0] == 503)
    assert held.release() == 200
    assert alone.process.wait(20) == 0


def test_sigterm_loses_nothing_that_was_connected(serve: Callable[..., Served]) -> None:
    served = serve(GNOMON_QUIET_S="1.5")
    refused = threading.Event()
    lost: list[str] = []
    answered: list[int] = []

    def call_until_refused() -> None:
        while not refused.is_set():
            try:
                connection = socket.create_connection(("127.0.0.1", served.port), timeout=10)
            except ConnectionRefusedError:
                refused.set()
                return
            with closing(connection):
                try:
                    connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
                    head = connection.makefile("rb").readline()
                except ConnectionError as error:
                    head = repr(error).encode()
                answered.append(1) if b" 200 " in head else lost.append(repr(head))
            if terminated.is_set():
                return  # a caller that has seen the readiness end comes no more

    terminated = threading.Event()
    threads = [threading.Thread(target=call_until_refused) for _ in range(12)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answered) > 100)
    served.process.send_signal(signal.SIGTERM)
    time.sleep(0.15)  # they go on for a tenth of the quiet time
    terminated.set()
    for thread in threads:
        thread.join(20)
    assert served.process.wait(20) == 0
    assert lost == []


def test_connections_on_which_nothing_was_sent_are_not_waited_for(serve: Callable[..., Served]) -> None:
    served = serve(write_timeout="60s")
    with closing(socket.create_connection(("127.0.0.1", served.port))) as silent:
        time.sleep(5.5)  # after five seconds gunicorn waits for its first byte without a thread
        assert served.end() == 0
        assert silent.recv(1) == b""


def check_ends_at_once(command: Sequence[str], folder: Path, environment: Mapping[str, str], begun: str) -> None:
    """Told to end when it has made the file `begun`, which is the first thing that it does."""
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            eventually((folder / begun).exists)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_worker_that_just_started_ends_at_once(tmp_path: Path) -> None:
    """A container's first process is not ended by a SIGTERM that it has no handler for."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); from gnomon_runtime.serve import main; main()"
    held = tmp_path / "gunicorn" / "app"
    held.mkdir(parents=True)
    for folder in (held, held.parent):
        (folder / "__init__.py").touch()
    # In place of gunicorn's: it takes as long to import as on a node that is busy.
    (held / "wsgiapp.py").write_text("import time; open('importing', 'w').close(); time.sleep(50.0)")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    check_ends_at_once([sys.executable, "-c", code], tmp_path, environment, "importing")


def test_worker_that_loads_its_function_ends_at_once(tmp_path: Path) -> None:
    """An import under way may catch anything that is raised, as `hasattr` does, and libraries that try what there is."""
    (tmp_path / "function").mkdir()
    (tmp_path / "function" / "handler.py").write_text(SLOW_TO_LOAD)
    environment = {"PATH": os.environ["PATH"], "write_timeout": "60s"}
    check_ends_at_once([*GUNICORN, "127.0.0.1:0"], tmp_path, environment, "loading")


def test_a_handler_that_cannot_start_ends_the_container(tmp_path: Path) -> None:
    result = subprocess.run(
        [*GUNICORN, "127.0.0.1:0"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert result.returncode != 0
    assert b"holds no handler.py" in result.stderr
