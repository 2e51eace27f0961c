"""Writes the steps of a plan to the API server.

Each step is decided again from the present object when it is sent, and does nothing if the object was replaced meanwhile.

`furnish` creates a function's dependents: a Service, a Secret with the token of its batch route, and a PodDisruptionBudget. They
are owned by the Deployment, so that Kubernetes removes them with it. They are created once; an existing token is kept, because
running pods know no other.

`with_pull_secrets` finds the pull secrets among a function's secrets. OpenFaaS's users name them in `secrets:` like any other
(`kubectl create secret docker-registry`); the Secret's type says that it is for the kubelet. It is not mounted.
"""

from __future__ import annotations

import base64
import secrets as chance_of_tokens
from dataclasses import replace

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_platforms.kubernetes.client import STRATEGIC_PATCH, Document, Refused
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.manifests import (
    batch_token,
    changed_metadata,
    deployment,
    disruption_budget,
    owned_by,
    rolling_update,
    service,
)
from gnomon_platforms.kubernetes.objects.names import (
    DELETION_COST,
    INSTANCE_ANNOTATION,
    MANAGED_LABEL,
    REMOVED_ANNOTATION,
    TOKEN_KEY,
    VERSION_LABEL,
    token_secret,
)
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.objects.pods import whole
from gnomon_platforms.kubernetes.objects.quantities import cpu_quantity
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, SECRETS, SERVICES, Resource
from gnomon_platforms.kubernetes.writes import PATIENCE_S, Create, Decide, Delete, Patch, Replace, Target, Write, Writer
from gnomon_platforms.openfaas.planning import (
    BOUND_COST,
    VICTIM_COST,
    Bind,
    Deploy,
    Furnish,
    Mark,
    Remove,
    Resize,
    Scale,
    SetUnavailable,
    Step,
    Withdraw,
)

TOKEN_BYTES = 32
CONFLICT = 409


async def furnish(writer: Writer, spec: FunctionSpec, deployed: Document, *, timeout_s: float = PATIENCE_S) -> None:
    """Create the missing dependents of a function whose Deployment this is.

    Raises:
        GnomonError: what the API server refuses; 409 `kubernetes_conflict` while a removed predecessor's still exist.

    """
    token = batch_token(spec.key, chance_of_tokens.token_hex(TOKEN_BYTES))
    for resource, manifest in ((SECRETS, token), (SERVICES, service(spec)), (DISRUPTION_BUDGETS, disruption_budget(spec))):
        owned = owned_by(manifest, deployed)
        target = Target(resource, spec.key.namespace, manifest["metadata"]["name"])
        action = f"make the {resource.kind} of {spec.key}"
        await writer.settle(target, _made_once(owned), action, timeout_s=timeout_s)


def _made_once(manifest: Document) -> Decide:
    [owner] = manifest["metadata"]["ownerReferences"]

    def decide(current: Document | None) -> Write | None:
        if current is None:
            return Create(manifest)
        metadata = current["metadata"]
        owners = {reference["uid"] for reference in metadata.get("ownerReferences") or ()}
        if owner["uid"] in owners or MANAGED_LABEL not in (metadata.get("labels") or {}):
            return None
        raise Refused(CONFLICT, "Conflict", f"{metadata['name']} goes with a function of this name that was removed a moment ago")

    return decide


LOGINS = frozenset({"kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"})


async def with_pull_secrets(writer: Writer, spec: FunctionSpec, options: PodOptions) -> PodOptions:
    """The operator's pod options with the pull secrets that this function names. A missing Secret is no pull secret.

    Raises:
        GnomonError: the API server is unreachable.

    """
    found = []
    for name in spec.secrets:
        current = await writer.settle(Target(SECRETS, spec.key.namespace, name), lambda _: None, f"read the secret {name}")
        if current is not None and current.get("type") in LOGINS and name not in options.pull_secrets:
            found.append(name)
    return replace(options, pull_secrets=(*options.pull_secrets, *found))


