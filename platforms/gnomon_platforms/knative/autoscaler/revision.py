"""The reconciler of one Revision of our class: its policy's desired number of pods becomes the state of the cluster.

    the policy ▶ instances ─┐                                                  ┌─ SetService   activators in the way or not
    informers ▶ cluster ────┼─▶ `plan` ▶ planning.plan ▶ steps ▶ `execute` ────┼─ SetReplicas  the Deployment's number
    metrics ▶ load ─────────┘                                                  ├─ SetStatus    the PodAutoscaler's conditions
                                                                               ├─ ResizePod    a pod's cores, in place
                                                                               └─ SetSlices, SetMirroring   (public_endpoints)

Every event (from an informer, a new number, a waiting request) only triggers a plan; see `kubernetes.reconciler`. SetService and
SetStatus read the object again and decide from that. SetReplicas and ResizePod are sent at once for the version that they were
planned from, because a request may wait for them: if that version is outdated, an event is on its way, and all is planned again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_core.scaling import Action, FunctionLoad
from gnomon_core.settings import Settings
from gnomon_platforms.knative.autoscaler.cluster import KnativeCluster, PolicyLoop
from gnomon_platforms.knative.autoscaler.instances import ModelReader, ResizePod, RevisionInstances
from gnomon_platforms.knative.autoscaler.metrics import PodStat, RevisionLoad
from gnomon_platforms.knative.autoscaler.objects import (
    NO_TEMPLATE,
    Document,
    LiveRevision,
    PaFacts,
    ScaleTarget,
    SksFacts,
    pa_facts,
    sks_facts,
)
from gnomon_platforms.knative.autoscaler.planning import PROXY, Demand, Observed, Route, plan, service_annotations
from gnomon_platforms.knative.autoscaler.public_endpoints import SetMirroring, SetSlices, proxied
from gnomon_platforms.knative.autoscaler.rules import MOST_PODS, ClusterSettings, Rules, rules
from gnomon_platforms.knative.buffer_status import buffer_of
from gnomon_platforms.knative.resources import POD_AUTOSCALERS, SERVERLESS_SERVICES
from gnomon_platforms.kubernetes.client import STRATEGIC_PATCH
from gnomon_platforms.kubernetes.conflicting_autoscalers import REASON
from gnomon_platforms.kubernetes.objects.quantities import cpu_quantity
from gnomon_platforms.kubernetes.reconciler import Plan, Reconciler
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, PODS, SERVICES
from gnomon_platforms.kubernetes.writes import Create, Patch, Replace, Target, Write, Writer
from gnomon_platforms.nodes.node_shadow import BodyPod

BODIES_ALONE = "BodiesAlone"
"""The reason of the Event on the Deployment if Bodies work alone although the policy makes Shadows."""
PROBE_PERIOD_S = 0.25
PROBE_AGAIN_S = 2.0
"""Seconds until the next probe after one that failed by an error of the API server."""

_LOG = logging.getLogger("gnomon.knative")


@dataclass(frozen=True, slots=True)
class SetService:
    """Create the PodAutoscaler's ServerlessService, or set its mode and its number of activators."""

    pa: PaFacts
    route: Route


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write the PodAutoscaler's status, by what was observed and the PodAutoscaler as it is when this is written."""

    observed: Observed


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """Set the number of pods of the Revision's Deployment, which is `target`."""

    pa: PaFacts
    target: ScaleTarget
    replicas: int
    reason: str


Step: TypeAlias = SetService | SetStatus | SetReplicas | ResizePod | SetSlices | SetMirroring


