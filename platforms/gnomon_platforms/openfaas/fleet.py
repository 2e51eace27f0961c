"""All functions of a cluster: informers, free capacity of nodes, and one workload for each function.

    informers ─▶ ledger: free capacity per node
             └─▶ workloads: each pod's instance and its state
             └─▶ rivals: functions that an HPA or KEDA scales are not touched

`platform` adds the commands; here is everything that happens by itself, from the start to the stop of the gateway. While another
gateway leads, its pods are followed until `lead` is called: the same instances with own channels, and nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from gnomon_core.background import Background
from gnomon_core.clock import Clock, WallClock
from gnomon_core.fleet import Instance, Node
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import InstanceRequest, PlatformListener
from gnomon_platforms.common import open_session
from gnomon_platforms.kubernetes.client import PROGRAM, Api, Fence
from gnomon_platforms.kubernetes.conflicting_autoscalers import Rivals, tell
from gnomon_platforms.kubernetes.informer import Change, Informer, Source
from gnomon_platforms.kubernetes.ledger import Ledger
from gnomon_platforms.kubernetes.nodes import Load, NodeFacts, node_facts, pod_load
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction, deployed_function
from gnomon_platforms.kubernetes.objects.names import FUNCTION_LABEL, MANAGED_LABEL
from gnomon_platforms.kubernetes.objects.pods import PodFacts, pod_facts
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NODES, PODS, resizes_pods
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.nodes.coordinators import NodeCoordinators, load_besides_shadows
from gnomon_platforms.nodes.node_shadow import ShadowContext
from gnomon_platforms.openfaas.events import FAILED_CREATE, SCALE_REVERTED, Warnings
from gnomon_platforms.openfaas.options import OpenFaasOptions
from gnomon_platforms.openfaas.pod_bodies import PodBodies
from gnomon_platforms.openfaas.pod_logs import PodLogs
from gnomon_platforms.openfaas.steps import Steps
from gnomon_platforms.openfaas.workloads import Life, Surroundings, Workload, instance_of, may_be_found

CAUGHT_UP_S = 10.0

_LOG = logging.getLogger("gnomon.openfaas")


class Fleet:
    """The functions of a cluster. `fence` is called right before each write, `epoch` is the leader's; `chance` draws jitter.

    With `following` another process leads, until `lead` is called.
    """

    def __init__(
        self,
        api: Api,
        options: OpenFaasOptions | None = None,
        *,
        fence: Fence | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        epoch: Callable[[], int] = lambda: 0,
        following: bool = False,
    ) -> None:
        self.leads = not following
        self._options = options or OpenFaasOptions()
        self._epoch = epoch
        self._clock = clock or WallClock()
        self._writer = Writer(api, self._clock, chance or random.SystemRandom(), fence)
        ours = Source(DEPLOYMENTS, self._options.namespace, labels=MANAGED_LABEL)
        self._deployments: Informer[DeployedFunction | None] = Informer(api, ours, deployed_function)
        our_pods = replace(ours, resource=PODS)
        self._pods: Informer[PodFacts] = Informer(api, our_pods, pod_facts, index=(FUNCTION_LABEL,))
        nodes = self._options.nodes
        read_load = pod_load if nodes is None else load_besides_shadows(nodes.namespace)
        self._loads: Informer[Load] = Informer(api, Source(PODS, fields="spec.nodeName!="), read_load)
        self._nodes: Informer[NodeFacts] = Informer(api, Source(NODES), node_facts)
        self._rivals = Rivals(api, self._options.namespace, self._rivals_changed, self._clock)
        self._coordinators = None if nodes is None else NodeCoordinators(api, self._writer, nodes)
        self._api, self._resizes = api, True
        self._ledger = Ledger()
        self._workloads: dict[str, Workload] = {}
        """By `name.namespace`, a string for cheap look-ups: each function's instances are read twice a second."""
        self._lives: dict[str, Life] = {}
        """By instance id, the instances that have not ended."""
        self._known: dict[FunctionKey, tuple[FunctionSpec, int]] = {}
        # Instances whose channel has ended while another process leads, which has not removed their pods yet.
        self._ended_here: set[str] = set()
        self._adopting_until_s = 0.0
        self._around: Surroundings | None = None
        self._listener: PlatformListener | None = None
        self._restarts: Callable[[FunctionKey, int], None] = lambda _, __: None
        self._stopping = False
        self._behind = Background()
        self._warnings = Warnings(self._writer, self._clock, self._behind, self._own_deployment)
        self.logs = PodLogs(api, self._pods, self._pods_of)
        """The functions' logs."""

    async def start(self, listener: PlatformListener) -> None:
        """Start the informers and reconcile from their state.

        Raises:
            GnomonError: 503 `kubernetes_…`, with a hint.

        """
        await asyncio.gather(*(informer.start() for informer in self._informers()), self._rivals.start())
        self._resizes = await asyncio.to_thread(resizes_pods, self._api)
        self._listener = listener
        session = open_session()
        self._adopting_until_s = self._clock.now_s() + self._options.adopting_s
        self._around = Surroundings(
            deployed=lambda key: self._deployments.get(key.namespace, key.name),
            pods=self._pods_of,
            session=session,
            clock=self._clock,
            adopting=lambda: self._adopting_s() > 0,
            left_alone=self._left_alone,
            caught_up=self._caught_up,
            start_timeout_s=self._options.start_timeout_s,
            leads=lambda: self.leads,
            warn=self._warnings.say,
            ledger=self._ledger,
        )
        if self.leads:
            await self._reach_nodes()
        self._nodes.listen(self._ledger.node_changed)
        self._loads.listen(self._ledger.load_changed)
        self._pods.listen(self._ledger.pod_changed)
        self._pods.listen(self._pod_changed)
        self._deployments.listen(self._deployment_changed)

    async def lead(self) -> None:
        """Become the leader after a resync of all informers; GnomonError 503 `kubernetes_…` if that fails."""
        if self.leads:
            return
        await asyncio.gather(*(informer.resync() for informer in self._informers()))
        self._adopting_until_s = self._clock.now_s() + self._options.adopting_s
        await self._reach_nodes()
        self.leads = True
        for deployed in self._deployments.values():
            if deployed is not None:
                self._deployment_there(deployed.spec.key, deployed, new=True)
        for workload in self._workloads.values():
            workload.look()

    async def stop(self) -> None:
        """End every instance, and return when all are reported as gone. Their pods go on serving: see `adopt`."""
        self._stopping = True
        lives = [life for workload in self._workloads.values() for life in workload.lives.values()]
        if self._coordinators is not None:
            await self._coordinators.stop()
        await asyncio.gather(*(workload.close() for workload in self._workloads.values()))
        for life in lives:
            life.end("the gateway stops; its pod serves on")
        await self._behind.settled()
        await asyncio.gather(*(informer.stop() for informer in self._informers()), self._rivals.stop(), self.logs.close())
        if self._around is not None:
            await self._around.session.close()
        self._writer.close()

    def nodes(self) -> tuple[Node, ...]:
        """The nodes with their free capacity."""
        return self._ledger.nodes()

    async def _reach_nodes(self) -> None:
        """Connect to the nodes' coordinators, if configured; Shadows share the ledger with our pods."""
        models, around, listener = self._options.models, self._around, self._listener
        if self._coordinators is None or models is None or around is None or listener is None:
            return
        context = ShadowContext(
            bodies=PodBodies(self._lives, listener),
            claims=self._ledger,
            listener=listener,
            now_s=self._clock.now_s,
            epoch=self._epoch,
            adopting_s=self._adopting_s,
            models=models,
        )
        await self._coordinators.start(context, around.session)

    def _adopting_s(self) -> float:
        """The seconds for which pods and Shadows of an earlier process may still be adopted."""
        return self._adopting_until_s - self._clock.now_s()

    def _informers(self) -> tuple[Informer[DeployedFunction | None], Informer[PodFacts], Informer[Load], Informer[NodeFacts]]:
        return self._deployments, self._pods, self._loads, self._nodes

    def _pods_of(self, key: FunctionKey) -> Iterable[PodFacts]:
        return (pod for pod in self._pods.labelled(FUNCTION_LABEL, key.name) if pod.namespace == key.namespace)

    def _workload(self, key: FunctionKey) -> Workload:
        """The workload of a function; created if there is none."""
        workload = self._workloads.get(str(key))
        if workload is None:
            assert self._around is not None
            steps = Steps(self._writer, key, self._options.pods, stored=self._options.stored)
            workload = self._workloads[str(key)] = Workload(key, steps, self._around)
        return workload

    def _left_alone(self, key: FunctionKey) -> bool:
        """Whether another autoscaler scales a function. A removed function's Deployment is cleaned up all the same."""
        deployed = self._deployments.get(key.namespace, key.name)
        return self._rivals.of(key) is not None and (deployed is None or not deployed.removed)

    def _refuse_hindered(self, key: FunctionKey) -> None:
        if (refusal := self._rivals.hindrance(key)) is not None:
            raise refusal

    def _rivals_changed(self, key: FunctionKey) -> None:
        found, deployed = self._rivals.of(key), self._deployments.get(key.namespace, key.name)
        if self.leads and found is not None and deployed is not None:
            _LOG.warning("%s: %s", key, found.says)
            if self._listener is not None:
                self._listener.log_line(key, "", f"gnomon: {found.says}")
            self._behind.begin(tell(self._writer, deployed.uid, found))
        if (workload := self._workloads.get(str(key))) is not None:
            workload.look()

    async def _caught_up(self, key: FunctionKey, generation: int) -> None:
        def seen() -> bool:
            found = self._deployments.get(key.namespace, key.name)
            return found is not None and found.generation >= generation

        with contextlib.suppress(TimeoutError):
            await self._deployments.until(seen, CAUGHT_UP_S)

    async def _own_deployment(self, key: FunctionKey) -> DeployedFunction | None:
        """A function's Deployment, which may have been created just now; None while another process leads."""
        await self._caught_up(key, 0)
        return self._deployments.get(key.namespace, key.name) if self.leads else None

    def _life_of(self, instance: Instance, request: InstanceRequest) -> Life:
        assert self._listener is not None
        life = self._lives[instance.id] = Life(instance, request, self._listener, self._ended, told_here=self.leads)
        return life

    def _ended(self, life: Life) -> None:
        self._ledger.take_back(life.instance.id)
        self._lives.pop(life.instance.id, None)
        if not self.leads:
            self._ended_here.add(life.instance.id)
        if self._coordinators is not None and self._coordinators.shadows is not None:
            self._coordinators.shadows.body_gone(life.instance.id)
        self._workloads[life.instance.function].forget(life)

    def _find(self, pod: PodFacts) -> Instance | None:
        """Adopt a pod that another process bound to an instance; None if it is already known, or not adoptable."""
        spec, version = self._known.get(pod.key, (None, 0))
        if pod.instance is None or spec is None or pod.instance in self._lives or pod.instance in self._ended_here:
            return None
        if not may_be_found(pod, version, placed=not self.leads):
            return None
        instance, request, given = instance_of(pod, spec, self._clock.now_s())
        self._ledger.give(instance.id, given)
        workload = self._workload(spec.key)
        workload.add(self._life_of(instance, request))
        workload.seen(pod, pod.name)
        if self._coordinators is not None:
            self._coordinators.body_found(pod.node)
        return instance

    def _pod_changed(self, change: Change[PodFacts]) -> None:
        facts = change.new or change.old
        if change.new is None and change.old is not None:
            self._ended_here.discard(change.old.instance or "")
        elif change.new is not None and not self.leads:
            self._find(change.new)
        workload = None if facts is None else self._workloads.get(str(facts.key))
        if workload is not None:
            workload.seen(change.new, change.name[1])

    def _deployment_changed(self, change: Change[DeployedFunction | None]) -> None:
        namespace, name = change.name
        key = FunctionKey(name, namespace)
        workload = self._workloads.get(str(key))
        if workload is not None and change.new is None and not workload.lives:
            self._behind.begin(self._workloads.pop(str(key)).close())
        elif workload is not None:
            workload.look()
        if change.new is not None:
            self._deployment_there(key, change.new, new=change.old is None)
            if self.leads and change.old is not None and change.old.replicas != change.new.replicas:
                self._say_who_counts(key, change.new)
            if change.new.failure:
                self._warnings.say(key, FAILED_CREATE, change.new.failure)

    def _deployment_there(self, key: FunctionKey, deployed: DeployedFunction, *, new: bool) -> None:
        if self.leads and deployed.removed and str(key) not in self._workloads:
            # An earlier process was killed during the removal: finish it.
            self._workload(key)
        if new and self._rivals.of(key) is not None:
            self._rivals_changed(key)
        if self.leads and deployed.restarted and deployed.template_version == deployed.version and not self._left_alone(key):
            self._restarts(key, deployed.version)

    def _say_who_counts(self, key: FunctionKey, deployed: DeployedFunction) -> None:
        """Warn that another program has set the number of replicas, which the scaling policy will overwrite."""
        if deployed.counted_by in ("", PROGRAM) or deployed.removed or self._left_alone(key):
            return
        policy = deployed.spec.settings.autoscaler
        self._warnings.say(
            key,
            SCALE_REVERTED,
            f"{deployed.counted_by} asked for {deployed.replicas} pods, but Gnomon's scaling policy {policy} decides how many "
            f"there are: gnomon decisions {key.name} says why. Bounds are com.openfaas.scale.min and .max; "
            "POST /system/scale-function/NAME sets a number.",
        )
