"""The platform `openfaas`: instances are pods of a function's Deployment, reached at their own addresses.

    create ▶ one replica more ▶ a pod is bound to the instance ▶ Kubernetes places and starts it ▶ batches go to its port 8080

The scheduler chooses nodes; policies see its choice. A pod without room stays Pending, which makes cluster autoscalers add nodes,
and its instance starts meanwhile. State comes from informers; writes have preconditions; each function has a reconciler of its
own (`workloads`). Pods outlive the gateway: when it stops they serve on, and the next gateway adopts them. During its first
minute it assigns them to instances again; then it removes those that it does not need. While another gateway leads, its pods are
followed until `lead` is called: the same instances with own channels, and nothing is written.

Shadows are not pods: the coordinator of a Body's node creates them (`gnomon_platforms.nodes`), if one is connected.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets as chance_of_secrets
from collections.abc import Callable, Mapping
from contextlib import suppress

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.fleet import Instance, Node
from gnomon_core.functions import FunctionKey, FunctionSpec, parse_key
from gnomon_core.interfaces import Capabilities, InstanceRequest, PlatformListener, Usage
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_platforms.common import starting
from gnomon_platforms.kubernetes.client import PROGRAM, Api, Fence
from gnomon_platforms.kubernetes.conflicting_autoscalers import REASON as FOREIGN_AUTOSCALER
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.manifests import deployment
from gnomon_platforms.kubernetes.objects.placing import Placing, read_constraints
from gnomon_platforms.kubernetes.objects.pod_template import pod_digest
from gnomon_platforms.kubernetes.objects.pods import PodFacts
from gnomon_platforms.nodes.coordinators import NodeCoordinators
from gnomon_platforms.nodes.node_shadow import BodyPod, ShadowContext
from gnomon_platforms.nodes.shadows import ShadowTracker
from gnomon_platforms.openfaas.observed import FAILED_CREATE, SCALE_REVERTED, ObservedCluster, OpenFaasOptions
from gnomon_platforms.openfaas.pod_logs import PodLogs
from gnomon_platforms.openfaas.steps import Steps
from gnomon_platforms.openfaas.workloads import InstanceRecord, Workload, adoptable, adopted

_LOG = logging.getLogger("gnomon.openfaas")


class OpenFaasPlatform:
    """The `Platform` (`gnomon_core.interfaces`) of pods behind OpenFaaS's routes.

    `fence` is called right before each write, `epoch` is the leader's; `rng` draws jitter. With `following` another process
    leads, until `lead` is called.
    """

    name = "openfaas"

    def __init__(
        self,
        api: Api,
        options: OpenFaasOptions | None = None,
        *,
        fence: Fence | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        epoch: Callable[[], int] = lambda: 0,
        following: bool = False,
    ) -> None:
        self._options = options = options or OpenFaasOptions()
        self._epoch = epoch
        self._cluster = cluster = ObservedCluster(
            api, options, self._conflicts_changed, leads=not following, fence=fence, clock=clock, rng=rng
        )
        self._coordinators = None if options.nodes is None else NodeCoordinators(api, cluster.writer, options.nodes)
        self._workloads: dict[str, Workload] = {}
        """The workload of each function, by `name.namespace`: a string, because each function is looked up twice a second."""
        self._records: dict[str, InstanceRecord] = {}
        """The instances that have not ended, by id."""
        self._known: dict[FunctionKey, tuple[FunctionSpec, int]] = {}
        self._ended_here: set[str] = set()
        """The instances whose channel has ended while another process leads, which has not removed their pods yet."""
        self._listener: PlatformListener | None = None
        self._restarts: Callable[[FunctionKey, int], None] = lambda _, __: None
        self.logs = PodLogs(api, cluster.pods, cluster.pods_of)
        """The functions' logs."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities: sizes if the cluster can resize pods; pairs on nodes with `Node.pairs`, which may be none now.

        A node that a policy names is a preference: the scheduler decides. A Shadow is never promoted: a Body is a pod.
        """
        resizes = self._cluster.resizes
        return Capabilities(place=True, size=resizes, victim=True, resize=resizes, pair=True, own_scheduler=True)

    @property
    def leads(self) -> bool:
        """True if this process decides about pods."""
        return self._cluster.leads

    # From the start to the stop of the gateway

    async def start(self, listener: PlatformListener) -> None:
        """Start the informers and reconcile from their state.

        Raises:
            GnomonError: 503 `kubernetes_…`, with a hint.

        """
        self._listener = listener
        await self._cluster.start()
        if self.leads:
            await self._reach_nodes(listener)
        self._cluster.pods.listen(self._pod_changed)
        self._cluster.deployments.listen(self._deployment_changed)

    async def lead(self) -> None:
        """Become the leader after a resync of all informers; GnomonError 503 `kubernetes_…` if that fails."""
        if self.leads:
            return
        assert self._listener is not None
        await self._cluster.resync()
        self._cluster.begin_adopting()
        await self._reach_nodes(self._listener)
        self._cluster.leads = True
        for deployed in self._cluster.deployments.values():
            if deployed is not None:
                self._deployment_there(deployed.spec.key, deployed, new=True)
        for workload in self._workloads.values():
            workload.trigger()

    async def stop(self) -> None:
        """End every instance, and return when all are reported as gone. Their pods go on serving: see `adopt`."""
        if self._coordinators is not None:
            await self._coordinators.stop()
        await asyncio.gather(*(workload.close() for workload in self._workloads.values()))
        for record in list(self._records.values()):
            record.end("the gateway stops; its pod serves on")
        await self.logs.close()
        await self._cluster.stop()

    async def _reach_nodes(self, listener: PlatformListener) -> None:
        """Connect to the nodes' coordinators, if configured."""
        models, cluster = self._options.models, self._cluster
        if self._coordinators is None or models is None:
            return
        context = ShadowContext(
            bodies=PodBodies(self._records, listener),
            capacity=cluster.capacity,
            listener=listener,
            now_s=cluster.clock.now_s,
            epoch=self._epoch,
            adopting_s=cluster.adopting_s,
            models=models,
        )
        await self._coordinators.start(context, cluster.session)

    @property
    def _shadows(self) -> ShadowTracker | None:
        return None if self._coordinators is None else self._coordinators.shadows

    # What is observed

    def _pod_changed(self, change: Change[PodFacts]) -> None:
        facts = change.new or change.old
        if change.new is None and change.old is not None:
            self._ended_here.discard(change.old.instance or "")
        elif change.new is not None and not self.leads:
            self._adopt_pod(change.new)
        workload = None if facts is None else self._workloads.get(str(facts.key))
        if workload is not None:
            workload.pod_changed(change.new, change.name[1])

    def _deployment_changed(self, change: Change[DeployedFunction | None]) -> None:
        namespace, name = change.name
        key, before, now = FunctionKey(name, namespace), change.old, change.new
        workload = self._workloads.get(str(key))
        if workload is not None:
            workload.removed = now is None
            workload.trigger()
            self._drop_if_removed(workload)
        if now is not None:
            self._deployment_there(key, now, new=before is None)
            if self.leads and before is not None and before.replicas != now.replicas:
                self._warn_of_scale(key, now)
            if now.failure:
                self._cluster.warn(key, FAILED_CREATE, now.failure)

    def _deployment_there(self, key: FunctionKey, deployed: DeployedFunction, *, new: bool) -> None:
        if self.leads and deployed.removed and str(key) not in self._workloads:
            # An earlier process was killed during the removal: finish it.
            self._workload(key)
        if new and self._cluster.conflicts.of(key) is not None:
            self._conflicts_changed(key)
        current = deployed.template_version == deployed.version
        if self.leads and deployed.restarted and current and not self._cluster.left_alone(key):
            self._restarts(key, deployed.version)

    def _warn_of_scale(self, key: FunctionKey, deployed: DeployedFunction) -> None:
        """Warn that another program has set the number of replicas, which the scaling policy will overwrite."""
        if deployed.scaled_by in ("", PROGRAM) or deployed.removed or self._cluster.left_alone(key):
            return
        policy = deployed.spec.settings.autoscaler
        self._cluster.warn(
            key,
            SCALE_REVERTED,
            f"{deployed.scaled_by} asked for {deployed.replicas} pods, but Gnomon's scaling policy {policy} decides how many "
            f"there are: gnomon decisions {key.name} says why. Bounds are com.openfaas.scale.min and .max; "
            "POST /system/scale-function/NAME sets a number.",
        )

    def _conflicts_changed(self, key: FunctionKey) -> None:
        cluster = self._cluster
        found, deployed = cluster.conflicts.of(key), cluster.deployed(key)
        if self.leads and found is not None and deployed is not None:
            _LOG.warning("function %s is not scaled: %s", key, found.says)
            if self._listener is not None:
                self._listener.log_line(key, "", f"gnomon: {found.says}")
            cluster.warn(key, FOREIGN_AUTOSCALER, found.says, found.uid)
        if (workload := self._workloads.get(str(key))) is not None:
            workload.trigger()

    def _workload(self, key: FunctionKey) -> Workload:
        """The workload of a function; created if there is none."""
        workload = self._workloads.get(str(key))
        if workload is None:
            steps = Steps(self._cluster.writer, key, self._options.pods, stored=self._options.stored)
            workload = self._workloads[str(key)] = Workload(key, steps, self._cluster)
            workload.start()
        return workload

    def _record(self, instance: Instance, request: InstanceRequest, *, threads_known: bool = True) -> InstanceRecord:
        assert self._listener is not None
        record = InstanceRecord(instance, request, self._listener, self._ended, threads_known=threads_known)
        self._records[instance.id] = record
        return record

    def _ended(self, record: InstanceRecord) -> None:
        self._records.pop(record.instance.id, None)
        if not self.leads:
            self._ended_here.add(record.instance.id)
        if self._shadows is not None:
            self._shadows.body_gone(record.instance.id)
        workload = self._workloads[record.instance.function]
        workload.forget(record)
        self._drop_if_removed(workload)

    def _drop_if_removed(self, workload: Workload) -> None:
        """Drop the workload of a removed function when its last instance has ended: its pods end after its Deployment."""
        if workload.removed and not workload.records:
            del self._workloads[workload.name]
            self._cluster.background.begin(workload.close())

    def _adopt_pod(self, pod: PodFacts) -> Instance | None:
        """Adopt a pod that another process bound to an instance; None if it is already known, or not adoptable."""
        spec, version = self._known.get(pod.key, (None, 0))
        if pod.instance is None or spec is None or pod.instance in self._records or pod.instance in self._ended_here:
            return None
        if not adoptable(pod, version) or (pod.node is None and not self.leads):
            return None
        instance, request = adopted(pod, spec, self._cluster.clock.now_s())
        workload = self._workload(spec.key)
        record = self._record(instance, request, threads_known=False)
        # A node may not have applied a resize yet: its cores are then on their way.
        record.request_cores(request.cores)
        workload.add(record)
        workload.pod_changed(pod, pod.name)
        if self._coordinators is not None:
            self._coordinators.body_found(pod.node)
        return instance

    # Functions

    def contents(self) -> set[str]:
        """The empty set: builds on this machine are in no pod."""
        return set()

    def check(self, spec: FunctionSpec) -> None:
        """Raise if Kubernetes would never take this function: its labels, annotations, constraints, resources, process."""
        if spec.env_process and not spec.env_process.strip():
            raise bad_request("process_missing", f"{spec.key} sets fprocess, but names none.", "Name it, or leave it out.")
        deployment(spec, 1, self._options.pods)

    def revision(self, spec: FunctionSpec) -> str:
        """The image's name and a digest of the pod template: a function with another revision needs new pods.

        Existing pods do not get a new node selector or probe. Kubernetes resolves the image's name.
        """
        with suppress(GnomonError):  # another provider's deployment may be invalid for us
            return f"{spec.image} {pod_digest(spec, self._options.pods)}"
        return spec.image

    async def prepare(self, spec: FunctionSpec) -> None:
        """Do nothing: a node pulls an image for its first pod."""

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        """None: only the image knows the model's inputs."""
        del spec
        return None

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """The profile of the function's model, also if another process leads or no node can make Shadows."""
        return None if self._options.models is None else self._options.models.profile(spec)

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[Instance, ...]:
        """Adopt the function's pods that an earlier process bound to instances, each as the same instance.

        While another process leads, follow also the pods that it binds later, up to this version.
        """
        self._known[spec.key] = spec, version
        workload = self._workload(spec.key)
        pods = sorted(self._cluster.pods_of(spec.key), key=lambda pod: (pod.created_at, pod.name))
        found = tuple(instance for pod in pods if (instance := self._adopt_pod(pod)) is not None)
        if not self.leads:
            workload.report_again(found)
        return found

    def scaling_conflict(self, function: str) -> GnomonError | None:
        """The error 409 `foreign_autoscaler` if another autoscaler targets the function's Deployment; else None."""
        return self._cluster.conflicts.scaling_conflict(parse_key(function))

    def watch_restarts(self, requested: Callable[[FunctionKey, int], None]) -> None:
        """Have `requested` called with the function and its version after a `kubectl rollout restart`."""
        self._restarts = requested

    def trouble(self, function: str) -> str:
        """The reason that Kubernetes gives for pods that do not start, or are not created; "" if there are none.

        Examples are ErrImagePull, no room (`Unschedulable`), and a quota (`FailedCreate`).
        """
        workload = self._workloads.get(function)
        if workload is None:
            return ""
        starting_some = [record for record in workload.records.values() if record.starting]
        found = next(
            (instance.pod.trouble for instance in starting_some if instance.pod is not None and instance.pod.trouble), ""
        )
        if found or all(instance.pod is not None for instance in starting_some):
            return found
        deployed = self._cluster.deployed(workload.key)
        return "" if deployed is None else deployed.failure

    def warn(self, function: str, reason: str, text: str) -> None:
        """Create an Event on the Deployment, and again when the cluster has expired it."""
        self._cluster.warn(parse_key(function), reason, text)

    def usage(self, function: str) -> Usage:
        """The memory of the instances by their limits; no CPU time, which the cluster's own metrics measure."""
        return Usage(0.0, sum(instance.memory_bytes for instance in self.instances(function)))

    # Instances

    def nodes(self) -> tuple[Node, ...]:
        """The nodes with their free capacity."""
        return self._cluster.capacity.nodes()

    def instances(self, function: str) -> tuple[Instance, ...]:
        workload = self._workloads.get(function)
        bodies = () if workload is None else tuple([record.instance for record in workload.records.values()])
        return bodies if self._coordinators is None else (*bodies, *self._coordinators.instances(function))

    async def create(self, request: InstanceRequest) -> Instance:
        """Start an instance in one more pod. The listener is notified of its further states.

        Kubernetes decides where the pod runs: the instance has no node until then. Without room it starts until there is some.
        """
        spec = request.spec
        self.check(spec)
        self._refuse_hindered(spec.key)
        instance_id = f"{spec.key.name}-{chance_of_secrets.token_hex(5)}"
        instance = starting(instance_id, request, "", spec.memory_bytes or 0, self._cluster.clock.now_s())
        self._workload(spec.key).add(self._record(instance, request))
        return instance

    async def destroy(self, instance_id: str) -> None:
        """End an instance: its pod gets the lowest deletion cost, and is removed. Unknown ids are ignored.

        While another process leads, that one does it, and this call is ignored.
        """
        if not self.leads or (self._shadows is not None and self._shadows.destroy(instance_id)):
            return
        record = self._records.get(instance_id)
        if record is not None and not record.stopping:
            self._workloads[record.instance.function].stop(record)

    async def resize(self, instance_id: str, cores: int) -> None:
        """Resize an instance's pod in place. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`, or a recent refusal by Kubernetes; the instance keeps its cores.

        """
        record = self._records.get(instance_id)
        if record is None or not record.living:
            return
        self._refuse_hindered(record.request.spec.key)
        if (refusal := record.refusal(cores, self._cluster.clock.now_s())) is not None:
            raise refusal
        node = record.instance.node
        # The pod's present request is not free; a pending resize is not counted yet. If the deployment sets CPU requests or
        # limits itself, its pods stay as they are.
        if record.sized_cores is not None and record.pod is not None and node:
            more = cores - record.pod.cores
            if more > 0 and self._cluster.capacity.free_cores(node) < more:
                raise GnomonError(
                    503, "no_capacity", f"Node {node} has fewer than {more} free cores for {instance_id}.", "Request fewer."
                )
        record.request_cores(cores)
        self._workloads[record.instance.function].trigger()

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        """Start a Shadow in the pool of the Body's node, or of the node that the pair names if the function may run there.

        Raises:
            GnomonError: 409 `no_such_body` if no coordinator knows the Body, 404 `no_such_node`, 503 `no_capacity`, `no_pool`,
                `node_unreachable`.

        """
        if self._shadows is None:
            text = f"{body_id} has no node coordinator: none is configured."
            raise GnomonError(409, "no_such_body", text, "Choose a policy that needs no Shadows.")
        return await self._shadows.create(body_id, pair, f"{body_id}-s{chance_of_secrets.token_hex(3)}")

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Refuse promotion: a Body is a pod, and a Shadow a process in another pod."""
        raise GnomonError(409, "no_such_shadow", f"{shadow_id} cannot become a Body on Kubernetes.", "Create a Body.")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """Change a Shadow's cores, blocks or split. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`; 409 `no_such_blocks` for a remote Shadow. The Shadow is then unchanged.

        """
        if self._shadows is not None:
            await self._shadows.change(shadow_id, pair)

    def _refuse_hindered(self, key: FunctionKey) -> None:
        if (refusal := self._cluster.conflicts.scaling_conflict(key)) is not None:
            raise refusal


class PodBodies:
    """The `node_shadow.Bodies` of the functions' pods. `records` are the instances that have not ended."""

    def __init__(self, records: Mapping[str, InstanceRecord], listener: PlatformListener) -> None:
        self._records, self._listener = records, listener

    def of_instance(self, body_id: str) -> BodyPod | None:
        record = self._records.get(body_id)
        if record is None or record.stopping or record.pod is None or record.pod.node is None:
            return None
        return BodyPod(record.instance, record.request.spec, record.pod.uid, record.pod.node)

    def of_pod(self, uid: str) -> BodyPod | None:
        found = (record.instance.id for record in self._records.values() if record.pod is not None and record.pod.uid == uid)
        return self.of_instance(next(found, ""))

    def placing(self, body: BodyPod) -> Placing:
        return read_constraints(body.spec.constraints)

    def set_pairs(self, body_id: str, shadows: Mapping[str, Pair]) -> None:
        record = self._records.get(body_id)
        if record is not None and not record.gone:
            record.instance = record.instance.working_with(shadows)
            self._listener.pair_changed(record.instance)
