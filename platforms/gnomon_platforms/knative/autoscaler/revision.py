"""Reconciliation of one Revision: its policy's desired number of pods, and the task that writes it.

`ScaledRevision`: the autoscaler's loop creates and destroys instances; the Revision's Deployment has as many replicas as there
are instances. Every event (from an informer, a new number, a waiting request) only triggers reconciliation: `planning` computes
the writes, `steps` sends them.

`RevisionInstances`: the Bodies and Shadows of one Revision, between its policy and the cluster.

CreateBody, DestroyBody ▶ the desired number of pods         pods ▶ each Body's pod
Resize, gnomon/cores    ▶ pods resized in place              nodes ▶ whether a Body may have a Shadow
CreateShadow …          ▶ a request to the Body's node       a node's state ▶ each Body's Shadows
SetBufferPlan           ▶ the PodAutoscaler's status, which gateways read

`Bodies`: the instances of one Revision, and the pod of each.

    requested ▶ takes a free pod ▶ running: it gets its cores ▶ ready ▶ its pod has gone ▶ another one, or none yet

A Deployment has only a number, and its ReplicaSet chooses which pod to remove. So an instance is requested without a pod, takes a
free one, ready pods first, and keeps it while it exists. If the ReplicaSet removes another pod than the destroyed instance's,
that one's pod becomes free, and the instance that has lost its pod takes it.

An instance has the cores that were requested for it, else those of its Revision (`gnomon/cores`), else those that its pod started
with. A pod is resized in place as soon as its container runs, before it is ready, and again after each change. Example: a
template with 1 core, `gnomon/cores: 2`, and a policy that requested 4 for one of three instances: 2, 4 and 2.

`Measured`: the profile of the Revision's model, by which its policy decides, read in a thread and refreshed periodically.

    settings name a model ▶ read in a thread ▶ known ▶ half a minute ▶ read again ─ another profile ─▶ `changed`

A repository may be remote, and not answer for minutes: no other Revision waits for it. Until a model's profile is known, the
policy is not called: without a profile it would end the Shadows that an earlier leader has left. After a timeout the policy is
called as for a model without a profile.

A small thread pool reads for all Revisions. A repository without an answer blocks these threads until its reads time out;
Revisions that wait behind it decide by the profile that was read last.

`Surroundings`: the context of a Revision: informers' caches, the policy loop, and the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

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
    DecisionRecord,
    DestroyBody,
    DestroyShadow,
    FunctionLoad,
    LoadCounters,
    PromoteShadow,
    Resize,
    SetBufferPlan,
)
from gnomon_core.settings import Settings
from gnomon_platforms.knative.autoscaler.configuration import ClusterSettings
from gnomon_platforms.knative.autoscaler.metrics import Gateways, Learned, PodStat, RevisionLoad
from gnomon_platforms.knative.autoscaler.objects import (
    NO_TEMPLATE,
    Condition,
    Document,
    LiveRevision,
    PaFacts,
    RevisionPod,
    ScaleTarget,
    SksFacts,
    pa_facts,
)
from gnomon_platforms.knative.autoscaler.planning import PROXY, Demand, Plan, Seen, plan
from gnomon_platforms.knative.autoscaler.public_endpoints import PublicEndpoints
from gnomon_platforms.knative.autoscaler.rules import Rules, rules
from gnomon_platforms.knative.autoscaler.shadows import RevisionShadows, spec_of
from gnomon_platforms.knative.autoscaler.status import Means, proxied, shadows
from gnomon_platforms.knative.autoscaler.steps import Steps
from gnomon_platforms.knative.buffer_status import BufferStatus, buffer_of
from gnomon_platforms.kubernetes.conflicting_autoscalers import REMIND_S, Rival
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.kubernetes.resources import REFUSED_S, RefusedSize
from gnomon_platforms.nodes.node_shadow import BodyPod


class Bodies:
    """The Bodies of one Revision, and their pods. `function` is REVISION.NAMESPACE."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._numbers = 0
        self._said: int | None = None
        self._free: Sequence[RevisionPod] = ()
        """Pods that are no instance: those that Knative's bounds keep beyond the policy's number, or that are about to end."""
        self._asked: dict[str, int | None] = {}
        """By instance, the cores that were asked for it; None for as many as the Revision says."""
        self._pods: dict[str, RevisionPod] = {}
        self._youngest_at = 0.0
        """When the youngest of these pods was made, by Kubernetes' clock."""

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._asked

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._asked))

    def become(self, count: int) -> Sequence[str]:
        """There are so many from now on, or are to be; who is none any more."""
        surplus = list(self._asked)[count:]
        for instance_id in surplus:
            self.remove(instance_id)
        while len(self._asked) < count:
            self.add()
        return surplus

    def add(self, cores: int | None = None) -> None:
        """Request one more Body; `cores` None for the Revision's."""
        self._numbers += 1
        # Revisions of two namespaces may have one name.
        self._asked[f"{self._function}-{self._numbers}"] = cores

    def remove(self, instance_id: str) -> None:
        """Remove a Body. Its pod becomes free, until the ReplicaSet has removed a pod."""
        self._asked.pop(instance_id, None)
        self._pods.pop(instance_id, None)

    def resize(self, instance_id: str, cores: int) -> None:
        """Request these cores for a Body. Unknown ids are ignored."""
        if instance_id in self._asked:
            self._asked[instance_id] = cores

    def match(self, pods: Iterable[RevisionPod]) -> tuple[set[str], set[str]]:
        """Give each instance its pod, as pods are now; who has lost the one that it had, and who has another."""
        living = {pod.uid: pod for pod in pods if not pod.ending}
        before = {id_: pod.uid for id_, pod in self._pods.items()}
        now = {id_: living[uid] for id_, uid in before.items() if uid in living and living[uid].ready}
        taken = {pod.uid for pod in now.values()}
        free = sorted((pod for uid, pod in living.items() if uid not in taken), key=_quality)
        for id_ in self._asked:
            if id_ in now or not free:
                continue
            own = next((pod for pod in free if pod.uid == before.get(id_)), None)
            chosen = free[0] if own is None or free[0].ready else own
            free.remove(chosen)
            now[id_] = chosen
        self._free = free
        self._pods = now
        self._youngest_at = max((pod.created_at for pod in now.values()), default=0.0)
        changed = {id_ for id_ in before.keys() | now.keys() if id_ not in now or now[id_].uid != before.get(id_)}
        return changed & before.keys(), changed & now.keys()

    def pod_of(self, instance_id: str) -> RevisionPod | None:
        return self._pods.get(instance_id)

    def of_pod(self, uid: str) -> str | None:
        """The instance that is this pod."""
        return next((id_ for id_, pod in self._pods.items() if pod.uid == uid), None)

    def instances(self, settings: Settings, now_s: float) -> tuple[Instance, ...]:
        """The present state of each Body."""
        return tuple(self.instance(id_, settings, now_s) for id_ in self._asked)

    def instance(self, id_: str, settings: Settings, now_s: float) -> Instance:
        pod = self._pods.get(id_)
        state = InstanceState.READY if pod is not None and pod.ready else InstanceState.STARTING
        has = 0 if pod is None else int(pod.effective_cores or pod.cores)
        asked = self._asked[id_]
        cores = has or asked or settings.cores
        node, memory_bytes = ("", 0) if pod is None else (pod.node, pod.memory_bytes)
        # As much older than the youngest as its pod is: of equals the youngest is let go, as ReplicaSets do it.
        started_s = now_s if pod is None else now_s - (self._youngest_at - pod.created_at)
        coming = asked if asked != cores else None
        return Instance(id_, self._function, 1, node, cores, memory_bytes, state, started_s, coming_cores=coming)

    def follow(self, said: int | None) -> None:
        """Follow a change of the Revision's cores: Bodies with as many as it had before get the new number."""
        if said != self._said:
            self._asked = {id_: None if asked == self._said else asked for id_, asked in self._asked.items()}
            self._said = said

    def to_resize(self, said: int | None) -> Sequence[tuple[RevisionPod, int]]:
        """The pods that have not the cores that they are to have, and how many those are. `said` is what the Revision says.

        Pods that are no instance serve as well: they get what it says where they have less.
        """
        wanted = [(pod, self._asked[id_] or said) for id_, pod in self._pods.items()]
        wanted += [(pod, said) for pod in self._free if said is not None and pod.cores < said]
        return [(pod, cores) for pod, cores in wanted if cores is not None and pod.resizable and pod.cores != cores]


