"""The application of an image under real gunicorn: the workload contract, and batches."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from gnomon_core.wire import Frame, FrameReader, Kind, Member, decode, encode
from tests.integration.runtime.conftest import TOKEN, Held, Served
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
