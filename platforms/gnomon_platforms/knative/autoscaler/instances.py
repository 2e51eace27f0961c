"""The instances of one Revision, Bodies and Shadows: what its policy sees and decides, matched with the pods that there are.

    CreateBody, DestroyBody ▶ the desired number of pods         pods ▶ each Body's pod
    Resize, gnomon/cores    ▶ pods resized in place              nodes ▶ whether a Body may have a Shadow
    CreateShadow …          ▶ a request to the Body's node       a node's state ▶ each Body's Shadows
    SetBufferPlan           ▶ the PodAutoscaler's status, which gateways read

`Bodies`: the Bodies, and the pod of each.

    requested ▶ takes a free pod ▶ running: it gets its cores ▶ ready ▶ its pod has gone ▶ another one, or none yet

A Deployment has only a number, and its ReplicaSet chooses which pod to remove. So an instance is requested without a pod, takes a
free one, ready pods first, and keeps it while it exists. If the ReplicaSet removes another pod than the destroyed instance's,
that one's pod becomes free, and the instance that has lost its pod takes it.

An instance has the cores that were requested for it, else those of its Revision (`gnomon/cores`), else those that its pod started
with. A pod is resized in place as soon as its container runs, before it is ready, and again after each change. Example: a
template with 1 core, `gnomon/cores: 2`, and a policy that requested 4 for one of three instances: 2, 4 and 2.

`ModelReader`: the profile of the Revision's model, by which its policy decides, read in a thread and refreshed periodically.

    settings name a model ▶ read in a thread ▶ known ▶ half a minute ▶ read again ─ another profile ─▶ `changed`

A repository may be remote, and not answer for minutes: no other Revision waits for it. Until a model's profile is known, the
policy is not called: without a profile it would end the Shadows that an earlier leader has left. After a timeout the policy is
called as for a model without a profile. A small thread pool reads for all Revisions. A repository without an answer blocks these
threads until its reads time out; Revisions that wait behind it decide by the profile that was read last.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gnomon_core.actuation import Actuator, carry_out_async
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.functions import FunctionKey
from gnomon_core.pairs import Pair
from gnomon_core.profiles import REREAD_S, ModelProfile
from gnomon_core.scaling import (
    Action,
    ChangeShadow,
    CreateBody,
    CreateShadow,
    DestroyBody,
    DestroyShadow,
    FunctionLoad,
    LoadCounters,
    PromoteShadow,
    Resize,
    SetBufferPlan,
)
from gnomon_core.settings import Settings
from gnomon_platforms.knative.autoscaler.cluster import KnativeCluster, PolicyLoop
from gnomon_platforms.knative.autoscaler.metrics import ObservedLatency
from gnomon_platforms.knative.autoscaler.objects import Condition, RevisionPod
from gnomon_platforms.knative.autoscaler.planning import ShadowPrerequisites, shadows
from gnomon_platforms.knative.autoscaler.rules import Rules
from gnomon_platforms.knative.autoscaler.shadows import RevisionShadows, spec_of
from gnomon_platforms.knative.buffer_status import BufferStatus
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.kubernetes.resources import REFUSED_S, RefusedSize
from gnomon_platforms.nodes.node_shadow import BodyPod

UNKNOWN = ObservedLatency(())

_LOG = logging.getLogger("gnomon.knative")


class Bodies:
    """The Bodies of one Revision, and their pods. `function` is REVISION.NAMESPACE."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._numbers = 0
        self._own_cores: int | None = None
        self._free: Sequence[RevisionPod] = ()
        """Pods that are no instance: those that Knative's bounds keep beyond the policy's number, or that are about to end."""
        self._requested: dict[str, int | None] = {}
        """The cores requested for each instance; None for the Revision's own number."""
        self._pods: dict[str, RevisionPod] = {}
        self._youngest_at = 0.0
        """The creation time of the youngest of these pods, by Kubernetes' clock."""

    def __len__(self) -> int:
        return len(self._requested)

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._requested

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._requested))

    def become(self, count: int) -> Sequence[str]:
        """Set the number of Bodies, existing or requested; return the ids of those that were removed."""
        surplus = list(self._requested)[count:]
        for instance_id in surplus:
            self.remove(instance_id)
        while len(self._requested) < count:
            self.add()
        return surplus

    def add(self, cores: int | None = None) -> None:
        """Request one more Body; `cores` None for the Revision's."""
        self._numbers += 1
        # Revisions of two namespaces may have one name.
        self._requested[f"{self._function}-{self._numbers}"] = cores

    def remove(self, instance_id: str) -> None:
        """Remove a Body. Its pod becomes free, until the ReplicaSet has removed a pod."""
        self._requested.pop(instance_id, None)
        self._pods.pop(instance_id, None)

    def resize(self, instance_id: str, cores: int) -> None:
        """Request these cores for a Body. Unknown ids are ignored."""
        if instance_id in self._requested:
            self._requested[instance_id] = cores

    def match(self, pods: Iterable[RevisionPod]) -> tuple[set[str], set[str]]:
        """Match instances with the present pods. Returns the instances that lost their pod, and those that got another."""
        living = {pod.uid: pod for pod in pods if not pod.ending}
        previous_uids = {id_: pod.uid for id_, pod in self._pods.items()}
        matched = {id_: living[uid] for id_, uid in previous_uids.items() if uid in living and living[uid].ready}
        matched_uids = {pod.uid for pod in matched.values()}
        free = sorted((pod for uid, pod in living.items() if uid not in matched_uids), key=_quality)
        for id_ in self._requested:
            if id_ in matched or not free:
                continue
            previous = next((pod for pod in free if pod.uid == previous_uids.get(id_)), None)
            chosen = free[0] if previous is None or free[0].ready else previous
            free.remove(chosen)
            matched[id_] = chosen
        self._free = free
        self._pods = matched
        self._youngest_at = max((pod.created_at for pod in matched.values()), default=0.0)
        changed = {
            id_
            for id_ in previous_uids.keys() | matched.keys()
            if id_ not in matched or matched[id_].uid != previous_uids.get(id_)
        }
        return changed & previous_uids.keys(), changed & matched.keys()

    def pod_of(self, instance_id: str) -> RevisionPod | None:
        return self._pods.get(instance_id)

    def of_pod(self, uid: str) -> str | None:
        """The instance that is this pod."""
        return next((id_ for id_, pod in self._pods.items() if pod.uid == uid), None)

    def instances(self, settings: Settings, now_s: float) -> tuple[Instance, ...]:
        """The present state of each Body."""
        return tuple(self.instance(id_, settings, now_s) for id_ in self._requested)

    def instance(self, id_: str, settings: Settings, now_s: float) -> Instance:
        pod = self._pods.get(id_)
        state = InstanceState.READY if pod is not None and pod.ready else InstanceState.STARTING
        has = 0 if pod is None else int(pod.effective_cores or pod.cores)
        requested = self._requested[id_]
        cores = has or requested or settings.cores
        node, memory_bytes = ("", 0) if pod is None else (pod.node, pod.memory_bytes)
        # The start time follows the pod's age: among equals a policy then removes the youngest, as ReplicaSets do.
        started_s = now_s if pod is None else now_s - (self._youngest_at - pod.created_at)
        coming = requested if requested != cores else None
        return Instance(id_, self._function, 1, node, cores, memory_bytes, state, started_s, coming_cores=coming)

    def follow(self, own_cores: int | None) -> None:
        """Follow a change of the Revision's cores: Bodies with as many as it had before get the new number."""
        if own_cores != self._own_cores:
            self._requested = {
                id_: None if requested == self._own_cores else requested for id_, requested in self._requested.items()
            }
            self._own_cores = own_cores

    def to_resize(self, own_cores: int | None) -> Sequence[tuple[RevisionPod, int]]:
        """The pods that lack their desired cores, and those cores. `own_cores` are the Revision's, by `gnomon/cores`.

        Pods that are no instance serve as well: they get the Revision's cores if they have fewer.
        """
        wanted = [(pod, self._requested[id_] or own_cores) for id_, pod in self._pods.items()]
        wanted += [(pod, own_cores) for pod in self._free if own_cores is not None and pod.cores < own_cores]
        return [(pod, cores) for pod, cores in wanted if cores is not None and pod.resizable and pod.cores != cores]


