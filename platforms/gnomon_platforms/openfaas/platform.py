"""The platform `openfaas`: instances are pods of a function's Deployment, placed by Gnomon, reached at their own addresses.

    create ▶ capacity on a node ▶ a pod of the Deployment is claimed ▶ scheduled ▶ healthy ▶ batches go to its port 8080

State comes from informers; writes have preconditions; each function has one task (`workloads`). Pods outlive the gateway: when
it stops they serve on, and the next gateway adopts them. During its first minute, it assigns them to instances again; then it
removes those that it does not need.

Shadows are not pods: the coordinator of a Body's node creates them (`gnomon_platforms.nodes`), if one is connected.
"""

from __future__ import annotations

import math
import secrets as chance_of_secrets
from collections.abc import Callable
from contextlib import suppress

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec, parse_key
from gnomon_core.interfaces import Capabilities, InstanceRequest, Usage
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_platforms.common import starting
from gnomon_platforms.kubernetes.nodes import choose, given_to
from gnomon_platforms.kubernetes.objects.manifests import deployment
from gnomon_platforms.kubernetes.objects.placing import read_constraints
from gnomon_platforms.kubernetes.objects.pod_template import pod_digest
from gnomon_platforms.openfaas.events import NO_CAPACITY
from gnomon_platforms.openfaas.fleet import Fleet


