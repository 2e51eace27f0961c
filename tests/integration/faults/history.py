"""A history of every request: what clients send and get, what instances execute, and the proof that each had one right end."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import socketserver
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

NEVER_DISPATCHED = frozenset(
    {
        "queue_full",
        "overloaded",
        "deadline_cannot_be_met",
        "no_instance",
        "function_removed",
        "function_updated",
        "function_not_found",
        "stopping",
    }
)
"""Error codes that promise that nothing ran."""
LEFT = "left"
BROKE_OFF = "broke off"


class BrokenPromiseError(AssertionError):
    """The history shows what may not be."""


@dataclass(frozen=True)
class Execution:
    """An instance began to work on a token. Times are on the machine's monotonic clock."""

    token: str
    instance: str
    pid: int
    batch: int
    at_s: float


@dataclass(frozen=True)
class End:
    """How a request ended for its caller: an HTTP answer, `LEFT`, or `BROKE_OFF` with the connection."""

    token: str
    status: int
    code: str
    echoed: str
    instance: str
    at_s: float
    retry_after: bool = False


@dataclass
class History:
    """Append-only. `sent` is by token, with when."""

    sent_at_s: dict[str, float] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sent(self, token: str, at_s: float) -> None:
        with self._lock:
            if token in self.sent_at_s:
                raise BrokenPromiseError(f"{token} was sent twice: the test is wrong")
            self.sent_at_s[token] = at_s

    def answered(self, token: str, status: int, headers: dict[str, str], body: bytes, at_s: float) -> End:
        """A whole answer has come. Header names are lower-case."""
        code, echoed = "", ""
        if headers.get("x-openfaas-internal"):
            code = str(json.loads(body)["error"]["code"])
        else:
            echoed = body.decode()
        end = End(token, status, code, echoed, headers.get("x-instance", ""), at_s, "retry-after" in headers)
        return self._end(end)

    def left(self, token: str, at_s: float) -> End:
        """The caller hung up before an answer came."""
        return self._end(End(token, 0, LEFT, "", "", at_s))

    def broke_off(self, token: str, at_s: float) -> End:
        """The connection ended under it. Nobody may rely on that; a test that kills no gateway does not allow it."""
        return self._end(End(token, 0, BROKE_OFF, "", "", at_s))

    def executed(self, *batch: Execution) -> None:
        with self._lock:
            self.executions.extend(batch)

    def _end(self, end: End) -> End:
        with self._lock:
            self.ends.append(end)
        return end

    # Questions

    def runs_of(self, token: str) -> list[Execution]:
        with self._lock:
            return [execution for execution in self.executions if execution.token == token]

    def count(self) -> Counter[str]:
        """How many requests ended how: by status, with the error's code where it was ours."""
        return Counter(f"{end.status} {end.code}".strip() if end.status else end.code for end in self.ends)

    # The proof

    def check(self, *, may_run_again: bool = False, may_break_off: bool = False) -> Counter[str]:
        """Raise unless every promise was kept; how the requests ended otherwise."""
        ended = Counter(end.token for end in self.ends)
        self._demand(set(self.sent_at_s) - set(ended), "never answered")
        self._demand(set(ended) - set(self.sent_at_s), "answered, but never sent")
        self._demand({token for token, times in ended.items() if times > 1}, "answered twice")
        if not may_break_off:
            self._demand({end.token for end in self.ends if end.code == BROKE_OFF}, "broken off")
        runs: dict[str, list[Execution]] = {}
        for execution in self.executions:
            runs.setdefault(execution.token, []).append(execution)
        self._demand(set(runs) - set(self.sent_at_s), "executed, but never sent")
        most = 2 if may_run_again else 1
        self._demand({token for token, times in runs.items() if len(times) > most}, "executed too often")
        for end in self.ends:
            self._check_end(end, runs.get(end.token, []))
        return self.count()

    def _check_end(self, end: End, runs: list[Execution]) -> None:
        if end.status == 200:
            if end.echoed != end.token:
                raise BrokenPromiseError(f"{end.token} got the answer of {end.echoed!r}")
            if end.instance not in {run.instance for run in runs}:
                raise BrokenPromiseError(f"{end.token} was answered by {end.instance!r}, which has not executed it: {runs}")
        elif end.code in NEVER_DISPATCHED and runs:
            raise BrokenPromiseError(f"{end.token} was refused with {end.code}, and executed: {runs}")
        elif not end.code:
            raise BrokenPromiseError(f"{end.token} got {end.status} {end.echoed!r}, which neither function nor gateway says")

    @staticmethod
    def _demand(tokens: set[str], what: str) -> None:
        if tokens:
            raise BrokenPromiseError(f"{len(tokens)} requests were {what}: {sorted(tokens)[:5]}")