class ScaledRevision(Reconciler[Step]):
    """The reconciler of one Revision of our class, from `start` to `close`. `policies` decides on its instances."""

    def __init__(self, pa: PaFacts, cluster: KnativeCluster, policies: PolicyLoop) -> None:
        super().__init__(str(pa.key), cluster.clock, cluster.rng, _LOG)
        self.key = pa.key
        self._cluster, self._policies = cluster, policies
        self.instances = RevisionInstances(pa.key, cluster, policies)
        self._model = ModelReader(self.instances.profile, cluster.clock, self._profile_changed)
        self._rules_source: tuple[object, ...] | None = None
        """The objects from which the rules were read."""
        self._rules = self._read(pa, cluster.revision(pa.key), cluster.settings)
        self._load = RevisionLoad(cluster.clock.now_s())
        self._floor, self._floor_until_s = 0, 0.0
        """The least number of pods after a take-over, and until when: a new leader has seen no load yet."""
        self._proxied: bool | None = None
        """Whether an activator has answered at the public Service; None while it was not asked."""
        self._probing: asyncio.Task[None] | None = None
        self._conflict_uid = ""
        """The uid of the conflicting autoscaler that was last reported."""
        self._alone_reason = ""
        """The reason that was last reported why Bodies work alone."""
        self._adopt(pa)

    async def close(self) -> None:
        """End the reconciliation."""
        self._model.close()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await super().close()

    # What the policy sees and decides

    def function_load(self) -> FunctionLoad | None:
        """The Revision's present load; None if the PodAutoscaler is gone, or its model's profile is still being read."""
        pa = self._cluster.pa(self.key)
        rules_ = None if pa is None else self._rules_of(pa)
        if rules_ is None or not self._model.known:
            return None
        return self.instances.load(rules_, self._model.profile, self._load.counters(self._clock.now_s()))

    async def apply(self, actions: Sequence[Action]) -> None:
        """Take a policy's decision; PartlyRefused if a Shadow or a size was refused, after all else was taken."""
        try:
            await self.instances.apply(actions, self._rules)
        finally:
            self.trigger()

    def body(self, body_id: str) -> BodyPod | None:
        """A Body with its pod; None if it has none."""
        return self.instances.body(body_id, self._rules)

    def pods_measured(self, all_pods: PodStat) -> None:
        """Take the last second's statistics of all pods."""
        now_s = self._clock.now_s()
        self._load.pods(now_s, all_pods)
        if self._load.busy(now_s, self._rules.window_s):
            # Whether activators stay in the way depends on the load of the last seconds.
            self.trigger()

    def requests_wait(self, requests: float) -> None:
        """Take the number of requests that wait at activators; the first one has the policy decide at once."""
        if self._load.waits(self._clock.now_s(), requests) and self.wanted == 0:
            self._policies.poke(self.name)

    def requests_in_batches(self, requests: float) -> None:
        """Take the number of new requests that came in batches and that pods have not counted."""
        self._load.add_uncounted(requests)

    @property
    def wanted(self) -> int:
        """The number of pods that the policy wants."""
        return self.instances.wanted

    @property
    def ready(self) -> int:
        """The number of ready pods."""
        return self.instances.ready

    @property
    def batches(self) -> bool:
        """True if its requests go through the gateway."""
        found = self._cluster.revision(self.key)
        return found is not None and found.batches

    def _adopt(self, pa: PaFacts) -> None:
        """Begin with the existing pods. Until one stable window has passed, an unknown load is taken to need all of them."""
        target = self._cluster.target(pa)
        active = pa.active.status
        count = 0 if active == "False" else max(self._rules.initial_scale, target.replicas if target is not None else 0)
        if pa.initialized:
            count = 0 if active == "False" else target.replicas if target is not None else 0
            self._floor, self._floor_until_s = count, self._clock.now_s() + self._rules.window_s
        self.instances.begin(min(count, MOST_PODS), buffer_of(pa.status))

    # Observe and plan

    def plan(self) -> Plan[Step]:
        """Return the steps by which the Revision's objects approach the desired state."""
        pa = self._cluster.pa(self.key)
        if pa is None or pa.ending:
            return Plan()
        self._report_conflict(pa)
        observed = self._observe(pa)
        desired = plan(observed)
        if desired.desired_scale != 0 or observed.sks is None or observed.sks.mode != PROXY:
            self._proxied = None
        if desired.probe:
            self._probe(pa, observed.sks)
        self._report_bodies_alone(observed)
        found, public_s = self._cluster.public.plan(pa, batches=self.batches)
        steps: list[Step] = [*found]
        if not observed.conflict:
            steps += self.instances.resizes(observed.rules)
        if desired.replicas is not None and observed.target is not None:
            reason = observed.demand.reason or "as Knative's annotations say"
            steps.append(SetReplicas(pa, observed.target, desired.replicas, reason))
        if desired.route is not None:
            steps.append(SetService(pa, desired.route))
        if desired.status != pa.status:
            steps.append(SetStatus(observed))
        floor_s = self._floor_until_s - self._clock.now_s()
        resize_s = None if observed.conflict else self.instances.resize_again_s
        times = [at_s for at_s in (desired.again_s, floor_s if floor_s > 0.0 else None, resize_s, public_s) if at_s is not None]
        return Plan(steps, min(times, default=None))

    def _observe(self, pa: PaFacts) -> Observed:
        cluster, now_s = self._cluster, self._clock.now_s()
        rules_ = self._rules_of(pa)
        conflict = cluster.conflict(pa)
        last = next(iter(self._policies.decisions(self.name, 1)), None)
        counters = self._load.counters(now_s)
        demand = Demand(
            max(self.wanted, self._floor if now_s < self._floor_until_s else 0),
            holds=counters.queued + counters.executing > 0,
            busy=self._load.busy(now_s, rules_.window_s),
            panic_load=self._load.recent(now_s, rules_.panic_s, by_rps=rules_.by_rps),
            policy=last.policy if last is not None else "",
            reason=last.reason if last is not None else "",
            shadows=self.instances.shadows(rules_.settings),
            buffer=self.instances.buffer(rules_.settings),
        )
        return Observed(
            pa,
            cluster.sks(self.key),
            cluster.target(pa),
            self.ready,
            rules_,
            demand,
            proxied=self._proxied,
            wakeable=cluster.activators_seen,
            now_s=cluster.wall_s(),
            conflict=conflict.says if conflict is not None else "",
        )

    def _report_conflict(self, pa: PaFacts) -> None:
        """Report an autoscaler that also scales the Deployment; when it has gone, go on with the pods that there are."""
        conflict = self._cluster.conflict(pa)
        if conflict is None:
            if self._conflict_uid:
                self._conflict_uid = ""
                self._adopt(pa)
            return
        if conflict.uid != self._conflict_uid:
            self._conflict_uid = conflict.uid
            _LOG.warning("Revision %s is not scaled: %s", self.name, conflict.says)
        self._cluster.events.warn(pa.deployment, REASON, conflict.says, conflict.uid)

    def _report_bodies_alone(self, observed: Observed) -> None:
        """Record an Event with the reason why Bodies may have no Shadows, once for each reason."""
        alone = observed.demand.shadows
        if alone is not None and observed.target is not None and alone.status == "False" and alone.reason != self._alone_reason:
            self._alone_reason = alone.reason
            self._cluster.events.warn(observed.pa.deployment, BODIES_ALONE, alone.message, alone.reason)

    def _rules_of(self, pa: PaFacts) -> Rules:
        """The rules, read again only if something that they are read from has changed."""
        self._model.look()
        own, cluster = self._cluster.revision(self.key), self._cluster.settings
        source = pa, own, cluster, self._model.known, self._model.profile
        if self._rules_source is None or any(new is not old for new, old in zip(source, self._rules_source, strict=True)):
            self._rules_source = source
            self._rules = self._read(pa, own, cluster)
        return self._rules

    def _read(self, pa: PaFacts, found: LiveRevision | None, cluster: ClusterSettings) -> Rules:
        def check(settings: Settings) -> None:
            self._model.follow(settings)
            self._policies.check(settings)
            if self._model.known:
                self._policies.check_profile(settings, self._model.profile)

        own, template = (None, NO_TEMPLATE) if found is None else (found.annotations, found.template)
        return rules(pa, cluster, own, check, template)

    def _profile_changed(self) -> None:
        """Handle a new profile of the model: plan again, and have the policy decide again."""
        self.trigger()
        self._policies.poke(self.name)

    def _probe(self, pa: PaFacts, sks: SksFacts | None) -> None:
        """Probe the public Service until an activator answers or a plan no longer needs it.

        In the background, because a plan must not wait for a timeout while a request waits for a pod.
        """
        if sks is None or not sks.service or (self._probing is not None and not self._probing.done()):
            return

        async def probe() -> None:
            while True:
                address = await service_address(self._cluster.writer, pa.key.namespace, sks.service)
                if address is not None and await proxied(address, pa.protocol):
                    self._proxied = True
                    self.trigger()
                    return
                await self._clock.sleep(PROBE_PERIOD_S)
                now = self._cluster.pa(self.key)
                if now is None or now.ending or not plan(self._observe(now)).probe:
                    return

        self._probing = asyncio.get_running_loop().create_task(probe())
        self._probing.add_done_callback(self._probed)

    def _probed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _LOG.warning("%s: the public Service could not be probed: %s", self.name, task.exception())
            asyncio.get_running_loop().call_later(PROBE_AGAIN_S, self.trigger)

    # Execute

    async def execute(self, step: Step) -> None:
        """Write one step to the cluster."""
        writer = self._cluster.writer
        match step:
            case SetService():
                await set_service(writer, step)
            case SetStatus():
                await set_status(writer, step)
            case SetReplicas():
                await set_replicas(writer, step)
                _LOG.info("%s: scaled from %d to %d pods: %s", self.name, step.target.replicas, step.replicas, step.reason)
            case ResizePod():
                await resize(writer, step)
                _LOG.info("%s: pod %s resized from %g to %d cores", self.name, step.pod.name, step.pod.cores, step.cores)
            case _:
                await self._cluster.public.execute(step)

    def step_failed(self, step: Step, error: GnomonError) -> None:
        """Handle a failed step. A pod whose resize is refused keeps its cores, and the policy is notified."""
        if isinstance(step, ResizePod):
            self.instances.resize_refused(step, error)


