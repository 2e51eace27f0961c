"""Handlers: single requests, batches, streams, and how many calls there are at once."""

import json
import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.launch import Launch
from gnomon_core.wire import Frame, Kind, Member
from gnomon_runtime.application import Application, Channel
from gnomon_runtime.compute_thread import ComputeThread
from gnomon_runtime.handler import load_application
from gnomon_runtime.process import ProcessApplication
from tests.unit.runtime.conftest import Make, answer, batch, headers


def test_a_handler_of_the_python3_http_template_runs_unchanged(make: Make) -> None:
    application = make("""
        from .words import greeting

        def handle(event, context):
            return {
                "statusCode": 201,
                "body": {"said": greeting(event.body.decode()), "method": event.method, "path": event.path,
                         "x": event.query["x"], "all": event.query.getlist("x"), "number": event.query.get("x", type=int),
                         "token": event.headers.get("x-token"), "host": event.headers["HOST"], "none": event.headers.get("No"),
                         "pairs": len(dict(event.headers)), "on": bool(context.hostname), "empty": event.query.get("empty")},
                "headers": {"X-Answer": "yes"},
            }
    """, {"words.py": "def greeting(name): return f'hello {name}'"})  # fmt: skip

    (member,) = answer(application, b"ada")

    assert member.code == 201
    assert headers(member) == ["Content-Type: application/json", "X-Answer: yes"]
    assert json.loads(bytes(member.body)) == {
        "said": "hello ada", "method": "POST", "path": "/a b", "x": "1", "all": ["1", "2"], "number": 1,
        "token": "t", "host": "example.org", "none": None, "pairs": 3, "on": True, "empty": "",
    }  # fmt: skip


def test_a_handler_of_the_python3_flask_template_takes_the_text(make: Make) -> None:
    assert answer(make("def handle(req): return req.upper()"), "é".encode())[0].body == "É".encode()


def test_raw_body_gives_the_flask_style_handler_bytes(make: Make) -> None:
    application = make("def handle(req): return str(type(req))", RAW_BODY="true")
    assert answer(application, b"x")[0].body == b"<class 'bytes'>"


@pytest.mark.parametrize(
    ("expression", "code", "body", "content_type"),
    [
        ('"text"', 200, b"text", "text/plain; charset=utf-8"),
        ('b"\\x00\\xff"', 200, b"\x00\xff", "application/octet-stream"),
        ('bytearray(b"x")', 200, b"x", "application/octet-stream"),
        ("None", 200, b"", "text/plain; charset=utf-8"),
        ('{"label": "cat"}', 200, b'{"label": "cat"}', "application/json"),
        ("[1, 2]", 200, b"[1, 2]", "application/json"),
        ('{"statusCode": 404}', 404, b"", "text/plain; charset=utf-8"),
        ('{"statusCode": "418", "body": 3}', 418, b"3", "text/plain; charset=utf-8"),
        ('{"body": [1]}', 200, b"[1]", "application/json"),
        ('{"body": "<b>", "headers": {"content-type": "text/html"}}', 200, b"<b>", "text/html"),
        ('{"body": "x", "headers": [("Content-Type", "a/b")]}', 200, b"x", "a/b"),
        ('("gone", 410)', 410, b"gone", "text/plain; charset=utf-8"),
        ('("x", {"Content-Type": "a/b"})', 200, b"x", "a/b"),
        ('("x", 202, {"Content-Type": "a/b"})', 202, b"x", "a/b"),
        ('(part for part in ["a", b"b", {"c": 1}])', 200, b'ab{"c": 1}\n', "text/plain; charset=utf-8"),
    ],
)
def test_every_form_of_answer(make: Make, expression: str, code: int, body: bytes, content_type: str) -> None:
    (member,) = answer(make(f"def handle(event, context): return {expression}"), b"")
    assert (member.code, bytes(member.body)) == (code, body)
    assert [line.partition(": ")[2] for line in headers(member) if line.lower().startswith("content-type:")] == [content_type]


