"""What is known of the node's Shadows, and the few things that every part of their lives does with it."""

from __future__ import annotations

from collections import deque

from gnomon_coordinator.effects import Effect, Tell
from gnomon_coordinator.messages import PairSaid
from gnomon_coordinator.table import Record, RegistrationTable, Status
from gnomon_coordinator.work import WITH_BODY, Step, Work

KEPT_OVER = 256


class Ledger:
    """The table, the work on each Shadow, and `effects`: what is to be done, in order."""

    def __init__(self, table: RegistrationTable, effects: list[Effect]) -> None:
        self.table = table
        self.effects = effects
        self.works: dict[str, Work] = {}
        self.awaited: dict[str, Work] = {}
        """Containers that are being forked for a Shadow."""
        self.assigned: dict[str, Work] = {}
        """Containers that have become Shadows which have not registered yet."""
        self.body_words: dict[str, dict[str, PairSaid]] = {}
        """What a Body said first of each of its Shadows, as long as that is news."""
        self.over: deque[str] = deque(maxlen=KEPT_OVER)
        """Shadows on other nodes that are over here. A wish for one may still be on its way: over a restart it is said twice."""

    def body_of(self, work: Work) -> Record | None:
        """The Shadow's Body, while they are partners."""
        row = self.table.get(work.shadow)
        return None if row is None else self.table.get(row.partner)

    def enter(self, work: Work, step: Step, now_s: float) -> None:
        """Begin to wait for something, and show it in the table."""
        work.step = step
        work.deadline_s = None if step.bound_s is None else now_s + step.bound_s
        self.table.set_status(work.shadow, step.status)
        body = self.body_of(work)
        if body is not None and step in WITH_BODY:
            self._show(body.id)

    def _show(self, body_id: str) -> None:
        """The status of a Body that keeps to the protocol follows from its Shadows'."""
        body = self.table.get(body_id)
        if body is None or body.status in (Status.SILENT, Status.BARRED):
            return
        works = [self.works[shadow] for shadow in body.partners if shadow in self.works]
        found = {work.step.status for work in works if work.step in WITH_BODY}
        status = Status.PAIRED if Status.PAIRED in found else Status.PAIRING if found else Status.READY
        self.table.set_status(body_id, status)

    def tell(self, event: str, work: Work, **details: object) -> None:
        """Tell the platform something about a Shadow."""
        self.effects.append(Tell({"event": event, "shadow": work.shadow, **details}))

    def tell_paired(self, work: Work) -> None:
        """Tell it what the pair does, as the table has it."""
        row = self.table.get(work.shadow)
        assert row is not None
        work.paired = True
        self.tell("paired", work, body=row.partner, blocks=list(row.blocks), split=list(row.split))

    def apart(self, work: Work, reason: str) -> None:
        """The two are no partners from here on, as far as the table and the platform know."""
        body = self.body_of(work)
        if body is None:
            return
        self.body_words.get(body.id, {}).pop(work.shadow, None)
        self.table.unlink(work.shadow)
        self._show(body.id)
        if work.paired:
            work.paired = False
            self.tell("unpaired", work, body=body.id, reason=reason)

    def forget(self, work: Work) -> None:
        """There is no such Shadow any more."""
        work.drop_papers()
        work.drop_rising()
        self.awaited = {container: other for container, other in self.awaited.items() if other is not work}
        self.assigned = {container: other for container, other in self.assigned.items() if other is not work}
        self.works.pop(work.shadow, None)
        body = self.body_of(work)
        self.table.remove(work.shadow)
        if body is not None:
            self._show(body.id)