async def set_service(writer: Writer, step: SetService) -> None:
    """Write a ServerlessService, unless it has another owner.

    Raises:
        GnomonError: what the API server refuses.

    """
    pa, desired = step.pa, serverless_service(step.pa, step.route)

    def decide(current: Document | None) -> Write | None:
        if current is None:
            return Create(desired)
        if sks_facts(current).owner_uid != pa.uid:
            return None
        metadata = {**current["metadata"], **{name: desired["metadata"][name] for name in ("labels", "annotations")}}
        changed = {**current, "metadata": metadata, "spec": {**current["spec"], **desired["spec"]}}
        return None if changed == current else Replace(changed)

    target = Target(SERVERLESS_SERVICES, pa.key.namespace, pa.key.name)
    await writer.settle(target, decide, f"route requests of {pa.key}")


async def set_status(writer: Writer, step: SetStatus) -> None:
    """Write a PodAutoscaler's status.

    Raises:
        GnomonError: what the API server refuses.

    """
    pa = step.observed.pa

    def decide(current: Document | None) -> Write | None:
        if current is None or current["metadata"]["uid"] != pa.uid:
            return None
        status = plan(replace(step.observed, pa=pa_facts(current))).status
        return None if status == current.get("status") else Replace({**current, "status": dict(status)}, "status")

    await writer.settle(Target(POD_AUTOSCALERS, pa.key.namespace, pa.key.name), decide, f"write the status of {pa.key}")