@pytest.mark.parametrize("values", ['["a=1", "b=2"]', '("a=1", "b=2")'])
def test_a_list_of_values_is_a_header_for_each_as_in_the_template_of_openfaas(make: Make, values: str) -> None:
    (member,) = answer(
        make(f'def handle(event, context): return {{"body": "x", "headers": {{"Set-Cookie": {values}, "X": 1}}}}'), b""
    )
    assert headers(member)[1:] == ["Set-Cookie: a=1", "Set-Cookie: b=2", "X: 1"]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("return object()", "a body of type object"),
        ('return {"statusCode": 99}', "a status of 99"),
        ('return {"statusCode": "ok"}', "a status of 'ok'"),
        ('return {"body": {"x": {1}}}', "not JSON"),
        ('return {"body": {"x": float("nan")}}', "not JSON"),
        ("return (1, 2, 3, 4)", "a tuple of 4"),
        ('return {"headers": {"X": "a\\r\\nSet-Cookie: b"}}', "header 'X'"),
        ('return {"headers": {"X": ["a", "b\\r\\nSet-Cookie: c"]}}', "header 'X'"),
        ('return {"headers": {"A: b\\nX": "a"}}', "cannot be sent"),
        ('return {"headers": {"X": "\\u20ac"}}', "HTTP cannot carry"),
        ('return {"headers": 5}', "neither a dict"),
        ('raise ValueError("the password is 1234")', "raised ValueError"),
        ("raise SystemExit(0)", "raised SystemExit"),
        ("return 1 / 0", "raised ZeroDivisionError"),
    ],
)
def test_invalid_answer_of_a_handler_is_500_with_the_reason(make: Make, statement: str, says: str) -> None:
    (member,) = answer(make(f"def handle(event, context): {statement}"), b"")
    assert member.code == 500
    assert says in json.loads(bytes(member.body))["error"]["message"]
    assert b"1234" not in bytes(member.body)
    assert b"Traceback" not in bytes(member.body)


def test_the_traceback_is_in_the_log(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    answer(make('def handle(event, context): raise ValueError("of interest")'), b"")
    assert "ValueError: of interest" in capfd.readouterr().err


def test_a_handler_chooses_its_own_error(make: Make) -> None:
    application = make("""
        from gnomon_core.errors import bad_request
        def handle(event, context): raise bad_request("no_image", "Send an image.")
    """)
    (member,) = answer(application, b"")
    assert member.code == 400
    assert json.loads(bytes(member.body))["error"] == {"code": "no_image", "message": "Send an image."}


def test_the_folder_is_a_package(make: Make) -> None:
    application = make(
        "from function import ANSWER\nfrom function.deep.inner import more\ndef handle(event, context): return ANSWER + more",
        {
            "__init__.py": "ANSWER = 'a'",
            "deep/inner.py": "from ..tail import more",
            "deep/__init__.py": "",
            "tail.py": "more = 'b'",
        },
    )
    assert answer(application, b"")[0].body == b"ab"


def test_the_context_knows_the_budget_and_a_changed_size(make: Make) -> None:
    application = make("def handle(event, context): return [context.function, context.cores, context.budget_s]")
    application.resize(4)
    frame = batch(b"")
    frame.budget_s = 0.5
    result = application.run(frame)
    assert isinstance(result, Frame)
    assert json.loads(bytes(result.members[0].body)) == ["echo", 4, 0.5]


@pytest.mark.parametrize("source", ["x = 1", "import no_such_module_here\ndef handle(event, context): ..."])
def test_a_handler_that_cannot_serve_is_refused_at_the_start(make: Make, source: str) -> None:
    with pytest.raises(ImportError):
        make(source)


def test_a_handler_may_bring_an_application_of_its_own(make: Make) -> None:
    application = make("""
        def gnomon_application(launch):
            return Own()
        class Own:
            def hello(self): return {"kind": "own"}
    """)
    assert application.hello() == {"kind": "own"}


def test_a_missing_requirement_is_named_in_the_log(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError):
        make("import no_such_module_here")
    assert "name the package that has it in requirements.txt" in capfd.readouterr().err


def test_a_folder_without_a_handler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"holds no handler\.py"):
        load_application(Launch("handler", "f", "f-1", options={"folder": str(tmp_path)}))


def test_bad_member_never_fails_its_batch(make: Make) -> None:
    members = answer(make("def handle(event, context): return str(1 // int(event.body))"), b"1", b"0", b"1")
    assert [member.code for member in members] == [200, 500, 200]


def test_handle_batch_answers_many_at_once_and_in_order(make: Make) -> None:
    application = make("""
        calls = []
        def handle_batch(events, context):
            calls.append(len(events))
            size = {"X-Size": len(events)}
            return [ValueError("!") if e.body == b"!" else {"statusCode": 202, "body": e.body, "headers": size} for e in events]
        def handle(event, context): return "alone"
    """)
    members = answer(application, b"a", b"!", b"c")
    assert [(m.code, bytes(m.body)) for m in (members[0], members[2])] == [(202, b"a"), (202, b"c")]
    assert members[1].code == 500
    assert "X-Size: 3" in headers(members[0])
    assert answer(application, b"a")[0].body == b"alone"
    assert application.hello() == {"kind": "handler", "batches": True, "max_batch": 8, "concurrency": 1}


def test_a_batch_of_one_goes_to_handle_batch_where_there_is_no_handle(make: Make) -> None:
    application = make("def handle_batch(events, context): return [str(len(events))]")
    assert answer(application, b"a")[0].body == b"1"


