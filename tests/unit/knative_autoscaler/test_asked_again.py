"""A size that was refused is asked for again, also where nothing else happens to its Revision."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.autoscaler import revision as instances
from gnomon_platforms.knative.autoscaler.configuration import ClusterSettings
from gnomon_platforms.knative.autoscaler.objects import RevisionPod, ScaleTarget
from gnomon_platforms.knative.autoscaler.revision import ScaledRevision, Surroundings
from tests.unit.knative_autoscaler.played import EPOCH_S, LeftToKnative, Played, pod


class Full:
    """Writes, of which the first resize is refused by a quota."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def resize(self, pod: RevisionPod, cores: int) -> bool:
        del pod
        self.asked.append(cores)
        if len(self.asked) == 1:
            raise GnomonError(403, "kubernetes_refused", "exceeded quota", "Ask for less.")
        return True

    async def route(self, *_: Any) -> None:
        """It is made."""

    async def tell(self, *_: Any) -> None:
        """It is told."""


async def test_a_size_that_was_refused_is_asked_for_again_though_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "REFUSED_S", 0.05)
    played, full, cluster, here = Played({"gnomon/cores": "2"}), Full(), ClusterSettings(), pod()
    facts = played.facts
    agrees = {"check": lambda _: None, "check_profile": lambda *_: None}
    brain = SimpleNamespace(**agrees, makes_shadows=lambda _: False, decisions=lambda *_: ())
    around = SimpleNamespace(
        pa=lambda _: facts,
        sks=lambda _: None,
        target=lambda _: ScaleTarget("deployment-uid", "1", 1),
        pods=lambda _: (here,),
        live=lambda _: None,
        cluster=lambda: cluster,
        rival=lambda _: None,
        wakeable=lambda: True,
        resizes=True,
        shadows=None,
        brain=brain,
        public=LeftToKnative(),
        steps=full,
        clock=WallClock(),
        wall_s=lambda: EPOCH_S,
    )
    revision = ScaledRevision(facts, cast("Surroundings", around))
    try:
        async with asyncio.timeout(5):
            while len(full.asked) < 2:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
    finally:
        await revision.close()
    assert full.asked == [2, 2]
