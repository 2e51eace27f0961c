"""Functions' logs, read from the API server on request: the gateway stores no logs.

Each line carries its pod's name, as in OpenFaaS on Kubernetes. A follower of a function follows all its present and future pods,
each on its own thread; a stream that breaks off is resumed after its last line. A slow reader blocks the threads, and by flow
control the API server's streams: no line is dropped, and memory stays bounded.

Existing lines are read by a few threads of their own: if a node has died, the API server takes half a minute to say so of each of
its pods, and what the gateway does in threads for deployments must not wait behind them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from gnomon_core.clock import rfc3339, seconds_of
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import LogLine, LogQuery
from gnomon_platforms.kubernetes.client import Api, Refused, Stream, Unreachable, to_gnomon_error
from gnomon_platforms.kubernetes.informer import Change, Informer
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES, PodFacts
from gnomon_platforms.kubernetes.resources import PODS

READERS = 8
MAX_STREAMS = 64
MAX_BYTES = 4 * 2**20
"""Bytes of one pod's newest lines: at least this much is returned, if there is as much, and at most twice as much."""
ALL_BYTES = 32 * 2**20
"""Bytes of all pods' lines together, shared evenly; at most twice as much."""
SILENCE_S, EXISTING_SILENCE_S = 300.0, 60.0
"""How long a log that is followed may have no new line, and the API server may take to send existing ones."""
AGAIN_S = 1.0
WAITING_LINES = 500
LINES_AT_ONCE = 200