class Steps:
    """Writes the steps of one function's plans. With `stored`, a function store creates Deployments, and not this class."""

    def __init__(self, writer: Writer, key: FunctionKey, options: PodOptions, *, stored: bool = False) -> None:
        self._writer, self._key, self._options, self._stored = writer, key, options, stored
        self._furnished_uid = ""
        """The uid of the Deployment whose dependents are known to exist."""
        self._tokens: dict[str, str] = {}
        """The token of the batch route, by the uid of the Deployment that it belongs to."""

    async def take(
        self, step: Step, spec: FunctionSpec | None, version: int, deployed: DeployedFunction | None = None
    ) -> int | None:
        """Write a step; for `Deploy` return the Deployment's generation. `spec` is needed for `Deploy` and `Furnish`.

        `deployed` is the Deployment that the step was decided from.

        Raises:
            GnomonError: what the API server refuses; 404 `function_removed` if the store has the function no longer.

        """
        match step:
            case Deploy():
                assert spec is not None, "a step that waits for a pod has a deployment"
                return await self.deploy(spec, version, step.replicas)
            case Furnish():
                await self._furnish(spec, deployed)
            case Scale():
                await self._scale(step.replicas, deployed)
            case SetUnavailable():
                await self._set_unavailable(step.pods)
            case Withdraw():
                await self.remove()
            case _:
                await self._writer.settle(Target(PODS, step.pod.namespace, step.pod.name), _of_pod(step), "look after its pods")
        return None

    async def deploy(self, spec: FunctionSpec, version: int, replicas: int) -> int:
        """Create a function's objects, or set its Deployment's template and replicas; the Deployment's generation.

        Annotations and labels, which define the function, are those of the newest version: an instance of an earlier version does
        not overwrite them.

        Raises:
            GnomonError: 400 for what Kubernetes would refuse; what the API server refuses; 404 `function_removed`.

        """
        desired = deployment(spec, version, await with_pull_secrets(self._writer, spec, self._options), replicas=replicas)

        def decide(current: Document | None) -> Write | None:
            if current is None:
                if self._stored:
                    raise GnomonError(404, "function_removed", f"{spec.key} was removed.", "Deploy it again.")
                return Create(desired)
            metadata = current["metadata"]
            if whole((metadata.get("labels") or {}).get(VERSION_LABEL)) < version:
                metadata = changed_metadata(metadata, desired["metadata"])
            return Replace({**current, "metadata": metadata, "spec": desired["spec"]})

        written = await self._writer.settle(self._target(DEPLOYMENTS), decide, f"deploy {spec.key}")
        assert written is not None
        await furnish(self._writer, spec, written)
        self._furnished_uid = written["metadata"]["uid"]
        return int(written["metadata"].get("generation", 0))

    def furnished(self, deployed: DeployedFunction) -> bool:
        """True if the dependents of this Deployment are known to exist."""
        return self._furnished_uid == deployed.uid

    async def _furnish(self, spec: FunctionSpec | None, deployed: DeployedFunction | None) -> None:
        """Create missing dependents of this Deployment: removed by a user, or not created before an earlier process was killed.

        Raises:
            GnomonError: what the API server refuses.

        """
        if spec is None or deployed is None:
            return
        target = self._target(DEPLOYMENTS)
        found = await self._writer.settle(target, lambda _: None, f"look at the Deployment of {self._key}")
        if found is not None:
            await furnish(self._writer, spec, found)
        self._furnished_uid = deployed.uid

    async def token(self, deployed: DeployedFunction | None) -> str:
        """The token of the function's batch route, read once for this Deployment.

        Raises:
            GnomonError: the API server is unreachable; 503 `token_missing`.

        """
        uid = "" if deployed is None else deployed.uid
        if uid not in self._tokens:
            target = Target(SECRETS, self._key.namespace, token_secret(self._key))
            found = await self._writer.settle(target, lambda _: None, "read the token of a function's batch route")
            if found is None:
                raise GnomonError(503, "token_missing", f"{self._key} has no token for its batch route.", "Deploy it again.")
            self._tokens = {uid: base64.b64decode(found["data"][TOKEN_KEY]).decode()}
        return self._tokens[uid]

    async def remove(self) -> None:
        """Delete the Deployment of a removed function, and with it all its dependents.

        Raises:
            GnomonError: what the API server refuses.

        """

        def decide(current: Document | None) -> Write | None:
            # The function may have been deployed again meanwhile.
            gone = current is None or REMOVED_ANNOTATION not in (current["metadata"].get("annotations") or {})
            return None if gone else Delete()

        await self._writer.settle(self._target(DEPLOYMENTS), decide, f"remove {self._key}")

    async def _set_unavailable(self, pods: int) -> None:
        def decide(current: Document | None) -> Write | None:
            strategy = rolling_update(pods)
            if current is None or current["spec"].get("strategy") == strategy:
                return None
            return Replace({**current, "spec": {**current["spec"], "strategy": strategy}})

        await self._writer.settle(self._target(DEPLOYMENTS), decide, f"change the rolling update of {self._key}")

    async def _scale(self, replicas: int, deployed: DeployedFunction | None) -> None:
        def decide(current: Document | None) -> Write | None:
            if current is None or current["spec"].get("replicas") == replicas:
                return None
            return Patch({"spec": {"replicas": replicas}}, "scale")

        cached: Document | None = None
        if deployed is not None:
            metadata = {"uid": deployed.uid, "resourceVersion": deployed.resource_version}
            cached = {"metadata": metadata, "spec": {"replicas": deployed.replicas}}
        await self._writer.settle(self._target(DEPLOYMENTS), decide, f"scale {self._key}", cached=cached)

    def _target(self, resource: Resource) -> Target:
        return Target(resource, self._key.namespace, self._key.name)


def _of_pod(step: Bind | Resize | Mark | Remove) -> Decide:
    """The decision that writes a step to its pod."""

    def decide(current: Document | None) -> Write | None:
        if current is None or current["metadata"]["uid"] != step.pod.uid or "deletionTimestamp" in current["metadata"]:
            return None
        match step:
            case Bind():
                return _bound(current, step)
            case Resize():
                return _resized(current, step.cores)
            case Mark():
                return _annotated(current, {DELETION_COST: str(VICTIM_COST)})
        return Delete()

    return decide


def _bound(current: Document, step: Bind) -> Write | None:
    """Bind a pod to an instance, unless the pod's binding has changed since the plan."""
    had = (current["metadata"].get("annotations") or {}).get(INSTANCE_ANNOTATION)
    if had != step.pod.instance:
        return None
    return _annotated(current, {INSTANCE_ANNOTATION: step.instance, DELETION_COST: str(BOUND_COST)})


def _resized(current: Document, cores: int) -> Write:
    container = next(
        container
        for container in current["spec"]["containers"]
        if container["name"] == current["metadata"]["labels"]["faas_function"]
    )
    given = container.get("resources") or {}
    quantity = cpu_quantity(cores)
    resources: Document = {"requests": {"cpu": quantity}}
    if "cpu" in (given.get("limits") or {}):
        resources["limits"] = {"cpu": quantity}
    changes = {"spec": {"containers": [{"name": container["name"], "resources": resources}]}}
    return Patch(changes, "resize", STRATEGIC_PATCH)


def _annotated(current: Document, annotations: dict[str, str]) -> Write | None:
    given = current["metadata"].get("annotations") or {}
    return None if annotations.items() <= given.items() else Patch({"metadata": {"annotations": annotations}})