def _quality(pod: RevisionPod) -> tuple[bool, bool, float, str]:
    """Ready ones first, then those that run, then by age."""
    return not pod.ready, not pod.running, pod.created_at, pod.name


class Brain(Protocol):
    """The autoscaler's loop with its policies, which decides on a Revision's instances."""

    def check(self, settings: Settings) -> object:
        """Raise a GnomonError for settings by which nothing can be scaled here."""
        ...

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None:
        """Raise a GnomonError where they need another profile of the Revision's model than this."""
        ...

    def makes_shadows(self, settings: Settings) -> bool:
        """Whether the policy that they name does so where it can."""
        ...

    def poke(self, function: str) -> None:
        """A request waits and nothing lives."""
        ...

    def removed(self, function: str) -> None: ...

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]:
        """The last decisions, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The context of a Revision. The callables read the informers' caches.

    `resizes` is whether the cluster can resize pods in place. `shadows` is None if no models are configured.
    """

    pa: Callable[[FunctionKey], PaFacts | None]
    sks: Callable[[FunctionKey], SksFacts | None]
    target: Callable[[PaFacts], ScaleTarget | None]
    pods: Callable[[FunctionKey], Iterable[RevisionPod]]
    live: Callable[[FunctionKey], LiveRevision | None]
    cluster: Callable[[], ClusterSettings]
    rival: Callable[[PaFacts], Rival | None]
    wakeable: Callable[[], bool]
    resizes: bool
    shadows: RevisionShadows | None
    gateways: Gateways
    public: PublicEndpoints
    brain: Brain
    steps: Steps
    clock: Clock
    wall_s: Callable[[], float]