def _quality(pod: RevisionPod) -> tuple[bool, bool, float, str]:
    """Return the sort key of pods for instances: ready pods first, then running ones, then by age."""
    return not pod.ready, not pod.running, pod.created_at, pod.name


@dataclass(frozen=True, slots=True)
class ResizePod:
    """A step: give a pod's container these cores, in place."""

    pod: RevisionPod
    cores: int


class RevisionInstances:
    """The instances of one Revision: Bodies and Shadows."""

    def __init__(self, key: FunctionKey, cluster: KnativeCluster, policies: PolicyLoop) -> None:
        self._key, self._name, self._cluster, self._policies = key, str(key), cluster, policies
        self._bodies = Bodies(self._name)
        self._working: dict[str, Mapping[str, Pair]] = {}
        """The pairs of each Body's present Shadows, by Body and Shadow."""
        self._refused: dict[str, RefusedSize] = {}
        """The size that was refused for each pod, by the pod's uid."""
        self._buffer: BufferStatus | None = None
        self._policy = ""
        """The policy of the settings by which the load was observed last: decisions to come are this policy's."""

    @property
    def wanted(self) -> int:
        """The requested number of pods."""
        return len(self._bodies)

    @property
    def ready(self) -> int:
        """The number of ready pods."""
        return sum(pod.ready and not pod.ending for pod in self._cluster.pods(self._key))

    def begin(self, count: int, buffer: BufferStatus | None = None) -> None:
        """Set the number of Bodies, existing or requested, and the buffer plan in force, perhaps of an earlier leader."""
        self._buffer = buffer
        for body_id in self._bodies.become(count):
            self._lost(body_id)

    def leave(self) -> None:
        """End the Shadows of a Revision that is no longer scaled. Its pods are not changed."""
        for body_id in self._bodies:
            self._lost(body_id)

    # What the policy sees, and decides

    def load(self, rules: Rules, profile: ModelProfile | None, counters: LoadCounters) -> FunctionLoad:
        """The function's load as its policy observes it."""
        cluster = self._cluster
        self._policy = rules.settings.autoscaler
        # A plan is valid only while its policy decides: after a switch to another policy and back, arrivals have changed.
        self._buffer = self.buffer(rules.settings)
        self.match()
        instances = tuple(self._seen(instance) for instance in self._bodies.instances(rules.settings, cluster.clock.now_s()))
        nodes: tuple[Node, ...] = ()
        if cluster.shadows is not None:
            nodes = cluster.shadows.nodes(pairs=self._mounted)
            instances += cluster.shadows.instances(self._name)
        observed = cluster.gateways.observed_latency(self._key) or UNKNOWN
        return FunctionLoad(
            rules.settings,
            counters,
            instances,
            nodes,
            observed.latency_s[: rules.settings.max_batch],
            profile=profile,
            latency_spread=observed.spread,
            queues=cluster.gateways.queues,
            plan=None if self._buffer is None else self._buffer.plan,
        )

    def buffer(self, settings: Settings) -> BufferStatus | None:
        """The buffer plan; None if the policy of these settings has made none."""
        planned = self._buffer
        return planned if planned is not None and planned.policy == settings.autoscaler else None

    def profile(self, settings: Settings) -> ModelProfile | None:
        """The profile of the Revision's model."""
        shadows_ = self._cluster.shadows
        return None if shadows_ is None or settings.model is None else shadows_.profile(spec_of(self._key, settings))

    async def apply(self, actions: Sequence[Action], rules: Rules) -> None:
        """Apply a policy's decision: pods are created and removed asynchronously; a buffer plan goes into the next status.

        Raises:
            PartlyRefused: 503 `no_capacity` and the like, of Shadows or sizes, the last of several. All else was applied.

        """
        await carry_out_async(_RevisionActuator(self, self._cluster.shadows, rules.settings), actions)

    def create_body(self, cores: int, settings: Settings) -> None:
        """Request one more Body. If its cores equal the Revision's, it follows later changes of the Revision's cores."""
        self._bodies.add(None if cores == settings.cores else cores)

    def destroy_body(self, body_id: str) -> None:
        """Request one Body less; its Shadows end."""
        self._bodies.remove(body_id)
        self._lost(body_id)

    def resize_body(self, body_id: str, cores: int) -> None:
        """Request these cores for a Body.

        Raises:
            GnomonError: the API server has refused them to the Body's pod lately.

        """
        if (refused := self._refusal(self._bodies.pod_of(body_id), cores)) is not None:
            raise refused
        self._bodies.resize(body_id, cores)

    def set_buffer_plan(self, plan: SetBufferPlan, settings: Settings) -> None:
        """Publish the plan, under the policy that made it: the Revision may name another one by now."""
        self._buffer = BufferStatus(self._policy or settings.autoscaler, plan)

    def shadows(self, settings: Settings) -> Condition | None:
        """Whether Bodies may have Shadows; None where the policy makes none, or before the Revision's template is known."""
        cluster = self._cluster
        if cluster.revision(self._key) is None or not self._policies.makes_shadows(settings):
            return None
        has_coordinators = cluster.shadows is not None and cluster.shadows.has_coordinators
        pooled = cluster.shadows is not None and any(node.pairs for node in cluster.shadows.nodes(pairs=True))
        return shadows(ShadowPrerequisites(cluster.settings.csi_volumes, self._mounted, has_coordinators, pooled))

    # Pods

    def match(self) -> None:
        """Match Bodies with the present pods."""
        lost, found = self._bodies.match(self._cluster.pods(self._key))
        for body_id in lost:
            self._lost(body_id)
        shadows_ = self._cluster.shadows
        if shadows_ is not None:
            for pod in filter(None, map(self._bodies.pod_of, found)):
                shadows_.body_found(pod.node)

    def resizes(self, rules: Rules) -> list[ResizePod]:
        """The resizes that are due; a size that was refused is requested again after `REFUSED_S`."""
        if not self._cluster.resizes:
            return []
        self.match()
        self._bodies.follow(rules.cores)
        now_s = self._cluster.clock.now_s()
        self._refused = {uid: refused for uid, refused in self._refused.items() if refused.until_s > now_s}
        due = self._bodies.to_resize(rules.cores)
        return [ResizePod(pod, cores) for pod, cores in due if self._refusal(pod, cores) is None]

    def resize_refused(self, step: ResizePod, error: GnomonError) -> None:
        """Record that a pod keeps its cores: a quota, a webhook, or a node without room."""
        self._refused[step.pod.uid] = RefusedSize(step.cores, error, self._cluster.clock.now_s() + REFUSED_S)

    def _refusal(self, pod: RevisionPod | None, cores: int | None) -> GnomonError | None:
        """The present refusal of these cores for a pod; None without one."""
        refused = None if pod is None else self._refused.get(pod.uid)
        return refused.why if refused is not None and refused.cores == cores else None

    @property
    def resize_again_s(self) -> float | None:
        """Seconds until a refused resize is retried; None if none was refused."""
        times = [refused.until_s for refused in self._refused.values()]
        return min(times) - self._cluster.clock.now_s() if times else None

    # What Shadows need of Bodies

    def body(self, body_id: str, rules: Rules) -> BodyPod | None:
        """A Body with its pod."""
        pod = self._bodies.pod_of(body_id)
        if pod is None or not pod.node or pod.ending:
            return None
        instance = self._bodies.instance(body_id, rules.settings, self._cluster.clock.now_s())
        return BodyPod(self._seen(instance), spec_of(self._key, rules.settings), pod.uid, pod.node)

    def of_pod(self, uid: str) -> str | None:
        """The Body that is this pod."""
        return self._bodies.of_pod(uid)

    def pod_name(self, body_id: str) -> str | None:
        """A Body's pod; None while it has none."""
        pod = self._bodies.pod_of(body_id)
        return None if pod is None else pod.name

    @property
    def placing(self) -> Placing:
        """The node constraints of its pods."""
        live = self._cluster.revision(self._key)
        return Placing() if live is None else live.placing

    def works_with(self, body_id: str, shadows_: Mapping[str, Pair]) -> None:
        """Set a Body's present Shadows."""
        if body_id in self._bodies:
            self._working[body_id] = shadows_

    def _seen(self, body: Instance) -> Instance:
        """The instance with its Shadows, and without the cores that were refused."""
        if self._refusal(self._bodies.pod_of(body.id), body.coming_cores) is not None:
            body = replace(body, coming_cores=None)
        return body.working_with(self._working.get(body.id, {}))

    def _lost(self, body_id: str) -> None:
        self._working.pop(body_id, None)
        if self._cluster.shadows is not None:
            self._cluster.shadows.body_gone(body_id)

    @property
    def _mounted(self) -> bool:
        live = self._cluster.revision(self._key)
        return live is not None and live.mounted


