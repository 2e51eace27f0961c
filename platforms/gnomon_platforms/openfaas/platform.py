"""The platform `openfaas`: instances are pods of a function's Deployment, placed by us, reached at their own addresses.

    create ▶ room on a node ▶ a pod of the function's Deployment is claimed ▶ scheduled ▶ healthy ▶ batches go to its port 8080

What is seen comes from informers; what is written is bound to what it was decided from; each function has one task
(`workloads`). Pods outlive the gateway: one that stops leaves them serving, and the next one adopts them. Those that it has no
use for go after the first minute, until when they are given out again.

Shadows are no pods: the coordinator of a Body's node makes them (`gnomon_platforms.nodes`), where one is connected.
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
        """Sizes where the cluster resizes pods; pairs on the nodes that say so (`Node.pairs`), which may be none now.

        A Shadow never becomes a Body, which is a pod.
        """
        return Capabilities(place=True, size=self._resizes, victim=True, resize=self._resizes, pair=True)

    def contents(self) -> set[str]:
        """Nothing: what was built on this machine is in no pod."""
        return set()

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[Instance, ...]:
        """Look after the function's pods that an earlier process gave to instances, each as the instance that it was.

        While another process leads, also after those that it will give to instances, up to this version.
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
        """Why its pods are not ours to count: 409 `foreign_autoscaler`."""
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
        """See `gnomon_core.interfaces.Warns`: an Event on the Deployment, again when the cluster has forgotten it."""
        self._warnings.say(parse_key(function), reason, text)

    def check(self, spec: FunctionSpec) -> None:
        """Raise if Kubernetes would never take this function: its labels, annotations, constraints, resources, process."""
        if spec.env_process and not spec.env_process.strip():
            raise bad_request("process_missing", f"{spec.key} sets fprocess, but names none.", "Name it, or leave it out.")
        deployment(spec, 1, self._options.pods)

    def revision(self, spec: FunctionSpec) -> str:
        """The image's name, whose meaning is Kubernetes' to know, and what else its pods are made of.

        A new node selector or probe is seen by new pods only.
        """
        with suppress(GnomonError):  # what another provider has deployed may be odd
            return f"{spec.image} {pod_digest(spec, self._options.pods)}"
        return spec.image

    async def prepare(self, spec: FunctionSpec) -> None:
        """Nothing is to be prepared: a node pulls an image when its first pod comes."""

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        """None: what a model takes is known to its image."""
        del spec
        return None

    def instances(self, function: str) -> tuple[Instance, ...]:
        workload = self._workloads.get(function)
        bodies = () if workload is None else tuple([life.instance for life in workload.lives.values()])
        return bodies if self._coordinators is None else (*bodies, *self._coordinators.instances(function))

    async def create(self, request: InstanceRequest) -> Instance:
        """Begin an instance: it gets a node, then a pod. What follows is told to the listener."""
        assert self._listener is not None
        assert self._around is not None
        spec = request.spec
        self.check(spec)
        self._refuse_hindered(spec.key)
        allowed = self._ledger.taking(read_constraints(spec.constraints))
        # A pod is born with the cores that the function says, and has fewer only when it runs: it must fit with those.
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
        """End an instance: its pod is made unready, the first to go, and removed. Unknown ids are ignored.

        So are all while another process leads, which does it.
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
        """Give an instance's pod other cores, in place. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`, or what Kubernetes has refused a moment ago; it keeps what it has.

        """
        life, given = self._lives.get(instance_id), self._ledger.given(instance_id)
        if life is None or given is None or not life.living:
            return
        self._refuse_hindered(life.request.spec.key)
        if (refusal := life.refusal(cores, self._clock.now_s())) is not None:
            raise refusal
        # A claim by request or limit stays what the deployment says.
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
        """Begin a Shadow in the pool of the Body's node, or of the one that the pair names where the function may be there.

        Raises:
            GnomonError: 409 `no_such_body` where no coordinator knows the Body, 404 `no_such_node`, 503 `no_capacity`, `no_pool`,
                `node_unreachable`.

        """
        if self._coordinators is None or self._coordinators.shadows is None:
            text = f"{body_id} works with no coordinator."
            raise GnomonError(409, "no_such_body", text, "Choose a policy that needs no Shadows.")
        return await self._coordinators.shadows.create(body_id, pair, f"{body_id}-s{chance_of_secrets.token_hex(3)}")

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Refused: a Body is a pod, and a Shadow a process in another one."""
        raise GnomonError(409, "no_such_shadow", f"{shadow_id} cannot become a Body on Kubernetes.", "Create a Body.")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """Let a Shadow do something else. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity`; 409 `no_such_blocks` for one on another node than its Body. It keeps what it has.

        """
        if self._coordinators is not None and self._coordinators.shadows is not None:
            await self._coordinators.shadows.change(shadow_id, pair)

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """What was measured of the function's model, whoever leads and whatever nodes can do."""
        return None if self._options.models is None else self._options.models.profile(spec)

    def usage(self, function: str) -> Usage:
        """What instances hold by their limits. What they use is measured by the cluster's metrics."""
        return Usage(0.0, sum(instance.memory_bytes for instance in self.instances(function)))
