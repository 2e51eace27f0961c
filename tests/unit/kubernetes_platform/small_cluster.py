"""A cluster in miniature that carries plans out: a Deployment, its ReplicaSet and its pods, in any order and at any speed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

from gnomon_core.functions import read_deployment
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.pods import PodFacts, pod_facts
from gnomon_platforms.openfaas.planning import (
    CLAIMED_COST,
    VICTIM_COST,
    Claim,
    Deploy,
    Release,
    Remove,
    Retire,
    Scale,
    Serve,
    Step,
    Withdraw,
    counted,
    rank,
)

SPEC = read_deployment({"service": "figlet", "image": "figlet:1"})
SPARE = replace(pod_facts({"metadata": {"name": "p", "uid": "u"}}), function="figlet", version=1, gated=True)


def deployed(replicas: int, version: int = 1, available: int = 0) -> DeployedFunction:
    return DeployedFunction(SPEC, "uid-d", "1", 1, version, version, 0.0, replicas, available)


def spare(name: str) -> PodFacts:
    return replace(SPARE, name=name)


def running(name: str, instance: str, **fields: object) -> PodFacts:
    facts = replace(SPARE, name=name, gated=False, node="n1", phase="Running", healthy=True, ready=True, serving=True, cores=1.0)
    return replace(replace(facts, instance=instance, deletion_cost=CLAIMED_COST), **fields)  # type: ignore[arg-type]


class SmallCluster:
    """A Deployment, its ReplicaSet and its pods. Each tick does one thing that a cluster might do.

    `quota` is how many pods there may be. A ReplicaSet that cannot make one says so, in its Deployment's status.
    """

    def __init__(self, chance: random.Random, quota: int | None = None) -> None:
        self.chance, self.quota = chance, quota
        self.pods: dict[str, PodFacts] = {}
        self.known: dict[str, PodFacts] = {}
        """What the ReplicaSet's controller knows of pods. It waits only for news of what it did itself."""
        self.deployed: DeployedFunction | None = None
        self.numbers = itertools.count()
        self.removed: list[PodFacts] = []

    def mine(self) -> list[PodFacts]:
        assert self.deployed is not None
        return [pod for pod in counted(self.known.values()) if pod.version == self.deployed.template_version]

    def tick(self) -> None:
        self.chance.choice([self.replica_set, self.observe, self.schedule, self.start, self.probe, self.finish])()

    def observe(self) -> None:
        """The ReplicaSet's controller hears of what has happened."""
        self.known = dict(self.pods)
        if self.deployed is not None:
            self.deployed = replace(self.deployed, available=sum(pod.ready for pod in self.mine()))

    def replica_set(self) -> None:
        if self.deployed is None:
            return
        mine = self.mine()
        for pod in counted(self.known.values()):
            if pod.version != self.deployed.template_version:
                self.take(pod)  # a rolling update without a bound
        self.deployed = replace(self.deployed, counted=len(mine), available=sum(pod.ready for pod in mine), failure="")
        if len(mine) < self.deployed.replicas:
            if len(self.pods) != self.quota:
                name = f"p{next(self.numbers)}"
                self.pods[name] = replace(spare(name), version=self.deployed.template_version, uid=name)
                self.observe()
            if len(self.mine()) < self.deployed.replicas and len(self.pods) == self.quota:
                self.deployed = replace(self.deployed, failure="FailedCreate: exceeded quota")
        elif len(mine) > self.deployed.replicas:
            self.chance.shuffle(mine)
            self.take(min(mine, key=rank))

    def take(self, pod: PodFacts) -> None:
        if pod.name in self.pods:
            self.removed.append(self.pods[pod.name])
            self.pods[pod.name] = replace(self.pods[pod.name], ending=True)
        self.observe()

    def change(self, among: Iterable[PodFacts], **fields: object) -> None:
        some = list(among)
        if some:
            pod = self.chance.choice(some)
            self.pods[pod.name] = replace(pod, **fields)  # type: ignore[arg-type]

    def schedule(self) -> None:
        self.change((pod for pod in self.pods.values() if not pod.gated and pod.node is None), node="n1")

    def start(self) -> None:
        self.change(
            (pod for pod in self.pods.values() if pod.node and pod.phase == "Pending"), phase="Running", healthy=True, cores=1.0
        )

    def probe(self) -> None:
        for pod in self.pods.values():
            if pod.ready != (pod.serving and pod.healthy):
                self.pods[pod.name] = replace(pod, ready=pod.serving and pod.healthy)
                return

    def finish(self) -> None:
        ending = [name for name, pod in self.pods.items() if pod.ending]
        if ending:
            del self.pods[self.chance.choice(ending)]

    def carry_out(self, step: Step, version: int) -> None:
        match step:
            case Deploy(replicas):
                self.deployed = deployed(replicas, version)
            case Scale(replicas):
                assert self.deployed is not None
                self.deployed = replace(self.deployed, replicas=replicas, failure="")
            case Withdraw():
                raise AssertionError("nothing was removed")
            case _:
                pod = self.pods.get(step.pod.name)
                if pod is not None and not pod.ending:
                    self.on_pod(step, pod)

    def on_pod(self, step: Step, pod: PodFacts) -> None:
        match step:
            case Claim(seen, one):
                if pod.instance == seen.instance:
                    self.pods[pod.name] = replace(pod, instance=one.id, gated=False, deletion_cost=CLAIMED_COST)
            case Serve():
                self.pods[pod.name] = replace(pod, serving=True)
            case Retire():
                self.pods[pod.name] = replace(pod, serving=False, deletion_cost=VICTIM_COST)
            case Release():
                self.pods[pod.name] = replace(pod, released=True)
            case Remove():
                self.take(pod)
