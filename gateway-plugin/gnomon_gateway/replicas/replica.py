"""A gateway replica: applies the map of owners, drains functions that moved away, and exchanges reports with the leader.

Maps come from the board, and with each message of another replica or the leader, so that a replica without access to the board
receives them too. A map is valid until there is a newer one, even without a leader. Replicas exchange:

    {"from", "map", "draining"}  ─POST /gnomon/ownership─▶  {"id", "map", "draining", "leaving"}

`from` is empty in the leader's polls. A replica that waits for another to release a function polls that replica until it has. The
leader's polls and their answers also carry `Reports`:

    leader ─{"leader", "heard", "pairs", "plans", "learned"}─▶ replica
    replica ─{…, "report"}─▶ leader, at once if a request waits for an instance

Each poll has the number of the last report that the leader received from this address, so that only changes are sent. The leader
sends the state that only it has: the instances' Shadows, the buffer plans, and a part of the autoscaler's learned state.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnomon_core.background import Background
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.ownership import OwnershipBoard, OwnershipMap, Replica
from gnomon_gateway.api.invocation import GatewayApp
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.replicas.assignment import OwnedFunctions, Place, ReplicaStatus
from gnomon_gateway.replicas.forwarding import Forwarder
from gnomon_gateway.replicas.peers import OWNERSHIP_PATH, Peers

ASK_S = 0.05
ANSWER_TIMEOUT_S = 1.0
QUIET_S = 1.0

_LOG = logging.getLogger("gnomon.ownership")


class ReplicaAgent:
    """The replica `identity`, which is unique to this process."""

    def __init__(
        self,
        identity: str,
        app: GatewayApp,
        directory: FunctionDirectory,
        board: OwnershipBoard,
        peers: Peers,
        *,
        reports: Reports | None = None,
    ) -> None:
        self.identity = identity
        self.address = ""
        """The URL of the internal listener, as maps state it."""
        self.leaving = False
        self.reports = reports or Reports()
        self.leader = ""
        """The id of the replica that last claimed to lead."""
        self.holdings = OwnedFunctions(identity)
        self.forwarder = Forwarder(app, directory, peers, place=self.place, refresh_map=self.refresh_map)
        self.directory, self._board, self._peers = directory, board, peers
        # One that is deployed again under its name has another runtime, which does not know its epoch yet.
        directory.removed = self.holdings.forget
        self._notifying: set[str] = set()
        self._background = Background()
        self._begin = self._background.begin
        self._awaited = asyncio.Event()
        self._changed = asyncio.Event()
        self._reading = self._reporting = False
        self._unwatch: Callable[[], None] = _nothing

    async def start(self) -> None:
        """Begin to follow the map and to exchange messages."""
        self._unwatch = self._board.watch(self.learn)
        self._begin(self._notify_members())

    async def stop(self) -> None:
        """End the background work and the connections. All admitted requests must have been answered."""
        self._unwatch()
        self._unwatch = _nothing
        await self._background.end()
        self._peers.close()

    async def leave(self, timeout_s: float) -> bool:
        """Give up all functions. Returns whether, within this time, all were released and every other replica knows.

        The last replica keeps its functions until it stops. Until then, new requests are forwarded.
        """
        self.leaving = True
        try:
            async with asyncio.timeout(timeout_s):
                while not self._has_left():
                    self._changed.clear()
                    self._awaited.set()
                    await self._changed.wait()
        except TimeoutError:
            _LOG.warning(
                "this replica stops before all others know that it has left: requests that they send here wait until they do"
            )
            return False
        return True

    def place(self, function: str) -> Place | Replica:
        """The destination of a request to this function."""
        new = function not in self.holdings.serving
        place = self.holdings.place(function)
        if new and place is Place.HERE:
            runtime = self.directory.lookup(function)
            if runtime is not None:
                self._own(function, runtime)
        return place

    def learn(self, new: OwnershipMap) -> None:
        """Apply a map if it is newer than the known one."""
        if new.epoch <= self.holdings.epoch:
            return
        for function in self.holdings.apply(new):
            self._drain(function)
        for function in self.holdings.serving:
            runtime = self.directory.lookup(function)
            if runtime is not None:
                self._own(function, runtime)
        self.forwarder.epoch = new.epoch
        _LOG.info(
            "map of owners, epoch %d: functions are shared by %s", new.epoch, ", ".join(replica.id for replica in new.owners)
        )
        self.forwarder.gone(frozenset(replica.id for replica in new.members))
        self._wake_waiting()

    def answer(self, message: Any) -> dict[str, Any]:
        """Process a message of another replica or of the leader, and return the reply.

        Raises:
            GnomonError: 400 for an invalid message.

        """
        self._take_message(message, "from")
        answer = {**self._message(), "id": self.identity, "leaving": self.leaving}
        if "leader" in message:
            self.leader, self.reports.confirmed = str(message["leader"]), _number(message.get("heard"))
            if self.leader != self.identity:
                self.reports.follow(message)
                answer["report"] = self.reports.report()
        elif "report" in message:
            self.take_report(str(message["from"]), message["report"], str(message.get("address")))
        return answer

    def take_report(self, replica: str, report: Any, address: str) -> None:
        """Process a replica's report, as the leader.

        Raises:
            GnomonError: 400 `invalid_report`.

        """
        if replica != self.identity:
            self.reports.take_report(replica, report, address)

    def known_leader(self) -> Replica | None:
        """The other replica that last claimed to lead; None if none has, or if it is not in the map any more."""
        current = self.holdings.map
        return None if current is None or self.leader == self.identity else current.member(self.leader)

    def report_now(self) -> None:
        """Report to the leader at once instead of waiting for its next poll."""
        leader = self.known_leader()
        if leader is not None and not self._reporting:
            self._reporting = True
            self._begin(self._report_to(leader))

    def refresh_map(self) -> None:
        """Read the board, whose notifications may be late, and poll the awaited replicas: the known map may be outdated."""
        self._awaited.set()
        if not self._reading:
            self._reading = True
            self._begin(self._read())

    # Effects of maps

    def _drain(self, function: str) -> None:
        runtime = self.directory.lookup(function)
        if runtime is None:
            self.holdings.released(function)
            return
        # Requests in flight are finished here; only then may the new owner dispatch the function (see `assignment`).
        runtime.disown()
        self._begin(self._release(function, runtime.wait_idle))

    async def _release(self, function: str, quiet: Callable[[], Any]) -> None:
        await quiet()
        self.holdings.released(function)
        self._wake_waiting()

    def _own(self, function: str, runtime: FunctionRuntime) -> None:
        runtime.own(self.holdings.epoch_of(function), partial(self._refused, function))

    def _refused(self, function: str, newest: int) -> None:
        """An instance of the function refused a batch, because it has seen this newer epoch."""
        if self.holdings.refused(function, newest):
            self._drain(function)
        self.refresh_map()

    def _wake_waiting(self) -> None:
        self._awaited.set()
        self._changed.set()
        self.forwarder.changed()

    def _has_left(self) -> bool:
        current = self.holdings.map
        if current is None or all(replica.id == self.identity for replica in current.owners):
            return True
        return not self.holdings.is_owner and not self.holdings.draining and not self.holdings.unconfirmed()

    # Messages

    async def _notify_members(self) -> None:
        """Send this replica's status to all members that may not know the map, until all do."""
        while True:
            unconfirmed = self.holdings.unconfirmed()
            for other in unconfirmed:
                if other.id not in self._notifying:
                    self._notifying.add(other.id)
                    self._begin(self._notify(other))
            self._awaited.clear()
            try:
                async with asyncio.timeout(QUIET_S if not unconfirmed else None):
                    await self._awaited.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(0)

    async def _notify(self, other: Replica) -> None:
        try:
            message = {**self._message(), "from": self.identity}
            document = json.dumps(message).encode()
            status, body = await self._peers.call(other.address, OWNERSHIP_PATH.decode(), document, ANSWER_TIMEOUT_S)
            if status == 200:  # noqa: PLR2004 - heard
                self._take_message(json.loads(body), "id")
        except (OSError, ValueError, GnomonError) as error:
            _LOG.info("the replica %s at %s does not answer: %r", other.id, other.address, error)
        finally:
            # A pause, so that an unreachable replica is not polled in a busy loop.
            await asyncio.sleep(ASK_S)
            self._notifying.discard(other.id)
            self._awaited.set()

    async def _report_to(self, leader: Replica) -> None:
        await asyncio.sleep(0)  # include the events of this turn of the loop
        self._reporting = False
        message = {**self._message(), "from": self.identity, "address": self.address, "report": self.reports.report()}
        try:
            await self._peers.call(leader.address, OWNERSHIP_PATH.decode(), json.dumps(message).encode(), ANSWER_TIMEOUT_S)
        except (OSError, ValueError) as error:
            _LOG.info("the leader %s does not answer a report: %r", leader.id, error)

    def _message(self) -> dict[str, Any]:
        current = self.holdings.map
        return {"map": None if current is None else current.to_json(), "draining": sorted(self.holdings.draining)}

    def _take_message(self, message: Any, sender: str) -> None:
        try:
            known, name, draining = message["map"], message[sender], frozenset(map(str, message["draining"]))
        except (KeyError, TypeError) as error:
            raise bad_request("invalid_talk", f"The message of a replica cannot be read: {error!r}.") from None
        epoch = 0
        if known is not None:
            new = OwnershipMap.from_json(known)
            self.learn(new)
            epoch = new.epoch
        if isinstance(name, str) and name:
            self.holdings.take_status(ReplicaStatus(name, epoch, draining))
            # Also after a poll by that replica: no other event wakes the requests that wait for its status.
            self._wake_waiting()

    async def _read(self) -> None:
        claims = self.holdings.claims()
        try:
            newest = await self._board.read()
            if newest is not None:
                self.learn(newest)
                if newest == self.holdings.map and claims:
                    self.holdings.confirmed(claims)
                    self._wake_waiting()
        except GnomonError as error:
            _LOG.info("the map of owners cannot be read: %s", error)
        finally:
            await asyncio.sleep(ASK_S)
            self._reading = False
        if self.holdings.claims():
            self.refresh_map()


