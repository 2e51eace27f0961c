"""The endpoints of a batched Revision's public Service: the gateway's ready pods, in the place where Knative puts activators.

    route ▶ any ingress ▶ Service REVISION ▶ EndpointSlices ─┬─ the gateway's ready pods ▶ queue ▶ batch ▶ queue-proxy
                                                             └─ no gateway is ready: the addresses in Knative's Endpoints,
                                                                which are the Revision's pods, or activators

Knative writes the addresses of the public Service into Endpoints of the same name, and Kubernetes mirrors these into
EndpointSlices, which kube-proxy and ingresses read. Endpoints with the label `endpointslice.kubernetes.io/skip-mirror` are not
mirrored: Knative goes on writing them, and the EndpointSlices are ours. Every change of the addresses is one write of one slice,
so a reader sees the old addresses or the new ones.

    a Revision batches         our slice is written ▶ the Endpoints get the label ▶ Kubernetes removes its own slice
    it batches no longer       the label is removed ▶ Kubernetes mirrors again ▶ a second later our slice is deleted

Before the last pod of a Revision ends, `proxied` asks its public Service who answers: an activator or the gateway, which hold
requests, or still a pod. It sends the headers by which Knative's data plane knows a probe (`http/header` of
knative.dev/networking), so that nothing is woken. Each probe has a connection of its own, because kube-proxy chooses the endpoint
when a connection is made: one that was made a moment too early, and kept alive, would get the pod's answer for ever.

The gateway's pods listen on the port of queue-proxies and activators, because some ingresses take the port of the Service's
`targetPort` and not the port of the slice.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_core.addresses import http_url
from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.autoscaler.metrics import fetch
from gnomon_platforms.knative.autoscaler.objects import Document, PaFacts, RevisionPod
from gnomon_platforms.knative.resources import GATEWAY_PORT, POD_AUTOSCALERS
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.informer import Informer, Source
from gnomon_platforms.kubernetes.resources import ENDPOINT_SLICES, ENDPOINTS
from gnomon_platforms.kubernetes.writes import Create, Delete, Patch, Replace, Target, Write, Writer

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
MANAGED_BY_LABEL, MANAGER = "endpointslice.kubernetes.io/managed-by", "gnomon"
SKIP_MIRROR_LABEL = "endpointslice.kubernetes.io/skip-mirror"
PUBLIC_LABELS = {"networking.internal.knative.dev/serviceType": "Public"}
MIRRORED_AGAIN_S = 1.0
"""Seconds for Kubernetes to mirror the Endpoints again, before our slices are deleted."""

Ports = tuple[tuple[str, int], ...]

_LOG = logging.getLogger("gnomon.knative")


@dataclass(frozen=True, slots=True)
class Addresses:
    """The endpoints of a Service: IP addresses, and their common ports by name."""

    ips: tuple[str, ...]
    ports: Ports


@dataclass(frozen=True, slots=True)
class KnativeEndpoints:
    """The Endpoints that Knative writes for a public Service. `mirrored` is whether Kubernetes makes EndpointSlices of them."""

    addresses: Addresses
    mirrored: bool


@dataclass(frozen=True, slots=True)
class OwnSlice:
    """An EndpointSlice that we have written."""

    service: str
    addresses: Addresses


def knative_endpoints(document: Document) -> KnativeEndpoints:
    """Read Endpoints. Only ready addresses count."""
    labels = document["metadata"].get("labels") or {}
    ips: set[str] = set()
    ports: set[tuple[str, int]] = set()
    for subset in document.get("subsets") or ():
        ready = {str(address["ip"]) for address in subset.get("addresses") or ()}
        if ready:
            ips |= ready
            ports |= {(str(port.get("name") or ""), int(port["port"])) for port in subset.get("ports") or ()}
    return KnativeEndpoints(Addresses(tuple(sorted(ips)), tuple(sorted(ports))), labels.get(SKIP_MIRROR_LABEL) != "true")


def own_slice(document: Document) -> OwnSlice:
    """Read an EndpointSlice of ours."""
    ips = sorted(str(ip) for endpoint in document.get("endpoints") or () for ip in endpoint.get("addresses") or ())
    ports = sorted((str(port.get("name") or ""), int(port["port"])) for port in document.get("ports") or () if port.get("port"))
    service = str((document["metadata"].get("labels") or {}).get(SERVICE_NAME_LABEL, ""))
    return OwnSlice(service, Addresses(tuple(ips), tuple(ports)))


def public_addresses(gateways: Iterable[RevisionPod], knative: KnativeEndpoints) -> Addresses:
    """The endpoints for the public Service of a Revision that batches: ready gateways, else Knative's."""
    ready = {pod.ip for pod in gateways if pod.ready and not pod.ending and pod.ip}
    return Addresses(tuple(sorted(ready)), (("http", GATEWAY_PORT),)) if ready else knative.addresses


