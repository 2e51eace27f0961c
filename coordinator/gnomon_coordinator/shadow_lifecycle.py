"""How Shadows begin: a wish, a container, a load, and the word that its blocks are there. `work` has the steps.

A wish may come again, after a restart of the coordinator, for a Shadow that is there already: then what is there and what is
wanted decide about the next step, however things came to be as they are.

From what is there to what is wanted: a Shadow that has its blocks meets its Body, and changes with it.

A change never leaves a batch without its blocks: the Shadow holds old and new ones first, then its Body changes, between two of
its batches, and only then the old ones go.

    old {1, 2}, new {2, 3}:   Shadow: hold {1, 2, 3}   ▶   Body: offload {2, 3}   ▶   Shadow: hold {2, 3}

A pair on two nodes is two halves, one at each coordinator. On the Body's node there is no process of the Shadow: its Body is told
the `way` to it, and its words are all that is heard of the pair. On the Shadow's node there is no Body: a connection comes.

How Shadows end: their Body lets go first, then they stop; whoever does not answer in time is not waited for.

asked to, failed, overran ▶ UNPAIR ─ unpaired ▶ STOP ▶ KILL ▶ gone
the Body gave it up, or has gone  ─────────────▶ STOP or KILL

How a Shadow becomes a Body: it loads the rest while the pair goes on, its Body lets go of it, and then it serves.

    asked to ▶ RISE ─ complete ▶ YIELD ─ unpaired ▶ SERVE ─ the supervisor calls it a Body ▶ a Body like any other

A Body lets go between two batches, and a Shadow loads while its Body computes alone, at the end of one. One after the other, that
takes two batches. Where the rest is loaded within such a moment the Body is asked at once, and it takes one.

That it is a Body is for the platform to see, on the batch channel that it has given it, and for the supervisor to say: from its
first batch on it runs for somebody, and words of its own count for nothing here. Until then it is a Shadow in the eyes of
everybody who asks, so that a coordinator which is started anew finds the pair, or what is left of it, and begins again: what the
Shadow has loaded it need not load twice.

A Body that ends, or gives its Shadow up, while that becomes a Body does not take it along any more.

Whose load is next: Shadows that share a CPU load their blocks one after another, in the order in which they were wished for.

Side by side all of them are there when the last one is; in turn the first is there as if it were alone, and the last no later.
Example: three loads that cost 11 ms each on one CPU, together: 33, 33 and 33 ms; in turn: 11, 22 and 33 ms.

A turn is short: a load that holds it for longer, because it is large or its process is stuck, goes on beside the next ones. Loads
on different CPUs do not wait for each other. A container that is forked for a Shadow does not wait either: it cannot begin before
it is there, and when it is, whoever was ready has long had its turn.

What is known of the node's Shadows, and the few things that every part of their lives does with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gnomon_coordinator import protocol as orders
from gnomon_coordinator.effects import Assign, Close, Connect, Effect, Fork, Kill, Papers, Send, Tell
from gnomon_coordinator.pool import Pool
from gnomon_coordinator.protocol import BadMessageError, PairSaid, Said, Task
from gnomon_coordinator.table import Kind, Record, RegistrationTable, Status
from gnomon_coordinator.work import ENDING, RISING, WITH_BODY, Step, Work, capacity
from gnomon_core.blocks import Layers
from gnomon_core.pairs import MAX_SHADOWS

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


class Endings:
    """Every way in which a Shadow ends, or is found ended."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def end(self, work: Work, reason: str, now_s: float) -> None:
        """End a Shadow: first its Body lets go of it, then it stops."""
        ledger = self._ledger
        if work.step in ENDING:
            return
        work.drop_papers()
        work.drop_rising()
        if work.step is Step.WAIT:
            ledger.forget(work)
            ledger.tell("failed", work, reason=reason)
            return
        ledger.tell("ending", work, reason=reason)
        body = ledger.body_of(work)
        if work.step in WITH_BODY and body is not None and body.status is not Status.BARRED:
            ledger.enter(work, Step.UNPAIR, now_s)
            ledger.effects.append(Send(body.id, orders.unpair(work.shadow)))
        elif work.step in (Step.SPEAK, Step.TURN, Step.LOAD):
            self.kill(work, now_s)
        else:
            self._stop(work, now_s)

    def kill(self, work: Work, now_s: float) -> None:
        """End a Shadow's process at once."""
        if work.step is not Step.KILL and not self._elsewhere(work):
            work.drop_papers()
            work.drop_rising()
            self._ledger.apart(work, "it is ended")
            self._ledger.enter(work, Step.KILL, now_s)
            self._ledger.effects.append(Kill(work.shadow))

    def broken(self, work: Work, reason: str, now_s: float) -> None:
        """A Shadow does not keep to the protocol, or does not listen: it ends at once, and is not heard any more."""
        self._ledger.effects.append(Close(work.shadow))
        self.end(work, reason, now_s)
        self.kill(work, now_s)

    def _stop(self, work: Work, now_s: float) -> None:
        if not self._elsewhere(work):
            self._ledger.enter(work, Step.STOP, now_s)
            self._ledger.effects.append(Send(work.shadow, {"do": "stop"}))

    def _elsewhere(self, work: Work) -> bool:
        """Whether it is on another node: then it ends there, and here it is over as soon as its Body works without it."""
        if work.task is None or work.task.way is None:
            return False
        self._ledger.apart(work, "it is ended")
        self._ledger.forget(work)
        self._ledger.tell("failed", work, reason="its Body works without it")
        self._ledger.over.append(work.shadow)
        return True

    def body_let_go(self, work: Work, reason: str, now_s: float) -> None:
        """The Body works without it, told to or not."""
        if work.step in WITH_BODY:
            self._ledger.tell("ending", work, reason=reason)
        elif work.step is not Step.UNPAIR:
            return
        self._ledger.apart(work, reason)
        self._stop(work, now_s)

    def body_gone(self, body: Record, now_s: float) -> None:
        """A Body has ended: its Shadows go along."""
        self._ledger.body_words.pop(body.id, None)
        for work in [self._ledger.works[shadow] for shadow in body.partners if shadow in self._ledger.works]:
            if work.step is Step.WAIT:
                self.end(work, "its Body has gone", now_s)
            else:
                self._ledger.tell("ending", work, reason="its Body has gone")
                self.kill(work, now_s)

    def gone(self, work: Work) -> None:
        """A Shadow's process has ended."""
        ledger = self._ledger
        body = ledger.body_of(work)
        told = {body.id} if body is not None and work.step in WITH_BODY and body.status is not Status.BARRED else set()
        # After a restart a Body may have named it before it has spoken itself.
        told |= {name for name, said in ledger.body_words.items() if work.shadow in said}
        ledger.effects += [Send(name, orders.unpair(work.shadow)) for name in sorted(told)]
        ledger.apart(work, "its Shadow has ended")
        ledger.forget(work)

    def overran(self, work: Work, now_s: float) -> None:
        """A step has taken too long."""
        if work.step is Step.UNPAIR:
            self._ledger.apart(work, "its Body did not answer")
            self._stop(work, now_s)
        elif work.step is Step.STOP:
            self.kill(work, now_s)
        else:
            self.end(work, f"waited {work.step.bound_s:g} s for {work.step.words}", now_s)


