"""Clients on raw sockets, good and bad, each kind in a process of its own."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
OK = b"HTTP/1.1 200"
PIECE = b"a" * (16 << 10)


def request(path: str, body: bytes, *more: str) -> bytes:
    """A POST of JSON; `more` are header lines."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.contextmanager
def processes(count: int) -> Iterator[Callable[..., Future[Any]]]:
    """Runs functions of this module in processes of their own."""
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for warm in [pool.submit(time.sleep, 0.2) for _ in range(count)]:
            warm.result()
        yield pool.submit


def good(port: int, asked: bytes, seconds: float, pause_s: float = 0.002) -> list[float]:
    """A well-behaved client on a kept connection: the latency of each answer in seconds."""
    latencies_s: list[float] = []
    end_s = time.perf_counter() + seconds
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (begun_s := time.perf_counter()) < end_s:
            client.sendall(asked)
            if not client.recv(65536).startswith(OK):
                raise RuntimeError("the good client was not answered")
            latencies_s.append(time.perf_counter() - begun_s)
            time.sleep(pause_s)
    return latencies_s


def gone(port: int, asked: bytes, count: int) -> float:
    """So many clients that connect, send and close; then one that waits for its answer: for how long, in seconds."""
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(asked)
    begun_s = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(asked)
        if not client.recv(65536).startswith(OK):
            raise RuntimeError("the good client was not answered")
    return time.perf_counter() - begun_s


def closing(port: int, asked: bytes, clients: int, seconds: float) -> tuple[int, int]:
    """Clients that make a connection for each request, and the next when it has ended: how many were answered, and failed."""
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
            one = open_ones[descriptor]
            try:
                if event == select.EPOLLOUT:
                    one[0].send(asked)
                    watched.modify(descriptor, select.EPOLLIN)
                    continue
                data = one[0].recv(65536)
            except OSError:
                data = b""
            if data:
                one[1] += data
                continue
            good_one = one[1].startswith(OK)
            answered, failed = answered + good_one, failed + (not good_one)
            del open_ones[descriptor]
            one[0].close()
            begin()
    return answered, failed


def open_loop(port: int, asked: bytes, rate_rps: float, seconds: float, deadline_s: float, *, seed: int) -> dict[str, int]:
    """Poisson arrivals, a connection each; clients leave at the deadline: how many got what.

    The time counts from the intended arrival, `ok` is an answer of 200 in time.
    """
    chance = random.Random(seed)
    watched, open_ones, found = select.epoll(), {}, {"ok": 0, "refused": 0, "gone": 0, "failed": 0, "offered": 0}
    begun_s = next_s = time.perf_counter()
    while (now_s := time.perf_counter()) < begun_s + seconds or open_ones:
        while next_s <= now_s and next_s < begun_s + seconds:
            client = connecting(port)
            open_ones[client.fileno()] = (client, next_s)
            watched.register(client.fileno(), select.EPOLLOUT)
            found["offered"] += 1
            next_s += chance.expovariate(rate_rps)
        for descriptor, event in watched.poll(0.001):
            client, at_s = open_ones[descriptor]
            try:
                if event == select.EPOLLOUT:
                    client.send(asked)
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


def endless(port: int, head: bytes, count: int, seconds: float) -> int:
    """Clients that send heads without an end as fast as they are taken, and come again when refused: the bytes they sent."""
    attackers = [Attacker(port, head) for _ in range(count)]
    end_s, sent = time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        taken = sum(one.send(PIECE) for one in attackers)
        sent += taken
        if not taken:
            time.sleep(0.001)
    return sent


def slow(port: int, head: bytes, count: int, seconds: float) -> int:
    """Clients that send a header line each second, all at different times: how many were sent away in the end."""
    attackers = [Attacker(port, head) for _ in range(count)]
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for one in attackers:
            one.send(b"X-Slow: 1\r\n")
            time.sleep(1 / count)
    return sum(one.refused for one in attackers)


def idle(port: int, asked: bytes, count: int, seconds: float) -> int:
    """Clients that ask once and keep their connection: how many have it after so many seconds."""
    clients = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port), timeout=60)
        client.sendall(asked)
        if client.recv(65536).startswith(OK):
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
