"""The lives of Shadows, from the wish for one to its end. `work` has the steps.

A wish may come again, after a restart of the coordinator, for a Shadow that is there already: `settle` looks at what is wanted
and what is there, and takes the next step from the one to the other, however things came to be as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from gnomon_coordinator import orders
from gnomon_coordinator.effects import Assign, Close, Connect, Effect, Fork, Kill, Papers, Send, Tell
from gnomon_coordinator.messages import BadMessageError, Said, Task
from gnomon_coordinator.pool import Pool
from gnomon_coordinator.table import Kind, Record, RegistrationTable, Status
from gnomon_coordinator.work import ENDING, WITH_BODY, Step, Work, capacity
from gnomon_core.blocks import Layers

MAX_ATTEMPTS = 3
"""Containers that are tried for one Shadow."""


class Shadows:
    """Every Shadow of the node. `effects` gets what is to be done, in order."""

    def __init__(self, table: RegistrationTable, pool: Pool, epoch: int, effects: list[Effect]) -> None:
        self._table = table
        self._pool = pool
        self._epoch = epoch
        self._effects = effects
        self._works: dict[str, Work] = {}
        self._awaited: dict[str, Work] = {}
        """Containers that are being forked for a Shadow."""
        self._assigned: dict[str, Work] = {}
        """Containers that have become Shadows which have not registered yet."""
        self._body_words: dict[str, Said] = {}
        self._forks = 0

    def get(self, shadow_id: str | None) -> Work | None:
        return None if shadow_id is None else self._works.get(shadow_id)

    def __iter__(self) -> Iterator[Work]:
        return iter(tuple(self._works.values()))

    def fork(self) -> str:
        """Ask for an empty container and return its id."""
        self._forks += 1
        container = f"pool-{self._epoch}-{self._forks}"
        self._effects.append(Fork(container))
        return container

    # What the platform wishes

    def create(self, task: Task, layers: Layers, papers: Papers | None, now_s: float) -> None:
        """Make a Shadow, or take up the one that is there."""
        work = self._works.get(task.shadow)
        reason = self._why_not(task, layers, papers, work)
        if reason and work is not None:
            self.end(work, reason, now_s)
        elif reason:
            self._tell("failed", task.shadow, reason=reason)
        elif work is None:
            work = self._works[task.shadow] = Work(task.shadow, Step.WAIT, task, task, layers, papers)
            self._table.insert(task.shadow, Kind.SHADOW, Status.LOADING)
            self._table.link(task.body, task.shadow, task.blocks, task.split)
            self._find_container(work, now_s)
            return
        else:
            # Its papers, if it has any yet, are as good as these; one that was found after a restart may need them.
            if work.task is None:
                work.papers, papers = papers, None
            work.task, work.layers = task, layers
            self.settle(work, now_s)
        if papers is not None:
            papers.close()

    def _why_not(self, task: Task, layers: Layers | None, papers: Papers | None, work: Work | None) -> str:
        body = self._table.get(task.body)
        if body is None or body.kind is not Kind.BODY:
            return f"there is no Body {task.body}"
        if body.status is Status.BARRED:
            return f"{task.body} does not keep to the protocol"
        if body.partner not in (None, task.shadow):
            return f"{task.body} has a Shadow already"
        if layers is None or not task.blocks or task.blocks[-1] >= len(layers.blocks):
            return "the model has no such blocks"
        if work is None and (papers is None or task.shadow in self._table):
            return "it has ended"
        return ""

    def change(self, work: Work, task: Task, now_s: float) -> None:
        """Let a Shadow do something else: now, or as soon as what is being done is done."""
        if not self._why_not(task, work.layers, None, work):
            work.task = task
            self.settle(work, now_s)

    def _find_container(self, work: Work, now_s: float) -> None:
        """Give a Shadow a container that is there, or have one forked for it."""
        work.attempts += 1
        work.container = None
        if work.attempts > MAX_ATTEMPTS:
            self.enter(work, Step.WAIT, now_s)
            self.end(work, f"{MAX_ATTEMPTS} containers ended before they could load anything", now_s)
            return
        self._pool.taken(now_s)
        for status in (Status.READY, Status.SILENT):
            for row in self._table.of_kind(Kind.EMPTY, status):
                if row.id not in self._awaited:
                    self._table.remove(row.id)
                    self.load(work, row.id, now_s)
                    return
        self._awaited[self.fork()] = work
        self.enter(work, Step.WAIT, now_s)

    def take_awaited(self, container: str, now_s: float) -> bool:
        """A container has been forked; whether a Shadow waited for this one."""
        work = self._awaited.pop(container, None)
        if work is not None:
            self.load(work, container, now_s)
        return work is not None

    def load(self, work: Work, container: str, now_s: float) -> None:
        """Turn a container into the Shadow."""
        assert work.task is not None
        work.container = container
        self._assigned[container] = work
        self._effects.append(Assign(container, work.shadow, work.task.join))
        self._send_load(work, now_s)

    def _send_load(self, work: Work, now_s: float) -> None:
        assert work.task is not None
        work.doing = work.task
        self._effects.append(Send(work.shadow, orders.load(work.task), work.papers))
        self.enter(work, Step.LOAD, now_s)

    # What the Shadow says

    def empty(self, work: Work, now_s: float) -> None:
        """It is a container that an earlier coordinator named, and that never got its load."""
        if work.step is Step.SPEAK:
            work.container = work.shadow
            self.enter(work, Step.CLAIM, now_s)
            self.settle(work, now_s)

    def registered(self, work: Work, said: Said, now_s: float) -> None:
        """It has its blocks."""
        if said.shadow != work.shadow:
            raise BadMessageError(f"it says that it is {said.shadow}")
        if work.step is Step.LOAD:
            assert work.task is not None
            assert work.doing is not None
            if said.body != work.doing.body or said.blocks != work.doing.blocks:
                raise BadMessageError("it has registered with other blocks")
            work.held = said.blocks
            work.drop_papers()
            self._assigned.pop(work.container or "", None)
            self._tell("registered", work.shadow, resident_bytes=said.resident_bytes, load_ms=said.load_ms)
            self.enter(work, Step.BODY, now_s)
            self.settle(work, now_s)
        elif work.step is Step.SPEAK:
            work.drop_papers()
            body = self._table.get(said.body)
            if body is None or body.kind is not Kind.BODY or body.partner not in (None, work.shadow):
                self.end(work, "its Body has gone", now_s)
                return
            self._table.link(body.id, work.shadow, said.blocks, said.split)
            work.held, work.joined = said.blocks, said.paired
            self.enter(work, Step.CLAIM, now_s)
            self.settle(work, now_s)

    def changed(self, work: Work, said: Said, now_s: float) -> None:
        """It holds other blocks now."""
        if work.step in (Step.WIDEN, Step.NARROW):
            work.held = said.blocks
            if work.step is Step.NARROW:
                self.enter(work, Step.REST, now_s)
                self.settle(work, now_s)
            elif work.doing is not None and set(work.doing.blocks) <= set(said.blocks):
                self._switch(work, now_s)

    # What its Body says

    def body_spoke(self, body: Record, said: Said, now_s: float) -> None:
        """The first words of a Body: with whom it works."""
        self._body_words[body.id] = said
        if said.partner is not None and said.partner not in self._works:
            self._effects.append(Send(body.id, {"do": "unpair"}))
        work = self.get(body.partner)
        if work is not None:
            self.settle(work, now_s)

    def body_paired(self, work: Work, now_s: float) -> None:
        """The Body uses the buffers that it was given."""
        if work.step is Step.CONNECT:
            self._at_work(work, now_s)
        elif work.step is Step.SWITCH:
            self._switched(work, now_s)

    def body_changed(self, work: Work, said: Said, now_s: float) -> None:
        """The Body offloads other blocks now, or other shares."""
        if work.step is Step.SWITCH and work.doing is not None and said.blocks == work.doing.blocks:
            self._switched(work, now_s)

    def body_let_go(self, work: Work, reason: str, now_s: float) -> None:
        """The Body works alone."""
        if work.step is Step.UNPAIR:
            self._apart(work, reason)
            self._stop(work, now_s)
        elif work.step in WITH_BODY:
            self._tell("ending", work.shadow, reason=reason)
            self._apart(work, reason)
            self._stop(work, now_s)

    # From what is there to what is wanted

    def settle(self, work: Work, now_s: float) -> None:
        """Take the next step, if one can be taken now."""
        if work.task is None:
            return
        if work.step is Step.CLAIM:
            if work.container is not None:
                self._fill(work, now_s)
                return
            self.enter(work, Step.BODY, now_s)
        row = self._table.get(work.shadow)
        body = None if row is None else self._table.get(row.partner)
        if work.step is Step.BODY and body is not None and body.status is not Status.SILENT:
            self._meet(work, body, now_s)
        elif work.step is Step.REST and work.doing != work.task:
            self._widen(work, now_s)

    def _fill(self, work: Work, now_s: float) -> None:
        """Load what an earlier coordinator meant to."""
        assert work.task is not None
        reason = "it was never loaded" if work.papers is None else self._why_not(work.task, work.layers, work.papers, work)
        if reason:
            self.end(work, reason, now_s)
            return
        self._table.link(work.task.body, work.shadow, work.task.blocks, work.task.split)
        self._send_load(work, now_s)

    def _meet(self, work: Work, body: Record, now_s: float) -> None:
        """Bring a Shadow that has its blocks together with its Body, or find them together."""
        assert work.task is not None
        said = self._body_words.get(body.id)
        if body.id != work.task.body:
            self.end(work, f"it belongs to {body.id}", now_s)
        elif work.joined and said is not None and said.partner == work.shadow and said.blocks == work.held:
            self._table.link(body.id, work.shadow, said.blocks, said.split)
            if work.doing is None and (said.blocks, said.split) == (work.task.blocks, work.task.split):
                work.doing = work.task
            self.enter(work, Step.REST, now_s)
            self._tell_paired(work)
            self.settle(work, now_s)
        elif work.held == work.task.blocks:
            self._connect(work, Step.CONNECT, now_s)
        else:
            self._widen(work, now_s)

    def _connect(self, work: Work, step: Step, now_s: float) -> None:
        """Give both sides new buffers."""
        assert work.task is not None
        assert work.layers is not None
        task = work.doing = work.task if step is Step.CONNECT else work.doing or work.task
        work.capacity = capacity(work.layers, task.max_batch)
        self.enter(work, step, now_s)
        self._effects.append(Connect(task.body, task.shadow, orders.pair(task), orders.join(task), *work.capacity))

    def _at_work(self, work: Work, now_s: float) -> None:
        assert work.doing is not None
        self._table.link(work.doing.body, work.shadow, work.doing.blocks, work.doing.split)
        self._tell_paired(work)
        if work.held == work.doing.blocks:
            self.enter(work, Step.REST, now_s)
            self.settle(work, now_s)
        else:
            self.enter(work, Step.NARROW, now_s)
            self._effects.append(Send(work.shadow, orders.change_shadow(work.doing, work.doing.blocks)))

    def _widen(self, work: Work, now_s: float) -> None:
        """First the Shadow has old and new blocks."""
        assert work.task is not None
        before, work.doing = work.doing, work.task
        union = tuple(sorted({*work.held, *work.task.blocks}))
        if before is not None and union == work.held and (before.cores, before.cpus) == (work.task.cores, work.task.cpus):
            self._switch(work, now_s)
            return
        self.enter(work, Step.WIDEN, now_s)
        self._effects.append(Send(work.shadow, orders.change_shadow(work.task, union)))

    def _switch(self, work: Work, now_s: float) -> None:
        """Then its Body changes, with larger buffers where these are too small."""
        assert work.doing is not None
        assert work.layers is not None
        needed = capacity(work.layers, work.doing.max_batch)
        if not work.paired or needed[0] > work.capacity[0] or needed[1] > work.capacity[1]:
            self._connect(work, Step.SWITCH, now_s)
            return
        self.enter(work, Step.SWITCH, now_s)
        self._effects.append(Send(work.doing.body, orders.change_body(work.doing)))

    def _switched(self, work: Work, now_s: float) -> None:
        """Then the old ones may go."""
        self._at_work(work, now_s)

    # Ends

    def end(self, work: Work, reason: str, now_s: float) -> None:
        """End a Shadow: first its Body lets go of it, then it stops."""
        if work.step in ENDING:
            return
        work.drop_papers()
        if work.step is Step.WAIT:
            self._awaited = {container: other for container, other in self._awaited.items() if other is not work}
            self._forget(work)
            self._tell("failed", work.shadow, reason=reason)
            return
        self._tell("ending", work.shadow, reason=reason)
        row = self._table.get(work.shadow)
        body = None if row is None else self._table.get(row.partner)
        if work.step in WITH_BODY and body is not None and body.status is not Status.BARRED:
            self.enter(work, Step.UNPAIR, now_s)
            self._effects.append(Send(body.id, {"do": "unpair"}))
        elif work.step in (Step.SPEAK, Step.LOAD):
            self.kill(work, now_s)
        else:
            self._stop(work, now_s)

    def _stop(self, work: Work, now_s: float) -> None:
        self.enter(work, Step.STOP, now_s)
        self._effects.append(Send(work.shadow, {"do": "stop"}))

    def kill(self, work: Work, now_s: float) -> None:
        """End a Shadow's process at once."""
        work.drop_papers()
        self._apart(work, "it is ended")
        self.enter(work, Step.KILL, now_s)
        self._effects.append(Kill(work.shadow))

    def gone(self, work: Work) -> None:
        """Its process has ended."""
        row = self._table.get(work.shadow)
        body = None if row is None else self._table.get(row.partner)
        if body is not None and work.step in WITH_BODY and body.status is not Status.BARRED:
            self._effects.append(Send(body.id, {"do": "unpair"}))
        self._apart(work, "its Shadow has ended")
        self._forget(work)

    def container_gone(self, container: str, now_s: float) -> bool:
        """A container has ended; whether a Shadow was to be made of it, which gets another."""
        work = self._awaited.pop(container, None)
        if work is None:
            work = self._assigned.pop(container, None)
            if work is None:
                return False
            self._effects.append(Close(work.shadow))
        if work.step in (Step.WAIT, Step.LOAD):
            self._find_container(work, now_s)
        else:
            self._apart(work, "it is ended")
            self._forget(work)
            self._tell("failed", work.shadow, reason="its container ended before it could load anything")
        return True

    def body_gone(self, body: Record, now_s: float) -> None:
        """A Body has ended: its Shadow goes along."""
        self._body_words.pop(body.id, None)
        work = self.get(body.partner)
        if work is None:
            return
        if work.step is Step.WAIT:
            self.end(work, "its Body has gone", now_s)
        elif work.step is not Step.KILL:
            self._tell("ending", work.shadow, reason="its Body has gone")
            self.kill(work, now_s)

    def overran(self, work: Work, now_s: float) -> None:
        """A step has taken too long."""
        if work.step is Step.UNPAIR:
            self._apart(work, "its Body did not answer")
            self._stop(work, now_s)
        elif work.step is Step.STOP:
            self.kill(work, now_s)
        else:
            reason = f"waited {work.step.bound_s:g} s for {work.step.words}"
            self.end(work, reason, now_s)

    def _apart(self, work: Work, reason: str) -> None:
        """Both work alone from here on, as far as the table and the platform know."""
        row = self._table.get(work.shadow)
        if row is None or row.partner is None:
            return
        body = self._table.get(row.partner)
        self._body_words.pop(row.partner, None)
        self._table.unlink(work.shadow)
        if body is not None and body.status in (Status.PAIRING, Status.PAIRED):
            self._table.set_status(body.id, Status.READY)
        if work.paired:
            work.paired = False
            self._tell("unpaired", work.shadow, body=row.partner, reason=reason)

    def _forget(self, work: Work) -> None:
        work.drop_papers()
        self._works.pop(work.shadow, None)
        self._assigned.pop(work.container or "", None)
        body = self._table.get(self._partner(work))
        self._table.remove(work.shadow)
        if body is not None and body.status in (Status.PAIRING, Status.PAIRED):
            self._table.set_status(body.id, Status.READY)

    # Small things

    def found(self, shadow_id: str, now_s: float) -> None:
        """A Shadow, or a container that was to become one, which an earlier coordinator has left."""
        work = self._works[shadow_id] = Work(shadow_id, Step.SPEAK)
        self._table.insert(shadow_id, Kind.SHADOW)
        self.enter(work, Step.SPEAK, now_s)

    def enter(self, work: Work, step: Step, now_s: float) -> None:
        """Begin to wait for something, and show it in the table."""
        work.step = step
        work.deadline_s = None if step.bound_s is None else now_s + step.bound_s
        self._table.set_status(work.shadow, step.status)
        body = self._table.get(self._partner(work))
        if body is not None and step in WITH_BODY:
            self._table.set_status(body.id, step.status)

    def _partner(self, work: Work) -> str | None:
        row = self._table.get(work.shadow)
        return None if row is None else row.partner

    def _tell_paired(self, work: Work) -> None:
        row = self._table.get(work.shadow)
        assert row is not None
        work.paired = True
        details = {"body": row.partner, "blocks": list(row.blocks), "split": list(row.split)}
        self._effects.append(Tell({"event": "paired", "shadow": work.shadow, **details}))

    def _tell(self, event: str, shadow_id: str, **details: object) -> None:
        self._effects.append(Tell({"event": event, "shadow": shadow_id, **details}))
