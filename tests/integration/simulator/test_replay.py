"""The load generator against a real server on this machine: it sends when it meant to, and says what became of each request."""

import asyncio
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_simulator.arrivals import constant, poisson, recorded
from gnomon_simulator.commands import ArrivalOptions, ReplayOptions
from gnomon_simulator.commands import replay as replay_command
from gnomon_simulator.events import stream
from gnomon_simulator.replay import Plan, Target, replay, replay_apart
from gnomon_simulator.replay_report import Outcome, Token, merged, read_samples
from tests.refusals import refused


class Server:
    """An HTTP server that does what `answer(path, headers, body)` says: a delay and the bytes to send, or None for never.

    It answers nobody before `hold` requests have come.
    """

    def __init__(self, answer: Callable[[str, str, bytes], tuple[float, bytes] | None], hold: int) -> None:
        self.answer = answer
        self.hold = hold
        self.url = ""
        self.arrived = 0
        self.answers_from = asyncio.Event()
        self.open = self.most_open = self.dropped = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.arrived += 1
                if self.arrived >= self.hold:
                    self.answers_from.set()
                text = head.decode("latin-1")
                length = int(re.search(r"Content-Length: (\d+)", text).group(1))  # type: ignore[union-attr]
                body = await reader.readexactly(length)
                said = self.answer(text.split(" ", 2)[1], text, body)
                if said is None:
                    await reader.read()
                    self.dropped += 1
                    break
                await self.answers_from.wait()
                await asyncio.sleep(said[0])
                writer.write(said[1])
                if b"Connection: close" in said[1]:
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@contextmanager
def serving(answer: Callable[[str, str, bytes], tuple[float, bytes] | None], hold: int = 0) -> Iterator[Server]:
    server, loop, begun = Server(answer, hold), asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def main() -> None:
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/echo?x=1"
        begun.set()
        await stop.wait()
        listener.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    begun.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def ok(body: bytes, headers: str = "", status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def echo(_path: str, _head: str, body: bytes) -> tuple[float, bytes]:
    return 0.0, ok(body)


def test_a_second_answer_to_one_request_is_seen() -> None:
    plan = Plan(constant(20, 0.2), deadline_s=2.0, max_connections=1)
    with serving(lambda *_: (0.0, ok(b"once") + ok(b"twice"))) as server:
        report = replay(plan, Target(server.url))
    assert list(report.samples.outcome) == [Outcome.ANSWERED_TWICE] * len(report.samples)
    assert report.succeeded == 0


def test_every_request_is_sent_and_gets_its_own_answer() -> None:
    with serving(echo) as server:
        target = Target(server.url, body=b'{"n": "{token}", "m": "{token}"}', headers={"X-Color": "red"}, check_token=True)
        report = replay(Plan(poisson(400.0, 1.0, stream(1, "arrivals"))), target)
    rows = report.samples
    assert server.arrived == len(rows) > 300
    assert set(rows.outcome) == {Outcome.ANSWERED}
    assert set(rows.token) == {Token.RIGHT}
    assert set(rows.size_bytes) == {len(b'{"n": "", "m": ""}') + 2 * 16}
    assert report.succeeded == len(rows)
    assert all(
        answered > sent >= intended
        for intended, sent, answered in zip(rows.intended_s, rows.sent_s, rows.answered_s, strict=True)
    )


def test_method_path_headers_and_body_are_sent_as_they_are() -> None:
    seen: list[tuple[str, str, bytes]] = []

    def keep(path: str, head: str, body: bytes) -> tuple[float, bytes]:
        seen.append((path, head, body))
        return 0.0, ok(b"")

    with serving(keep) as server:
        replay(Plan([0.0]), Target(server.url, method="PUT", headers={"X-Color": "red"}, body=b"a{token}\0"))
    (path, head, body) = seen[0]
    assert (path, body) == ("/echo?x=1", b"a{token}\0")
    assert head.startswith("PUT /echo?x=1 HTTP/1.1\r\n")
    assert "X-Color: red\r\n" in head


def test_an_answer_to_another_request_is_seen() -> None:
    previous = [b"none"]

    def mixed_up(_path: str, _head: str, body: bytes) -> tuple[float, bytes]:
        previous.append(body)
        return 0.0, ok(previous[-2])

    with serving(mixed_up) as server:
        report = replay(Plan(constant(100.0, 0.2)), Target(server.url, body=b"{token}", check_token=True))
    assert set(report.samples.token) == {Token.WRONG}
    assert report.succeeded == 0
    assert report.summary()["wrong_tokens"] == 20
    assert "another request's" in report.table()


def test_a_token_in_a_header_of_the_answer_counts() -> None:
    def back(_path: str, head: str, _body: bytes) -> tuple[float, bytes]:
        token = re.search(r"X-Gnomon-Token: (\w+)", head).group(1)  # type: ignore[union-attr]
        return 0.0, ok(b"", f"X-Gnomon-Token: {token}\r\n")

    with serving(back) as server:
        report = replay(Plan([0.0, 0.01]), Target(server.url, check_token=True))
    assert set(report.samples.token) == {Token.RIGHT}


def test_a_stall_does_not_hold_back_later_requests() -> None:
    with serving(echo, hold=31) as server:
        report = replay(Plan(constant(100.0, 0.5), deadline_s=20.0), Target(server.url))
    # Nobody is answered before the 31st has come, 300 ms after the first.
    assert set(report.samples.outcome) == {Outcome.ANSWERED}
    # What was sent 100 ms into the stall waited for 200 ms at least, and that is what is reported.
    assert report.samples.answered_s[10] - report.samples.intended_s[10] > 0.199


def test_a_client_leaves_at_its_deadline_and_closes_the_connection() -> None:
    with serving(lambda *_: None) as server:
        report = replay(Plan(constant(50.0, 0.2), deadline_s=0.5), Target(server.url))
        for _ in range(1000):
            if server.dropped == 10:
                break
            time.sleep(0.01)
    assert server.dropped == server.arrived == 10
    rows = report.samples
    assert set(rows.outcome) == {Outcome.GAVE_UP}
    assert all(math.isnan(answered) for answered in rows.answered_s)
    assert all(left >= intended + 0.5 for left, intended in zip(rows.left_s, rows.intended_s, strict=True))
    assert report.succeeded == 0


def test_connections_are_bounded_and_waiting_for_one_counts_as_latency() -> None:
    with serving(lambda _path, _head, body: (0.05, ok(body))) as server:
        report = replay(Plan([0.0, 0.0, 0.0, 0.0, 0.0], max_connections=2, open_first=2), Target(server.url))
    assert server.most_open == 2
    assert set(report.samples.outcome) == {Outcome.ANSWERED}
    latencies = sorted(report.latencies_s())
    assert [latency > 0.049 * turn for latency, turn in zip(latencies, (1, 1, 2, 2, 3), strict=True)] == [True] * 5
    assert max(report.lags_s()) > 0.098


def test_request_without_a_connection_is_not_sent() -> None:
    with serving(lambda *_: None) as server:
        report = replay(Plan([0.0, 0.0, 0.0], deadline_s=0.5, max_connections=1), Target(server.url))
    assert list(report.samples.outcome) == [Outcome.GAVE_UP, Outcome.UNSENT, Outcome.UNSENT]
    assert server.arrived == 1


def test_a_server_that_closes_after_each_answer_is_served_as_well() -> None:
    with serving(lambda _path, _head, body: (0.0, ok(body, "Connection: close\r\n"))) as server:
        report = replay(Plan(constant(200.0, 0.5), max_connections=4), Target(server.url))
    assert set(report.samples.outcome) == {Outcome.ANSWERED}


def test_chunked_answers_and_statuses_are_understood() -> None:
    chunked = b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    with serving(lambda *_: (0.0, chunked)) as server:
        report = replay(Plan(constant(100.0, 0.1)), Target(server.url))
    assert set(report.samples.status) == {503}
    assert set(report.samples.size_bytes) == {5}
    assert report.goodput_rps == 0.0
    assert report.latencies_s() == []
    assert len(report.latencies_s((503,))) == 10


def test_answer_that_is_not_http_fails() -> None:
    with serving(lambda *_: (0.0, b"HELLO\r\n\r\n")) as server:
        report = replay(Plan([0.0, 0.05]), Target(server.url))
    assert set(report.samples.outcome) == {Outcome.FAILED}


def test_closed_port_fails_each_request() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        report = replay(Plan(constant(100.0, 0.1)), Target(f"http://127.0.0.1:{port}/"))
    assert set(report.samples.outcome) == {Outcome.FAILED}


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://192.0.2.1/", "remote_target"),
        ("https://127.0.0.1/", "bad_target"),
        ("127.0.0.1:80", "bad_target"),
        ("http://[::1", "bad_target"),
        ("http://127.0.0.1:99999/", "bad_target"),
        (f"http://{'a' * 64}.example/", "bad_target"),
    ],
)
def test_other_machines_are_refused_unless_allowed(url: str, code: str) -> None:
    with pytest.raises(GnomonError) as refused:
        replay(Plan([0.0]), Target(url))
    assert refused.value.code == code
    assert Target("http://192.0.2.1/", allow_remote=True).address() == ("192.0.2.1", 80)


