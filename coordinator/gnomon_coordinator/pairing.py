"""From what is there to what is wanted: a Shadow that has its blocks meets its Body, and changes with it.

A change never leaves a batch without its blocks: the Shadow holds old and new ones first, then its Body changes, between two of
its batches, and only then the old ones go.

    old {1, 2}, new {2, 3}:   Shadow: hold {1, 2, 3}   ▶   Body: offload {2, 3}   ▶   Shadow: hold {2, 3}

A pair on two nodes is two halves, one at each coordinator. On the Body's node there is no process of the Shadow: its Body is told
the `way` to it, and its words are all that is heard of the pair. On the Shadow's node there is no Body: a connection comes.
"""

from __future__ import annotations

from gnomon_coordinator import orders
from gnomon_coordinator.effects import Connect, Papers, Send
from gnomon_coordinator.endings import Endings
from gnomon_coordinator.fields import BadMessageError
from gnomon_coordinator.ledger import Ledger
from gnomon_coordinator.messages import Said, Task
from gnomon_coordinator.promotions import Promotions
from gnomon_coordinator.table import Record, Status
from gnomon_coordinator.work import Step, Work, capacity

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
