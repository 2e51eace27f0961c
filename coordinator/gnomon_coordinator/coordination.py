"""What each event means for the node: events in, effects out. No socket, no clock, no process.

Events are an instance that the supervisor has found or lost, a message of an instance, a wish of the platform, and time. Whatever
an instance says concerns itself and its own pair only; one that breaks the protocol is not heard again (`broken`).
"""

from __future__ import annotations

from gnomon_coordinator.effects import Close, Effect, Kill, Papers, Send, Tell
from gnomon_coordinator.pool import Pool
from gnomon_coordinator.protocol import BadMessageError, Change, Said, Task
from gnomon_coordinator.shadow_lifecycle import Endings, Ledger, Pairing, Promotions, Shadows
from gnomon_coordinator.table import Kind, Record, RegistrationTable, Status
from gnomon_coordinator.work import ENDING, Step, Work
from gnomon_core.blocks import Layers

EMPTY_S = 20.0
"""How long a container may take to say that it is ready."""


class Coordination:
    """The node's state. `take` returns what has to be done since it was last asked."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.table = RegistrationTable(epoch)
        self.pool = Pool()
        self._effects: list[Effect] = []
        self._ledger = Ledger(self.table, self._effects)
        self._endings = Endings(self._ledger)
        self._promotions = Promotions(self._ledger)
        self._pairing = Pairing(self._ledger, self._endings, self._promotions)
        self._shadows = Shadows(self._ledger, self._endings, self._pairing, self.pool, epoch)
        self._forking: set[str] = set()
        """Containers for the pool that have been asked for and are not there yet."""
        self._silent_until_s: dict[str, float] = {}
        self._told_pool = 0

    def _work(self, shadow_id: str | None) -> Work | None:
        return None if shadow_id is None else self._ledger.works.get(shadow_id)

    def _works_of(self, body: Record) -> list[Work]:
        return [self._ledger.works[shadow] for shadow in body.partners if shadow in self._ledger.works]

    def take(self) -> list[Effect]:
        effects = list(self._effects)
        self._effects.clear()
        return effects

    # The supervisor

    def found(self, instance_id: str, kind: Kind, now_s: float) -> None:
        """An instance is there. It may have been there before this coordinator was."""
        if instance_id in self.table:
            return
        if kind is Kind.SHADOW:
            self._shadows.found(instance_id, now_s)
        elif kind is Kind.EMPTY:
            self._forking.discard(instance_id)
            if self._shadows.container_found(instance_id, now_s):
                return
            self.table.insert(instance_id, kind)
            self._silent_until_s[instance_id] = now_s + EMPTY_S
        else:
            self.table.insert(instance_id, kind)
        self._effects.append(Send(instance_id, {"do": "hello"}))

    def promoted(self, instance_id: str) -> None:
        """A Shadow has become a Body."""
        self._promotions.promoted(instance_id)

    def gone(self, instance_id: str, now_s: float) -> None:
        """An instance has ended, or could not be made."""
        if instance_id in self._forking:
            self._forking.discard(instance_id)
            self.pool.failed(now_s)
        if self._shadows.container_gone(instance_id, now_s):
            return
        self._silent_until_s.pop(instance_id, None)
        row = self.table.get(instance_id)
        work = self._work(instance_id)
        if work is not None:
            self._endings.gone(work)
        elif row is not None:
            if row.kind is Kind.BODY:
                for partner in self._works_of(row):
                    self._promotions.parted(partner, "its Body has gone", now_s)
                self._endings.body_gone(self.table.get(instance_id) or row, now_s)
            elif row.status is Status.SILENT:
                self.pool.failed(now_s)
            self.table.remove(instance_id)

    # Instances

    def said(self, instance_id: str, said: Said, now_s: float) -> None:
        """An instance has said something.

        Raises:
            BadMessageError: an instance of its kind does not say that.

        """
        row = self.table.get(instance_id)
        if row is None or row.status is Status.BARRED or said.epoch != self.epoch or said.say == "stale":
            # Words for another coordinator. Whether this one has been replaced is the supervisor's to say.
            return
        if row.kind is Kind.EMPTY:
            self._container_said(row, said, now_s)
        elif row.kind is Kind.SHADOW:
            self._shadow_said(row, said, now_s)
        else:
            self._body_said(row, said, now_s)

    def _container_said(self, row: Record, said: Said, now_s: float) -> None:
        if said.say == "registered" and row.status is Status.SILENT:
            # An earlier coordinator loaded it, and ended before the supervisor had heard its new name.
            self._end_container(row, now_s)
            return
        if said.say != "empty":
            raise BadMessageError(f"an empty container says {said.say!r}")
        if row.status is Status.SILENT:
            self.table.set_status(row.id, Status.READY)
            self._silent_until_s.pop(row.id, None)
            self.pool.filled()

    def _shadow_said(self, row: Record, said: Said, now_s: float) -> None:
        work = self._work(row.id)
        if work is None or work.step in ENDING:
            return
        if said.say == "empty":
            self._shadows.empty(work, now_s)
        elif said.say == "registered":
            self._shadows.registered(work, said, now_s)
        elif said.say == "changed":
            self._pairing.shadow_changed(work, said, now_s)
        elif said.say == "paired":
            self._pairing.shadow_joined(work, now_s)
        elif said.say == "unpaired":
            self._pairing.shadow_left(work, said, now_s)
        elif said.say == "complete":
            self._promotions.complete(work, said, now_s)
        elif said.say == "failed":
            self._endings.end(work, said.reason or "it failed", now_s)
        elif said.say == "body" and work.step not in (Step.SPEAK, Step.SERVE):
            # Then it has just become one, which is the supervisor's to say.
            raise BadMessageError("a Shadow says that it is a Body")

    def _body_said(self, row: Record, said: Said, now_s: float) -> None:
        if said.say in ("empty", "registered"):
            raise BadMessageError(f"a Body says {said.say!r}")
        if said.say == "body":
            if row.status is Status.SILENT:
                self.table.set_status(row.id, Status.READY)
            self._pairing.body_spoke(row, said, now_s)
            return
        work = self._work(said.shadow) if said.shadow in row.partners else None
        if work is None:
            # About a Shadow that it had before, or that is another's, or one that nobody has wished for yet: then it is news.
            if said.say in ("unpaired", "failed") and said.shadow is not None:
                self._ledger.body_words.get(row.id, {}).pop(said.shadow, None)
            return
        if said.say == "paired":
            self._pairing.body_paired(work, now_s)
        elif said.say == "changed":
            self._pairing.body_changed(work, said, now_s)
        elif said.say == "unpaired":
            self._body_unpaired(work, said.reason, now_s)
        elif said.say == "failed":
            self._endings.end(work, said.reason or "its Body could not use it", now_s)

    def _body_unpaired(self, work: Work, reason: str, now_s: float) -> None:
        if work.step is Step.PART:
            self._pairing.body_parted(work, now_s)
        elif not self._promotions.parted(work, reason, now_s):
            self._endings.body_let_go(work, reason, now_s)

    def broken(self, instance_id: str, reason: str, now_s: float) -> None:
        """An instance does not keep to the protocol, or does not listen. A Body serves on without Shadows; the others end."""
        work = self._work(instance_id)
        if work is not None:
            self._endings.broken(work, reason, now_s)
            return
        self._effects.append(Close(instance_id))
        row = self.table.get(instance_id)
        if row is not None and row.kind is Kind.BODY:
            self._bar(row, f"its Body is not heard any more: {reason}", now_s)
        elif row is not None:
            self._end_container(row, now_s)

    def _bar(self, body: Record, reason: str, now_s: float) -> None:
        self.table.set_status(body.id, Status.BARRED)
        for partner in self._works_of(body):
            if not self._promotions.parted(partner, reason, now_s):
                self._endings.end(partner, reason, now_s)

    def hung_up(self, instance_id: str, now_s: float) -> None:
        """An instance has closed its socket. Most often it has ended, and the supervisor will say so; else it has to end now."""
        row = self.table.get(instance_id)
        if row is not None and row.kind is Kind.BODY:
            self._bar(row, "its Body has gone", now_s)
        elif row is not None and row.kind is Kind.EMPTY:
            self._end_container(row, now_s)
        elif row is not None:
            self._effects.append(Kill(instance_id))

    def _end_container(self, row: Record, now_s: float) -> None:
        if row.status is Status.SILENT:
            self.pool.failed(now_s)
        self._effects.append(Kill(row.id))
        self.table.set_status(row.id, Status.ENDING)

    # The platform

    def create(self, task: Task, layers: Layers, papers: Papers | None, now_s: float) -> None:
        """Make a Shadow, or take up the one that is there. The papers are taken over."""
        self._shadows.create(task, layers, papers, now_s)

    def change(self, shadow_id: str, change: Change, now_s: float) -> None:
        """Let a Shadow do something else. Unknown ones are ignored: the next wish for them says all of it."""
        work = self._work(shadow_id)
        if work is not None and work.task is not None and work.step not in ENDING:
            self._shadows.change(work, change.applied_to(work.task), now_s)

    def reached(self, shadow_id: str, connection: Papers) -> None:
        """A Body of another node has come to this Shadow."""
        work = self._work(shadow_id)
        if work is not None and work.task is not None and work.task.afar and work.step in (Step.BODY, Step.REST, Step.WIDEN):
            self._pairing.reached(work, connection)

    def promote(self, shadow_id: str, papers: Papers, now_s: float) -> None:
        """Let a Shadow become a Body. The papers are taken over. Unknown ones are ignored: they have ended."""
        work = self._work(shadow_id)
        if work is None:
            papers.close()
        else:
            self._promotions.ask(work, papers, now_s)

    def destroy(self, shadow_id: str, now_s: float) -> None:
        """End a Shadow, its Body first. That there is none is told as well."""
        work = self._work(shadow_id)
        if work is not None:
            self._endings.end(work, "asked to", now_s)
        else:
            self._effects.append(Tell({"event": "failed", "shadow": shadow_id, "reason": "there is none"}))

    def not_connected(self, shadow_id: str, reason: str, now_s: float) -> None:
        """The shared memory of a pair could not be made."""
        work = self._work(shadow_id)
        if work is not None:
            self._endings.end(work, reason, now_s)

    def report(self) -> None:
        """Tell the platform how things stand."""
        rows = [[row.id, row.kind, list(row.partners), list(row.blocks), row.status] for row in self.table]
        self._effects.append(Tell({"event": "table", "epoch": self.epoch, "rows": rows}))

    # Time

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        for work in list(self._ledger.works.values()):
            if work.deadline_s is not None and now_s >= work.deadline_s:
                self._endings.overran(work, now_s)
        for container, until_s in list(self._silent_until_s.items()):
            if now_s >= until_s:
                del self._silent_until_s[container]
                if container in self.table:
                    self.broken(container, "it never said that it is ready", now_s)
        self._shadows.take_turns(now_s)
        self._pairing.tick(now_s)
        self._keep_pool(now_s)

    def _keep_pool(self, now_s: float) -> None:
        missing = self.pool.missing(self._reserve(), now_s)
        for _ in range(missing):
            self._forking.add(self._shadows.fork())
        spare = self.table.of_kind(Kind.EMPTY, Status.READY)
        for row in spare[: max(0, -missing)]:
            self._effects.append(Kill(row.id))
            self.table.set_status(row.id, Status.ENDING)
        if self.pool.wanted != self._told_pool:
            self._told_pool = self.pool.wanted
            self._effects.append(Tell({"event": "pool", "containers": self._told_pool}))

    def _reserve(self) -> int:
        return len(self._forking) + len(self.table.of_kind(Kind.EMPTY, Status.SILENT, Status.READY))

    def due_s(self) -> float | None:
        """When `tick` has something to do next; None when it waits for events only."""
        times = [work.deadline_s for work in self._ledger.works.values() if work.deadline_s is not None]
        times += self._silent_until_s.values()
        others = (self.pool.due_s(self._reserve()), self._shadows.turns.due_s(), self._pairing.due_s())
        return min((*times, *(other_s for other_s in others if other_s is not None)), default=None)