UNKNOWN = Learned(())

_LOG = logging.getLogger("gnomon.knative")


class RevisionInstances:
    """The instances of one Revision: Bodies and Shadows."""

    def __init__(self, key: FunctionKey, around: Surroundings) -> None:
        self._key, self._name, self._around = key, str(key), around
        self._bodies = Bodies(self._name)
        self._working: dict[str, Mapping[str, Pair]] = {}
        """By Body, the Shadows that it works with."""
        self._refused: dict[str, RefusedSize] = {}
        """By pod."""
        self._buffer: BufferStatus | None = None
        self._asked = ""
        """The policy that was shown it last, whose decisions come."""

    @property
    def wanted(self) -> int:
        """How many pods there are to be."""
        return len(self._bodies)

    @property
    def ready(self) -> int:
        """How many pods are ready."""
        return sum(pod.ready and not pod.ending for pod in self._around.pods(self._key))

    def begin(self, count: int, buffer: BufferStatus | None = None) -> None:
        """There are so many from now on, or are to be; their batches are made within this plan of an earlier leader's."""
        self._buffer = buffer
        for body_id in self._bodies.become(count):
            self._lost(body_id)

    def leave(self) -> None:
        """End the Shadows of a Revision that is no longer scaled. Its pods are not changed."""
        for body_id in self._bodies:
            self._lost(body_id)

    # What the policy sees, and decides

    def load(self, rules: Rules, profile: ModelProfile | None, counters: LoadCounters) -> FunctionLoad:
        """Everything that a policy may decide by."""
        around = self._around
        self._asked = rules.settings.autoscaler
        # Whoever decides by another policy and comes back later finds other arrivals.
        self._buffer = self.buffer(rules.settings)
        self.match()
        instances = tuple(self._seen(one) for one in self._bodies.instances(rules.settings, around.clock.now_s()))
        nodes: tuple[Node, ...] = ()
        if around.shadows is not None:
            nodes = around.shadows.nodes(pairs=self._mounted)
            instances += around.shadows.instances(self._name)
        learned = around.gateways.learned(self._key) or UNKNOWN
        return FunctionLoad(
            rules.settings,
            counters,
            instances,
            nodes,
            learned.latency_s[: rules.settings.max_batch],
            profile=profile,
            latency_spread=learned.spread,
            queues=around.gateways.queues,
            plan=None if self._buffer is None else self._buffer.plan,
        )

    def buffer(self, settings: Settings) -> BufferStatus | None:
        """The plan of the buffer; None where the policy by these settings has made none."""
        planned = self._buffer
        return planned if planned is not None and planned.policy == settings.autoscaler else None

    def profile(self, settings: Settings) -> ModelProfile | None:
        """The profile of the Revision's model."""
        shadows_ = self._around.shadows
        return None if shadows_ is None or settings.model is None else shadows_.profile(spec_of(self._key, settings))

    async def apply(self, actions: Sequence[Action], rules: Rules) -> None:
        """Take what was decided: pods are made and ended behind it, and the plan of a buffer is told with the next status.

        Raises:
            PartlyRefused: 503 `no_capacity` and the like, of Shadows or sizes, the last of several. All else has been done.

        """
        await carry_out_async(_RevisionActuator(self, self._around.shadows, rules.settings), actions)

    def create_body(self, cores: int, settings: Settings) -> None:
        """Count one more Body. One with as many cores as its Revision says follows when the Revision says another number."""
        self._bodies.add(None if cores == settings.cores else cores)

    def destroy_body(self, body_id: str) -> None:
        """Count one Body less; its Shadows end."""
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
        self._buffer = BufferStatus(self._asked or settings.autoscaler, plan)

    def shadows(self, settings: Settings) -> Condition | None:
        """Whether Bodies may have Shadows; None where the policy makes none, or before the Revision's template is known."""
        around = self._around
        if around.live(self._key) is None or not around.brain.makes_shadows(settings):
            return None
        told = around.shadows is not None and around.shadows.told
        pooled = around.shadows is not None and any(node.pairs for node in around.shadows.nodes(pairs=True))
        return shadows(Means(around.cluster().csi_volumes, self._mounted, told, pooled))

    # Pods

    def match(self) -> None:
        """Match Bodies with the present pods."""
        lost, found = self._bodies.match(self._around.pods(self._key))
        for body_id in lost:
            self._lost(body_id)
        shadows_ = self._around.shadows
        if shadows_ is not None:
            for pod in filter(None, map(self._bodies.pod_of, found)):
                shadows_.body_found(pod.node)

    async def resize(self, rules: Rules) -> None:
        """Resize pods that lack their desired cores."""
        if not self._around.resizes:
            return
        self.match()
        self._bodies.follow(rules.cores)
        now_s = self._around.clock.now_s()
        self._refused = {uid: refused for uid, refused in self._refused.items() if refused.until_s > now_s}
        due = self._bodies.to_resize(rules.cores)
        await asyncio.gather(*(self._resize(pod, cores) for pod, cores in due if self._refusal(pod, cores) is None))

    async def _resize(self, pod: RevisionPod, cores: int) -> None:
        try:
            if await self._around.steps.resize(pod, cores):
                _LOG.info("%s: pod %s: %g to %d cores", self._name, pod.name, pod.cores, cores)
        except GnomonError as error:
            _LOG.warning("%s: pod %s keeps its %g cores: %s", self._name, pod.name, pod.cores, error)
            self._refused[pod.uid] = RefusedSize(cores, error, self._around.clock.now_s() + REFUSED_S)

    def _refusal(self, pod: RevisionPod | None, cores: int | None) -> GnomonError | None:
        """Why a pod does not get so many cores for now; None where nobody has refused them."""
        refused = None if pod is None else self._refused.get(pod.uid)
        return refused.why if refused is not None and refused.cores == cores else None

    @property
    def asks_again_s(self) -> float | None:
        """Seconds until a refused resize is retried; None if none was refused."""
        times = [refused.until_s for refused in self._refused.values()]
        return min(times) - self._around.clock.now_s() if times else None

    # What Shadows need of Bodies

    def body(self, body_id: str, rules: Rules) -> BodyPod | None:
        """A Body with its pod."""
        pod = self._bodies.pod_of(body_id)
        if pod is None or not pod.node or pod.ending:
            return None
        instance = self._bodies.instance(body_id, rules.settings, self._around.clock.now_s())
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
        live = self._around.live(self._key)
        return Placing() if live is None else live.placing

    def works_with(self, body_id: str, shadows_: Mapping[str, Pair]) -> None:
        """A Body's Shadows are these now."""
        if body_id in self._bodies:
            self._working[body_id] = shadows_

    def _seen(self, body: Instance) -> Instance:
        """With its Shadows, and without the cores that it was refused."""
        if self._refusal(self._bodies.pod_of(body.id), body.coming_cores) is not None:
            body = replace(body, coming_cores=None)
        return body.working_with(self._working.get(body.id, {}))

    def _lost(self, body_id: str) -> None:
        self._working.pop(body_id, None)
        if self._around.shadows is not None:
            self._around.shadows.body_gone(body_id)

    @property
    def _mounted(self) -> bool:
        live = self._around.live(self._key)
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


