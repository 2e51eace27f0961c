"""How Shadows end: their Body lets go first, then they stop; whoever does not answer in time is not waited for.

asked to, failed, overran ▶ UNPAIR ─ unpaired ▶ STOP ▶ KILL ▶ gone
the Body gave it up, or has gone  ─────────────▶ STOP or KILL
"""

from __future__ import annotations

from gnomon_coordinator import orders
from gnomon_coordinator.effects import Close, Kill, Send
from gnomon_coordinator.ledger import Ledger
from gnomon_coordinator.table import Record, Status
from gnomon_coordinator.work import ENDING, WITH_BODY, Step, Work


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