HANDLER = """
import json
import os
import socket
import time

time.sleep(float(os.environ.get("START_S", "0")))
if os.environ.get("BROKEN"):
    raise RuntimeError("this version never starts")

VERSION = os.environ.get("VERSION", "1")
ledger = socket.create_connection(("127.0.0.1", int(os.environ["LEDGER"])))
batches = 0


def begin(events, context):
    global batches
    batches += 1
    known = {"instance": context.instance_id, "pid": os.getpid(), "batch": batches, "at_s": time.monotonic()}
    lines = [{"token": token_of(event), **known} for event in events]
    ledger.sendall(json.dumps(lines).encode() + b"\\n")
    ledger.recv(1)


def token_of(event):
    return event.body[:64].split(b";")[0].decode()


def answer(event, context):
    return {"body": token_of(event), "headers": {"X-Instance": context.instance_id, "X-Version": VERSION}}


def handle(event, context):
    begin([event], context)
    time.sleep(float(event.query.get("sleep", "0")))
    return answer(event, context)


def handle_batch(events, context):
    begin(events, context)
    time.sleep(max(float(event.query.get("sleep", "0")) for event in events))
    return [answer(event, context) for event in events]
"""
"""Echoes the token at the head of the body. `?sleep=` is how long it works; LEDGER is the ledger's port."""


class Ledger:
    """Listens on `port` and writes what it hears to `history`, which a test may replace by a new one."""

    def __init__(self) -> None:
        self.history = History()
        ledger = self

        class Listener(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                # An instance that is killed with our answer unread resets the connection.
                with contextlib.suppress(ConnectionError):
                    while (line := self.rfile.readline()).endswith(b"\n"):
                        documents: list[dict[str, Any]] = json.loads(line)
                        ledger.history.executed(*(Execution(**document) for document in documents))
                        self.wfile.write(b"k")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Listener)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


HANGS_S = 60.0
"""No request of these tests may take so long: whatever is not answered by then hangs."""


class Callers:
    """Sends requests with tokens of its own to the functions behind `url`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, history: History) -> None:
        self._session = session
        self.url = url
        self._numbers = itertools.count()
        self.history = history

    async def call(
        self,
        function: str,
        *,
        sleep_s: float = 0.0,
        deadline_ms: float | None = None,
        leave_after_s: float | None = None,
        filler: int = 0,
    ) -> End:
        """Send a request; its end is in the history. `leave_after_s` is when the caller hangs up."""
        token = f"{function}-{next(self._numbers)}"
        headers = {} if deadline_ms is None else {"X-Gnomon-Deadline-Ms": str(deadline_ms)}
        self.history.sent(token, time.monotonic())
        try:
            async with asyncio.timeout(leave_after_s or HANGS_S):
                async with self._session.post(
                    f"{self.url}/function/{function}?sleep={sleep_s}",
                    data=io.BytesIO(token.encode() + b";" + bytes(filler)),
                    headers=headers,
                ) as answer:
                    body = await answer.read()
        except aiohttp.ClientError:
            return self.history.broke_off(token, time.monotonic())
        except TimeoutError:
            if leave_after_s is None:
                raise AssertionError(f"{token} hangs") from None
            return self.history.left(token, time.monotonic())
        named = {name.lower(): value for name, value in answer.headers.items()}
        return self.history.answered(token, answer.status, named, body, time.monotonic())

    @asynccontextmanager
    async def load(self, function: str, callers: int, *, sleep_s: float = 0.0, pause_s: float = 0.0) -> AsyncIterator[None]:
        """Callers that send one request after another while the block runs; the last ones are answered when it ends."""
        ended = asyncio.Event()

        async def go_on() -> None:
            while not ended.is_set():
                await self.call(function, sleep_s=sleep_s)
                await asyncio.sleep(pause_s)

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(go_on())
            try:
                yield
            finally:
                ended.set()


async def until(what: Callable[[], bool], why: str, limit_s: float = 60.0) -> None:
    """Wait until it is so; what is slow on a busy machine is no failure, what never comes is."""
    end_s = time.monotonic() + limit_s
    while not await asyncio.to_thread(what):
        assert time.monotonic() < end_s, why
        await asyncio.sleep(0.02)