PATIENCE_S = 10.0
"""For the first answer of a repository. One that is well takes less than a second."""
READERS = 4
"""The number of models that are read concurrently."""
_READERS = ThreadPoolExecutor(READERS, "models")


class Measured:
    """The profile of the model that a Revision's settings name. `read` may block; `changed` is called when there is news."""

    def __init__(self, read: Callable[[Settings], ModelProfile | None], clock: Clock, changed: Callable[[], None]) -> None:
        self.profile: ModelProfile | None = None
        self._read, self._clock, self._changed = read, clock, changed
        self._settings: Settings | None = None
        """Those that name the model; None while none is named."""
        self._waits_until_s = -math.inf
        """For the first answer."""
        self._again_s = math.inf
        self._reading: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._clock.now_s() >= self._waits_until_s

    def follow(self, settings: Settings) -> None:
        """Go by the model that these settings name from now on."""
        before = None if self._settings is None else self._settings.model
        if settings.model != before:
            self.close()
            now_s = self._clock.now_s()
            self.profile, self._settings = None, None if settings.model is None else settings
            self._again_s, self._waits_until_s = (math.inf, -math.inf) if settings.model is None else (now_s, now_s + PATIENCE_S)
        self.look()

    def look(self) -> None:
        """Read it, if that is due and is not under way."""
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
            _LOG.exception("what was measured of %s cannot be read", settings.model)
        self._reading, self._again_s, self._waits_until_s = None, self._clock.now_s() + REREAD_S, -math.inf
        if first or profile != self.profile:
            # Whatever was worked out from the one before holds for one that is equal.
            self.profile = profile
            self._changed()


