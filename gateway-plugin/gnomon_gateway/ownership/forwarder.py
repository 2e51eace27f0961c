"""All requests that this replica does not answer by itself: on their way to the owner, or waiting until there is one.

They are bounded like a queue, by count and by bytes. Whenever the map of owners changes, or somebody has let go of something,
those that wait look again; those that were sent to a replica which is not in the map any more will not hear from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gnomon_core.errors import GnomonError
from gnomon_core.ownership import Replica
from gnomon_gateway.app import GatewayApp
from gnomon_gateway.dispatch.refusals import function_removed
from gnomon_gateway.invoke import DEADLINE_HEADER, read_deadline_s
from gnomon_gateway.ownership.holdings import Place
from gnomon_gateway.ownership.passage import Passage
from gnomon_gateway.ownership.peers import Peers
from gnomon_gateway.ownership.refusals import refuse, too_many_forwarded
from gnomon_gateway.server.exchange import Exchange
from gnomon_gateway.serving.directory import FunctionDirectory
from gnomon_gateway.serving.function_runtime import FunctionRuntime

MOST_REQUESTS = 8192
MOST_BYTES = 256 << 20

FindPlace = Callable[[str], "Place | Replica"]


@dataclass(slots=True)
class ForwardCounters:
    """What happened since the start; `inside` counts requests that other replicas have sent here."""

    forwarded: int = 0
    inside: int = 0
    waited: int = 0
    moved: int = 0
    unreached: int = 0
    lost: int = 0
    refused: int = 0


class Forwarder:
    """The requests, and what they need: the functions, our own application, connections, and where a function is (`place`)."""

    def __init__(
        self,
        app: GatewayApp,
        directory: FunctionDirectory,
        peers: Peers,
        *,
        place: FindPlace,
        look: Callable[[], None],
    ) -> None:
        self.app = app
        self.peers = peers
        self.place = place
        self.look = look
        """Called where the map that we have seems not to be the newest."""
        self.counters = ForwardCounters()
        self.epoch = 0
        self._directory = directory
        self._parked: set[Passage] = set()
        self._sent: set[Passage] = set()
        self.requests = 0
        self.bytes = 0

    def take(self, exchange: Exchange, runtime: FunctionRuntime, *, asked_epoch: int | None = None) -> None:
        """A request whose headers are here.

        With an `asked_epoch` it comes from a replica that knows this map, and goes no further.
        """
        if self.requests >= MOST_REQUESTS or self.bytes >= MOST_BYTES:
            self.counters.refused += 1
            refuse(exchange, too_many_forwarded(MOST_REQUESTS, MOST_BYTES), b"")
            return
        try:
            budget_s = _budget_s(exchange, runtime)
        except GnomonError as error:
            refuse(exchange, error, b"")
            return
        exchange.accept(Passage(self, exchange, runtime, time.monotonic() + budget_s, asked_epoch), self.app.max_body_bytes)

    def moved(self, began_s: float, exchange: Exchange, body: bytes | memoryview) -> None:
        """A request of ours has been given back by our own queue, which another replica has now."""
        runtime = self._runtime(exchange)
        if runtime is None:
            refuse(exchange, function_removed(), b"")
            return
        self.counters.moved += 1
        passage = Passage(self, exchange, runtime, began_s + _budget_s(exchange, runtime), None)
        exchange.accept(passage, self.app.max_body_bytes)
        passage.received(body)

    def moving(self, began_s: float) -> Callable[[Exchange, bytes | memoryview], None]:
        """What `Exchange.moved` is for a request that has begun here at this time."""
        return partial(self.moved, began_s)

    def changed(self) -> None:
        """Somebody may have another function than before."""
        for passage in list(self._parked):
            passage.go()

    def gone(self, members: frozenset[str]) -> None:
        """Only these replicas are in the map. What others were sent, they may have executed; their answers do not count."""
        for passage in list(self._sent):
            if passage.target not in members:
                passage.owner_gone()

    def park(self, passage: Passage) -> None:
        """It looks again when something has changed."""
        if passage not in self._parked:
            self.counters.waited += 1
            self._parked.add(passage)

    def unpark(self, passage: Passage) -> None:
        self._parked.discard(passage)

    def sent(self, passage: Passage) -> None:
        self._sent.add(passage)

    def returned(self, passage: Passage) -> None:
        self._sent.discard(passage)

    @property
    def waiting(self) -> int:
        """How many requests wait for an owner now."""
        return len(self._parked)

    def _runtime(self, exchange: Exchange) -> FunctionRuntime | None:
        name = function_named(exchange.path)
        return self._directory.lookup(name) if name is not None else None


def function_named(path: bytes) -> str | None:
    """The name of the function that a hot path is about; None where it is about none."""
    parts = path.split(b"/", 4)
    if len(parts) > 2 and parts[1] == b"function":  # noqa: PLR2004 - /function/name
        return parts[2].decode("latin-1")
    if len(parts) > 3 and parts[1] == b"v2" and parts[2] == b"models":  # noqa: PLR2004 - /v2/models/name
        return parts[3].decode("latin-1")
    return None


def _budget_s(exchange: Exchange, runtime: FunctionRuntime) -> float:
    budget_s = runtime.settings.deadline_s
    for name, value in exchange.headers:
        if name == DEADLINE_HEADER:
            budget_s = min(budget_s, read_deadline_s(value))
    return budget_s
