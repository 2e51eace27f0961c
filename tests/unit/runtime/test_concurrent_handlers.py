"""How many calls of a handler there are at once, and what each of them has to itself."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gnomon_core.launch import Launch
from gnomon_core.wire import Frame, Kind, Member
from gnomon_runtime.application import Application
from gnomon_runtime.handler import load_application
from gnomon_runtime.process import ProcessApplication
from tests.unit.runtime.handlers import Make

HANDLE = "def handle(event, context): return 'one'\n"
ASYNC = "async def handle(event, context): return 'one'\n"
BATCH = "def handle_batch(events, context): return ['many' for _ in events]\n"


def batch(*bodies: bytes, meta: bytes = b"POST\n/\n\n", budget_s: float = 0.0) -> Frame:
    return Frame(Kind.BATCH, 1, 1, budget_s, members=[Member(0, 1, meta, body) for body in bodies])


def bodies(answer: object) -> list[bytes]:
    assert isinstance(answer, Frame)
    return [bytes(member.body) for member in answer.members]


def together(application: Application, count: int) -> list[list[bytes]]:
    """The answers to so many batches of one, each by a thread of its own."""
    with ThreadPoolExecutor(count) as executor:
        return [bodies(answer) for answer in executor.map(application.run, [batch(b"%d" % n) for n in range(count)])]


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
        answer = application.run(batch(body))
        assert isinstance(answer, Frame)
        assert answer.members[0].code == 500
    assert bodies(application.run(batch(b"ok"))) == [b"1"]


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
    assert bodies(application.run(batch(b""))) == [b"ab"]
    frames = application.run(batch(b"", meta=b"GET\n/\n\naccept: text/event-stream"))
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
    frames = application.run(batch(b"", meta=b"GET\n/\n\naccept: text/event-stream"))
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
        answers[budget_s] = bodies(application.run(batch(b"", budget_s=budget_s)))

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
        answers = list(executor.map(application.run, [batch(script) for script in scripts]))
    assert [answer.members[0].code for answer in answers] == [500 if number % 2 else 200 for number in range(40)]