class _RevisionActuator(Actuator[Awaitable[None]]):
    """Carries out the decisions on one Revision. Without `shadows`, actions on Shadows are ignored."""

    def __init__(self, instances: RevisionInstances, shadows_: RevisionShadows | None, settings: Settings) -> None:
        self._instances, self._shadows, self._settings = instances, shadows_, settings

    async def create_body(self, action: CreateBody) -> None:
        self._instances.create_body(action.cores, self._settings)

    async def destroy_body(self, action: DestroyBody) -> None:
        self._instances.destroy_body(action.id)

    async def resize(self, action: Resize) -> None:
        self._instances.resize_body(action.id, action.cores)

    async def set_buffer_plan(self, action: SetBufferPlan) -> None:
        self._instances.set_buffer_plan(action, self._settings)

    async def create_shadow(self, action: CreateShadow) -> None:
        if self._shadows is not None:
            await self._shadows.create(action.body, action.pair)

    async def change_shadow(self, action: ChangeShadow) -> None:
        if self._shadows is not None:
            await self._shadows.change(action.id, action.pair)

    async def destroy_shadow(self, action: DestroyShadow) -> None:
        if self._shadows is not None:
            self._shadows.destroy(action.id)

    async def promote_shadow(self, action: PromoteShadow) -> None:
        if self._shadows is not None:
            self._shadows.promote(action.id)


