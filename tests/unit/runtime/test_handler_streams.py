"""Handlers that answer piece by piece."""

from __future__ import annotations

from typing import Any

from gnomon_core.wire import Frame, Kind
from tests.unit.runtime.handlers import Make, answer, batch, headers

STREAM = """
    def handle(event, context):
        def pieces():
            yield "data: 1\\n\\n"
            if event.body == b"break": raise RuntimeError("half way")
            yield {"data": 2}
        return {"statusCode": 206, "body": pieces(), "headers": {"X-Stream": "1"}} if event.body != b"none" else iter([])
"""
ACCEPT = b"POST\n/\n\nAccept: text/event-stream"


def test_a_generator_streams_to_a_client_that_accepts_it(make: Make) -> None:
    frames = make(STREAM).run(batch(b"", meta=ACCEPT))
    assert not isinstance(frames, Frame)
    start, *data, end = list(frames)
    assert (start.kind, start.batch_id, start.members[0].code) == (Kind.STREAM_START, 7, 206)
    assert headers(start.members[0]) == ["Content-Type: text/event-stream", "X-Stream: 1"]
    assert [(f.kind, bytes(f.members[0].body)) for f in data] == [
        (Kind.STREAM_DATA, b"data: 1\n\n"),
        (Kind.STREAM_DATA, b'data: {"data": 2}\n\n'),
    ]
    assert (end.kind, end.batch_id, list(end.members)) == (Kind.STREAM_END, 7, [])


def test_a_stream_that_breaks_off_says_so(make: Make) -> None:
    frames = make(STREAM).run(batch(b"break", meta=ACCEPT))
    assert not isinstance(frames, Frame)
    *_, end = list(frames)
    assert (end.kind, [member.code for member in end.members]) == (Kind.STREAM_END, [500])


def test_a_stream_without_pieces_is_an_empty_answer(make: Make) -> None:
    (member,) = answer(make(STREAM), b"none", meta=ACCEPT)
    assert (member.code, member.body) == (200, b"")


def test_a_stream_that_fails_before_its_first_piece_is_a_plain_500(make: Make) -> None:
    (member,) = answer(make("def handle(event, context):\n    yield 1 / 0"), b"", meta=ACCEPT)
    assert member.code == 500


def test_a_client_that_leaves_ends_the_generator(make: Make) -> None:
    application = make("""
        ended = []
        def handle(event, context):
            if event.body: return str(len(ended))
            return pieces()
        def pieces():
            try:
                while True: yield "x"
            finally:
                ended.append(1)
    """)
    frames: Any = application.run(batch(b"", meta=ACCEPT))
    next(frames)
    next(frames)
    frames.close()
    assert answer(application, b"?")[0].body == b"1"


def test_a_stream_in_a_batch_is_joined(make: Make) -> None:
    members = answer(make(STREAM), b"a", b"b", meta=ACCEPT)
    assert [bytes(m.body) for m in members] == [b'data: 1\n\n{"data": 2}\n'] * 2


def test_a_dict_is_a_line_for_a_client_of_ndjson_and_an_event_for_one_of_server_sent_events(make: Make) -> None:
    source = """
    def handle(event, context):
        return ({"token": number} for number in range(2))
    """
    application, streamed = make(source), {}
    for accepted in ("text/event-stream", "application/x-ndjson"):
        frames = application.run(batch(b"", meta=f"POST\n/\n\nAccept: {accepted}".encode()))
        assert not isinstance(frames, Frame)
        streamed[accepted] = b"".join(bytes(frame.members[0].body) for frame in frames if frame.kind is Kind.STREAM_DATA)
    assert streamed == {
        "text/event-stream": b'data: {"token": 0}\n\ndata: {"token": 1}\n\n',
        "application/x-ndjson": b'{"token": 0}\n{"token": 1}\n',
    }