LOOK_AGAIN_S = 2.0
SOON_S = 0.5
PROBE_PERIOD_S = 0.25


class ScaledRevision:
    """The reconciler of one Revision of our class. `close` ends its task."""

    def __init__(self, pa: PaFacts, around: Surroundings) -> None:
        self.key = pa.key
        self.name = str(pa.key)
        self._around = around
        self.instances = RevisionInstances(pa.key, around)
        self._measured = Measured(self.instances.profile, around.clock, self._measured_anew)
        self._known: tuple[object, ...] | None = None
        self._rules = self._read(pa, around.live(pa.key), around.cluster())
        self._load = RevisionLoad(around.clock.now_s())
        self._floor, self._floor_until_s = 0, 0.0
        self._proxied: bool | None = None
        self._probing: asyncio.Task[None] | None = None
        self._last_want: int | None = None
        self._rival, self._say_rival_s = "", 0.0
        """The uid of who else counts its pods, once that was said, and when it is to be said again at the soonest."""
        self._told_alone = ""
        self._look = asyncio.Event()
        self._adopt(pa)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def look(self) -> None:
        """Something has changed."""
        self._look.set()

    async def close(self) -> None:
        """End the reconciliation."""
        self._measured.close()
        tasks = [task for task in (self._task, self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What the autoscaler's loop sees and decides

    def function_load(self) -> FunctionLoad | None:
        """The Revision's present load; None if the PodAutoscaler is gone, or its model's profile is still being read."""
        pa = self._around.pa(self.key)
        rules_ = None if pa is None else self._rules_of(pa)
        if rules_ is None or not self._measured.known:
            return None
        return self.instances.load(rules_, self._measured.profile, self._load.counters(self._around.clock.now_s()))

    async def apply(self, actions: Sequence[Action]) -> None:
        """Take what was decided; PartlyRefused where a Shadow was refused, all else has been taken then."""
        try:
            await self.instances.apply(actions, self._rules)
        finally:
            self.look()

    def body(self, body_id: str) -> BodyPod | None:
        """A Body with its pod; None if it has none."""
        return self.instances.body(body_id, self._rules)

    def measured(self, all_pods: PodStat) -> None:
        """Take the last second's statistics of all its pods."""
        now_s = self._around.clock.now_s()
        self._load.pods(now_s, all_pods)
        if self._load.busy(now_s, self._rules.window_s):
            # Whether activators are in the way depends on it.
            self.look()

    def waits(self, requests: float) -> None:
        """So many requests wait at activators: the first wakes it."""
        if self._load.waits(self._around.clock.now_s(), requests) and self.wanted == 0:
            self._around.brain.poke(self.name)

    def came_beside(self, requests: float) -> None:
        """So many requests more have come, in batches, than its pods tell of."""
        self._load.beside(requests)

    @property
    def wanted(self) -> int:
        """How many pods the policy wants."""
        return self.instances.wanted

    @property
    def ready(self) -> int:
        """How many of its pods are ready."""
        return self.instances.ready

    @property
    def batches(self) -> bool:
        """Whether its requests go through the gateway."""
        live = self._around.live(self.key)
        return live is not None and live.batches

    def _adopt(self, pa: PaFacts) -> None:
        """Begin with what there is. Until the window has been seen once, a load that is not known yet is taken to need it."""
        target = self._around.target(pa)
        active = pa.active.status
        count = 0 if active == "False" else max(self._rules.initial_scale, target.replicas if target is not None else 0)
        if pa.initialized:
            count = 0 if active == "False" else target.replicas if target is not None else 0
            self._floor, self._floor_until_s = count, self._around.clock.now_s() + self._rules.window_s
        self.instances.begin(count, buffer_of(pa.status))

    # The task

    async def _run(self) -> None:
        while True:
            self._look.clear()
            again_s: float | None = LOOK_AGAIN_S
            try:
                again_s = await self._once()
            except GnomonError as error:
                _LOG.warning("%s: %s", self.name, error)
            except Exception:  # noqa: BLE001 - a fault of ours in one plan must not leave the Revision to itself
                _LOG.exception("%s could not be looked after", self.name)
            with contextlib.suppress(TimeoutError):
                # Not wait_for: it forgets a cancellation that comes together with what it waits for.
                async with asyncio.timeout(again_s):
                    await self._look.wait()

    async def _once(self) -> float | None:
        """Plan and write; when to look again if nothing happens."""
        await self._mind_rival()
        found = self._plan()
        if found is None:
            return None
        seen, planned = found
        if planned.want != 0 or seen.sks is None or seen.sks.mode != PROXY:
            self._proxied = None
        if planned.probe:
            self._probe(seen.pa, seen.sks)
        written = self._take(seen, planned)
        led = self._around.public.reconcile(seen.pa, batches=self.batches)
        # Neither keeps the other from being written.
        current, public_s = await asyncio.gather(written, led, return_exceptions=True)
        if isinstance(current, BaseException):
            raise current
        if isinstance(public_s, BaseException):
            raise public_s
        waits = self._floor_until_s - self._around.clock.now_s()
        refused_s = None if seen.rival else self.instances.asks_again_s
        asked = planned.again_s, waits if waits > 0.0 else None, refused_s, public_s, None if current else SOON_S
        times = [one for one in asked if one is not None]
        return max(0.05, min(times)) if times else None

    def _plan(self) -> tuple[Seen, Plan] | None:
        pa = self._around.pa(self.key)
        if pa is None or pa.ending:
            return None
        around, now_s = self._around, self._around.clock.now_s()
        rules_ = self._rules_of(pa)
        rival = around.rival(pa)
        last = next(iter(around.brain.decisions(self.name, 1)), None)
        wanted = max(self.wanted, self._floor if now_s < self._floor_until_s else 0)
        counters = self._load.counters(now_s)
        demand = Demand(
            wanted,
            holds=counters.queued + counters.executing > 0,
            busy=self._load.busy(now_s, rules_.window_s),
            panic_load=self._load.recent(now_s, rules_.panic_s, by_rps=rules_.by_rps),
            policy=last.policy if last is not None else "",
            reason=last.reason if last is not None else "",
            shadows=self.instances.shadows(rules_.settings),
            buffer=self.instances.buffer(rules_.settings),
        )
        seen = Seen(
            pa,
            around.sks(self.key),
            around.target(pa),
            self.ready,
            rules_,
            demand,
            proxied=self._proxied,
            wakeable=around.wakeable(),
            now_s=around.wall_s(),
            rival=rival.says if rival is not None else "",
        )
        return seen, plan(seen)

    async def _mind_rival(self) -> None:
        """Say now and then that somebody else counts its pods; when nobody does any more, go on with those that there are."""
        pa = self._around.pa(self.key)
        if pa is None:
            return
        found, target, now_s = self._around.rival(pa), self._around.target(pa), self._around.clock.now_s()
        if found is None and self._rival:
            self._rival = ""
            self._adopt(pa)
        elif found is not None and target is not None and (found.uid != self._rival or now_s >= self._say_rival_s):
            self._rival, self._say_rival_s = found.uid, now_s + REMIND_S / 2
            _LOG.warning("%s: %s", self.name, found.says)
            await self._around.steps.say(target, found)

    def _rules_of(self, pa: PaFacts) -> Rules:
        """Read again only when one of what they follow from has changed."""
        self._measured.look()
        live, cluster = self._around.live(self.key), self._around.cluster()
        now = pa, live, cluster, self._measured.known, self._measured.profile
        if self._known is None or any(new is not old for new, old in zip(now, self._known, strict=True)):
            self._known = now
            self._rules = self._read(pa, live, cluster)
        return self._rules

    def _measured_anew(self) -> None:
        """Handle a new profile of its model: reconcile, and let the policy decide again."""
        self.look()
        self._around.brain.poke(self.name)

    def _read(self, pa: PaFacts, live: LiveRevision | None, cluster: ClusterSettings) -> Rules:
        def check(settings: Settings) -> None:
            self._measured.follow(settings)
            self._around.brain.check(settings)
            if self._measured.known:
                self._around.brain.check_profile(settings, self._measured.profile)

        own, template = (None, NO_TEMPLATE) if live is None else (live.annotations, live.template)
        return rules(pa, cluster, own, check, template)

    async def _take(self, seen: Seen, planned: Plan) -> bool:
        """Write a plan; whether all of it was still of what there is."""
        pa, steps = seen.pa, self._around.steps
        writes: list[Any] = [] if seen.rival else [self.instances.resize(seen.rules)]
        if planned.replicas is not None and seen.target is not None:
            self._say(seen, planned)
            writes.append(steps.scale(pa, seen.target, planned.replicas))
        if planned.route is not None:
            writes.append(steps.route(pa, planned.route))
        if planned.status != pa.status:
            writes.append(steps.tell(pa, lambda document: self._status(seen, document)))
        alone = seen.demand.shadows
        if alone is not None and seen.target is not None and alone.status == "False" and alone.reason != self._told_alone:
            self._told_alone = alone.reason
            writes.append(steps.alone(pa, seen.target, alone))
        done = await asyncio.gather(*writes, return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException):
                raise one
        return False not in done

    @staticmethod
    def _status(seen: Seen, document: Document) -> Mapping[str, Any] | None:
        """The status by the PodAutoscaler as it is now."""
        return plan(replace(seen, pa=pa_facts(document))).status

    def _say(self, seen: Seen, planned: Plan) -> None:
        if planned.replicas != self._last_want and seen.target is not None:
            reason = seen.demand.reason or "as Knative's annotations say"
            _LOG.info("%s: %d to %d pods: %s", self.name, seen.target.replicas, planned.replicas, reason)
        self._last_want = planned.replicas

    def _probe(self, pa: PaFacts, sks: SksFacts | None) -> None:
        """Ask at the public Service until an activator answers, or nobody wants to know any more."""
        if sks is None or not sks.service or (self._probing is not None and not self._probing.done()):
            return

        async def ask() -> None:
            around = self._around
            while True:
                address = await around.steps.address(pa.key.namespace, sks.service)
                if address is not None and await proxied(address, pa.protocol):
                    self._proxied = True
                    self.look()
                    return
                await around.clock.sleep(PROBE_PERIOD_S)
                found = self._plan()
                if found is None or not found[1].probe:
                    return

        self._probing = asyncio.get_running_loop().create_task(ask())
        self._probing.add_done_callback(self._probed)

    def _probed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _LOG.warning("%s: its Service could not be asked: %s", self.name, task.exception())
            asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self.look)