FIRST_READ_TIMEOUT_S = 10.0
"""Seconds that policies wait for a repository's first answer, which normally takes less than one."""
READERS = 4
"""The number of models that are read concurrently."""
_READERS = ThreadPoolExecutor(READERS, "models")


class ModelReader:
    """The profile of the model that a Revision's settings name. `read` may block; `changed` is called with a new profile."""

    def __init__(self, read: Callable[[Settings], ModelProfile | None], clock: Clock, changed: Callable[[], None]) -> None:
        self.profile: ModelProfile | None = None
        self._read, self._clock, self._changed = read, clock, changed
        self._settings: Settings | None = None
        """The settings that name the model; None while none is named."""
        self._waits_until_s = -math.inf
        """The time until which policies wait for the first answer."""
        self._again_s = math.inf
        self._reading: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        """True if the profile was read, or its first read has timed out: policies may decide."""
        return self._clock.now_s() >= self._waits_until_s

    def follow(self, settings: Settings) -> None:
        """Follow the model that these settings name from now on."""
        before = None if self._settings is None else self._settings.model
        if settings.model != before:
            self.close()
            now_s = self._clock.now_s()
            self.profile, self._settings = None, None if settings.model is None else settings
            self._again_s, self._waits_until_s = (
                (math.inf, -math.inf) if settings.model is None else (now_s, now_s + FIRST_READ_TIMEOUT_S)
            )
        self.look()

    def look(self) -> None:
        """Start a read if one is due and none is in progress."""
        if self._settings is not None and self._reading is None and self._clock.now_s() >= self._again_s:
            self._reading = asyncio.get_running_loop().create_task(self._read_once(self._settings))

    def close(self) -> None:
        """Cancel a read in progress."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read_once(self, settings: Settings) -> None:
        first, profile = not self.known, self.profile
        try:
            profile = await asyncio.get_running_loop().run_in_executor(_READERS, self._read, settings)
        except Exception:  # noqa: BLE001 - the last one holds, and it is read again
            _LOG.exception("the profile of model %s cannot be read", settings.model)
        self._reading, self._again_s, self._waits_until_s = None, self._clock.now_s() + REREAD_S, -math.inf
        if first or profile != self.profile:
            # Keep the identity of an equal profile: policies cache what they computed from it.
            self.profile = profile
            self._changed()
