"""What was decided, why and when, for people to read.

A policy that decides every second and keeps saying the same would bury the rest; such a run of equal decisions is one record,
with the reason for which it began. A record is one line of the log.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice

from gnomon_core.decisions import DecisionRecord
from gnomon_core.scaling import Action, Decision, action_to_json

KEEP = 1000

log = logging.getLogger("gnomon.autoscaler")


class DecisionLog:
    """The last decisions of one function."""

    def __init__(self, function: str, keep: int = KEEP) -> None:
        self.total = 0
        """Every decision there was, repeated and forgotten ones included."""
        self._function = function
        self._records: deque[DecisionRecord] = deque(maxlen=keep)

    def add(self, at: float, policy: str, decision: Decision, error: str = "") -> DecisionRecord:
        """Record a decision, or count it where nothing happened since the last."""
        self.total += 1
        last = self._records[-1] if self._records else None
        if last is not None and _same(last, policy, decision, error):
            last = self._records[-1] = _repeated(last, at)
            return last
        record = DecisionRecord(at, policy, decision.desired, decision.actions, decision.reason, error, at)
        self._records.append(record)
        level = logging.WARNING if error else logging.INFO
        acts = "; ".join(_text(action) for action in record.actions) or "nothing to do"
        log.log(level, "%s: %s: %s: %s%s", self._function, policy, record.reason, acts, f": {error}" if error else "")
        return record

    def latest(self, limit: int) -> list[DecisionRecord]:
        """The newest first."""
        return list(islice(reversed(self._records), max(0, limit)))


def _same(last: DecisionRecord, policy: str, decision: Decision, error: str) -> bool:
    nothing_new = not decision.actions or bool(error and decision.actions == last.actions)
    return nothing_new and (last.policy, last.desired, last.error) == (policy, decision.desired, error)


def _repeated(last: DecisionRecord, at: float) -> DecisionRecord:
    # As `replace` would, in half its time: where hundreds of functions are asked each second, nearly all decisions are repeated.
    return DecisionRecord(
        last.at, last.policy, last.desired, last.actions, last.reason, last.error, last_at=at, repeats=last.repeats + 1
    )


def _text(action: Action) -> str:
    shown = [name for name in action_to_json(action) if name != "action"]
    return f"{type(action).__name__}({', '.join(f'{name}={getattr(action, name)}' for name in shown)})"
