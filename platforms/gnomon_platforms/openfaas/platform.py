"""The platform `openfaas`: instances are pods of a function's Deployment, placed by us, reached at their own addresses.

    create ▶ room on a node ▶ a pod of the function's Deployment is claimed ▶ scheduled ▶ healthy ▶ batches go to its port 8080

What is seen comes from informers; what is written is bound to what it was decided from; each function has one task
(`workloads`). Pods outlive the gateway: one that stops leaves them serving, and the next one adopts them. Those that it has no
use for go after the first minute, until when they are given out again.

Shadows are no pods: the coordinator of a Body's node makes them (`on_nodes`, `node_pairs`), where one is connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import secrets as chance_of_secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gnomon_core.clock import Clock, WallClock
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.fleet import Instance, Node
from gnomon_core.functions import FunctionKey, FunctionSpec, parse_key
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.seam_values import Capabilities, InstanceRequest, Usage
from gnomon_core.seams import PlatformListener
from gnomon_core.signature import ModelSignature
from gnomon_platforms.beginning import starting
from gnomon_platforms.kubernetes.api import Api, Fence
from gnomon_platforms.kubernetes.cache import Change
from gnomon_platforms.kubernetes.informer import Informer
from gnomon_platforms.kubernetes.ledger import Ledger
from gnomon_platforms.kubernetes.nodes import Given, Load, NodeFacts, choose, node_facts, pod_load, takes
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction, deployed_function
from gnomon_platforms.kubernetes.objects.manifests import deployment
from gnomon_platforms.kubernetes.objects.names import FUNCTION_LABEL, MANAGED_LABEL
from gnomon_platforms.kubernetes.objects.placing import read_constraints
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES, PodFacts, pod_facts
from gnomon_platforms.kubernetes.objects.removal import VICTIM_COST
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NODES, PODS
from gnomon_platforms.kubernetes.watching import Source
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.local.nodes import claimed_cores
from gnomon_platforms.local.profiles import ProfileFiles
from gnomon_platforms.openfaas.lives import Life
from gnomon_platforms.openfaas.node_pairs import BodyPod, Home
from gnomon_platforms.openfaas.on_nodes import NodeOptions, OnNodes, load_besides_shadows
from gnomon_platforms.openfaas.pod_logs import PodLogs
from gnomon_platforms.openfaas.rivals import Rivals, tell
from gnomon_platforms.openfaas.steps import Steps
from gnomon_platforms.openfaas.workloads import Surroundings, Workload

ADOPTING_S = 60.0
START_TIMEOUT_S = 300.0
CAUGHT_UP_S = 10.0

_LOG = logging.getLogger("gnomon.openfaas")


@dataclass(frozen=True, slots=True)
class OpenFaasOptions:
    """What the operator says once.

    `namespace` None looks after every namespace. With `stored`, a store of functions makes their Deployments: one that is not
    there was removed, and is not made again by an instance that was asked for a moment earlier.
    """

    namespace: str | None = None
    pods: PodOptions = field(default_factory=PodOptions)
    start_timeout_s: float = START_TIMEOUT_S
    adopting_s: float = ADOPTING_S
    stored: bool = False
    nodes: NodeOptions | None = None
    """The nodes' coordinators; without them no Body has a Shadow."""


