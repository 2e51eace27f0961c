"""An open-loop load generator without coordinated omission.

The send times are fixed before the run begins, and each request is sent at its time, whether earlier ones were answered or not: a
server that stalls still gets the requests that clients would have sent meanwhile. A client waits until its deadline and then
closes its connection. Latency counts from the intended send time, and the generator reports its own lag.

    report = replay(Plan(poisson(500, 60, stream(1, "arrivals"))), Target("http://127.0.0.1:8080/function/echo"))

`replay` runs in this process; `replay_apart` in processes of its own, so that the caller's interpreter does not slow it down.

`Alarm` is a timer that is exact to about a tenth of a millisecond. Event loops count in whole milliseconds, which would make a
generator of thousands of requests per second send them in bunches. Linux offers timers as file descriptors with the kernel's own
resolution; Python 3.11 does not wrap them, so two C calls do. Elsewhere the loop's timer is used, and the reported lag shows how
exact it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import ipaddress
import multiprocessing
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Barrier
from urllib.parse import SplitResult, urlsplit

import uvloop

from gnomon_core.errors import bad_request
from gnomon_simulator.connections import Connection, Pool
from gnomon_simulator.replay_report import Outcome, Report, Samples, Token, merged

TOKEN_PLACE = b"{token}"
TOKEN_HEADER = "X-Gnomon-Token"  # noqa: S105 - the name of a header, not a secret
TOKEN_LENGTH = 16
START_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Schedule of a replay: send times, timeout, and the bound on open connections.

    `times_s` ascends from the run's second 0. `lead_s` lies between the call and second 0: time to open connections, and for
    other processes to start.
    """

    times_s: Sequence[float]
    deadline_s: float = 30.0
    max_connections: int = 1024
    open_first: int = 16
    lead_s: float = 0.25