class PodLogs:
    """The logs of the pods in an informer's cache; `pods_of` returns a function's pods."""

    def __init__(self, api: Api, pods: Informer[PodFacts], pods_of: Callable[[FunctionKey], Iterable[PodFacts]]) -> None:
        self._api, self._pods, self._pods_of = api, pods, pods_of
        self._followers: set[PodFollower] = set()
        self._readers = ThreadPoolExecutor(READERS, "logs")

    async def lines(self, query: LogQuery) -> list[LogLine]:
        """Read the existing lines, oldest first.

        Raises:
            GnomonError: 503 `kubernetes_…` if the API server is unreachable or refuses.

        """
        pods = [pod for pod in self._pods_of(query.function) if _wanted(pod, query)]
        most_bytes = min(MAX_BYTES, ALL_BYTES // max(1, len(pods)))
        loop = asyncio.get_running_loop()
        read = await asyncio.gather(*(loop.run_in_executor(self._readers, self._read, pod, query, most_bytes) for pod in pods))
        return sorted((line for lines in read for line in lines), key=lambda line: line.at)

    def follow(self, query: LogQuery) -> PodFollower:
        """Follow the existing lines and the new ones of all present and future pods of the function.

        Raises:
            GnomonError: 429 `too_many_followers`.

        """
        if sum(follower.streams for follower in self._followers) >= MAX_STREAMS:
            raise GnomonError(
                429,
                "too_many_followers",
                f"{MAX_STREAMS} pods are followed already.",
                "End another log reader.",
                retry_after_s=10,
            )
        follower = PodFollower(self._api, query, self._followers.discard)
        self._followers.add(follower)
        follower.listen(self._pods)
        return follower

    async def close(self) -> None:
        """End every follower."""
        for follower in tuple(self._followers):
            follower.close()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _read(self, pod: PodFacts, query: LogQuery, most_bytes: int) -> list[LogLine]:
        data, cut = bytearray(), False
        try:
            with self._api.stream(_path(pod), _log_parameters(query, pod.function), silence_s=EXISTING_SILENCE_S) as stream:
                while more := stream.read():
                    data += more
                    if len(data) > 2 * most_bytes:
                        del data[:-most_bytes]
                        cut = True
        except Refused as refusal:
            if refusal.missing or _not_begun(refusal):
                return []
            raise to_gnomon_error(refusal, f"read the log of {pod.name}") from refusal
        except Unreachable as error:
            raise to_gnomon_error(error, f"read the log of {pod.name}") from error
        # After a cut the first line is incomplete: skip it.
        lines = (_line(pod, line) for line in bytes(data).split(b"\n")[cut:] if line)
        return [line for line in lines if query.since is None or line.at >= query.since]


class PodFollower:
    """A reader of a function's log lines. The caller must close it."""

    def __init__(self, api: Api, query: LogQuery, leave: Callable[[PodFollower], None]) -> None:
        self._api, self._query, self._leave = api, query, leave
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[LogLine | None] = asyncio.Queue(WAITING_LINES)
        self._tails: dict[str, Tail] = {}
        """The reader of each pod that exists, by the pod's uid."""
        self._last_rounds: list[Tail] = []
        """The readers of pods that are gone, until they have read the rest."""
        self._forget: Callable[[], None] = lambda: None
        self._closed = False

    @property
    def streams(self) -> int:
        """The number of pods that are followed."""
        return sum(tail.is_alive() for tail in (*self._tails.values(), *self._last_rounds))

    def listen(self, pods: Informer[PodFacts]) -> None:
        """Follow the function's present and future pods."""
        self._forget = pods.listen(self._changed)

    async def next_line(self) -> LogLine | None:
        """Wait for the next line; None once the follower is closed."""
        return None if self._closed else await self._lines.get()

    def close(self) -> None:
        """End the follower; a pending `next_line` returns None."""
        if self._closed:
            return
        self._closed = True
        self._forget()
        self._leave(self)
        for tail in (*self._tails.values(), *self._last_rounds):
            tail.end()
        while not self._lines.empty():
            self._lines.get_nowait()
        self._lines.put_nowait(None)

    def _changed(self, change: Change[PodFacts]) -> None:
        pod = change.new
        if pod is None:
            gone = None if change.old is None else self._tails.pop(change.old.uid, None)
            if gone is not None:
                gone.last_round = True
                self._last_rounds = [tail for tail in (*self._last_rounds, gone) if tail.is_alive()]
            return
        if pod.key != self._query.function or not _wanted(pod, self._query):
            return
        tail = self._tails.get(pod.uid)
        if tail is None and self.streams < MAX_STREAMS:
            tail = self._tails[pod.uid] = Tail(self._api, pod, self._query, self._deliver)
            tail.start()
        if tail is not None and pod.phase in ENDED_PHASES:
            tail.last_round = True

    def _deliver(self, lines: list[LogLine]) -> Future[None] | None:
        """Queue lines, called from a thread; the future is done when the queue had space for all of them."""

        async def put() -> None:
            for line in lines:
                if self._closed:
                    return
                await self._lines.put(line)

        work = put()
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop has been closed
            work.close()
            return None


class Tail(threading.Thread):
    """A thread that follows one pod's container. `deliver` queues lines and returns a future to wait for, None to stop."""

    def __init__(self, api: Api, pod: PodFacts, query: LogQuery, deliver: Callable[[list[LogLine]], Future[None] | None]) -> None:
        super().__init__(name=f"log {pod.name}", daemon=True)
        self._api, self._pod, self._query, self._deliver = api, pod, query, deliver
        self._ended = threading.Event()
        self._stream: Stream | None = None
        self._under_way: Future[None] | None = None
        self._last = ("", "")
        self.last_round = False
        """Whether the container has ended: the thread reads its last lines and stops."""

    def run(self) -> None:
        """Read until the pod or the reader has ended."""
        while not self._ended.is_set():
            last_round = self.last_round
            with contextlib.suppress(Refused, Unreachable):
                self._follow()
            if last_round:
                return
            self._ended.wait(AGAIN_S)

    def end(self) -> None:
        """End the thread: the reader has left."""
        self._ended.set()
        stream, under_way = self._stream, self._under_way
        if stream is not None:
            stream.end()
        if under_way is not None:
            under_way.cancel()

    def _follow(self) -> None:
        parameters = {**_log_parameters(self._query, self._pod.function), "follow": "true"}
        if self._last[0]:
            parameters.pop("tailLines", None)
            parameters["sinceTime"] = f"{self._last[0]}Z"
        with self._api.stream(_path(self._pod), parameters, silence_s=SILENCE_S) as stream:
            self._stream = stream
            rest = b""
            while not self._ended.is_set() and (data := stream.read()):
                *lines, rest = (rest + data).split(b"\n")
                self._give(lines)
            if self.last_round:
                # In other rounds an incomplete line is read again after the reconnection.
                self._give([rest])

    def _give(self, lines: list[bytes]) -> None:
        new = []
        for line in lines:
            stamp = _stamp(line)
            if line and stamp > self._last:
                self._last = stamp
                new.append(_line(self._pod, line))
        for begin in range(0, len(new), LINES_AT_ONCE):
            self._under_way = self._deliver(new[begin : begin + LINES_AT_ONCE])
            if self._under_way is None or self._ended.is_set():
                self._ended.set()
                return
            with contextlib.suppress(Exception):  # it was cancelled, because the reader has left
                self._under_way.result()


def _path(pod: PodFacts) -> str:
    return PODS.path(pod.namespace, pod.name, "log")


def _wanted(pod: PodFacts, query: LogQuery) -> bool:
    """True if a pod may have lines that match the query."""
    return pod.phase != "Pending" and query.instance in ("", pod.name)


def _log_parameters(query: LogQuery, container: str) -> dict[str, str]:
    """The query parameters for a pod's log."""
    parameters = {"container": container, "timestamps": "true"}
    if query.since is not None:
        parameters["sinceTime"] = rfc3339(query.since, "seconds")
    if query.tail > 0:
        parameters["tailLines"] = str(query.tail)
    return parameters


def _not_begun(refusal: Refused) -> bool:
    """True if the container has not been started: the API server answers BadRequest because there is no log yet."""
    return refusal.reason == "BadRequest"


def _stamp(line: bytes) -> tuple[str, str]:
    """A line's time as seconds and nine digits of nanoseconds, so that two compare: Kubernetes omits trailing zeros."""
    whole, _, fraction = line.split(b" ", 1)[0].decode("ascii", "replace").rstrip("Z").partition(".")
    return whole, fraction.ljust(9, "0")


def _line(pod: PodFacts, line: bytes) -> LogLine:
    stamp, _, text = line.partition(b" ")
    return LogLine(pod.key, pod.name, seconds_of(stamp.decode("ascii", "replace")), text.decode("utf-8", "replace").rstrip("\r"))