class OpenFaasPlatform:
    """See `gnomon_core.seams.Platform`.

    `fence` is asked right before each write, `epoch` is the leader's; `chance` draws the pauses between attempts.
    """

    name = "openfaas"

    def __init__(
        self,
        api: Api,
        options: OpenFaasOptions | None = None,
        *,
        fence: Fence | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
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
        self._rivals = Rivals(api, self._options.namespace, self._rivals_changed)
        self._on_nodes = None if nodes is None else OnNodes(api, self._writer, nodes)
        self._ledger = Ledger()
        self._workloads: dict[FunctionKey, Workload] = {}
        self._lives: dict[str, Life] = {}
        """By instance, those that have not ended."""
        self._around: Surroundings | None = None
        self._listener: PlatformListener | None = None
        self._stopping = False
        self._behind: set[asyncio.Task[None]] = set()
        self.logs = PodLogs(api, self._pods, self._pods_of)
        """What functions write, as the cluster keeps it."""

    @property
    def capabilities(self) -> Capabilities:
        """Pairs where a coordinator is connected on some node; a Shadow never becomes a Body, which is a pod."""
        pairs = None if self._on_nodes is None else self._on_nodes.pairs
        return Capabilities(place=True, size=True, victim=True, resize=True, pair=pairs is not None and pairs.connected)

    async def start(self, listener: PlatformListener) -> None:
        """See all that is there.

        Raises:
            GnomonError: 503 `kubernetes_…`, with what to do.

        """
        import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

        await asyncio.gather(*(informer.start() for informer in self._informers()), self._rivals.start())
        self._listener = listener
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0), trust_env=False)
        until_s = self._clock.now_s() + self._options.adopting_s
        self._around = Surroundings(
            deployed=lambda key: self._deployments.get(key.namespace, key.name),
            pods=self._pods_of,
            session=session,
            clock=self._clock,
            adopting=lambda: self._clock.now_s() < until_s,
            left_alone=self._left_alone,
            caught_up=self._caught_up,
            start_timeout_s=self._options.start_timeout_s,
        )
        if self._on_nodes is not None and self._options.nodes is not None:
            await self._on_nodes.start(self._home(listener, self._options.nodes), session)
        self._nodes.listen(self._ledger.node_changed)
        self._loads.listen(self._ledger.load_changed)
        self._pods.listen(self._ledger.pod_changed)
        self._pods.listen(self._pod_changed)
        self._deployments.listen(self._deployment_changed)

    async def stop(self) -> None:
        """Let every instance go, and return when all are told of as gone. Their pods serve on: see `adopt`."""
        self._stopping = True
        lives = [life for workload in self._workloads.values() for life in workload.lives.values()]
        if self._on_nodes is not None:
            await self._on_nodes.stop()
        await asyncio.gather(*(workload.close() for workload in self._workloads.values()))
        for life in lives:
            life.end("the gateway stops; its pod serves on")
        await asyncio.gather(*self._behind, return_exceptions=True)
        await asyncio.gather(*(informer.stop() for informer in self._informers()), self._rivals.stop(), self.logs.close())
        if self._around is not None:
            await self._around.session.close()
        self._writer.close()

    def contents(self) -> set[str]:
        """Nothing: what was built on this machine is in no pod."""
        return set()

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[Instance, ...]:
        """Look after the function's pods that an earlier process gave to instances, each as the instance that it was."""
        assert self._listener is not None
        workload = self._workload(spec.key)
        found = []
        for pod in sorted(self._pods_of(spec.key), key=lambda pod: (pod.created_at, pod.name)):
            if pod.instance is None or pod.instance in workload.lives or not adoptable(pod, version):
                continue
            cores = max(1, round(pod.cores))
            request = InstanceRequest(spec, pod.version, cores, pod.node, {})
            instance = starting(pod.instance, request, pod.node or "", pod.memory_bytes, self._clock.now_s())
            self._ledger.give(pod.instance, Given(pod.node or "", claimed_cores(spec, cores), pod.memory_bytes))
            workload.add(self._life_of(instance, request))
            workload.seen(pod, pod.name)
            found.append(instance)
        return tuple(found)

    def hindrance(self, function: str) -> GnomonError | None:
        """Why its pods are not ours to count: 409 `foreign_autoscaler`."""
        return self._rivals.hindrance(parse_key(function))

    def check(self, spec: FunctionSpec) -> None:
        """Raise if Kubernetes would never take this function: its labels, annotations, constraints, resources, process."""
        if spec.env_process and not spec.env_process.strip():
            raise bad_request("process_missing", f"{spec.key} sets fprocess, but names none.", "Name it, or leave it out.")
        deployment(spec, 1, self._options.pods)

    def revision(self, spec: FunctionSpec) -> str:
        """The image's name: what it means is Kubernetes' to know, which pulls a tag once and a digest never again."""
        return spec.image

    async def prepare(self, spec: FunctionSpec) -> None:
        """Nothing is to be prepared: a node pulls an image when its first pod comes."""

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        """None: what a model takes is known to its image."""
        del spec
        return None

    def nodes(self) -> tuple[Node, ...]:
        return self._ledger.nodes()

    def instances(self, function: str) -> tuple[Instance, ...]:
        workload = self._workloads.get(parse_key(function))
        shadows = [] if self._on_nodes is None else self._on_nodes.instances(function)
        return (*(() if workload is None else (life.instance for life in workload.lives.values())), *shadows)

    async def create(self, request: InstanceRequest) -> Instance:
        """Begin an instance: it gets a node, then a pod. What follows is told to the listener."""
        assert self._listener is not None
        assert self._around is not None
        spec = request.spec
        self.check(spec)
        self._refuse_hindered(spec.key)
        cores, memory_bytes = claimed_cores(spec, request.cores), spec.memory_bytes or 0
        placing = read_constraints(spec.constraints)
        allowed = {facts.name for facts in self._ledger.facts() if takes(facts, placing)}
        node = choose(self.nodes(), allowed, cores, memory_bytes, request.node)
        instance_id = f"{spec.key.name}-{chance_of_secrets.token_hex(5)}"
        self._ledger.give(instance_id, Given(node, cores, memory_bytes))
        instance = starting(instance_id, request, node, memory_bytes, self._clock.now_s())
        workload = self._workload(spec.key)
        workload.add(self._life_of(instance, request))
        return instance

    async def destroy(self, instance_id: str) -> None:
        """End an instance: its pod is made unready, the first to go, and removed. Unknown ids are ignored."""
        if self._on_nodes is not None and self._on_nodes.pairs is not None and self._on_nodes.pairs.destroy(instance_id):
            return
        life = self._life(instance_id)
        if life is not None and not life.stopping:
            self._workloads[life.request.spec.key].stop(life)

    async def resize(self, instance_id: str, cores: int) -> None:
        """Give an instance's pod other cores, in place. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`; it keeps what it has.

        """
        life, given = self._life(instance_id), self._ledger.given(instance_id)
        if life is None or given is None or not life.living:
            return
        self._refuse_hindered(life.request.spec.key)
        # A claim by request or limit stays what the deployment says.
        wanted = float(cores) if math.isclose(given.cores, life.request.cores) else given.cores
        node = next((node for node in self.nodes() if node.name == given.node), None)
        if node is None or node.free_cores < wanted - given.cores:
            raise GnomonError(
                503, "no_capacity", f"Node {given.node} has no {wanted:g} cores for {instance_id}.", "Ask for fewer."
            )
        self._ledger.give(instance_id, replace(given, cores=wanted))
        life.request = replace(life.request, cores=cores)
        self._workloads[life.request.spec.key].look()

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        """Begin a Shadow in the pool of the Body's node.

        Raises:
            GnomonError: 409 `no_such_body` where no coordinator knows the Body, 503 `no_capacity`, `no_pool`, `node_unreachable`.

        """
        if self._on_nodes is None or self._on_nodes.pairs is None:
            text = f"{body_id} works with no coordinator."
            raise GnomonError(409, "no_such_body", text, "Choose a policy that needs no Shadows.")
        return await self._on_nodes.pairs.create(body_id, pair, f"{body_id}-s{chance_of_secrets.token_hex(3)}")

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Refused: a Body is a pod, and a Shadow a process in another one."""
        raise GnomonError(409, "no_such_shadow", f"{shadow_id} cannot become a Body on Kubernetes.", "Create a Body.")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """Let a Shadow do something else. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`; it keeps what it has.

        """
        if self._on_nodes is not None and self._on_nodes.pairs is not None:
            await self._on_nodes.pairs.change(shadow_id, pair)

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """What was measured of the function's model, for policies with Shadows; None where no coordinator can make any."""
        pairs = None if self._on_nodes is None else self._on_nodes.pairs
        return None if pairs is None else pairs.profile(spec)

    def usage(self, function: str) -> Usage:
        """What instances hold by their limits. What they use is measured by the cluster's metrics."""
        return Usage(0.0, sum(instance.memory_bytes for instance in self.instances(function)))

    def _home(self, listener: PlatformListener, nodes: NodeOptions) -> Home:
        """What Shadows share with our pods."""
        return Home(
            body=self._body_pod,
            told=self._pairs_changed,
            free_cores=lambda name: next((node.free_cores for node in self.nodes() if node.name == name), 0.0),
            claims=self._ledger,
            listener=listener,
            now_s=self._clock.now_s,
            epoch=self._epoch,
            repository=nodes.repository,
            models=nodes.models,
            profiles=ProfileFiles(nodes.profiles, nodes.machine_id),
        )

    def _body_pod(self, body_id: str) -> BodyPod | None:
        life = self._life(body_id)
        if life is None or life.stopping or life.pod is None or life.pod.node is None:
            return None
        return BodyPod(life.instance, life.request.spec, life.pod.uid, life.pod.node)

    def _pairs_changed(self, body_id: str, shadows: Mapping[str, Pair]) -> None:
        life = self._life(body_id)
        if life is not None and not life.gone and self._listener is not None:
            life.instance = life.instance.working_with(shadows)
            self._listener.pair_changed(life.instance)

    def _informers(self) -> tuple[Informer[DeployedFunction | None], Informer[PodFacts], Informer[Load], Informer[NodeFacts]]:
        return self._deployments, self._pods, self._loads, self._nodes

    def _pods_of(self, key: FunctionKey) -> Iterable[PodFacts]:
        return (pod for pod in self._pods.labelled(FUNCTION_LABEL, key.name) if pod.namespace == key.namespace)

    def _workload(self, key: FunctionKey) -> Workload:
        """Who looks after a function, from now on."""
        workload = self._workloads.get(key)
        if workload is None:
            assert self._around is not None
            steps = Steps(self._writer, key, self._options.pods, stored=self._options.stored)
            workload = self._workloads[key] = Workload(key, steps, self._around)
        return workload

    def _left_alone(self, key: FunctionKey) -> bool:
        """Whether somebody else counts a function's pods. What is left of one that was removed is ours to remove all the same."""
        deployed = self._deployments.get(key.namespace, key.name)
        return self._rivals.of(key) is not None and (deployed is None or not deployed.removed)

    def _refuse_hindered(self, key: FunctionKey) -> None:
        refusal = self._rivals.hindrance(key)
        if refusal is not None:
            raise refusal

    def _rivals_changed(self, key: FunctionKey) -> None:
        found, deployed = self._rivals.of(key), self._deployments.get(key.namespace, key.name)
        if found is not None and deployed is not None:
            _LOG.warning("%s: %s", key, found.says)
            if self._listener is not None:
                self._listener.log_line(key, "", f"gnomon: {found.says}")
            self._begin(tell(self._writer, deployed, found))
        workload = self._workloads.get(key)
        if workload is not None:
            workload.look()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except GnomonError as error:
                _LOG.warning("%s", error)

        task = asyncio.get_running_loop().create_task(guarded())
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def _caught_up(self, key: FunctionKey, generation: int) -> None:
        def seen() -> bool:
            found = self._deployments.get(key.namespace, key.name)
            return found is not None and found.generation >= generation

        with contextlib.suppress(TimeoutError):
            await self._deployments.until(seen, CAUGHT_UP_S)

    def _life_of(self, instance: Instance, request: InstanceRequest) -> Life:
        assert self._listener is not None
        life = self._lives[instance.id] = Life(instance, request, self._listener, self._ended)
        return life

    def _life(self, instance_id: str) -> Life | None:
        return self._lives.get(instance_id)

    def _ended(self, life: Life) -> None:
        self._ledger.take_back(life.instance.id)
        self._lives.pop(life.instance.id, None)
        if self._on_nodes is not None and self._on_nodes.pairs is not None:
            self._on_nodes.pairs.body_gone(life.instance.id)
        self._workloads[life.request.spec.key].forget(life)

    def _pod_changed(self, change: Change[PodFacts]) -> None:
        facts = change.new or change.old
        workload = None if facts is None else self._workloads.get(facts.key)
        if workload is not None:
            workload.seen(change.new, change.name[1])

    def _deployment_changed(self, change: Change[DeployedFunction | None]) -> None:
        namespace, name = change.name
        key = FunctionKey(name, namespace)
        workload = self._workloads.get(key)
        if workload is None and change.new is not None and change.new.removed:
            # An earlier process was killed before it had removed all of it.
            workload = self._workload(key)
        if workload is not None and change.new is None and not workload.lives:
            self._begin(self._workloads.pop(key).close())
        elif workload is not None:
            workload.look()
        if change.new is not None and change.old is None and self._rivals.of(key) is not None:
            self._rivals_changed(key)


def adoptable(pod: PodFacts, version: int) -> bool:
    """Whether a pod that was given to an instance can go on as that: it was not on its way out, and is not of a later version."""
    ended = pod.ending or pod.phase in ENDED_PHASES or pod.deletion_cost == VICTIM_COST
    return not ended and pod.version <= version
