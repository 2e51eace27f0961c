"""Answers that stream: server-sent events and NDJSON, for clients that accept them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

SSE = b"GET /function/f/%b HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"


async def rest(connection: Any) -> None:
    """Read a stream to its end, which must be one of the connection and not the stream's own."""
    while True:
        assert await connection.chunk()


async def test_parts_arrive_as_they_are_made(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(SSE % b"stream/held")
    head = await connection.head()
    assert (head.status, head.headers["content-type"], head.headers["transfer-encoding"]) == (200, "text/event-stream", "chunked")
    arrived = await connection.chunk()
    assert arrived == b"data: 0\n\n"
    gateway.release()
    while part := await connection.chunk():
        arrived += part
    assert arrived == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    # The connection is in step for the next request.
    assert (await connection.call("/function/f", b"next")).body == b"next"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [(b"GET", b"stream/nothing", 204), (b"GET", b"stream/unchanged", 304), (b"HEAD", b"stream", 200)],
)
async def test_an_answer_that_has_no_body_has_none_as_a_stream(gateway: Any, method: bytes, path: bytes, status: int) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(SSE.replace(b"GET", method) % path)
    head = await connection.head()
    assert (head.status, head.headers["content-type"]) == (status, "text/event-stream")
    assert "transfer-encoding" not in head.headers
    # The connection is in step for the next request.
    assert (await connection.call("/function/f", b"next")).body == b"next"


async def test_a_client_that_does_not_accept_streams_gets_the_whole_answer(gateway: Any) -> None:
    await gateway.deploy()
    response = await gateway.call("/function/f/stream")
    assert (response.status, response.body) == (200, b"data: 0\n\ndata: 1\n\ndata: 2\n\n")
    assert "content-length" in response.headers


async def test_one_that_accepts_streams_gets_an_ordinary_answer_where_there_is_no_stream(gateway: Any) -> None:
    await gateway.deploy()
    response = await gateway.call("/function/f", b"plain", headers={"Accept": "application/x-ndjson"})
    assert (response.status, response.body) == (200, b"plain")


async def test_http_10_gets_the_parts_and_the_end_of_the_connection(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(b"GET /function/f/stream HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n")
    assert (await connection.head()).status == 200
    assert await connection.reader.read() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("path", [b"stream/crash", b"stream/break"])
async def test_a_stream_that_breaks_off_is_not_taken_for_whole(gateway: Any, path: bytes) -> None:
    runtime = await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(SSE % path)
    assert (await connection.head()).status == 200
    assert await connection.chunk()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
        await rest(connection)
    if path == b"stream/crash":
        await gateway.add_instance()
    # A function that gives up costs its instance nothing.
    assert (await gateway.call("/function/f", b"after")).body == b"after"
    assert runtime.ready == 1


async def test_a_deadline_bounds_the_first_part_and_not_the_stream(gateway: Any) -> None:
    await gateway.deploy()
    connection = await gateway.connect()
    request = SSE.replace(b"\r\n\r\n", b"\r\nX-Gnomon-Deadline-Ms: 500\r\n\r\n") % b"stream/long"
    begun_s = time.monotonic()
    await connection.send(request)
    assert (await connection.head()).status == 200
    while time.monotonic() < begun_s + 0.7:
        assert (await connection.chunk()).startswith(b"data: ")


async def test_a_client_that_leaves_ends_the_stream_and_frees_the_instance(gateway: Any) -> None:
    runtime = await gateway.deploy()
    connection = await gateway.connect()
    await connection.send(SSE % b"stream/long")
    await connection.head()
    await connection.chunk()
    connection.close()
    # The stream would go on for 50 s.
    assert (await gateway.call("/function/f", b"next")).body == b"next"
    assert runtime.metrics.left == 1


async def test_streams_are_batches_of_their_own(gateway: Any) -> None:
    runtime = await gateway.deploy(max_batch=8)
    connections = [await gateway.connect() for _ in range(4)]
    for connection in connections:
        await connection.send(SSE % b"stream")
    for connection in connections:
        assert (await connection.answer()).body.count(b"data") == 3
    assert runtime.dispatcher._last_batch == 4


async def test_errors_before_the_first_part_are_ordinary_answers(gateway: Any) -> None:
    await gateway.deploy(instances=0, deadline_s=0.1)
    response = await gateway.call("/function/f/stream", headers={"Accept": "text/event-stream"})
    assert (response.status, json.loads(response.body)["error"]["code"]) == (503, "no_instance")