async def set_replicas(writer: Writer, step: SetReplicas) -> None:
    """Set the replicas of the Revision's Deployment.

    Raises:
        GnomonError: 409 if the Deployment has changed; what the API server refuses.

    """
    target = Target(DEPLOYMENTS, step.pa.key.namespace, step.pa.deployment.name)
    patch = Patch({"spec": {"replicas": step.replicas}}, "scale")
    await writer.write_version(target, patch, step.target.uid, step.target.version, f"scale {step.pa.key}")


async def resize(writer: Writer, step: ResizePod) -> None:
    """Set the cores of a pod's container.

    Raises:
        GnomonError: 409 if the pod has changed; what the API server refuses.

    """
    pod, quantity = step.pod, cpu_quantity(step.cores)
    resources: Document = {"requests": {"cpu": quantity}, **({"limits": {"cpu": quantity}} if pod.limited else {})}
    changes = {"spec": {"containers": [{"name": pod.container, "resources": resources}]}}
    target, patch = Target(PODS, pod.namespace, pod.name), Patch(changes, "resize", STRATEGIC_PATCH)
    await writer.write_version(target, patch, pod.uid, pod.version, f"resize {pod.name}")


async def service_address(writer: Writer, namespace: str, service: str) -> str | None:
    """The address of a Service inside of the cluster; None for one that does not exist or has none.

    Raises:
        GnomonError: the API server does not answer.

    """
    found = await writer.settle(Target(SERVICES, namespace, service), lambda _: None, "read a Service")
    address = ((found or {}).get("spec") or {}).get("clusterIP")
    return None if address in (None, "", "None") else str(address)


def serverless_service(pa: PaFacts, route: Route) -> Document:
    """The ServerlessService of a PodAutoscaler. Activators find the Revision by its labels."""
    owner = {
        "apiVersion": POD_AUTOSCALERS.api_version,
        "kind": POD_AUTOSCALERS.kind,
        "name": pa.key.name,
        "uid": pa.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": SERVERLESS_SERVICES.api_version,
        "kind": SERVERLESS_SERVICES.kind,
        "metadata": {
            "name": pa.key.name,
            "namespace": pa.key.namespace,
            "labels": dict(pa.labels),
            "annotations": service_annotations(pa),
            "ownerReferences": [owner],
        },
        "spec": {
            "mode": route.mode,
            "objectRef": dict(pa.target),
            "protocolType": pa.protocol,
            "numActivators": route.activators,
        },
    }
