"""A function's queue: requests, their lanes, and their batches.

A request is received → admitted → dispatched → answered. `ANSWERED` is the only terminal state, reached once by the first of
these events: the function's answer, a refusal, the deadline, or the client's disconnect. The code that makes the transition sends
the answer, unless the client has disconnected; later results are counted and dropped.

The queue has one lane per kind of request, all bounded together by count and by bytes. A lane keeps its requests in order of
arrival and removes any one of them in O(1), because any client may disconnect. A lane is the `QueueView` that a scheduling policy
reads.

This module and those behind it are independent of HTTP. The batch channel carries `meta` and `body`, and a `Responder` takes the
answer. The simulator's requests have none of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, overload

from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_core.scheduling import Waiting
from gnomon_core.wire import Frame, Member

RECEIVED, ADMITTED, DISPATCHED, ANSWERED = range(4)
"""The states. Plain integers, because each request crosses all of them on the hot path."""


class LaneKey(NamedTuple):
    """The properties that requests must share to be in one batch.

    `variant` is the key of the latency model, `head` the batch frame's head (the tensors' names, types and shapes). `solo` lanes
    have batches of one request: a request with a streamed answer, or a retried or quarantined one.
    """

    kind: str
    variant: str
    head: bytes = b""
    solo: bool = False


class Responder(Protocol):
    """The receiver of a response. Exactly one of `answer`, `refuse`, or `stream` … up to STREAM_END or `broken` is called.

    Methods are called on the event loop, return at once and raise nothing.
    """

    def answer(self, member: Member, head: bytes) -> None:
        """The function's answer: its status, header lines and body; `head` is the RESULT frame's."""
        ...

    def refuse(self, error: GnomonError) -> None:
        """Answer with an error of the platform."""
        ...

    def stream(self, frame: Frame) -> None:
        """Send one frame of a streamed response."""
        ...

    def broken(self) -> None:
        """End a stream that broke off because the instance is gone."""
        ...


class Client(Protocol):
    """The client of a request, on a connection whose socket has this file descriptor."""

    descriptor: int

    def lost(self) -> None:
        """Report the closed connection now, which withdraws the request."""
        ...


class Request:
    """A request and its state. Times are on the gateway's clock.

    `size` is its number of samples, `body_bytes` its share of the queue's bytes. `replay_safe` says that the request is
    idempotent (a model's inference; a handler with `gnomon/retry`), so that it may be retried once if its instance dies or its
    batch fails; `retried` says that it was. The code that ends a request clears `responder`: the two refer to each other, and
    only the garbage collector would free such a cycle.
    """

    __slots__ = (
        "arrived_s",
        "batch",
        "body",
        "body_bytes",
        "client",
        "deadline_s",
        "id",
        "lane",
        "meta",
        "replay_safe",
        "responder",
        "retried",
        "size",
        "state",
        "streaming",
    )

    # By position too: keywords double the time in which CPython makes an object, and each request is one.
    def __init__(  # noqa: PLR0917
        self,
        lane: LaneKey,
        arrived_s: float,
        deadline_s: float,
        size: int = 1,
        meta: bytes = b"",
        body: bytes | memoryview = b"",
        responder: Responder | None = None,
        client: Client | None = None,
        *,
        replay_safe: bool = False,
        streaming: bool = False,
    ) -> None:
        self.id = 0
        self.lane = lane
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.size = size
        self.meta = meta
        self.body = body
        self.body_bytes = len(meta) + len(body)
        self.responder = responder
        self.client = client
        self.replay_safe = replay_safe
        self.streaming = streaming
        self.state = RECEIVED
        self.batch: Batch | None = None
        self.retried = False

    @property
    def is_open(self) -> bool:
        """Return whether the request has no answer yet."""
        return self.state != ANSWERED


class Batch:
    """Requests that execute together on one instance.

    `live` counts the members that have no answer yet; `deadline_s` is the earliest of their deadlines; `expected_end_s` is the
    predicted time of the result; `pair` and `instance_size` are the instance's Shadows and size when the batch was sent, and
    `cores` the cores that execute it, borrowed ones included; `lent` is the same number if the instance borrows cores, else 0. A
    batch that has ended drops its requests: they refer to each
    other, and only the garbage collector would free such a cycle.
    """

    __slots__ = (
        "cores", "deadline_s", "expected_end_s", "id", "instance_id", "instance_size", "lane", "lent", "live", "pair",
        "requests", "sent_s", "size", "streamed",
    )  # fmt: skip

    cores: int
    instance_size: int
    pair: Pair | None

    def __init__(self, batch_id: int, instance_id: str, lane: LaneKey, requests: tuple[Request, ...], sent_s: float) -> None:
        self.id = batch_id
        self.instance_id = instance_id
        self.lane = lane
        self.requests = requests
        self.sent_s = sent_s
        self.live = len(requests)
        if self.live == 1:
            self.size, self.deadline_s = requests[0].size, requests[0].deadline_s
        else:
            self.size = sum([request.size for request in requests])
            self.deadline_s = min([request.deadline_s for request in requests])
        self.streamed = False
        self.expected_end_s = sent_s
        self.lent = 0

    @property
    def unanswered(self) -> list[Request]:
        """The requests that have no answer and are in no later batch."""
        return [request for request in self.requests if request.batch is self and request.state == DISPATCHED]

    def end(self) -> None:
        """Release the requests of a batch that has its result, or whose instance has ended."""
        self.requests = ()


_NEVER_S = float("-inf")
GAPS = 8
"""The number of latest gaps between arrivals that predict the next request: few, so that a burst is detected at once."""
MANY_LANES = 16
"""The number of lanes from which empty ones are removed: a function has two or three kinds of requests, the others are of models
that it no longer serves."""


class _InOrder(Sequence[Waiting]):
    """A lane's requests as a sequence. Iteration from either end is quick; access by index is linear."""

    __slots__ = ("_by_id",)

    def __init__(self, by_id: OrderedDict[int, Request]) -> None:
        self._by_id = by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_id.values())

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._by_id.values())

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | Sequence[Request]:
        if isinstance(index, slice):
            return list(self._by_id.values())[index]
        if index == 0 and self._by_id:
            return next(iter(self._by_id.values()))
        ordered = iter(self) if index >= 0 else reversed(self)
        steps = index if index >= 0 else -index - 1
        for request in islice(ordered, steps, None):
            return request
        raise IndexError(index)