@dataclass(frozen=True, slots=True)
class Target:
    """The request to send, and its target.

    With `check_token` every request carries a token of its own: in the header `X-Gnomon-Token`, and wherever the body says
    `{token}`. An answer is right only if the token is in its body or in one of its headers.
    Only loopback addresses are accepted unless `allow_remote`.
    """

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    check_token: bool = False
    allow_remote: bool = False

    def address(self) -> tuple[str, int]:
        """The host address and port to connect to.

        Raises:
            GnomonError: 400 `bad_target`, or `remote_target` for one that is not this machine.

        """
        parts = self._parts()
        port = parts.port or 80
        try:
            addresses = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise bad_request("bad_target", f"There is no host {parts.hostname!r}.", "Check its name.") from None
        host = str(addresses[0][4][0])
        if not self.allow_remote and not ipaddress.ip_address(host).is_loopback:
            raise bad_request(
                "remote_target",
                f"{parts.hostname} is not this machine, and a load generator can bring a server down.",
                "If it is yours, say --allow-remote.",
            )
        return host, port

    def message(self) -> bytes:
        """The raw HTTP request, with `{token}` as the place of the token."""
        parts = self._parts()
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        token_bytes = self.body.count(TOKEN_PLACE) * (TOKEN_LENGTH - len(TOKEN_PLACE)) if self.check_token else 0
        headers = {"Host": parts.netloc, "Content-Length": str(len(self.body) + token_bytes), **self.headers}
        if self.check_token:
            headers[TOKEN_HEADER] = TOKEN_PLACE.decode()
        lines = [f"{self.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise bad_request("bad_target", "A header or the path holds a line break.", "Remove it.")
        if not "".join(lines).isascii():
            raise bad_request("bad_target", "A header or the path holds other characters than ASCII.", "Write them as %C3%A9.")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body

    def _parts(self) -> SplitResult:
        with contextlib.suppress(ValueError):  # brackets that are not closed, or a port above 65535
            parts = urlsplit(self.url)
            if parts.scheme == "http" and parts.hostname and parts.port != 0:
                return parts
        raise bad_request("bad_target", f"{self.url!r} is not an http:// address.", "Write http://127.0.0.1:8080/path.")


class _Run:
    """A run in progress: the plan's requests in order, the timer of the next one, and the future that ends the run."""

    def __init__(self, plan: Plan, target: Target, begin_s: float) -> None:
        self._times_s = plan.times_s
        self._deadline_s = plan.deadline_s
        self._open_first = plan.open_first
        self._begin_s = begin_s
        self._samples = Samples.unsent(plan.times_s)
        self._pieces = target.message().split(TOKEN_PLACE) if target.check_token else [target.message()]
        self._check_token = target.check_token
        self._run_token = os.urandom(4).hex()
        self._next = 0
        self._unfinished: deque[int] = deque()
        self._connections: dict[int, Connection | None] = {}
        loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = loop.create_future()
        # An error in a callback would leave `run` waiting for ever: end the run with that error instead.
        loop.set_exception_handler(lambda _, context: self._end(context.get("exception")))
        self._alarm = Alarm(loop, self._ring)
        self._pool = Pool(
            target.address(),
            plan.max_connections,
            keep_answers=target.check_token,
            send=self._send,
            answered=self._answered,
            answered_twice=self._answered_twice,
            failed=self._failed,
        )

    async def run(self) -> Samples:
        """Everything from opening connections to closing them."""
        await self._pool.open_first(min(self._open_first, len(self._times_s)))
        self._ring()
        try:
            await self._done
        finally:
            self._alarm.close()
            await self._pool.close()
        return self._samples

    def _ring(self) -> None:
        now_s = time.monotonic() - self._begin_s
        times_s, connections = self._times_s, self._connections
        while self._next < len(times_s) and times_s[self._next] <= now_s:
            request = self._next
            self._next += 1
            connections[request] = None
            self._unfinished.append(request)
            self._pool.offer(request)
        self._give_up(now_s)
        if self._next < len(times_s):
            next_s = times_s[self._next]
            if self._unfinished:
                next_s = min(next_s, times_s[self._unfinished[0]] + self._deadline_s)
        elif self._unfinished:
            next_s = times_s[self._unfinished[0]] + self._deadline_s
        else:
            self._end()
            return
        self._alarm.set(next_s + self._begin_s)

    def _give_up(self, now_s: float) -> None:
        """Give up every request whose deadline has passed; deadlines are in order, because all timeouts are equal."""
        while self._unfinished:
            request = self._unfinished[0]
            if request in self._connections:
                if self._times_s[request] + self._deadline_s > now_s:
                    return
                connection = self._connections.pop(request)
                if connection is not None:
                    self._samples.outcome[request] = Outcome.GAVE_UP
                    connection.abort()
                    self._samples.left_s[request] = time.monotonic() - self._begin_s
            self._unfinished.popleft()

    def _send(self, request: int, connection: Connection) -> bool:
        if request not in self._connections:
            return False
        self._connections[request] = connection
        pieces = self._pieces
        connection.send(request, pieces[0] if len(pieces) == 1 else self._token(request).join(pieces))
        self._samples.sent_s[request] = time.monotonic() - self._begin_s
        return True

    def _answered(self, request: int, status: int, connection: Connection) -> None:
        rows = self._samples
        rows.answered_s[request] = time.monotonic() - self._begin_s
        rows.outcome[request] = Outcome.ANSWERED
        rows.status[request] = status
        rows.size_bytes[request] = connection.size_bytes
        if self._check_token:
            rows.token[request] = Token.RIGHT if self._token(request) in connection.answer else Token.WRONG
        self._finished(request)

    def _answered_twice(self, request: int) -> None:
        self._samples.outcome[request] = Outcome.ANSWERED_TWICE

    def _failed(self, request: int) -> None:
        if request in self._connections:
            self._samples.outcome[request] = Outcome.FAILED
            self._finished(request)

    def _finished(self, request: int) -> None:
        del self._connections[request]
        if not self._connections and self._next == len(self._times_s):
            self._end()

    def _end(self, error: BaseException | None = None) -> None:
        if not self._done.done():
            self._done.set_exception(error) if error else self._done.set_result(None)

    def _token(self, request: int) -> bytes:
        return f"{self._run_token}{request:08x}".encode()


def replay(plan: Plan, target: Target) -> Report:
    """Send the plan from this process, and return when every request has its outcome."""
    begin_s, started_at = _second_0(plan)
    samples = uvloop.run(_run(plan, target, begin_s))
    return _report(plan, target, begin_s, started_at, samples)


def replay_apart(plan: Plan, target: Target, processes: int = 1) -> Report:
    """Send the plan from `processes` fresh processes, each every n-th request, and return their samples together.

    The calling module must be importable, as for everything that Python spawns. The processes end with this one, however it ends.
    """
    target.address()
    context = multiprocessing.get_context("spawn")
    all_started = context.Barrier(processes)
    connections = max(1, plan.max_connections // processes)
    shares = [replace(plan, times_s=plan.times_s[n::processes], max_connections=connections) for n in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker, initargs=(all_started,)) as pool:
        # Each task starts a process, because none is idle before all of them are there; second 0 is set then.
        for started in [pool.submit(int) for _ in range(processes)]:
            started.result(START_LIMIT_S)
        begin_s, started_at = _second_0(plan)
        parts = list(pool.map(_work, shares, [target] * processes, [begin_s] * processes))
    return _report(plan, target, begin_s, started_at, parts[0] if processes == 1 else merged(parts))


def _second_0(plan: Plan) -> tuple[float, datetime]:
    """The run's beginning on the monotonic clock, and as a date."""
    return time.monotonic() + plan.lead_s, datetime.now(UTC) + timedelta(seconds=plan.lead_s)


def _begin_worker(started: Barrier) -> None:
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    started.wait(START_LIMIT_S)


def _end_with_parent() -> None:
    """Send nothing more once the calling process has ended: nothing wants the samples, and the target may be another's."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(plan: Plan, target: Target, begin_s: float) -> Samples:
    # A pause of the garbage collector would be lag of some milliseconds, and a run makes few reference cycles.
    gc.disable()
    return uvloop.run(_run(plan, target, begin_s))


async def _run(plan: Plan, target: Target, begin_s: float) -> Samples:
    return await _Run(plan, target, begin_s).run()


def _report(plan: Plan, target: Target, begin_s: float, started_at: datetime, samples: Samples) -> Report:
    duration_s = _length_s(plan.times_s)
    return Report(
        target=f"{target.method} {target.url}",
        deadline_s=plan.deadline_s,
        duration_s=duration_s,
        started_at=started_at.isoformat(timespec="milliseconds"),
        started_monotonic_s=begin_s,
        samples=samples,
    )


def _length_s(times_s: Sequence[float]) -> float:
    """The duration of the plan in seconds: until one mean gap after its last request."""
    if len(times_s) <= 1:
        return 1.0 if times_s else 0.0
    return times_s[-1] * len(times_s) / (len(times_s) - 1)


_ITIMERSPEC = struct.Struct("@qqqq")
_ABSOLUTE = 1
_SOONEST_S = 1e-6


class Alarm:
    """Calls `ring` at or just after the time it was last set to, on `time.monotonic`'s clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._libc: ctypes.CDLL | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create")
            loop.add_reader(self._fd, self._expired)

    def set(self, at_s: float) -> None:
        """Set the alarm to this time, at once if it has passed; replaces the previous setting."""
        if self._libc is None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, at_s - time.monotonic()), self._ring)
            return
        # All zero would switch the timer off.
        seconds, fraction = divmod(max(at_s, _SOONEST_S), 1.0)
        timer_spec = _ITIMERSPEC.pack(0, 0, int(seconds), int(fraction * 1e9))
        if self._libc.timerfd_settime(self._fd, _ABSOLUTE, timer_spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Cancel the alarm and close its file descriptor."""
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set again between expiring and being read
        self._ring()