class OwnershipCollector(Collector):
    """The Prometheus collector of a replica's counters; yields nothing where `agent` returns None (a single gateway)."""

    def __init__(self, agent: Callable[[], ReplicaAgent | None]) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        agent = self._agent()
        if agent is None:
            return
        holdings, forwarder = agent.holdings, agent.forwarder
        functions = GaugeMetricFamily("gnomon_owned_functions", "Functions that this replica dispatches.", labels=["state"])
        functions.add_metric(["serving"], len(holdings.serving))
        functions.add_metric(["draining"], len(holdings.draining))
        forwarded = CounterMetricFamily(
            "gnomon_forwarded_requests", "Requests forwarded between replicas, by event.", labels=["event"]
        )
        for event, count in asdict(forwarder.counters).items():
            forwarded.add_metric([event], count)
        yield GaugeMetricFamily(
            "gnomon_ownership_epoch", "Epoch of the newest map of owners that this replica knows.", value=holdings.epoch
        )
        yield functions
        yield forwarded
        yield GaugeMetricFamily(
            "gnomon_forwarding_requests", "Requests in flight that another replica answers.", value=forwarder.requests
        )
        yield GaugeMetricFamily(
            "gnomon_ownerless_requests", "Requests that wait until their function's queue has an owner.", value=forwarder.waiting
        )