class Lane:
    """Requests that may share a batch, oldest first; by deadline after a call of `sort_by_deadline`.

    `wake_s` is when the policy wants to be called again, `latest_s` the latest deadline since the lane was empty; `overtaken`
    says that a request is due before one ahead of it.
    """

    __slots__ = (
        "_arrivals_s",
        "_by_id",
        "_sorted",
        "key",
        "latest_s",
        "overtaken",
        "requests",
        "samples",
        "solo",
        "variant",
        "wake_s",
    )

    def __init__(self, key: LaneKey) -> None:
        self.key = key
        self.variant = key.variant
        self.solo = key.solo
        self.samples = 0
        self.wake_s = float("inf")
        self.latest_s = _NEVER_S
        self._arrivals_s: deque[float] = deque(maxlen=GAPS + 1)
        self.overtaken = False
        self._sorted = False
        # An ordered dictionary removes any request in O(1), and can move one to the front.
        self._by_id: OrderedDict[int, Request] = OrderedDict()
        self.requests: Sequence[Waiting] = _InOrder(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request: Request) -> bool:
        return self._by_id.get(request.id) is request

    def head(self) -> Request:
        """The first request. The lane must not be empty."""
        return next(iter(self._by_id.values()))

    def waiting(self) -> Iterator[Request]:
        """An iterator over the requests in their order. The lane must not change during the iteration."""
        return iter(self._by_id.values())

    def snapshot(self) -> list[Request]:
        """A new list of the current requests, in their order."""
        return list(self._by_id.values())

    @property
    def gap_s(self) -> float:
        """The mean of the last `GAPS` times between arrivals, in seconds; infinity if there have been fewer."""
        arrivals_s = self._arrivals_s
        return (arrivals_s[-1] - arrivals_s[0]) / GAPS if len(arrivals_s) > GAPS else float("inf")

    def oldest_arrival_s(self) -> float:
        """The earliest arrival time in the lane, which must not be empty."""
        # In order of deadline, the first request need not be the oldest.
        if self._sorted:
            return min([request.arrived_s for request in self._by_id.values()])
        return self.head().arrived_s

    def sort_by_deadline(self) -> None:
        """Sort the requests by deadline, those with equal deadlines by arrival."""
        self.overtaken = False
        self._sorted = True
        for request in sorted(self._by_id.values(), key=_due):
            self._by_id.move_to_end(request.id)

    def add(self, request: Request) -> None:
        """Append a new request, and record its arrival for `gap_s`."""
        self._arrivals_s.append(request.arrived_s)
        self._put(request)

    def put_back(self, request: Request) -> None:
        """Put the request back to the front of the lane. It does not count as an arrival again."""
        self._put(request)
        self._by_id.move_to_end(request.id, last=False)

    def remove(self, request: Request) -> None:
        del self._by_id[request.id]
        self.samples -= request.size
        # An empty lane is in any order: later requests need no sorting because of earlier ones.
        if not self._by_id:
            self.latest_s = _NEVER_S
            self.overtaken = self._sorted = False

    def _put(self, request: Request) -> None:
        self._by_id[request.id] = request
        self.samples += request.size
        # Deadlines mostly ascend with arrivals. Only a request that is due before one ahead of it makes sorting worthwhile.
        if request.deadline_s >= self.latest_s:
            self.latest_s = request.deadline_s
        else:
            self.overtaken = True


