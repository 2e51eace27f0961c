"""What pods, activators and gateways tell, handed on to the Revisions that it is about."""

from __future__ import annotations

from collections.abc import Mapping

from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.scaling.revision import ScaledRevision
from gnomon_platforms.knative.scaling.signals.stat import PodStat


class Hearing:
    """`scaled` are the Revisions of the class, as they are at each time."""

    def __init__(self, scaled: Mapping[FunctionKey, ScaledRevision]) -> None:
        self._scaled = scaled
        self._waited: set[FunctionKey] = set()
        """Revisions for which requests waited at the last look."""

    def took_stats(self, key: FunctionKey, all_pods: PodStat) -> None:
        """The last second of a Revision's pods together."""
        found = self._scaled.get(key)
        if found is not None:
            found.measured(all_pods)

    def took_waiting(self, waiting: Mapping[FunctionKey, float]) -> None:
        """So many requests wait at activators and gateways, for these and no others."""
        for key in waiting.keys() | self._waited:
            found = self._scaled.get(key)
            if found is not None:
                found.waits(waiting.get(key, 0.0))
        self._waited = set(waiting)

    def took_beside(self, came: Mapping[FunctionKey, float]) -> None:
        """So many requests more have gone out in batches than pods tell of."""
        for key, requests in came.items():
            found = self._scaled.get(key)
            if found is not None:
                found.came_beside(requests)