class OpenFaasPlatform(Fleet):
    """See `gnomon_core.interfaces.Platform`."""

    name = "openfaas"

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities: sizes if the cluster can resize pods; pairs on nodes with `Node.pairs`, which may be none now.

        A Shadow is never promoted: a Body is a pod.
        """
        return Capabilities(place=True, size=self._resizes, victim=True, resize=self._resizes, pair=True)

    def contents(self) -> set[str]:
        """The empty set: builds on this machine are in no pod."""
        return set()

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[Instance, ...]:
        """Adopt the function's pods that an earlier process bound to instances, each as the same instance.

        While another process leads, follow also the pods that it binds later, up to this version.
        """
        assert self._listener is not None
        self._known[spec.key] = spec, version
        workload = self._workload(spec.key)
        pods = sorted(self._pods_of(spec.key), key=lambda pod: (pod.created_at, pod.name))
        found = tuple(instance for pod in pods if (instance := self._find(pod)) is not None)
        if not self.leads:
            workload.tell_again(found)
        return found

    def hindrance(self, function: str) -> GnomonError | None:
        """The error 409 `foreign_autoscaler` if another autoscaler targets the function's Deployment; else None."""
        return self._rivals.hindrance(parse_key(function))

    def watch_restarts(self, told: Callable[[FunctionKey, int], None]) -> None:
        """See `gnomon_core.interfaces.Restartable`: `kubectl rollout restart`, and each change of a template by others."""
        self._restarts = told

    def trouble(self, function: str) -> str:
        """See `gnomon_core.interfaces.Explains`: what Kubernetes says of pods that do not start, such as ErrImagePull."""
        workload = self._workloads.get(function)
        lives = () if workload is None else tuple(workload.lives.values())
        pods = (life.pod for life in lives if life.instance.state is InstanceState.STARTING)
        return next((pod.trouble for pod in pods if pod is not None and pod.trouble), "")

    def warn(self, function: str, reason: str, text: str) -> None:
        """See `gnomon_core.interfaces.Warns`: an Event on the Deployment, created again when the cluster has expired it."""
        self._warnings.say(parse_key(function), reason, text)

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

    def instances(self, function: str) -> tuple[Instance, ...]:
        workload = self._workloads.get(function)
        bodies = () if workload is None else tuple([life.instance for life in workload.lives.values()])
        return bodies if self._coordinators is None else (*bodies, *self._coordinators.instances(function))

    async def create(self, request: InstanceRequest) -> Instance:
        """Start an instance: choose its node, then bind a pod. The listener is notified of its further states."""
        assert self._listener is not None
        assert self._around is not None
        spec = request.spec
        self.check(spec)
        self._refuse_hindered(spec.key)
        allowed = self._ledger.taking(read_constraints(spec.constraints))
        # A pod starts with the function's cores and is resized to fewer only when it runs: it must fit with the larger number.
        born = given_to(spec, max(request.cores, spec.settings.cores))
        try:
            node = choose(self._ledger.rooms(), allowed, born, request.node)
        except GnomonError as refusal:
            self._warnings.say(spec.key, NO_CAPACITY, refusal.message)
            raise
        instance_id = f"{spec.key.name}-{chance_of_secrets.token_hex(5)}"
        self._ledger.give(instance_id, given_to(spec, request.cores, node))
        instance = starting(instance_id, request, node, spec.memory_bytes or 0, self._clock.now_s())
        workload = self._workload(spec.key)
        workload.add(self._life_of(instance, request))
        return instance

    async def destroy(self, instance_id: str) -> None:
        """End an instance: its pod is made unready, gets the lowest deletion cost, and is removed. Unknown ids are ignored.

        While another process leads, that one does it, and this call is ignored.
        """
        if not self.leads:
            return
        if (
            self._coordinators is not None
            and self._coordinators.shadows is not None
            and self._coordinators.shadows.destroy(instance_id)
        ):
            return
        life = self._lives.get(instance_id)
        if life is not None and not life.stopping:
            self._workloads[life.instance.function].stop(life)

    async def resize(self, instance_id: str, cores: int) -> None:
        """Resize an instance's pod in place. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`, or a recent refusal by Kubernetes; the instance keeps its cores.

        """
        life, given = self._lives.get(instance_id), self._ledger.given(instance_id)
        if life is None or given is None or not life.living:
            return
        self._refuse_hindered(life.request.spec.key)
        if (refusal := life.refusal(cores, self._clock.now_s())) is not None:
            raise refusal
        # If the deployment sets CPU requests or limits itself, the reservation stays as it is.
        wanted = float(cores) if math.isclose(given.cores, life.request.cores) else given.cores
        node = next((node for node in self.nodes() if node.name == given.node), None)
        if node is None or node.free_cores < wanted - given.cores:
            raise GnomonError(
                503, "no_capacity", f"Node {given.node} has no {wanted:g} cores for {instance_id}.", "Ask for fewer."
            )
        self._ledger.resize(instance_id, wanted)
        life.give(cores)
        self._workloads[life.instance.function].look()

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        """Start a Shadow in the pool of the Body's node, or of the node that the pair names if the function may run there.

        Raises:
            GnomonError: 409 `no_such_body` if no coordinator knows the Body, 404 `no_such_node`, 503 `no_capacity`, `no_pool`,
                `node_unreachable`.

        """
        if self._coordinators is None or self._coordinators.shadows is None:
            text = f"{body_id} works with no coordinator."
            raise GnomonError(409, "no_such_body", text, "Choose a policy that needs no Shadows.")
        return await self._coordinators.shadows.create(body_id, pair, f"{body_id}-s{chance_of_secrets.token_hex(3)}")

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Refuse promotion: a Body is a pod, and a Shadow a process in another pod."""
        raise GnomonError(409, "no_such_shadow", f"{shadow_id} cannot become a Body on Kubernetes.", "Create a Body.")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """Change a Shadow's cores, blocks or split. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`; 409 `no_such_blocks` for a remote Shadow. The Shadow is then unchanged.

        """
        if self._coordinators is not None and self._coordinators.shadows is not None:
            await self._coordinators.shadows.change(shadow_id, pair)

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """The profile of the function's model, also if another process leads or no node can make Shadows."""
        return None if self._options.models is None else self._options.models.profile(spec)

    def usage(self, function: str) -> Usage:
        """The memory of the instances by their limits; no CPU time, which the cluster's own metrics measure."""
        return Usage(0.0, sum(instance.memory_bytes for instance in self.instances(function)))