def slices(pa: PaFacts, addresses: Addresses) -> dict[str, Document]:
    """The EndpointSlices of a Revision's public Service by their names: one for each family of addresses."""
    families: dict[str, list[str]] = {}
    for ip in addresses.ips:
        families.setdefault(f"IPv{ipaddress.ip_address(ip).version}", []).append(ip)
    return {slice_name(pa.key, family): _manifest(pa, family, ips, addresses.ports) for family, ips in families.items()}


def slice_name(key: FunctionKey, family: str) -> str:
    """The name of our slice of a Revision for `IPv4` or `IPv6`."""
    return f"{key.name}-gnomon-{family.lower()}"


def _manifest(pa: PaFacts, family: str, ips: Iterable[str], ports: Ports) -> Document:
    owner = {"apiVersion": POD_AUTOSCALERS.api_version, "kind": POD_AUTOSCALERS.kind, "name": pa.key.name, "uid": pa.uid}
    ready = {"ready": True, "serving": True, "terminating": False}
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": {
            "name": slice_name(pa.key, family),
            "namespace": pa.key.namespace,
            "labels": {**pa.labels, **PUBLIC_LABELS, SERVICE_NAME_LABEL: pa.key.name, MANAGED_BY_LABEL: MANAGER},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "addressType": family,
        "endpoints": [{"addresses": [ip], "conditions": dict(ready)} for ip in ips],
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports],
    }


@dataclass(frozen=True, slots=True)
class SetSlices:
    """A step: our EndpointSlices of a Revision's public Service are these, by name."""

    pa: PaFacts
    slices: Mapping[str, Document]


@dataclass(frozen=True, slots=True)
class SetMirroring:
    """A step: have Kubernetes mirror Knative's Endpoints into EndpointSlices, or not."""

    pa: PaFacts
    mirrored: bool