def _number(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _nothing() -> None:
    return None


UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""The errors of reading an invalid document of another replica."""


class StateExchange(Protocol):
    """The state that replicas exchange, in both roles. A method that takes a document raises one of `UNREADABLE`."""

    def report(self, received: int) -> dict[str, Any]:
        """On a replica: return the changes since the report with this number; the new report's number is under `number`."""
        ...

    def follow(self, name: str, document: Mapping[str, Any]) -> None:
        """On a replica: apply a part of the leader's state, one of `LEADER_STATE`."""
        ...

    def take_report(self, replica: str, report: Mapping[str, Any]) -> None:
        """On the leader: apply the report of the replica with this id."""
        ...

    def leader_state(self, address: str) -> dict[str, Any]:
        """On the leader: return `LEADER_STATE` for the replica at this address. The replica keeps what it has of a None part."""
        ...

    def keep(self, addresses: Collection[str]) -> None:
        """On the leader: forget replicas at addresses other than these."""
        ...


LEADER_STATE = ("pairs", "plans", "learned")
"""The Bodies with their Shadows, the functions' buffer plans, and a part of the autoscaler's learned state."""


class Reports:
    """The exchange of reports, in both roles: as a replica, and as the leader. Without `state` the documents are empty.

    `received` are the numbers of the last reports that this leader received; `confirmed` is the number of the last report that a
    leader received from this replica.
    """

    def __init__(self, state: StateExchange | None = None) -> None:
        self.received: dict[str, int] = {}
        """The number of the last report by address. A smaller number shows that a new process has started at the address."""
        self.confirmed = 0
        self._state = state

    def keep(self, addresses: Collection[str]) -> None:
        """Forget replicas at other addresses: each new pod has an address of its own, hundreds over months."""
        for address in self.received.keys() - addresses:
            del self.received[address]
        if self._state is not None:
            self._state.keep(addresses)

    def leader_state(self, address: str) -> dict[str, Any]:
        """The documents that the leader sends with its poll."""
        return {} if self._state is None else self._state.leader_state(address)

    def follow(self, question: Mapping[str, Any]) -> None:
        """Apply the documents in a leader's question.

        Raises:
            GnomonError: 400 `invalid_pairs`, `invalid_plans`, `invalid_learned`.

        """
        for name in LEADER_STATE:
            document = question.get(name)
            if self._state is None or document is None:
                continue
            try:
                self._state.follow(name, document)
            except UNREADABLE as error:
                raise bad_request(f"invalid_{name}", f"The leader's {name} cannot be read: {error!r}.") from None

    def report(self) -> dict[str, Any] | None:
        """The changes that the leader has not confirmed yet; None without state."""
        return None if self._state is None else self._state.report(self.confirmed)

    def take_report(self, replica: str, report: Any, address: str) -> None:
        """Take a replica's report.

        Raises:
            GnomonError: 400 `invalid_report`.

        """
        if self._state is None or report is None:
            return
        try:
            number = int(report["number"])
            self._state.take_report(replica, report)
        except UNREADABLE as error:
            raise bad_request("invalid_report", f"The report of replica {replica[:100]} cannot be read: {error!r}.") from None
        self.received[address] = number
