"""Knative as far as a Revision's autoscaler sees it, played in virtual time.

What a plan says is carried out at once; pods take their time to be ready, and the ServerlessService's controller a second for
everything. Documents are as the API server has them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from gnomon_core.clock import rfc3339
from gnomon_platforms.knative.autoscaler.cluster import KnativeCluster, PolicyLoop
from gnomon_platforms.knative.autoscaler.objects import PaFacts, RevisionPod, ScaleTarget, SksFacts, pa_facts, sks_facts
from gnomon_platforms.knative.autoscaler.planning import PROXY, Demand, DesiredState, Observed, Route, plan
from gnomon_platforms.knative.autoscaler.revision import serverless_service
from gnomon_platforms.knative.autoscaler.rules import ClusterSettings, Rules, rules
from tests.virtual_clock import VirtualClock

EPOCH_S = 1_800_000_000.0


def pod_autoscaler(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A PodAutoscaler as the revision reconciler makes it."""
    return {
        "metadata": {
            "name": "f-00001",
            "namespace": "users",
            "uid": "pa-uid",
            "generation": 1,
            "resourceVersion": "1",
            "labels": {"serving.knative.dev/revision": "f-00001"},
            "annotations": {"autoscaling.knative.dev/class": "gnomon", **(annotations or {})},
        },
        "spec": {
            "protocolType": "http1",
            "containerConcurrency": 0,
            "reachability": "Reachable",
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "f-00001-deployment"},
            **spec,
        },
    }


def pod(name: str = "a", **fields: Any) -> RevisionPod:
    """A ready pod of one core that can be resized."""
    facts = {
        "ip": "10.0.0.1",
        "running": True,
        "ready": True,
        "ending": False,
        "reported": True,
        "cores": 1.0,
        "effective_cores": 1.0,
    }
    return RevisionPod("users", name, "f-00001", uid=f"uid-{name}", node="node-a", **{**facts, **fields})


