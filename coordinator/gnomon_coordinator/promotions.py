"""How a Shadow becomes a Body: it loads the rest while the pair goes on, its Body lets go of it, and then it serves.

    asked to ▶ RISE ─ complete ▶ YIELD ─ unpaired ▶ SERVE ─ the supervisor calls it a Body ▶ a Body like any other

A Body lets go between two batches, and a Shadow loads while its Body computes alone, at the end of one. One after the other, that
takes two batches. Where the rest is loaded within such a moment the Body is asked at once, and it takes one.

That it is a Body is for the platform to see, on the batch channel that it has given it, and for the supervisor to say: from its
first batch on it runs for somebody, and words of its own count for nothing here. Until then it is a Shadow in the eyes of
everybody who asks, so that a coordinator which is started anew finds the pair, or what is left of it, and begins again: what the
Shadow has loaded it need not load twice.

A Body that ends, or gives its Shadow up, while that becomes a Body does not take it along any more.
"""

from __future__ import annotations

from gnomon_coordinator import orders
from gnomon_coordinator.effects import Papers, Send
from gnomon_coordinator.ledger import Ledger
from gnomon_coordinator.messages import Said
from gnomon_coordinator.table import Kind
from gnomon_coordinator.work import ENDING, RISING, Step, Work

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