class PublicEndpoints:
    """The public Services of all Revisions. `gateways` are the gateway's pods."""

    def __init__(self, api: Api, writer: Writer, namespace: str | None, gateways: Informer[RevisionPod], clock: Clock) -> None:
        self._writer, self._gateways, self._clock = writer, gateways, clock
        public = ",".join(f"{name}={value}" for name, value in PUBLIC_LABELS.items())
        self.knative: Informer[KnativeEndpoints] = Informer(api, Source(ENDPOINTS, namespace, labels=public), knative_endpoints)
        self.own: Informer[OwnSlice] = Informer(
            api, Source(ENDPOINT_SLICES, namespace, labels=f"{MANAGED_BY_LABEL}={MANAGER}"), own_slice
        )
        self._mirrored_since_s: dict[FunctionKey, float] = {}
        """The time at which the label of each Revision that no longer batches was first observed to be gone."""

    def plan(self, pa: PaFacts, *, batches: bool) -> tuple[list[SetSlices | SetMirroring], float | None]:
        """The next steps for a Revision's public Service, and the seconds until the next plan; None if only an event matters.

        The label changes only after the slices that it makes public were observed, and before they are deleted: so there are
        always endpoints.
        """
        knative = self.knative.get(pa.key.namespace, pa.key.name)
        if knative is None:
            return [], None
        if not batches:
            return self._leave_to_knative(pa, knative)
        self._mirrored_since_s.pop(pa.key, None)
        desired = public_addresses(self._gateways.values(), knative)
        if not desired.ips:
            return [], None
        if self._differ(pa.key, desired):
            return [SetSlices(pa, slices(pa, desired))], None
        return [SetMirroring(pa, mirrored=False)] if knative.mirrored else [], None

    async def execute(self, step: SetSlices | SetMirroring) -> None:
        """Take a step.

        Raises:
            GnomonError: what the API server refuses.

        """
        if isinstance(step, SetSlices):
            await self._write(step.pa, step.slices)
            return
        await self._label(step.pa, None if step.mirrored else "true")
        if step.mirrored:
            _LOG.info("%s: the public Service has Knative's endpoints", step.pa.key)
        else:
            _LOG.info("%s: the public Service has the gateway's endpoints, or Knative's while no gateway is ready", step.pa.key)

    async def release(self, pa: PaFacts) -> None:
        """Leave the Service to Knative although the Revision batches: it is of another class by now.

        Raises:
            GnomonError: what the API server refuses.

        """
        self._mirrored_since_s.pop(pa.key, None)
        await self._label(pa, None)
        await self._clock.sleep(MIRRORED_AGAIN_S)
        await self._write(pa, {})

    def _leave_to_knative(self, pa: PaFacts, knative: KnativeEndpoints) -> tuple[list[SetSlices | SetMirroring], float | None]:
        """Have Kubernetes mirror Knative's Endpoints again, then delete our slices."""
        if not knative.mirrored:
            return [SetMirroring(pa, mirrored=True)], MIRRORED_AGAIN_S
        if not self._slices_of(pa.key):
            self._mirrored_since_s.pop(pa.key, None)
            return [], None
        now_s = self._clock.now_s()
        left_s = self._mirrored_since_s.setdefault(pa.key, now_s) + MIRRORED_AGAIN_S - now_s
        return ([], left_s) if left_s > 0.0 else ([SetSlices(pa, {})], None)

    def _slices_of(self, key: FunctionKey) -> dict[str, OwnSlice]:
        names = (slice_name(key, family) for family in ("IPv4", "IPv6"))
        found = {name: self.own.get(key.namespace, name) for name in names}
        return {name: endpoint_slice for name, endpoint_slice in found.items() if endpoint_slice is not None}

    def _differ(self, key: FunctionKey, desired: Addresses) -> bool:
        """True if our slices are not these addresses."""
        observed = self._slices_of(key).values()
        ips = sorted(ip for endpoint_slice in observed for ip in endpoint_slice.addresses.ips)
        return ips != list(desired.ips) or any(endpoint_slice.addresses.ports != desired.ports for endpoint_slice in observed)

    async def _write(self, pa: PaFacts, desired: Mapping[str, Document]) -> None:
        """Write these EndpointSlices of the Revision and delete others; new ones are written before old ones are deleted."""
        for name in [*desired, *(name for name in self._slices_of(pa.key) if name not in desired)]:
            manifest = desired.get(name)

            def decide(current: Document | None, manifest: Document | None = manifest) -> Write | None:
                if manifest is None:
                    return None if current is None else Delete()
                if current is None:
                    return Create(manifest)
                replacement = {**current, **{part: manifest[part] for part in ("endpoints", "ports")}}
                replacement["metadata"] = {
                    **current["metadata"],
                    **{part: manifest["metadata"][part] for part in ("labels", "ownerReferences")},
                }
                return None if replacement == current else Replace(replacement)

            target = Target(ENDPOINT_SLICES, pa.key.namespace, name)
            await self._writer.settle(target, decide, f"lead the Service of {pa.key}")

    async def _label(self, pa: PaFacts, value: str | None) -> None:
        """Set or remove the label by which Kubernetes does not mirror the Endpoints."""

        def decide(current: Document | None) -> Write | None:
            if current is None or (current["metadata"].get("labels") or {}).get(SKIP_MIRROR_LABEL) == value:
                return None
            changes: dict[str, Any] = {"metadata": {"labels": {SKIP_MIRROR_LABEL: value}}}
            return Patch(changes)

        target = Target(ENDPOINTS, pa.key.namespace, pa.key.name)
        await self._writer.settle(target, decide, f"lead the Service of {pa.key}")


HEADERS = {"K-Network-Probe": "activator", "User-Agent": "Knative-Autoscaling-Probe"}
ANSWERS = (b"activator", b"gnomon-gateway")
"""The answers of what holds requests until a pod is ready: activators, and the gateway in their place."""
PORTS = {"http1": 80, "h2c": 81}
PROBE_TIMEOUT_S = 1.0
PROBE_MOST_BYTES = 1024


async def proxied(address: str, protocol: str) -> bool:
    """True if an activator or the gateway has answered at a Service's address."""
    import aiohttp  # noqa: PLC0415 - only who runs a cluster's autoscaler needs it

    url = http_url(address, PORTS.get(protocol, 80), "/healthz")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), trust_env=False) as session:
        answer = await fetch(session, url, most_bytes=PROBE_MOST_BYTES, timeout_s=PROBE_TIMEOUT_S, headers=HEADERS)
    return answer is not None and answer.strip() in ANSWERS