def test_a_header_cannot_smuggle_a_line() -> None:
    with pytest.raises(GnomonError):
        Target("http://127.0.0.1/", headers={"X": "a\r\nY: b"}).message()


def test_characters_that_http_cannot_carry_are_refused() -> None:
    with refused(400, "bad_target", message="ASCII"):
        Target("http://127.0.0.1/模型").message()


def test_nothing_to_send_ends_at_once() -> None:
    assert len(replay(Plan([]), Target("http://127.0.0.1:9/")).samples) == 0


def test_several_processes_share_one_plan() -> None:
    with serving(echo) as server:
        report = replay_apart(Plan(constant(200.0, 0.5)), Target(server.url, body=b"{token}", check_token=True), processes=2)
    assert list(report.samples.intended_s) == constant(200.0, 0.5)
    assert set(report.samples.token) == {Token.RIGHT}
    assert report.offered_rps == pytest.approx(200.0)


def test_a_record_is_read_back_and_can_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.jsonl"
    with serving(echo) as server:
        options = ReplayOptions(ArrivalOptions(rate_rps=100.0, duration_s=0.2), Target(server.url), record=record)
        assert replay_command(options) == 0
        again = ReplayOptions(ArrivalOptions(record=record), Target(server.url), json=True)
        assert replay_command(again) == 0
    assert "20 requests" in capsys.readouterr().out
    samples = read_samples(record)
    assert list(samples.intended_s) == pytest.approx(constant(100.0, 0.2))
    assert recorded(record) == sorted(samples.sent_s)
    assert len(merged([samples, samples])) == 40