class FunctionQueue:
    """The waiting requests of a function, in lanes.

    The queue assigns each request's `id`, unique within the queue and ascending in order of admission. `new_lane` is called for
    each new lane: at the first request of its kind, and at the first one after the lane was forgotten.
    """

    def __init__(self, max_requests: int, max_bytes: int, new_lane: Callable[[LaneKey], None] = lambda _: None) -> None:
        self._tell_new_lane = new_lane
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.samples = 0
        self.bytes = 0
        self.lanes: dict[LaneKey, Lane] = {}
        self._last_id = 0

    def has_room(self, body_bytes: int) -> bool:
        """Return whether one more request of this many bytes fits."""
        return self.requests < self.max_requests and self.bytes + body_bytes <= self.max_bytes

    def add(self, request: Request) -> Lane:
        """Append the request to its lane; returns the lane."""
        self._last_id += 1
        request.id = self._last_id
        lane = self._lane(request)
        lane.add(request)
        return lane

    def put_back(self, requests: Sequence[Request]) -> None:
        """Return these requests to the front of their lanes, in their order."""
        # In reverse, because each is moved to the very front.
        for request in reversed(requests):
            self._lane(request).put_back(request)

    def _lane(self, request: Request) -> Lane:
        """Count a request that is being added; returns its lane, a new one if needed."""
        self.requests += 1
        self.samples += request.size
        self.bytes += request.body_bytes
        lane = self.lanes.get(request.lane)
        return self._new_lane(request.lane) if lane is None else lane

    def _new_lane(self, key: LaneKey) -> Lane:
        # A function that is updated with other models again and again leaves an empty lane for each.
        if len(self.lanes) >= MANY_LANES:
            self.lanes = {key: lane for key, lane in self.lanes.items() if lane}
        lane = self.lanes[key] = Lane(key)
        self._tell_new_lane(key)
        return lane

    def forget(self, variant: str) -> bool:
        """Remove the lanes of this variant; False, and nothing removed, if a request waits in one of them."""
        theirs = [lane for lane in self.lanes.values() if lane.variant == variant]
        if any(theirs):
            return False
        for lane in theirs:
            del self.lanes[lane.key]
        return True

    def remove(self, request: Request) -> None:
        """Remove a request, at any position in its lane."""
        self.lanes[request.lane].remove(request)
        self.requests -= 1
        self.samples -= request.size
        self.bytes -= request.body_bytes

    def waiting_lanes(self) -> list[Lane]:
        """The lanes with waiting requests, the one with the oldest request first."""
        waiting = [lane for lane in self.lanes.values() if lane]
        if len(waiting) > 1:
            waiting.sort(key=Lane.oldest_arrival_s)
        return waiting

    def oldest_arrival_s(self) -> float | None:
        """The arrival time of the oldest waiting request; None if the queue is empty."""
        if not self.requests:
            return None
        return min((lane.oldest_arrival_s() for lane in self.lanes.values() if lane), default=None)


def _due(request: Request) -> tuple[float, int]:
    return request.deadline_s, request.id
