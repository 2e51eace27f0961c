"""Cores that a pod was refused are not on their way to it, and who asks for them again soon is told why not."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from gnomon_core.actuation import PartlyRefused
from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.scaling import LoadCounters, Resize
from gnomon_platforms.knative.autoscaler.objects import RevisionPod
from gnomon_platforms.knative.autoscaler.revision import RevisionInstances, Surroundings
from gnomon_platforms.kubernetes.resources import REFUSED_S
from tests.unit.knative_autoscaler.played import Played

POD = RevisionPod(
    "users",
    "a",
    "f-00001",
    "10.0.0.1",
    running=True,
    ready=True,
    ending=False,
    uid="u",
    cores=1.0,
    effective_cores=1.0,
    reported=True,
)


class Clock(WallClock):
    """Stands still until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


@dataclass
class Quota:
    """Writes: a pod of more than two cores is refused."""

    asked: list[int] = field(default_factory=list)

    async def resize(self, pod: RevisionPod, cores: int) -> bool:
        del pod
        self.asked.append(cores)
        if cores > 2:
            raise GnomonError(403, "kubernetes_refused", "exceeded quota", "Ask for less.")
        return True


async def test_cores_that_were_refused_are_not_coming() -> None:
    quota, clock, rules = Quota(), Clock(), Played().rules
    nobody = SimpleNamespace(learned=lambda _: None, queues=1)
    around = SimpleNamespace(pods=lambda _: (POD,), resizes=True, shadows=None, gateways=nobody, steps=quota, clock=clock)
    instances = RevisionInstances(Played().facts.key, cast("Surroundings", around))
    instances.begin(1)

    def body() -> Instance:
        [seen] = instances.load(rules, None, LoadCounters()).instances
        return seen

    async def decided(cores: int) -> None:
        await instances.apply([Resize(body().id, cores)], rules)
        await instances.resize(rules)

    assert (body().cores, body().coming_cores) == (1, None)
    await decided(4)
    assert (body().cores, body().coming_cores) == (1, None), "nobody is about to give them"
    with pytest.raises(PartlyRefused, match="exceeded quota"):
        await decided(4)
    await instances.resize(rules)
    assert quota.asked == [4]
    # Another size is another question, and the same one is asked again when its time is over.
    await decided(2)
    assert (quota.asked, body().coming_cores) == ([4, 2], 2)
    clock.time_s += REFUSED_S + 1.0
    await instances.resize(rules)
    await decided(4)
    assert quota.asked == [4, 2, 2, 4]
