"""The Bodies and Shadows of one Revision, between its policy and the cluster: what it is shown, and what becomes of its wishes.

CreateBody, DestroyBody ▶ how many pods there are to be      pods ▶ which of them each Body is
Resize, gnomon/cores    ▶ pods resized in place              nodes ▶ whether a Body may have a Shadow
CreateShadow …          ▶ a wish to the Body's node          a node's state ▶ whom a Body works with
SetBufferPlan           ▶ the PodAutoscaler's status, which gateways read
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gnomon_core.carrying_out import CarryingOut
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, Node
from gnomon_core.functions import FunctionKey
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
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
from gnomon_platforms.knative.buffer_status import BufferStatus
from gnomon_platforms.knative.scaling.bodies import Bodies
from gnomon_platforms.knative.scaling.objects import Condition, RevisionPod
from gnomon_platforms.knative.scaling.rules import Rules
from gnomon_platforms.knative.scaling.shadow_condition import Means, shadows
from gnomon_platforms.knative.scaling.shadows import spec_of
from gnomon_platforms.knative.scaling.signals.learned import Learned
from gnomon_platforms.knative.scaling.surroundings import Surroundings
from gnomon_platforms.kubernetes.objects.placing import Placing
from gnomon_platforms.kubernetes.resizing import REFUSED_S, RefusedSize
from gnomon_platforms.nodes.home import BodyPod

UNKNOWN = Learned(())

_LOG = logging.getLogger("gnomon.knative")


class RevisionInstances:
    """Those of one Revision."""

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
        """It is looked after no longer: nobody else would end its Shadows. Its pods are not touched."""
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
        """What was measured of the Revision's model."""
        shadows_ = self._around.shadows
        return None if shadows_ is None or settings.model is None else shadows_.profile(spec_of(self._key, settings))

    async def apply(self, actions: Sequence[Action], rules: Rules) -> None:
        """Take what was decided: pods are made and ended behind it, and the plan of a buffer is told with the next status.

        Raises:
            PartlyRefused: 503 `no_capacity` and the like, of Shadows or sizes, the last of several. All else has been done.

        """
        carrying = CarryingOut(actions)
        for action in carrying:
            with carrying.attempt(action):
                await self._apply_one(action, rules)
        carrying.end()

    async def _apply_one(self, action: Action, rules: Rules) -> None:
        match action:
            case CreateBody(cores):
                # As many as its Revision says is no size of its own: it follows, when the Revision says another one.
                self._bodies.add(None if cores == rules.settings.cores else cores)
            case DestroyBody(body_id):
                self._bodies.remove(body_id)
                self._lost(body_id)
            case Resize(body_id, cores):
                if (refused := self._refusal(self._bodies.pod_of(body_id), cores)) is not None:
                    raise refused
                self._bodies.resize(body_id, cores)
            case SetBufferPlan():
                # The Revision may name another one since.
                self._buffer = BufferStatus(self._asked or rules.settings.autoscaler, action)
            case CreateShadow() | ChangeShadow() | DestroyShadow() | PromoteShadow() if self._around.shadows is not None:
                await self._around.shadows.apply(action)

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
        """Let each Body be a pod, as pods are now."""
        lost, found = self._bodies.match(self._around.pods(self._key))
        for body_id in lost:
            self._lost(body_id)
        shadows_ = self._around.shadows
        if shadows_ is not None:
            for pod in filter(None, map(self._bodies.pod_of, found)):
                shadows_.body_found(pod.node)

    async def resize(self, rules: Rules) -> None:
        """Let pods have the cores that they are to have."""
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
        """In how many seconds a size that was refused is asked for again; None where none was."""
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
        """What its pods say of nodes."""
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