@pytest.mark.parametrize(
    ("result", "says"),
    [("[1]", "1 results for a batch of 3"), ('"abc"', "str; handle_batch returns a list"), ("None", "NoneType")],
)
def test_a_wrong_list_of_results_answers_nobody_with_anothers(make: Make, result: str, says: str) -> None:
    members = answer(make(f"RETRY_SAFE = True\ndef handle_batch(events, context): return {result}"), b"a", b"b", b"c")
    assert {member.code for member in members} == {500}
    assert says in json.loads(bytes(members[0].body))["error"]["message"]


RAISING = """
    {declaration}
    calls = []
    def handle_batch(events, context):
        calls.append(len(events))
        if any(e.body == b"!" for e in events): raise RuntimeError("poison")
        return [e.body for e in events]
    def handle(event, context): return str(len(calls))
"""


def test_a_batch_that_raises_is_not_run_again_unless_the_handler_allows_it(make: Make) -> None:
    application = make(RAISING.format(declaration=""))
    assert [member.code for member in answer(application, b"a", b"!", b"c")] == [500, 500, 500]
    assert answer(application, b"")[0].body == b"1"


@pytest.mark.parametrize("guilty", range(8))
def test_a_retry_safe_batch_isolates_the_guilty_member(make: Make, guilty: int) -> None:
    application = make(RAISING.format(declaration="RETRY_SAFE = True"))
    bodies = [b"!" if index == guilty else b"%d" % index for index in range(8)]
    members = answer(application, *bodies)
    assert [member.code for member in members] == [500 if index == guilty else 200 for index in range(8)]
    assert [bytes(m.body) for i, m in enumerate(members) if i != guilty] == [b for b in bodies if b != b"!"]
    assert int(answer(application, b"")[0].body) <= 1 + 2 * 3, "2·log2(8) further calls"


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


HANDLE = "def handle(event, context): return 'one'\n"
ASYNC = "async def handle(event, context): return 'one'\n"
BATCH = "def handle_batch(events, context): return ['many' for _ in events]\n"


def plain_batch(*bodies: bytes, meta: bytes = b"POST\n/\n\n", budget_s: float = 0.0) -> Frame:
    return Frame(Kind.BATCH, 1, 1, budget_s, members=[Member(0, 1, meta, body) for body in bodies])


def bodies(answer: object) -> list[bytes]:
    assert isinstance(answer, Frame)
    return [bytes(member.body) for member in answer.members]


def together(application: Application, count: int) -> list[list[bytes]]:
    """The answers to so many batches of one, each by a thread of its own."""
    with ThreadPoolExecutor(count) as executor:
        return [bodies(answer) for answer in executor.map(application.run, [plain_batch(b"%d" % n) for n in range(count)])]


@pytest.mark.parametrize(
    ("source", "concurrency"), [(HANDLE, 4), (ASYNC, 32), (BATCH, 1), (HANDLE + BATCH, 1), (ASYNC + BATCH, 1)]
)
def test_a_handler_is_called_as_often_at_once_as_its_kind_allows(make: Make, source: str, concurrency: int) -> None:
    assert make(source).hello()["concurrency"] == concurrency


@pytest.mark.parametrize("source", [HANDLE, ASYNC, BATCH])
def test_the_function_may_say_another_number(make: Make, source: str, tmp_path: Path) -> None:
    make(source)
    launch = Launch("handler", "f", "f-1", options={"folder": str(tmp_path / "any-name")}, concurrency=7)
    assert load_application(launch).hello()["concurrency"] == 7


def test_a_program_for_each_request_runs_beside_others() -> None:
    assert ProcessApplication(Launch("process", "f", "f-1", environment={"fprocess": "cat"})).hello()["concurrency"] == 4


def test_an_asynchronous_handler_waits_without_holding_up_others(make: Make) -> None:
    application = make("""
        import asyncio
        arrived = []
        async def handle(event, context):
            arrived.append(event.body)
            while len(arrived) < 8:
                await asyncio.sleep(0.001)
            return event.body
    """)
    assert together(application, 8) == [[b"%d" % number] for number in range(8)]


def test_an_asynchronous_handlers_error_is_its_own_requests_answer(make: Make) -> None:
    application = make("""
        import sys
        async def handle(event, context):
            if event.body == b"exit": sys.exit(3)
            return {"ok": 1}[event.body.decode()]
    """)
    for body in (b"exit", b"missing", b"exit"):
        answer = application.run(plain_batch(body))
        assert isinstance(answer, Frame)
        assert answer.members[0].code == 500
    assert bodies(application.run(plain_batch(b"ok"))) == [b"1"]


