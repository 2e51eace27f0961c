"""Instances that an earlier process has made, for a load that this one has not seen.

A new leader's windows are empty. To every policy that looks like no load at all: in the midst of a peak it would end all Shadows,
and all Bodies but the least. So what was found is kept until the windows reach as far back as policies look
(`Settings.stable_window_s`). More may be made at once, and an operator's number holds at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gnomon_core.fleet import Instance
from gnomon_core.scaling import Decision, DestroyBody, DestroyShadow, Observation


class Inherited:
    """Of one function. `heir` is whether there may be any."""

    def __init__(self, *, heir: bool) -> None:
        self._asks, self._found = heir, False

    def look(self, live: Sequence[Instance]) -> None:
        """The function's Bodies that serve or are about to. Those of the first look are inherited."""
        if self._asks:
            self._asks, self._found = False, bool(live)

    def keep(self, decision: Decision, seen: Observation) -> tuple[Decision, str]:
        """The decision without what would take away too early, and why; "" where all of it holds."""
        if not self._found:
            return decision, ""
        covered_s = len(seen.history.arrivals) * seen.history.bin_s
        self._found = covered_s < seen.settings.stable_window_s
        kept = tuple(action for action in decision.actions if not isinstance(action, DestroyBody | DestroyShadow))
        if not self._found or seen.requested is not None or len(kept) == len(decision.actions):
            return decision, ""
        desired = decision.desired if decision.desired is None else max(decision.desired, len(seen.live))
        # The same each time, so that it is one record however long it holds.
        why = f"taken over: nothing ends before {seen.settings.stable_window_s:g} s of its load are known"
        return replace(decision, actions=kept, desired=desired), why
