"""A policy that does what a test writes down, second by second."""

from collections.abc import Sequence

from gnomon_core.scaling import Action, Decision, Observation, PolicyState


class Script:
    """A policy that does at each second what it was told to."""

    name = "script"
    period_s = 0.5
    default_scheduler = "immediate"
    needs = frozenset({"pair"})

    def __init__(self, actions: dict[float, Sequence[Action]]) -> None:
        self._actions = actions

    def decide(self, seen: Observation, state: PolicyState) -> tuple[Decision, PolicyState]:
        return Decision(tuple(self._actions.get(seen.now_s, ())), "as written"), state