@pytest.mark.parametrize(
    "source",
    [
        "async def handle(event, context):\n    yield 'a'\n    yield 'b'\n",
        "async def parts():\n    yield 'a'\n    yield 'b'\nasync def handle(event, context): return {'body': parts()}\n",
        "async def parts():\n    yield 'a'\n    yield 'b'\nasync def handle(event, context): return parts(), 200\n",
    ],
)
def test_an_asynchronous_generator_streams_to_who_accepts_it(make: Make, source: str) -> None:
    application = make(source)
    assert bodies(application.run(plain_batch(b""))) == [b"ab"]
    frames = application.run(plain_batch(b"", meta=b"GET\n/\n\naccept: text/event-stream"))
    assert not isinstance(frames, Frame)
    kinds = [(frame.kind, [bytes(member.body) for member in frame.members]) for frame in frames]
    assert kinds == [
        (Kind.STREAM_START, [b""]), (Kind.STREAM_DATA, [b"a"]), (Kind.STREAM_DATA, [b"b"]), (Kind.STREAM_END, []),
    ]  # fmt: skip


def test_an_asynchronous_generator_is_closed_when_its_client_leaves(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    application = make("""
        async def handle(event, context):
            try:
                while True: yield 'x'
            finally:
                print('closed')
    """)
    frames = application.run(plain_batch(b"", meta=b"GET\n/\n\naccept: text/event-stream"))
    assert not isinstance(frames, Frame)
    next(frames)
    next(frames)
    frames.close()  # type: ignore[attr-defined]
    assert capsys.readouterr().out == "closed\n"


def test_calls_at_the_same_time_each_have_a_context_of_their_own(make: Make) -> None:
    application = make("""
        import threading
        both = threading.Barrier(2)
        def handle(event, context):
            both.wait(30)
            return f"{context.budget_s:g}"
    """)
    answers: dict[float, list[bytes]] = {}

    def call(budget_s: float) -> None:
        answers[budget_s] = bodies(application.run(plain_batch(b"", budget_s=budget_s)))

    threads = [threading.Thread(target=call, args=(budget_s,)) for budget_s in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {1.0: [b"1"], 2.0: [b"2"]}


def test_programs_at_the_same_time_end_with_their_own_status() -> None:
    # Whoever collected another's child would take its exit status for 0.
    application = ProcessApplication(Launch("process", "f", "f-1", environment={"fprocess": "sh"}))
    scripts = [b"(sleep 0.05 &) ; exit %d" % (number % 2) for number in range(40)]
    with ThreadPoolExecutor(8) as executor:
        answers = list(executor.map(application.run, [plain_batch(script) for script in scripts]))
    assert [answer.members[0].code for answer in answers] == [500 if number % 2 else 200 for number in range(40)]


PATIENCE_S = 30.0


class IdleWork:
    """Counts how often it is asked, and answers as soon as something waits."""

    def __init__(self) -> None:
        self.asked = 0

    def attend(self, channel: Channel) -> None:
        self.asked += 1
        select.select([channel.fileno()], [], [])


@pytest.fixture
def compute_thread() -> Iterator[ComputeThread]:
    made = ComputeThread("turns")
    yield made
    made.submit(lambda: None).result(PATIENCE_S)


def test_calls_run_in_order_in_one_thread(compute_thread: ComputeThread) -> None:
    threads, order = set(), []

    def act(number: int) -> int:
        threads.add(threading.get_ident())
        order.append(number)
        return 2 * number

    futures = [compute_thread.submit(act, number) for number in range(50)]
    assert [future.result(PATIENCE_S) for future in futures] == [2 * number for number in range(50)]
    assert order == list(range(50))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_exception_of_a_call_is_set_on_its_future(compute_thread: ComputeThread) -> None:
    failed = compute_thread.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result(PATIENCE_S)
    assert compute_thread.submit(lambda: 7).result(PATIENCE_S) == 7


def test_cancelled_call_is_not_run(compute_thread: ComputeThread) -> None:
    begun, go_on, taken = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    compute_thread.submit(first)
    assert begun.wait(PATIENCE_S)
    waiting = compute_thread.submit(taken.append, 1)
    assert waiting.cancel()
    go_on.set()
    compute_thread.submit(lambda: None).result(PATIENCE_S)
    assert taken == []


def test_idle_work_runs_between_calls_only(compute_thread: ComputeThread) -> None:
    idle_work = IdleWork()
    compute_thread.submit(compute_thread.set_idle_work, idle_work).result(PATIENCE_S)
    for number in range(1, 6):
        assert compute_thread.submit(lambda: idle_work.asked).result(PATIENCE_S) == number
    compute_thread.submit(compute_thread.set_idle_work, None).result(PATIENCE_S)
    asked = compute_thread.submit(lambda: idle_work.asked).result(PATIENCE_S)
    assert compute_thread.submit(lambda: idle_work.asked).result(PATIENCE_S) == asked