AT_ONCE_BYTES = 128 << 20
"""So much is loaded in some tens of milliseconds: less than the batch takes that the Body is in."""


class Promotions:
    """Takes each Shadow that is to become a Body through its steps."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def ask(self, work: Work, papers: Papers, now_s: float) -> None:
        """It is to become a Body, now or as soon as it has nothing else to do. The papers are taken over."""
        if work.step in ENDING or work.step is Step.SERVE:
            papers.close()
            return
        work.drop_rising()
        work.rising = papers
        self.settle(work, now_s)

    def settle(self, work: Work, now_s: float) -> None:
        """Begin, if that is wanted and possible now."""
        if work.rising is not None and work.step is Step.REST:
            self._ledger.enter(work, Step.RISE, now_s)
            self._ledger.effects.append(Send(work.shadow, {"do": "promote", "shadow": work.shadow}, work.rising))
            body = self._ledger.body_of(work)
            if body is not None and _missing_bytes(work) <= AT_ONCE_BYTES:
                self._ledger.effects.append(Send(body.id, orders.unpair(work.shadow)))

    def complete(self, work: Work, said: Said, now_s: float) -> None:
        """It holds the whole model."""
        if work.step is not Step.RISE:
            return
        self._ledger.tell("complete", work, resident_bytes=said.resident_bytes, load_ms=said.load_ms)
        body = self._ledger.body_of(work)
        if body is None:
            self._serve(work, now_s)
        else:
            self._ledger.enter(work, Step.YIELD, now_s)
            self._ledger.effects.append(Send(body.id, orders.unpair(work.shadow)))

    def parted(self, work: Work, reason: str, now_s: float) -> bool:
        """Its Body works without it, or has ended; whether it goes on all the same."""
        if work.step not in RISING:
            return False
        self._ledger.apart(work, reason)
        if work.step is Step.YIELD:
            self._serve(work, now_s)
        return True

    def _serve(self, work: Work, now_s: float) -> None:
        work.drop_rising()
        self._ledger.enter(work, Step.SERVE, now_s)
        self._ledger.effects.append(Send(work.shadow, {"do": "serve", "shadow": work.shadow}))

    def promoted(self, shadow_id: str) -> None:
        """The supervisor calls it a Body."""
        ledger = self._ledger
        row, work = ledger.table.get(shadow_id), ledger.works.get(shadow_id)
        if row is None or row.kind is not Kind.SHADOW:
            return
        if work is not None:
            ledger.apart(work, "it has become a Body")
            ledger.forget(work)
        ledger.table.insert(shadow_id, Kind.BODY)
        ledger.effects.append(Send(shadow_id, {"do": "hello"}))


def _missing_bytes(work: Work) -> int:
    """The weights that a Shadow does not hold yet."""
    assert work.layers is not None
    return work.layers.parameter_bytes() - work.layers.parameter_bytes(work.held)


CLAIM_S = 10.0
"""After a restart, for the wish for a Shadow on another node, of which only its Body knows."""


class Pairing:
    """Takes the next step of each Shadow that has registered."""

    def __init__(self, ledger: Ledger, endings: Endings, promotions: Promotions) -> None:
        self._ledger = ledger
        self._endings = endings
        self._promotions = promotions
        self._unclaimed_until_s: dict[tuple[str, str], float] = {}
        """By Body and Shadow: what a Body does with one on another node that nobody has wished for yet."""

    def settle(self, work: Work, now_s: float) -> None:
        """Take the next step, if one can be taken now."""
        if work.task is None:
            return
        body = self._ledger.body_of(work)
        if work.step is Step.BODY and body is not None and body.status is not Status.SILENT:
            self._meet(work, body, now_s)
        elif work.step is Step.REST and work.doing != work.task:
            self._widen(work, now_s)
        else:
            self._promotions.settle(work, now_s)

    def _meet(self, work: Work, body: Record, now_s: float) -> None:
        """Bring a Shadow together with its Body, or find them together."""
        assert work.task is not None
        said = self._ledger.body_words.get(body.id, {}).get(work.shadow)
        if body.id != work.task.body:
            self._endings.end(work, f"it belongs to {body.id}", now_s)
        elif said is not None and not (work.joined and set(said.blocks) <= set(work.held)):
            self._part(work, now_s)
        elif said is not None:
            assert work.layers is not None
            # The wish has not changed its largest batch since, for which the buffers were made.
            work.capacity = capacity(work.layers, work.task.max_batch)
            self._ledger.table.link(body.id, work.shadow, said.blocks, said.split)
            work.connected = True
            if (said.blocks, said.split) == (work.task.blocks, work.task.split):
                work.doing = work.task
                self._at_work(work, now_s)
            else:
                self._ledger.enter(work, Step.REST, now_s)
                self._ledger.tell_paired(work)
                self.settle(work, now_s)
        elif work.held == work.task.blocks:
            work.doing = work.task
            self._connect(work, now_s)
        else:
            self._widen(work, now_s)

    def _part(self, work: Work, now_s: float) -> None:
        """Have the Body give back the buffers that it has."""
        assert work.task is not None
        work.doing = work.doing or work.task
        self._ledger.enter(work, Step.PART, now_s)
        self._ledger.effects.append(Send(work.task.body, orders.unpair(work.shadow)))

    def body_parted(self, work: Work, now_s: float) -> None:
        """The Body has no buffers of this pair any more, and can be given others."""
        assert work.doing is not None
        self._ledger.body_words.get(work.doing.body, {}).pop(work.shadow, None)
        if set(work.doing.blocks) <= set(work.held):
            self._connect(work, now_s)
        else:
            work.connected = False
            self._widen(work, now_s)

    def _connect(self, work: Work, now_s: float) -> None:
        """Give both sides buffers. The Body has none of this pair."""
        assert work.doing is not None
        assert work.layers is not None
        work.capacity = capacity(work.layers, work.doing.max_batch)
        self._ledger.enter(work, Step.CONNECT, now_s)
        pair, join = orders.pair(work.doing), orders.join(work.doing)
        if work.doing.way is not None:
            self._ledger.effects.append(Send(work.doing.body, pair))
        else:
            self._ledger.effects.append(Connect(work.doing.body, work.shadow, pair, join, *work.capacity))

    def _widen(self, work: Work, now_s: float) -> None:
        """First the Shadow holds old and new blocks."""
        assert work.task is not None
        before, work.doing = work.doing, work.task
        if work.task.way is not None:
            # What it holds is seen to on its own node.
            work.held = work.task.blocks
            self._switch(work, now_s)
            return
        union = _union(work, work.task)
        if before is not None and union == work.held and (before.cores, before.cpus) == (work.task.cores, work.task.cpus):
            self._switch(work, now_s)
            return
        self._ledger.enter(work, Step.WIDEN, now_s)
        self._ledger.effects.append(Send(work.shadow, orders.change_shadow(work.task, union)))

    def _switch(self, work: Work, now_s: float) -> None:
        """Then its Body changes, with larger buffers where these are too small."""
        assert work.doing is not None
        assert work.layers is not None
        if work.doing.afar:
            # Its Body is told on its own node.
            self._ledger.enter(work, Step.REST, now_s)
            self.settle(work, now_s)
            return
        needed = capacity(work.layers, work.doing.max_batch)
        if not work.connected:
            self._connect(work, now_s)
        elif needed[0] > work.capacity[0] or needed[1] > work.capacity[1]:
            self._part(work, now_s)
        else:
            self._ledger.enter(work, Step.SWITCH, now_s)
            self._ledger.effects.append(Send(work.doing.body, orders.change_body(work.doing)))

    def _at_work(self, work: Work, now_s: float) -> None:
        """The Body does as it was told. Old blocks may go now."""
        assert work.doing is not None
        work.connected = True
        self._ledger.table.link(work.doing.body, work.shadow, work.doing.blocks, work.doing.split)
        self._ledger.tell_paired(work)
        if work.held == work.doing.blocks:
            self._ledger.enter(work, Step.REST, now_s)
            self.settle(work, now_s)
        else:
            self._ledger.enter(work, Step.NARROW, now_s)
            self._ledger.effects.append(Send(work.shadow, orders.change_shadow(work.doing, work.doing.blocks)))

    def reached(self, work: Work, connection: Papers) -> None:
        """A Body of another node has come to its Shadow, which answers it, or lets go of the connection."""
        assert work.task is not None
        assert work.layers is not None
        join = orders.join(work.task, capacity(work.layers, work.task.max_batch))
        self._ledger.effects.append(Send(work.shadow, join, connection))

    # What the two say

    def shadow_joined(self, work: Work, now_s: float) -> None:
        """The Shadow has its Body's buffers, or its connection: on another node that is all there is to see of a pair."""
        work.joined = True
        if work.step is Step.BODY and work.task is not None and work.task.afar:
            self._ledger.enter(work, Step.REST, now_s)
            self.settle(work, now_s)

    def shadow_left(self, work: Work, said: Said, now_s: float) -> None:
        """Its Body has gone, as the Shadow sees it. Of a pair on this node its Body says the same, and that is what counts."""
        if work.task is None:
            work.joined = False
        elif work.task.afar:
            self._endings.end(work, said.reason or "its Body has gone", now_s)

    def shadow_changed(self, work: Work, said: Said, now_s: float) -> None:
        """The Shadow holds other blocks now.

        Raises:
            BadMessageError: not those that it was told to hold.

        """
        if work.doing is None or work.step not in (Step.WIDEN, Step.NARROW):
            return
        told = work.doing.blocks if work.step is Step.NARROW else _union(work, work.doing)
        if said.blocks != told:
            raise BadMessageError("it holds other blocks than it was told to")
        work.held = told
        if work.step is Step.NARROW:
            self._ledger.enter(work, Step.REST, now_s)
            self.settle(work, now_s)
        else:
            self._switch(work, now_s)

    def body_spoke(self, body: Record, said: Said, now_s: float) -> None:
        """The first words of a Body: with whom it works."""
        ledger = self._ledger
        ledger.body_words[body.id] = {pair.shadow: pair for pair in said.pairs}
        unknown = [pair for pair in said.pairs if pair.shadow not in ledger.works]
        ledger.effects += [Send(body.id, orders.unpair(pair.shadow)) for pair in unknown if not pair.elsewhere]
        # No supervisor hands over those on other nodes: after a restart only the wish for one says that it is wanted.
        self._unclaimed_until_s |= {(body.id, pair.shadow): now_s + CLAIM_S for pair in unknown if pair.elsewhere}
        for work in [ledger.works[shadow] for shadow in body.partners if shadow in ledger.works]:
            self.settle(work, now_s)

    def tick(self, now_s: float) -> None:
        """Have Bodies let go of Shadows on other nodes that nobody has wished for."""
        for (body, shadow), until_s in list(self._unclaimed_until_s.items()):
            if shadow in self._ledger.works or now_s >= until_s:
                del self._unclaimed_until_s[body, shadow]
            if shadow not in self._ledger.works and now_s >= until_s:
                self._ledger.effects.append(Send(body, orders.unpair(shadow)))

    def due_s(self) -> float | None:
        """When `tick` has something to do next."""
        return min(self._unclaimed_until_s.values(), default=None)

    def body_paired(self, work: Work, now_s: float) -> None:
        """The Body uses the buffers that it was given."""
        if work.step is Step.CONNECT:
            self._at_work(work, now_s)

    def body_changed(self, work: Work, said: Said, now_s: float) -> None:
        """The Body offloads other blocks now, or other shares."""
        if work.step is Step.SWITCH and work.doing is not None and said.blocks == work.doing.blocks:
            self._at_work(work, now_s)


