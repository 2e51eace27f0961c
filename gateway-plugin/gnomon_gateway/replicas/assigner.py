"""The leader's loop: ask every replica how it is, make the next map when somebody has come or gone, publish it, and tell it.

It asks every `look_s`; each answer brings what the replica says of itself and of its load, each question the newest map, who
leads, and which report was the last to be heard. Whether we lead is asked before each step, and publishing is bound to the map
that was read, so that of two who believe it one changes nothing.
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
from gnomon_gateway.replicas.assignment import PATIENCE_S, Attendance, Sighting, next_map
from gnomon_gateway.replicas.peers import OWNERSHIP_PATH, Peers
from gnomon_gateway.replicas.replica import ReplicaLife

LOOK_S = 0.25
ANSWER_TIMEOUT_S = 1.0

_LOG = logging.getLogger("gnomon.ownership")


class Assigner:
    """Shares the functions among replicas while `leads` says that this process leads.

    With `life` this process is a replica as well: `life` hears what the others report, and owns nothing while there are others.
    """

    def __init__(
        self,
        board: OwnershipBoard,
        peers: Peers,
        clock: Clock,
        *,
        leads: Callable[[], bool],
        life: ReplicaLife | None = None,
        patience_s: float = PATIENCE_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._board, self._peers, self._clock, self._leads = board, peers, clock, leads
        self._life = life
        self._patience_s, self._look_s = patience_s, look_s
        self._attendance = Attendance(patience_s)
        self._current: OwnershipMap | None = None
        self._led = False
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        try:
            while True:
                try:
                    await self.look()
                except GnomonError as error:
                    _LOG.warning("the map of owners stays as it is: %s", error)
                except Exception:  # noqa: BLE001 - nobody else would hand on what a replica that has died has owned
                    _LOG.exception("the map of owners stays as it is")
                await self._clock.sleep(self._look_s)
        finally:
            for task in self._asking.values():
                task.cancel()

    async def look(self) -> None:
        """Ask everyone, wait for those that answer at once, and publish a new map if there is reason to."""
        if not self._leads():
            self._led = False
            return
        if not self._led:
            self._attendance, self._led = Attendance(self._patience_s), True
            self._learn(await self._board.read())
        addresses = frozenset(self._board.addresses())
        if self._life is not None:
            addresses |= {self._life.address}
            self._life.reports.keep(addresses)
        self._ask(addresses)
        # Who is frozen is asked on beside the others.
        await asyncio.wait(self._asking.values(), timeout=self._look_s) if self._asking else None
        members = self._current.members if self._current is not None else ()
        gone = self._attendance.gone(members, addresses, self._clock.now_s())
        new = next_map(self._current, self._attendance.seen(addresses), gone, self._leader)
        if new is None or not self._leads():
            return
        if await self._board.publish(new):
            _LOG.info("epoch %d: %s own, %s leave", new.epoch, [one.id for one in new.owners], [one.id for one in new.leaving])
            self._current = new
            self._attendance.forget(gone)
            self._ask(addresses)
        else:
            self._learn(await self._board.read())

    @property
    def _leader(self) -> str:
        return "" if self._life is None else self._life.identity

    def _learn(self, known: OwnershipMap | None) -> None:
        """This map was published, by whomever. A replica may know it although the board has lost it."""
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
        asked: dict[str, Any] = {"from": "", "map": current, "draining": []}
        try:
            if self._life is not None:
                reports = self._life.reports
                asked |= {"leader": self._leader, "heard": reports.heard.get(address, 0), **reports.say(address)}
            question = json.dumps(asked).encode()
            status, body = await self._peers.call(address, OWNERSHIP_PATH.decode(), question, ANSWER_TIMEOUT_S)
            answer = json.loads(body) if status == 200 else None  # noqa: PLR2004 - heard
            if answer is not None:
                sighting = Sighting(str(answer["id"]), address, bool(answer["leaving"]))
                self._learn(None if answer["map"] is None else OwnershipMap.from_json(answer["map"]))
                self._attendance.answered(sighting, self._clock.now_s())
                if self._life is not None:
                    self._life.hear_report(sighting.id, answer.get("report"), address)
            else:
                _LOG.warning("%s answers %d: does it have the same secret?", address, status)
        except ConnectionRefusedError:
            self._attendance.refused(address)
        except (OSError, ValueError, KeyError, TypeError, GnomonError) as error:
            _LOG.info("%s does not answer: %r", address, error)
