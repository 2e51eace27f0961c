"""A function, whatever events of its pods come late, twice or not at all, gets its desired instances, and no other instance ends.

The real reconciler over a small simulated cluster: its writes are executed late, sometimes without an answer, sometimes never.
Events go through a cache as an informer's do: in order, but late; some twice; and after a pause as one list of all objects.
"""

import asyncio
import random
from collections import deque
from dataclasses import replace
from typing import Any, cast

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_platforms.common import starting
from gnomon_platforms.kubernetes import reconciler
from gnomon_platforms.kubernetes.informer import Cache, Change, Item
from gnomon_platforms.kubernetes.objects.pods import PodFacts
from gnomon_platforms.openfaas import workloads
from gnomon_platforms.openfaas.planning import Step
from gnomon_platforms.openfaas.workloads import InstanceRecord, Workload
from tests.platform_testing import Recorder
from tests.unit.kubernetes_platform.small_cluster import FakeCluster, SmallCluster

SPEC = read_deployment({"service": "figlet", "image": "figlet:1"})
KEY = SPEC.key
MOMENTS, CALM, TURNS = 500, 4000, 4


class Reached(SmallCluster):
    """Pods that run have an address."""

    def start(self) -> None:
        super().start()
        for name, pod in self.pods.items():
            if pod.healthy and pod.ip is None:
                self.pods[name] = replace(pod, ip="127.0.0.1", namespace=KEY.namespace)


class Carried:
    """Steps that are carried out after a while, or not; and who asked is told so, or not."""

    def __init__(self, cluster: SmallCluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self.reliable = False

    async def take(self, step: Step, spec: object, version: int, deployed: object = None) -> int | None:
        del spec, deployed
        for _ in range(self._rng.randrange(TURNS)):
            await asyncio.sleep(0)
        fate = 1.0 if self.reliable else self._rng.random()
        if fate > 0.1:
            self._cluster.carry_out(step, version)
        if fate < 0.2:
            raise GnomonError(503, "kubernetes_unreachable", "Nobody answers.", "Try again.")
        return None

    def furnished(self, deployed: object) -> bool:
        del deployed
        return True

    async def token(self, deployed: object) -> str:
        del deployed
        return "t0ken"


class Informed:
    """An informer's cache of the cluster's pods, and the events that fill it."""

    def __init__(self, cluster: SmallCluster, rng: random.Random) -> None:
        self.cache: Cache[PodFacts] = Cache()
        self._cluster, self._rng = cluster, rng
        self._before: dict[str, PodFacts] = {}
        self._news: deque[tuple[Item[PodFacts], bool]] = deque()
        self._versions = 0

    def look(self) -> None:
        """Something may have happened in the cluster: it becomes news."""
        now = dict(self._cluster.pods)
        for name in self._before.keys() | now.keys():
            old, new = self._before.get(name), now.get(name)
            if new is not None and new != old:
                self._news.append((self._item(new), False))
            elif old is not None and new is None:
                self._news.append((self._item(old), True))
        self._before = now

    def hear(self) -> list[Change[PodFacts]]:
        """Hear a part of the news; perhaps the last of them again; or, after all that was to come was lost, a list."""
        if self._rng.random() < 0.02:
            self._news.clear()
            return self.cache.replace([self._item(pod) for pod in self._before.values()])
        changes = []
        for _ in range(min(len(self._news), self._rng.randrange(3))):
            item, gone = self._news.popleft()
            for _ in range(1 + (self._rng.random() < 0.2)):
                changes += self.cache.remove(item) if gone else self.cache.put(item)
        return changes

    def _item(self, pod: PodFacts) -> Item[PodFacts]:
        self._versions += 1
        return Item((KEY.namespace, pod.name), pod.uid, str(self._versions), {}, pod)


class Stage:
    """A workload, what it sees and what it writes to; and what is wanted."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = Reached(self.rng)
        self.informed, self.carried = Informed(self.cluster, self.rng), Carried(self.cluster, self.rng)
        self.listener, self.records = Recorder(), dict[str, InstanceRecord]()
        self.removed: set[str] = set()
        """The instances whose pods others have removed: a ReplicaSet, an eviction."""
        observed = FakeCluster(lambda: self.cluster.deployed, self.informed.cache.values)
        self.workload = Workload(KEY, cast("Any", self.carried), cast("Any", observed))
        self.workload.start()

    def create(self) -> None:
        request = InstanceRequest(SPEC, 1, 1, "n1", {})
        name = f"i{len(self.records)}"
        record = InstanceRecord(starting(name, request, "", 0, 0.0), request, self.listener, self.workload.forget)
        self.records[name] = record
        self.workload.add(record)

    @property
    def living(self) -> list[str]:
        return [name for name, record in self.records.items() if record.living]

    def evict(self) -> None:
        """Evict a pod: somebody else removes it, or its node ends it and leaves it there."""
        serving = [pod for pod in self.cluster.pods.values() if pod.ready and pod.instance and not pod.ending]
        if serving:
            pod = self.rng.choice(serving)
            self.removed.add(pod.instance or "")
            failed = self.rng.random() < 0.5
            now = replace(pod, phase="Failed", healthy=False, ready=False) if failed else replace(pod, ending=True)
            self.cluster.pods[pod.name] = now

    async def moment(self) -> None:
        """Let a single thing happen in the cluster: some of it is heard, and the workload has its turn."""
        self.cluster.tick()
        self.informed.look()
        for change in self.informed.hear():
            self.workload.pod_changed(change.new, change.name[1])
        self.workload.trigger()
        for _ in range(TURNS):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
async def test_a_function_gets_the_desired_instances_and_no_other_ends(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "FIRST_BACKOFF_S", 0.0)
    monkeypatch.setattr(workloads, "REPLACED_S", 0.0)
    stage = Stage(seed)
    rng = stage.rng
    try:
        for _ in range(MOMENTS):
            if rng.random() < 0.08:
                if stage.living and rng.random() < 0.45:
                    stage.workload.stop(stage.records[rng.choice(stage.living)])
                else:
                    stage.create()
            if rng.random() < 0.03:
                stage.evict()
            await stage.moment()
            for name in stage.listener.gone:
                taken = {pod.instance for pod in stage.cluster.removed}
                assert stage.records[name].stopping or name in stage.removed | taken, f"{name}: {stage.listener.gone[name]}"
        stage.carried.reliable = True
        for _ in range(CALM):
            await stage.moment()
            if settled(stage):
                break
        assert settled(stage), f"{sorted(stage.living)} are wanted; there are {list(stage.cluster.pods.values())}"
        assert set(stage.listener.times_gone.values()) <= {1}
        assert set(stage.listener.ready) >= set(stage.living)
    finally:
        await stage.workload.close()


def settled(stage: Stage) -> bool:
    """True if each instance that is wanted serves in a pod of its own, and there is nothing else."""
    owners = sorted(pod.instance or "" for pod in stage.cluster.pods.values())
    serving = all(pod.ready for pod in stage.cluster.pods.values())
    ready = all(name in stage.listener.ready for name in stage.living)
    gone = {name for name, record in stage.records.items() if not record.living} == set(stage.listener.gone)
    return owners == sorted(stage.living) and serving and ready and gone