class Played:
    """A Revision in virtual time. `starts_s` is how long a pod takes to be ready."""

    def __init__(self, annotations: dict[str, str] | None = None, *, starts_s: float = 2.0, **cluster: Any) -> None:
        self.now_s = EPOCH_S
        self.pa = pod_autoscaler(annotations)
        self.sks: dict[str, Any] | None = None
        self.cluster = ClusterSettings(**cluster)
        self.replicas = 1
        self.starts_s = starts_s
        self.born: list[float] = [self.now_s]
        self.wanted = 1
        self.holds = self.busy = False
        self.panic_load = 0.0
        self.wakeable = True
        self.probes = 0
        self.answers = True
        self.proxied: bool | None = None
        self.written_statuses: list[tuple[float, str, int, str]] = []

    @property
    def ready(self) -> int:
        return sum(self.now_s - born_s >= self.starts_s for born_s in self.born)

    @property
    def facts(self) -> PaFacts:
        return pa_facts(self.pa)

    @property
    def rules(self) -> Rules:
        return rules(self.facts, self.cluster)

    def condition(self, kind: str) -> str:
        return self.facts.condition(kind).status

    def seen(self) -> Observed:
        sks: SksFacts | None = None if self.sks is None else sks_facts(self.sks)
        demand = Demand(self.wanted, self.holds, self.busy, self.panic_load, "kpa", f"wants {self.wanted}")
        target = ScaleTarget("deployment-uid", "1", self.replicas)
        return Observed(self.facts, sks, target, self.ready, self.rules, demand, self.proxied, self.wakeable, self.now_s)

    def step(self, seconds: float = 1.0) -> DesiredState:
        """Carry a plan out, and let the time pass."""
        planned = plan(self.seen())
        self._carry_out(planned)
        self.now_s += seconds
        return planned

    def until(self, true: Callable[[], bool], limit_s: float = 300.0) -> float:
        """Step until this holds; how long it took."""
        began_s = self.now_s
        while not true():
            assert self.now_s - began_s < limit_s, (self.pa.get("status"), self.sks)
            self.step()
        return self.now_s - began_s

    def _carry_out(self, planned: DesiredState) -> None:
        if planned.desired_scale != 0:
            self.proxied = None
        if planned.probe:
            self.probes += 1
            self.proxied = self.answers or None
        if planned.status != self.pa.get("status"):
            self.pa["status"] = dict(planned.status)
            active, mode = self.condition("Active"), "" if self.sks is None else self.sks["spec"]["mode"]
            self.written_statuses.append((self.now_s, active, self.replicas, mode))
        self._settle_service()
        if planned.route is not None:
            self._route(planned.route)
        if planned.replicas is not None:
            self.replicas = planned.replicas
            self.born = self.born[: self.replicas] + [self.now_s] * (self.replicas - len(self.born))

    def _route(self, route: Route) -> None:
        made = serverless_service(self.facts, route)
        before = self.sks or {"metadata": {"generation": 0}, "status": {}}
        generation = before["metadata"]["generation"] + 1
        metadata = {**made["metadata"], "uid": "sks-uid", "resourceVersion": "1", "generation": generation}
        self.sks = {**made, "metadata": metadata, "status": before["status"]}

    def _settle_service(self) -> None:
        """Reconcile the ServerlessService as Knative does."""
        if self.sks is None:
            return
        populated = self.sks["spec"]["mode"] == PROXY or not self.ready
        before = {condition["type"]: condition for condition in self.sks["status"].get("conditions", [])}
        now = {"Ready": self.ready > 0, "ActivatorEndpointsPopulated": populated}
        listed = []
        for kind, met in now.items():
            status = "True" if met else "False"
            old = before.get(kind)
            listed.append(
                old
                if old and old["status"] == status
                else {"type": kind, "status": status, "lastTransitionTime": rfc3339(self.now_s, "seconds")}
            )
        self.sks["status"] = {
            "serviceName": "f-00001",
            "privateServiceName": "f-00001-private",
            "observedGeneration": self.sks["metadata"]["generation"],
            "conditions": listed,
        }


class NoPublicServices:
    """Public Services that Knative leads by itself."""

    def plan(self, _: object, *, batches: bool) -> tuple[list[Any], None]:
        """Return no step."""
        del batches
        return [], None


def cluster_of(pa: Callable[[], PaFacts] | None = None, **fields: Any) -> KnativeCluster:
    """A cluster with this PodAutoscaler, one pod wanted by its Deployment, and whatever else the test sets."""
    nothing: dict[str, Any] = {
        "pa": lambda _: None if pa is None else pa(),
        "sks": lambda _: None,
        "target": lambda _: ScaleTarget("deployment-uid", "1", 1),
        "pods": lambda _: (),
        "revision": lambda _: None,
        "conflict": lambda _: None,
        "settings": ClusterSettings(),
        "activators_seen": True,
        "resizes": True,
        "shadows": None,
        "public": NoPublicServices(),
        "gateways": SimpleNamespace(observed_latency=lambda _: None, queues=1),
        "events": SimpleNamespace(warn=lambda *_: None),
        "writer": None,
        "clock": VirtualClock(),
        "rng": Random(1),
        "wall_s": lambda: EPOCH_S,
    }
    assert fields.keys() <= nothing.keys(), fields.keys() - nothing.keys()
    return cast("KnativeCluster", SimpleNamespace(**{**nothing, **fields}))


def policies(**fields: Any) -> PolicyLoop:
    """A policy loop that accepts all settings and decides nothing."""
    nothing: dict[str, Any] = {
        "check": lambda _: None,
        "check_profile": lambda *_: None,
        "makes_shadows": lambda _: False,
        "decisions": lambda *_: (),
        "poke": lambda _: None,
        "removed": lambda _: None,
    }
    return cast("PolicyLoop", SimpleNamespace(**{**nothing, **fields}))
