"""How Shadows begin: a wish, a container, a load, and the word that its blocks are there. `work` has the steps.

A wish may come again, after a restart of the coordinator, for a Shadow that is there already: then what is there and what is
wanted decide about the next step, however things came to be as they are.
"""

from __future__ import annotations

from gnomon_coordinator import orders
from gnomon_coordinator.effects import Assign, Close, Fork, Papers, Send, Tell
from gnomon_coordinator.endings import Endings
from gnomon_coordinator.fields import BadMessageError
from gnomon_coordinator.ledger import Ledger
from gnomon_coordinator.messages import Said, Task
from gnomon_coordinator.pairing import Pairing
from gnomon_coordinator.pool import Pool
from gnomon_coordinator.table import Kind, Record, Status
from gnomon_coordinator.turns import Turns
from gnomon_coordinator.work import Step, Work
from gnomon_core.blocks import Layers
from gnomon_core.pairs import MAX_SHADOWS

MAX_ATTEMPTS = 3
"""Containers that are tried for one Shadow."""


class Shadows:
    """Makes Shadows out of the pool's containers, or out of new ones."""

    def __init__(self, ledger: Ledger, endings: Endings, pairing: Pairing, pool: Pool, epoch: int) -> None:
        self._ledger = ledger
        self._endings = endings
        self._pairing = pairing
        self._pool = pool
        self.turns = Turns(ledger.works)
        self._prefix = f"pool-{epoch}-"
        self._forks = 0

    def fork(self) -> str:
        """Ask for an empty container and return its id."""
        self._forks += 1
        container = f"{self._prefix}{self._forks}"
        self._ledger.effects.append(Fork(container))
        return container

    def create(self, task: Task, layers: Layers, papers: Papers | None, now_s: float) -> None:
        """Make a Shadow, or take up the one that is there. The papers are taken over."""
        ledger = self._ledger
        work = ledger.works.get(task.shadow)
        reason = self._why_not(task, layers, papers, work)
        if reason and work is not None:
            self._endings.end(work, reason, now_s)
        elif reason:
            ledger.effects.append(Tell({"event": "failed", "shadow": task.shadow, "reason": reason}))
        elif work is None and task.way is not None:
            self._introduce(task, layers, now_s)
        elif work is None:
            work = ledger.works[task.shadow] = Work(task.shadow, Step.WAIT, task, task, layers, papers)
            ledger.table.insert(task.shadow, Kind.SHADOW, Status.LOADING)
            self._link(task)
            self._find_container(work, now_s)
            return
        else:
            # Papers that it has are as good as these; one that was found after a restart may need them.
            if work.task is None:
                work.papers, papers = papers, None
            work.task, work.layers = task, layers
            self._go_on(work, now_s)
        if papers is not None:
            papers.close()

    def change(self, work: Work, task: Task, now_s: float) -> None:
        """Let a Shadow do something else: now, or as soon as what is being done is done."""
        if not self._why_not(task, work.layers, None, work):
            work.task = task
            self._go_on(work, now_s)

    def _introduce(self, task: Task, layers: Layers, now_s: float) -> None:
        """Bring a Shadow that another node has made together with its Body."""
        # Its Body may do something else with it already: then an earlier coordinator has brought them together.
        work = Work(task.shadow, Step.BODY, task, None, layers, held=task.blocks, joined=True)
        self._ledger.works[task.shadow] = work
        self._ledger.table.insert(task.shadow, Kind.SHADOW)
        self._link(task)
        self._ledger.enter(work, Step.BODY, now_s)
        self._pairing.settle(work, now_s)

    def _link(self, task: Task) -> None:
        """Enter into the table that they are partners, where both are of this node's concern."""
        if not task.afar:
            self._ledger.table.link(task.body, task.shadow, task.blocks, task.split)

    def _why_not(self, task: Task, layers: Layers | None, papers: Papers | None, work: Work | None) -> str:
        never = task.shadow in self._ledger.table or task.shadow in self._ledger.over
        if work is None and (never or (papers is None and task.way is None)):
            return "it has ended"
        reason = "" if task.afar else self._body_refuses(task)
        if not reason and (layers is None or not task.blocks or task.blocks[-1] >= len(layers.blocks)):
            return "the model has no such blocks"
        return reason

    def _body_refuses(self, task: Task) -> str:
        body = self._ledger.table.get(task.body)
        if body is None or body.kind is not Kind.BODY:
            return f"there is no Body {task.body}"
        if body.status is Status.BARRED:
            return f"{task.body} does not keep to the protocol"
        if not _takes(body, task.shadow):
            return f"{task.body} has {MAX_SHADOWS} Shadows already"
        return ""

    def _go_on(self, work: Work, now_s: float) -> None:
        """One that was found after a restart is loaded, where it was not, and then brought to its Body."""
        if work.step is Step.CLAIM and work.task is not None:
            if work.container is None:
                self._believe(work, work.task, now_s)
            else:
                self._load_after_all(work, work.task, now_s)
            return
        self._pairing.settle(work, now_s)

    def _believe(self, work: Work, task: Task, now_s: float) -> None:
        """It is wanted, and by whom it says, with blocks that its model has."""
        assert work.layers is not None
        if work.claims != task.body:
            self._endings.end(work, f"it belongs to {work.claims}", now_s)
            return
        if work.held and work.held[-1] >= len(work.layers.blocks):
            self._endings.broken(work, f"it says that it holds block {work.held[-1]} of {len(work.layers.blocks)}", now_s)
            return
        if task.afar:
            self._ledger.enter(work, Step.REST if work.joined else Step.BODY, now_s)
        else:
            self._ledger.table.link(task.body, work.shadow, work.held, ())
            self._ledger.enter(work, Step.BODY, now_s)
        self._pairing.settle(work, now_s)

    def _load_after_all(self, work: Work, task: Task, now_s: float) -> None:
        reason = "it was never loaded" if work.papers is None else self._why_not(task, work.layers, work.papers, work)
        if reason:
            self._endings.end(work, reason, now_s)
            return
        self._link(task)
        self._queue(work, now_s)

    # Containers

    def _find_container(self, work: Work, now_s: float) -> None:
        """Give a Shadow a container that is there, or have one forked for it."""
        work.attempts += 1
        work.container = None
        self._ledger.enter(work, Step.WAIT, now_s)
        if work.attempts > MAX_ATTEMPTS:
            self._endings.end(work, f"{MAX_ATTEMPTS} containers ended before they could load anything", now_s)
            return
        self._pool.taken(now_s)
        table = self._ledger.table
        # One that has not spoken yet will do, unless it was found after a restart: it may have been loaded already.
        own = [row for row in table.of_kind(Kind.EMPTY, Status.SILENT) if row.id.startswith(self._prefix)]
        there = table.of_kind(Kind.EMPTY, Status.READY) or own
        if there:
            table.remove(there[0].id)
            self._take(work, there[0].id)
            self._queue(work, now_s)
        else:
            self._ledger.awaited[self.fork()] = work

    def container_found(self, container: str, now_s: float) -> bool:
        """A container has been forked; whether a Shadow waited for this one."""
        work = self._ledger.awaited.pop(container, None)
        if work is not None:
            self._take(work, container)
            self._load(work, now_s)
        return work is not None

    def container_gone(self, container: str, now_s: float) -> bool:
        """A container has ended; whether a Shadow was to be made of it, which gets another."""
        ledger = self._ledger
        work = ledger.awaited.pop(container, None)
        if work is None:
            work = ledger.assigned.pop(container, None)
            if work is None:
                return False
            ledger.effects.append(Close(work.shadow))
        if work.step in (Step.WAIT, Step.TURN, Step.LOAD):
            self._find_container(work, now_s)
        else:
            ledger.apart(work, "it is ended")
            ledger.forget(work)
            ledger.tell("failed", work, reason="its container ended before it could load anything")
        return True

    def _take(self, work: Work, container: str) -> None:
        """Turn a container into the Shadow."""
        assert work.task is not None
        work.container = container
        self._ledger.assigned[container] = work
        self._ledger.effects.append(Assign(container, work.shadow, work.task.join))

    # Loads

    def _queue(self, work: Work, now_s: float) -> None:
        """Load it as soon as nobody else loads on its CPUs."""
        self._ledger.enter(work, Step.TURN, now_s)
        self.take_turns(now_s)

    def take_turns(self, now_s: float) -> None:
        """Let those load whose turn it is."""
        for work in self.turns.take(now_s):
            self._load(work, now_s)

    def _load(self, work: Work, now_s: float) -> None:
        assert work.task is not None
        work.doing = work.task
        self._ledger.effects.append(Send(work.shadow, orders.load(work.task), work.papers))
        self._ledger.enter(work, Step.LOAD, now_s)

    # What they say

    def found(self, shadow_id: str, now_s: float) -> None:
        """A Shadow, or a container that was to become one, which an earlier coordinator has left."""
        work = self._ledger.works[shadow_id] = Work(shadow_id, Step.SPEAK)
        self._ledger.table.insert(shadow_id, Kind.SHADOW)
        self._ledger.enter(work, Step.SPEAK, now_s)

    def empty(self, work: Work, now_s: float) -> None:
        """It is a container that an earlier coordinator named, and that never got its load."""
        if work.step is Step.SPEAK:
            work.container = work.shadow
            self._ledger.enter(work, Step.CLAIM, now_s)
            self._go_on(work, now_s)

    def registered(self, work: Work, said: Said, now_s: float) -> None:
        """It has its blocks.

        Raises:
            BadMessageError: it is not what it was told to be.

        """
        if said.shadow != work.shadow:
            raise BadMessageError(f"it says that it is {said.shadow}")
        if work.step is Step.LOAD:
            self._loaded(work, said, now_s)
        elif work.step is Step.SPEAK:
            self._found_loaded(work, said, now_s)

    def _loaded(self, work: Work, said: Said, now_s: float) -> None:
        if work.doing is None or (said.body, said.blocks) != (work.doing.body, work.doing.blocks):
            raise BadMessageError("it has registered for another Body, or with other blocks")
        work.held = said.blocks
        work.drop_papers()
        self._ledger.assigned.pop(work.container or "", None)
        self._ledger.tell("registered", work, resident_bytes=said.resident_bytes, load_ms=said.load_ms)
        self._ledger.enter(work, Step.BODY, now_s)
        self._pairing.settle(work, now_s)

    def _found_loaded(self, work: Work, said: Said, now_s: float) -> None:
        work.drop_papers()
        body = self._ledger.table.get(said.body)
        afar = said.afar if work.task is None else work.task.afar
        if not afar and (body is None or body.kind is not Kind.BODY or not _takes(body, work.shadow)):
            self._endings.end(work, "its Body has gone", now_s)
            return
        self._ledger.tell("registered", work, resident_bytes=said.resident_bytes, load_ms=said.load_ms)
        work.claims, work.held, work.joined = str(said.body), said.blocks, said.paired
        self._ledger.enter(work, Step.CLAIM, now_s)
        self._go_on(work, now_s)


def _takes(body: Record, shadow_id: str) -> bool:
    """Whether it is that Body's Shadow, or may become one."""
    return shadow_id in body.partners or len(body.partners) < MAX_SHADOWS
