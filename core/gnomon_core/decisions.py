"""A decision as it is kept and shown: what a scaling policy decided, why and when."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_core.json_types import JsonObject
from gnomon_core.scaling import Action, action_to_json


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision, and how often it was repeated unchanged until `last_at`. Times are seconds since 1970.

    `error` says why the policy could not decide or why the decision could not be carried out in full, empty otherwise.
    """

    at: float
    policy: str
    desired: int | None
    actions: tuple[Action, ...]
    reason: str
    error: str = ""
    last_at: float = 0.0
    repeats: int = 0

    def to_json(self) -> JsonObject:
        """The record as pages and files show it."""
        return {
            "at": self.at,
            "policy": self.policy,
            "desired": self.desired,
            "actions": [action_to_json(action) for action in self.actions],
            "reason": self.reason,
            "error": self.error,
            "last_at": self.last_at,
            "repeats": self.repeats,
        }
