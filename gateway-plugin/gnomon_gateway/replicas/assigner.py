"""The leader's loop: poll every replica, make the next map of owners when a replica joins or leaves, and publish the map.

Each question carries the newest map, the leader's identity and the number of the last report received; each answer the replica's
status and load. Leadership is checked before each step, and publishing is conditional on the map that was read, so that of two
processes which believe to lead only one changes the map.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipBoard, OwnershipMap
from gnomon_gateway.replicas.assignment import SILENCE_S, Attendance, Sighting, next_map
from gnomon_gateway.replicas.peers import OWNERSHIP_PATH, Peers
from gnomon_gateway.replicas.replica import ReplicaAgent

POLL_S = 0.25
ANSWER_TIMEOUT_S = 1.0

_LOG = logging.getLogger("gnomon.ownership")


class Assigner:
    """Assigns the functions to replicas while this process leads.

    With `agent` this process is a replica too: `agent` receives the reports, and owns no function while there are other replicas.
    """

    def __init__(
        self,
        board: OwnershipBoard,
        peers: Peers,
        clock: Clock,
        *,
        leads: Callable[[], bool],
        agent: ReplicaAgent | None = None,
        silence_s: float = SILENCE_S,
        poll_s: float = POLL_S,
    ) -> None:
        self._board, self._peers, self._clock, self._leads = board, peers, clock, leads
        self._agent = agent
        self._silence_s, self._poll_s = silence_s, poll_s
        self._attendance = Attendance(silence_s)
        self._current: OwnershipMap | None = None
        self._led = False
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Poll every `poll_s`, until cancelled."""
        try:
            while True:
                try:
                    await self.poll()
                except GnomonError as error:
                    _LOG.warning("the map of owners is not updated, retrying: %s", error)
                except Exception:  # noqa: BLE001 - no other process reassigns the functions of a dead replica
                    _LOG.exception("the map of owners is not updated, retrying: internal error")
                await self._clock.sleep(self._poll_s)
        finally:
            for task in self._asking.values():
                task.cancel()

    async def poll(self) -> None:
        """Poll all replicas, wait for those that answer quickly, and publish a new map if the owners change."""
        if not self._leads():
            self._led = False
            return
        if not self._led:
            self._attendance, self._led = Attendance(self._silence_s), True
            self._learn(await self._board.read())
        addresses = frozenset(self._board.addresses())
        if self._agent is not None:
            addresses |= {self._agent.address}
            self._agent.reports.keep(addresses)
        self._ask(addresses)
        # A question to a frozen replica stays open, without delaying the others.
        await asyncio.wait(self._asking.values(), timeout=self._poll_s) if self._asking else None
        members = self._current.members if self._current is not None else ()
        gone = self._attendance.gone(members, addresses, self._clock.now_s())
        # Published only if this process still leads and the board still has the map that was read (compare and swap).
        new = next_map(self._current, self._attendance.seen(addresses), gone, self._leader)
        if new is None or not self._leads():
            return
        if await self._board.publish(new):
            _LOG.info(
                "published map of owners, epoch %d: owners %s, leaving %s",
                new.epoch,
                [replica.id for replica in new.owners],
                [replica.id for replica in new.leaving],
            )
            self._current = new
            self._attendance.forget(gone)
            self._ask(addresses)
        else:
            self._learn(await self._board.read())

    @property
    def _leader(self) -> str:
        return "" if self._agent is None else self._agent.identity

    def _learn(self, known: OwnershipMap | None) -> None:
        """Take a published map if it is newer. A replica may know a map that the board has lost."""
        if known is not None and (self._current is None or known.epoch > self._current.epoch):
            self._current = known

    def _ask(self, addresses: frozenset[str]) -> None:
        for address in addresses:
            if address not in self._asking:
                task = asyncio.get_running_loop().create_task(self._ask_one(address))
                self._asking[address] = task
                task.add_done_callback(lambda _, address=address: self._asking.pop(address, None))  # type: ignore[misc]

    async def _ask_one(self, address: str) -> None:
        current = None if self._current is None else self._current.to_json()
        request: dict[str, Any] = {"from": "", "map": current, "draining": []}
        try:
            if self._agent is not None:
                reports = self._agent.reports
                request |= {"leader": self._leader, "heard": reports.received.get(address, 0), **reports.leader_state(address)}
            question = json.dumps(request).encode()
            status, body = await self._peers.call(address, OWNERSHIP_PATH.decode(), question, ANSWER_TIMEOUT_S)
            answer = json.loads(body) if status == 200 else None  # noqa: PLR2004 - the message was taken
            if answer is not None:
                sighting = Sighting(str(answer["id"]), address, bool(answer["leaving"]))
                self._learn(None if answer["map"] is None else OwnershipMap.from_json(answer["map"]))
                self._attendance.answered(sighting, self._clock.now_s())
                if self._agent is not None:
                    self._agent.take_report(sighting.id, answer.get("report"), address)
            else:
                _LOG.warning("the replica at %s answers HTTP %d; check that it has the same peer secret", address, status)
        except ConnectionRefusedError:
            self._attendance.refused(address)
        except (OSError, ValueError, KeyError, TypeError, GnomonError) as error:
            _LOG.info("the replica at %s does not answer: %r", address, error)
