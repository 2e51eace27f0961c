"""A simulated cluster: a Deployment, its ReplicaSets, a scheduler and a kubelet, as a function's reconciler observes them."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gnomon_core.background import Background
from gnomon_core.clock import Clock, WallClock
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_platforms.kubernetes.channel import NodeContact
from gnomon_platforms.kubernetes.nodes import NodeCapacity
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.manifests import deployment
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.objects.pods import PodFacts, pod_facts
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.planning import (
    BOUND_COST,
    VICTIM_COST,
    Bind,
    Deploy,
    Furnish,
    Mark,
    Remove,
    Resize,
    Scale,
    SetUnavailable,
    Step,
    Withdraw,
    counted,
)

SPEC = read_deployment({"service": "figlet", "image": "figlet:1"})
NEW_POD = replace(pod_facts({"metadata": {"name": "p", "uid": "u"}}), function="figlet", version=1)
PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


def deployed(replicas: int, version: int = 1) -> DeployedFunction:
    return DeployedFunction(SPEC, "uid-d", "1", 1, version, version, 0.0, replicas)


def pending(name: str, instance: str | None = None, **fields: object) -> PodFacts:
    cost = BOUND_COST if instance is not None else 0
    facts = replace(NEW_POD, name=name, uid=f"u-{name}", instance=instance, deletion_cost=cost)
    return replace(facts, **fields)  # type: ignore[arg-type]


def running(name: str, instance: str | None, **fields: object) -> PodFacts:
    facts = replace(pending(name, instance), node="n1", phase="Running", healthy=True, ready=True, cores=1.0)
    return replace(facts, **fields)  # type: ignore[arg-type]


def order_of_removal(pod: PodFacts) -> tuple[bool, int, bool, int]:
    """The order in which a ReplicaSet removes pods, as far as Kubernetes documents it; the lowest goes first."""
    return pod.node is not None, PHASES.get(pod.phase, 1), pod.ready, pod.deletion_cost


class SmallCluster:
    """Each tick does one thing that a cluster might do. `quota` bounds how many pods there may be, `nodes` how many have a node.

    The ReplicaSet has observed what the plan has observed when it acts on a number that was planned from it.
    """

    def __init__(self, rng: random.Random, quota: int = 100, max_pods: int = 100) -> None:
        self.rng, self.quota, self.max_pods = rng, quota, max_pods
        self.pods: dict[str, PodFacts] = {}
        self.deployed: DeployedFunction | None = None
        self.numbers = itertools.count()
        self.removed: list[PodFacts] = []
        """Pods as they were when a controller or a step removed them."""

    def of_version(self, version: int) -> list[PodFacts]:
        return [pod for pod in counted(self.pods.values()) if pod.version == version]

    def tick(self) -> None:
        self.rng.choice([self.controllers, self.schedule, self.start, self.finish])()

    def controllers(self) -> None:
        """A decision of the Deployment's controller and its ReplicaSets: maxSurge 25 %, rounded up."""
        found = self.deployed
        if found is None:
            return
        new = self.of_version(found.template_version)
        old = [pod for pod in counted(self.pods.values()) if pod.version != found.template_version]
        failure = ""
        if len(new) > found.replicas:
            self.remove(new)
        elif len(new) < found.replicas and len(new) + len(old) < found.replicas + -(-found.replicas // 4) * bool(old):
            if len(self.pods) < self.quota:
                name = f"p{next(self.numbers)}"
                self.pods[name] = pending(name, version=found.template_version, created_at=float(next(self.numbers)))
            else:
                failure = "FailedCreate: exceeded quota"
        elif old and sum(pod.ready for pod in new + old) - found.replicas + found.max_unavailable > 0:
            self.remove(old)
        elif old and not all(pod.ready for pod in old):
            self.remove([pod for pod in old if not pod.ready])
        self.deployed = replace(found, failure=failure)

    def remove(self, some: list[PodFacts]) -> None:
        self.rng.shuffle(some)
        self.end(min(some, key=order_of_removal))

    def end(self, pod: PodFacts) -> None:
        self.removed.append(pod)
        self.pods[pod.name] = replace(pod, ending=True)

    def change(self, among: Iterable[PodFacts], **fields: object) -> None:
        some = list(among)
        if some:
            pod = self.rng.choice(some)
            self.pods[pod.name] = replace(pod, **fields)  # type: ignore[arg-type]

    def schedule(self) -> None:
        placed = sum(pod.node is not None for pod in self.pods.values())
        unplaced = [pod for pod in self.pods.values() if pod.node is None and not pod.ending]
        if placed < self.max_pods:
            self.change(unplaced, node="n1", trouble="")
        else:
            self.change(unplaced, trouble="Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.")

    def start(self) -> None:
        placed = (pod for pod in self.pods.values() if pod.node and pod.phase == "Pending" and not pod.ending)
        self.change(placed, phase="Running", healthy=True, ready=True, cores=1.0)

    def finish(self) -> None:
        ending = [name for name, pod in self.pods.items() if pod.ending]
        if ending:
            del self.pods[self.rng.choice(ending)]

    def carry_out(self, step: Step, version: int) -> None:
        match step:
            case Deploy(replicas):
                self.deployed = deployed(replicas, version)
            case Scale(replicas):
                assert self.deployed is not None
                self.deployed = replace(self.deployed, replicas=replicas)
            case SetUnavailable(pods):
                assert self.deployed is not None
                self.deployed = replace(self.deployed, max_unavailable=pods)
            case Furnish() | Resize():
                pass
            case Withdraw():
                raise AssertionError("nothing was removed")
            case _:
                pod = self.pods.get(step.pod.name)
                if pod is not None and not pod.ending:
                    self.on_pod(step, pod)

    def on_pod(self, step: Bind | Mark | Remove, pod: PodFacts) -> None:
        match step:
            case Bind(seen, instance):
                if pod.instance == seen.instance:
                    self.pods[pod.name] = replace(pod, instance=instance, deletion_cost=BOUND_COST)
            case Mark():
                self.pods[pod.name] = replace(pod, deletion_cost=VICTIM_COST)
            case Remove():
                self.end(pod)


class FakeCluster:
    """See `gnomon_platforms.openfaas.observed.ObservedCluster`. `warned` has the last text of each Event by its reason."""

    def __init__(
        self,
        deployed: Callable[[], DeployedFunction | None],
        pods: Callable[[], Iterable[PodFacts]],
        *,
        start_timeout_s: float = 1e6,
        session: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self._deployed, self._pods = deployed, pods
        self.leads = True
        self.clock: Clock = clock or WallClock()
        self.rng = random.Random(1)
        self.options = OpenFaasOptions(start_timeout_s=start_timeout_s, adopting_s=0.0)
        self.session = session
        self._node_contacts: defaultdict[str, NodeContact] = defaultdict(NodeContact)
        self.background = Background()
        self.warned: dict[str, str] = {}
        self.capacity, self.conflicts = NodeCapacity(), SimpleNamespace(scaling_conflict=lambda _: None)

    def deployed(self, _: FunctionKey) -> DeployedFunction | None:
        return self._deployed()

    def pods_of(self, _: FunctionKey) -> Iterable[PodFacts]:
        return self._pods()

    def adopting_s(self) -> float:
        return 0.0

    def node_contact(self, node: str) -> NodeContact:
        return self._node_contacts[node]

    def left_alone(self, _: FunctionKey) -> bool:
        return False

    async def caught_up(self, *_: object) -> None:
        return None

    def warn(self, _: FunctionKey, reason: str, text: str, case: str = "") -> None:
        del case
        self.warned[reason] = text


OPTIONS = PodOptions()


def spec_of(**fields: Any) -> FunctionSpec:
    return read_deployment({"service": "figlet", "image": "ghcr.io/openfaas/figlet:1", **fields})


def pod_of(**fields: Any) -> dict[str, Any]:
    manifest = deployment(spec_of(**fields), 3, OPTIONS)
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod
