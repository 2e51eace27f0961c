"""Writes a plan to the API server: the ServerlessService, the status, the number of pods, and their cores.

Each write carries uid and resourceVersion, so that it does nothing to an object that has changed. Writes of the ServerlessService
and of the status are decided again from the present object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gnomon_platforms.knative.autoscaler.objects import Condition, Document, PaFacts, RevisionPod, ScaleTarget, sks_facts
from gnomon_platforms.knative.autoscaler.planning import Route, kept_annotations
from gnomon_platforms.knative.resources import POD_AUTOSCALERS, SERVERLESS_SERVICES
from gnomon_platforms.kubernetes.client import STRATEGIC_PATCH, Refused, Unreachable, told
from gnomon_platforms.kubernetes.conflicting_autoscalers import Rival, tell
from gnomon_platforms.kubernetes.events import warn
from gnomon_platforms.kubernetes.objects.quantities import cpu_quantity
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, PODS, SERVICES
from gnomon_platforms.kubernetes.writes import Create, Patch, Replace, Target, Write, Writer

BODIES_ALONE = "BodiesAlone"


class Steps:
    """Writes for Revisions."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def route(self, pa: PaFacts, route: Route) -> None:
        """Make the ServerlessService, or let it say this. One that somebody else owns is left alone.

        Raises:
            GnomonError: what the API server refuses.

        """
        wanted = serverless_service(pa, route)

        def decide(seen: Document | None) -> Write | None:
            if seen is None:
                return Create(wanted)
            if sks_facts(seen).owner_uid != pa.uid:
                return None
            metadata = {**seen["metadata"], **{name: wanted["metadata"][name] for name in ("labels", "annotations")}}
            changed = {**seen, "metadata": metadata, "spec": {**seen["spec"], **wanted["spec"]}}
            return None if changed == seen else Replace(changed)

        target = Target(SERVERLESS_SERVICES, pa.key.namespace, pa.key.name)
        await self._writer.settle(target, decide, f"route requests of {pa.key}")

    async def tell(self, pa: PaFacts, said: Callable[[Document], Mapping[str, Any] | None]) -> None:
        """Write the status that `said` makes of the PodAutoscaler as it is, None for no change.

        Raises:
            GnomonError: what the API server refuses.

        """

        def decide(seen: Document | None) -> Write | None:
            if seen is None or seen["metadata"]["uid"] != pa.uid:
                return None
            status = said(seen)
            return None if status is None or status == seen.get("status") else Replace({**seen, "status": dict(status)}, "status")

        await self._writer.settle(Target(POD_AUTOSCALERS, pa.key.namespace, pa.key.name), decide, f"tell how {pa.key} is scaled")

    async def scale(self, pa: PaFacts, seen: ScaleTarget, replicas: int) -> bool:
        """Set the replicas of the Revision's Deployment without a read first: a request may wait for it.

        The write is bound to the version that the number was decided from. False where there is another by now: news of it is on
        its way, and then it is decided anew from everything.

        Raises:
            GnomonError: what the API server refuses.

        """
        target = Target(DEPLOYMENTS, pa.key.namespace, str(pa.target.get("name") or ""))
        patch = Patch({"spec": {"replicas": replicas}}, "scale")
        return await self._at_once(target, patch, seen.uid, seen.version, f"scale {pa.key}")

    async def resize(self, pod: RevisionPod, cores: int) -> bool:
        """Give a pod's container other cores, in place. False where the pod is another by now: news of it is on its way.

        Raises:
            GnomonError: what the API server refuses.

        """
        quantity = cpu_quantity(cores)
        resources: Document = {"requests": {"cpu": quantity}, **({"limits": {"cpu": quantity}} if pod.limited else {})}
        changes = {"spec": {"containers": [{"name": pod.container, "resources": resources}]}}
        target = Target(PODS, pod.namespace, pod.name)
        return await self._at_once(target, Patch(changes, "resize", STRATEGIC_PATCH), pod.uid, pod.version, f"resize {pod.name}")

    async def alone(self, pa: PaFacts, seen: ScaleTarget, said: Condition) -> None:
        """Put an Event on the Deployment, that Bodies work alone. One for each reason, for as long as the cluster keeps it.

        Raises:
            GnomonError: what the API server refuses.

        """
        about = f"{seen.uid}-{BODIES_ALONE}-{said.reason}".lower()
        await warn(self._writer, pa.deployment, seen.uid, about=about, reason=BODIES_ALONE, text=said.message)

    async def say(self, seen: ScaleTarget, found: Rival) -> None:
        """Put an Event on the Deployment, that somebody else counts its pods.

        Raises:
            GnomonError: what the API server refuses.

        """
        await tell(self._writer, seen.uid, found)

    async def address(self, namespace: str, service: str) -> str | None:
        """The address of a Service inside of the cluster; None for one that is not there or has none.

        Raises:
            GnomonError: the API server could not be asked.

        """
        found = await self._writer.settle(Target(SERVICES, namespace, service), lambda _: None, "read a Service")
        address = ((found or {}).get("spec") or {}).get("clusterIP")
        return None if address in (None, "", "None") else str(address)

    async def _at_once(self, target: Target, patch: Patch, uid: str, version: str, doing: str) -> bool:
        """Send a change without reading the object again; whether it still was as it was seen."""
        try:
            await self._writer.write(target, patch, {"metadata": {"uid": uid, "resourceVersion": version}})
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused) and (error.conflict or error.missing):
                return False
            raise told(error, doing) from error
        return True


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
            "annotations": kept_annotations(pa),
            "ownerReferences": [owner],
        },
        "spec": {
            "mode": route.mode,
            "objectRef": dict(pa.target),
            "protocolType": pa.protocol,
            "numActivators": route.activators,
        },
    }
