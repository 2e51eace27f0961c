"""Clients of a server under test: closed-loop clients by aiohttp; well-behaved and hostile ones on raw sockets.

The clients on raw sockets run in processes of their own. Hostile ones run there with `in_background`: clients and server share
the machine's cores, and processor time that the attackers take from the others is the load generator's doing, not the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import aiohttp

OK = b"HTTP/1.1 200"
PIECE = b"a" * (16 << 10)
CATCH_UP_S = 1.0
"""A paced client that is late by more than this skips requests instead of sending them in a burst."""
NO_CONNECTION, BROKE_OFF = "no connection", "broke off"
"""Reasons why an attempt got no complete answer."""


class Request(NamedTuple):
    """A POST; `expected` is for the caller's check of the answer."""

    path: str
    body: bytes
    expected: Any = None


class Outcome(NamedTuple):
    """The outcome of an attempt, with times on the monotonic clock. Without a whole answer `status` is 0; `failure` is why."""

    sent_s: float
    ended_s: float
    status: int
    body: bytes
    failure: str = ""


async def closed_loop(
    url: str,
    clients: int,
    requests: Iterator[Request],
    record: Callable[[Request, Outcome], None],
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    interval_s: float = 0.0,
    pause_s: float = 0.0,
) -> None:
    """Run clients that each send the next request once their last has ended, until `requests` ends.

    Each client sends at most one request per `interval_s`, and waits for `pause_s` after each. An exception of `record` ends all.
    """

    async def client(session: aiohttp.ClientSession) -> None:
        due_s = time.monotonic()
        for request in requests:
            outcome = await attempt(session, url, request)
            record(request, outcome)
            due_s = max(due_s + interval_s, outcome.ended_s + pause_s if pause_s else outcome.ended_s - CATCH_UP_S)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=timeout_s)
    async with (
        aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(clients):
            tasks.create_task(client(session))


async def attempt(session: aiohttp.ClientSession, url: str, request: Request) -> Outcome:
    """Send a request once."""
    sent_s = time.monotonic()
    try:
        async with session.post(url + request.path, data=request.body) as answer:
            body = await answer.read()
            return Outcome(sent_s, time.monotonic(), answer.status, body)
    except aiohttp.ClientConnectorError:
        failure = NO_CONNECTION
    except (aiohttp.ClientError, TimeoutError):
        failure = BROKE_OFF
    return Outcome(sent_s, time.monotonic(), 0, b"", failure)


def until(end_s: float, request: Request) -> Iterator[Request]:
    """Repeat a request until this moment of the monotonic clock."""
    while time.monotonic() < end_s:
        yield request


def raw_request(path: str, body: bytes, *more: str) -> bytes:
    """The bytes of a POST of JSON; `more` are header lines."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.contextmanager
def processes(count: int, initializer: Callable[[], None] | None = None) -> Iterator[Callable[..., Future[Any]]]:
    """Runs functions of this module in processes of their own."""
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=initializer) as pool:
        for warm in [pool.submit(time.sleep, 0.2) for _ in range(count)]:
            warm.result()
        yield pool.submit


def in_background() -> None:
    """Let this process run only on cores that no other process wants.

    SCHED_IDLE, not a low priority: a process of any other class preempts it at once, not at the end of its time slice.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def well_behaved(port: int, request: bytes, seconds: float, pause_s: float = 0.002) -> list[float]:
    """A client on a kept connection that sends one request after another: the latency of each answer in seconds."""
    latencies_s: list[float] = []
    end_s = time.perf_counter() + seconds
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (begun_s := time.perf_counter()) < end_s:
            ask(client, request)
            latencies_s.append(time.perf_counter() - begun_s)
            time.sleep(pause_s)
    return latencies_s


def ask(client: socket.socket, request: bytes) -> None:
    """Send a request and read the whole answer, which must be 200 and state its length."""
    client.sendall(request)
    answer = b""
    while True:
        data = client.recv(65536)
        answer += data
        head, ends, body = answer.partition(b"\r\n\r\n")
        if not data or not answer.startswith(OK[: len(answer)]):
            raise RuntimeError(f"the well-behaved client got {answer[:200]!r}")
        if ends and len(body) >= int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            return


def disconnecting(port: int, request: bytes, count: int) -> float:
    """Clients that connect, send and close; then one that waits for its answer: for how long, in seconds."""
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(request)
    begun_s = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        ask(client, request)
    return time.perf_counter() - begun_s


def connection_per_request(port: int, request: bytes, clients: int, seconds: float) -> tuple[int, int]:
    """Clients that each make a connection for each request, one after the other: how many were answered, and failed."""
    watched, open_ones = select.epoll(), {}
    answered = failed = 0

    def begin() -> None:
        client = connecting(port)
        open_ones[client.fileno()] = [client, b""]
        watched.register(client.fileno(), select.EPOLLOUT)

    end_s = time.perf_counter() + seconds
    for _ in range(clients):
        begin()
    while time.perf_counter() < end_s:
        for descriptor, event in watched.poll(1):
            open_client = open_ones[descriptor]
            try:
                if event == select.EPOLLOUT:
                    open_client[0].send(request)
                    watched.modify(descriptor, select.EPOLLIN)
                    continue
                data = open_client[0].recv(65536)
            except OSError:
                data = b""
            if data:
                open_client[1] += data
                continue
            good_one = open_client[1].startswith(OK)
            answered, failed = answered + good_one, failed + (not good_one)
            del open_ones[descriptor]
            open_client[0].close()
            begin()
    return answered, failed


def open_loop(port: int, request: bytes, rate_rps: float, seconds: float, deadline_s: float, *, seed: int) -> dict[str, int]:
    """Poisson arrivals, a connection each; clients leave at the deadline: how many got what.

    The time counts from the intended arrival, `ok` is an answer of 200 in time.
    """
    rng = random.Random(seed)
    watched, open_ones, found = select.epoll(), {}, {"ok": 0, "refused": 0, "gone": 0, "failed": 0, "offered": 0}
    begun_s = next_s = time.perf_counter()
    while (now_s := time.perf_counter()) < begun_s + seconds or open_ones:
        while next_s <= now_s and next_s < begun_s + seconds:
            client = connecting(port)
            open_ones[client.fileno()] = (client, next_s)
            watched.register(client.fileno(), select.EPOLLOUT)
            found["offered"] += 1
            next_s += rng.expovariate(rate_rps)
        for descriptor, event in watched.poll(0.001):
            client, at_s = open_ones[descriptor]
            try:
                if event == select.EPOLLOUT:
                    client.send(request)
                    watched.modify(descriptor, select.EPOLLIN)
                    continue
                data = client.recv(65536)
            except OSError:
                data = b""
            in_time = time.perf_counter() - at_s <= deadline_s
            found["ok" if data.startswith(OK) and in_time else "refused" if data else "failed"] += 1
            del open_ones[descriptor]
            client.close()
        late_s = time.perf_counter() - deadline_s
        while open_ones and next(iter(open_ones.values()))[1] < late_s:
            descriptor = next(iter(open_ones))
            open_ones.pop(descriptor)[0].close()
            found["gone"] += 1
    return found


def endless_heads(port: int, head: bytes, count: int, seconds: float) -> int:
    """Clients that send heads without an end as fast as they are taken, and come again when refused: the bytes they sent."""
    attackers = [Attacker(port, head) for _ in range(count)]
    end_s, sent = time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        taken = sum(attacker.send(PIECE) for attacker in attackers)
        sent += taken
        if not taken:
            time.sleep(0.001)
    return sent


def slow_heads(port: int, head: bytes, count: int, seconds: float) -> int:
    """Clients that send a header line each second, all at different times: how many were refused in the end."""
    attackers = [Attacker(port, head) for _ in range(count)]
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for attacker in attackers:
            attacker.send(b"X-Slow: 1\r\n")
            time.sleep(1 / count)
    return sum(attacker.refused for attacker in attackers)


def idle_connections(port: int, request: bytes, count: int, seconds: float) -> int:
    """Clients that ask once and keep their connection: how many have it after so many seconds."""
    clients = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port), timeout=60)
        ask(client, request)
        clients.append(client)
    time.sleep(seconds)
    watched = select.poll()
    for client in clients:
        watched.register(client, select.POLLIN)
    return len(clients) - len(watched.poll(0))


class Attacker:
    """A connection that is made anew when the server ends it."""

    def __init__(self, port: int, head: bytes) -> None:
        self.refused = 0
        self._port, self._head = port, head
        self._connect()

    def send(self, data: bytes) -> int:
        """Send this if the server takes it; the bytes that were taken."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.refused += 1
            self._socket.close()
            self._connect()
            return 0

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        self._socket.sendall(self._head)
        self._socket.setblocking(False)  # noqa: FBT003 - the signature is socket's


def connecting(port: int) -> socket.socket:
    """A connection that is being made."""
    client = socket.socket()
    client.setblocking(False)  # noqa: FBT003 - the signature is socket's
    client.connect_ex(("127.0.0.1", port))
    return client