def _union(work: Work, task: Task) -> tuple[int, ...]:
    """What a Shadow holds while it changes to a task: old and new blocks."""
    return tuple(sorted({*work.held, *task.blocks}))


TURN_S = 0.05


class Turns:
    """Who loads, and until when others wait for it. `works` are in the order of their wishes."""

    def __init__(self, works: Mapping[str, Work]) -> None:
        self._works = works
        self._until_s: dict[str, float] = {}

    def take(self, now_s: float) -> list[Work]:
        """Those of the waiting Shadows that load from now on."""
        self._until_s = {shadow: until_s for shadow, until_s in self._until_s.items() if until_s > now_s and self._loads(shadow)}
        taken = {cpu for shadow in self._until_s for cpu in _cpus(self._works[shadow])}
        found: list[Work] = []
        for work in self._waiting():
            if taken.isdisjoint(_cpus(work)):
                found.append(work)
                self._until_s[work.shadow] = now_s + TURN_S
            # Who waits for one of several CPUs is not overtaken on the others.
            taken |= _cpus(work)
        return found

    def due_s(self) -> float | None:
        """When the next turn ends by time; None where nobody waits for it."""
        return min(self._until_s.values(), default=None) if self._waiting() else None

    def _waiting(self) -> list[Work]:
        return [work for work in self._works.values() if work.step is Step.TURN]

    def _loads(self, shadow: str) -> bool:
        work = self._works.get(shadow)
        return work is not None and work.step is Step.LOAD


def _cpus(work: Work) -> frozenset[int]:
    return frozenset() if work.task is None else frozenset(work.task.cpus)


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
