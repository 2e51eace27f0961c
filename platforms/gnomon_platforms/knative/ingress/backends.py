"""Who serves: Services and EndpointSlices, made into backends with addresses and a protocol.

    a Service with slices     its ready endpoints at the port that is asked for, so that each request is balanced by itself;
                              where none is ready, those that are ending and still serve, as kube-proxy does
    an ExternalName           of another Service of the cluster: that one's own address; of an IP address: that one
    a Revision that batches   the gateway, while anybody is ready there; else it is a Service as any other

The protocol is h2c where the Service's port says so by `appProtocol` or by its name `http2`, as Knative does, else HTTP/1.1.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gnomon_core.addresses import host_and_port
from gnomon_core.errors import bad_request
from gnomon_platforms.knative.ingress.model import BackendRef, Key, Split
from gnomon_platforms.knative.ingress.names import (
    H2C,
    H2C_PORT,
    NAMESPACE_HEADER,
    REVISION_HEADER,
    SERVICE_LABEL,
)

GATEWAY = "gateway"


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """An IP address and a port."""

    ip: str
    port: int

    def __post_init__(self) -> None:
        ipaddress.ip_address(self.ip)
        if not 0 < self.port <= 2**16 - 1:
            msg = f"{self.port} is not a port"
            raise ValueError(msg)

    def __str__(self) -> str:
        return host_and_port(self.ip, self.port)


@dataclass(frozen=True, slots=True)
class Backend:
    """Who serves what is known as `key`. Without endpoints it answers 503."""

    key: str
    h2c: bool
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Service."""

    name: str
    port: int
    h2c: bool


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What is kept of a Service."""

    key: Key
    ports: tuple[ServicePort, ...]
    external_name: str = ""
    cluster_ip: str = ""


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """What is kept of an EndpointSlice: ports by name, the ready addresses, and those that are ending and still serve."""

    service: Key
    ports: tuple[tuple[str, int], ...]
    addresses: tuple[str, ...]
    ending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where requests to Revisions that batch go; nowhere leaves them to the Revisions. Their names come with them in headers."""

    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayPlace:
    """Where the gateway is: an address, or a Service with the number of its port."""

    endpoint: Endpoint | None = None
    service: Key = ("", "")
    port: int = 0


class View(Protocol):
    """What is known of the cluster now."""

    @property
    def domain(self) -> str: ...

    @property
    def gateway(self) -> Gateway: ...

    def service(self, key: Key) -> ServiceFacts | None: ...

    def slices(self, key: Key) -> Iterable[SliceFacts]: ...

    def revision(self, key: Key) -> Mapping[str, str] | None:
        """The annotations by which a Revision batches; none where it does not."""

    def certificate(self, key: Key) -> str | None:
        """The last good certificate of a Secret with its key, in PEM; None where there was none."""

    def certificate_fault(self, key: Key) -> str:
        """What is wrong with the certificate that a Secret has now; empty where nothing is."""


@dataclass(frozen=True, slots=True)
class StillView:
    """A view that does not change."""

    services: Mapping[Key, ServiceFacts] = field(default_factory=dict)
    endpoint_slices: tuple[SliceFacts, ...] = ()
    revisions: Mapping[Key, Mapping[str, str]] = field(default_factory=dict)
    certificates: Mapping[Key, str] = field(default_factory=dict)
    gateway: Gateway = field(default_factory=Gateway)
    domain: str = "cluster.local"
    certificate_faults: Mapping[Key, str] = field(default_factory=dict)

    def service(self, key: Key) -> ServiceFacts | None:
        return self.services.get(key)

    def slices(self, key: Key) -> Iterable[SliceFacts]:
        return [one for one in self.endpoint_slices if one.service == key]

    def revision(self, key: Key) -> Mapping[str, str] | None:
        return self.revisions.get(key)

    def certificate(self, key: Key) -> str | None:
        return self.certificates.get(key)

    def certificate_fault(self, key: Key) -> str:
        return self.certificate_faults.get(key, "")


def service_facts(document: dict[str, Any]) -> ServiceFacts:
    """Read a Service."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    ports = tuple(
        ServicePort(
            one.get("name") or "",
            int(one["port"]),
            one.get("appProtocol") == H2C or (not one.get("appProtocol") and one.get("name") == H2C_PORT),
        )
        for one in spec.get("ports") or ()
        if one.get("protocol", "TCP") == "TCP"
    )
    address = str(spec.get("clusterIP") or "")
    external = str(spec.get("externalName") or "") if spec.get("type") == "ExternalName" else ""
    return ServiceFacts((metadata["namespace"], metadata["name"]), ports, external, "" if address == "None" else address)


def slice_facts(document: dict[str, Any]) -> SliceFacts:
    """Read an EndpointSlice. One whose addresses are names has none for us."""
    metadata = document["metadata"]
    named = (metadata.get("labels") or {}).get(SERVICE_LABEL, "")
    ready: list[str] = []
    ending: list[str] = []
    for one in document.get("endpoints") or ():
        conditions = one.get("conditions") or {}
        if one.get("addresses") and conditions.get("ready") is not False:
            ready.append(one["addresses"][0])
        elif one.get("addresses") and conditions.get("serving") and conditions.get("terminating"):
            ending.append(one["addresses"][0])
    ports = tuple((one.get("name") or "", int(one["port"])) for one in document.get("ports") or () if one.get("port"))
    if document.get("addressType") == "FQDN":
        return SliceFacts((metadata["namespace"], named), ports, ())
    return SliceFacts((metadata["namespace"], named), ports, tuple(ready), tuple(ending))


def batches(split: Split, view: View) -> bool:
    """Whether a split is of a Revision that batches, and there is a gateway to do so."""
    if not view.gateway.endpoints:
        return False
    headers = {name.lower(): value for name, value in split.headers}
    named = headers.get(NAMESPACE_HEADER.lower()), headers.get(REVISION_HEADER.lower())
    # The gateway goes by these headers: without them a client could name a Revision, and with others a route that of another.
    return named == (split.backend.namespace, split.backend.name) and bool(view.revision(named))


def gateway_place(text: str, namespace: str) -> GatewayPlace:
    """Where the gateway is: `10.0.0.1:80`, `[fd00::1]:80`, `gnomon-gateway:80` beside us, or `gnomon-gateway.elsewhere:80`.

    Raises:
        GnomonError: 400 `ingress_gateway`.

    """
    name, _, number = text.rpartition(":")
    if not name or not number.isdecimal():
        raise bad_request("ingress_gateway", f"--gateway {text[:100]!r} has no port.", "Write SERVICE:PORT or ADDRESS:PORT.")
    try:
        return GatewayPlace(Endpoint(name.strip("[]"), int(number)))
    except ValueError:
        service, _, elsewhere = name.partition(".")
        return GatewayPlace(service=(elsewhere.partition(".")[0] or namespace, service), port=int(number))


def gateway_of(place: GatewayPlace, view: View) -> Gateway:
    """Who is ready there now."""
    if place.endpoint is not None:
        return Gateway((place.endpoint,))
    service = view.service(place.service)
    port = next((one for one in service.ports if one.port == place.port), None) if service is not None else None
    return Gateway() if port is None else Gateway(_endpoints(view.slices(place.service), port))


def key_of(split: Split, view: View) -> str:
    """The backend of a split, by name."""
    return GATEWAY if batches(split, view) else f"{split.backend.namespace}/{split.backend.name}:{split.backend.port}"


def backend(split: Split, view: View) -> Backend | str:
    """Who serves a split; or what is missing, as a sentence."""
    if batches(split, view):
        return Backend(GATEWAY, h2c=False, endpoints=view.gateway.endpoints)
    ref = split.backend
    service = view.service((ref.namespace, ref.name))
    if service is None:
        return f"there is no Service {ref.namespace}/{ref.name}"
    key = key_of(split, view)
    if service.external_name:
        return _external(key, service, ref, view)
    port = next((one for one in service.ports if ref.port in (one.port, one.name)), None)
    if port is None:
        return f"the Service {ref.namespace}/{ref.name} has no port {ref.port}"
    slices = list(view.slices(service.key))
    return Backend(
        key, port.h2c, _endpoints(slices, port) or _endpoints([replace(one, addresses=one.ending) for one in slices], port)
    )


def _endpoints(slices: Iterable[SliceFacts], port: ServicePort) -> tuple[Endpoint, ...]:
    found = {
        Endpoint(address, number)
        for one in slices
        for name, number in one.ports
        if name == port.name
        for address in one.addresses
    }
    return tuple(sorted(found))


def _external(key: str, service: ServiceFacts, ref: BackendRef, view: View) -> Backend | str:
    """The Service or address that an ExternalName stands for."""
    name = service.external_name.rstrip(".")
    h2c = any(one.h2c for one in service.ports if ref.port in (one.port, one.name))
    number = ref.port if isinstance(ref.port, int) else next((one.port for one in service.ports if one.name == ref.port), 0)
    if not number:
        return f"the Service {ref.namespace}/{ref.name} has no port {ref.port}"
    address = name
    inside = name.removesuffix(f".svc.{view.domain}")
    if inside != name and inside.count(".") == 1:
        other, namespace = inside.split(".")
        meant = view.service((namespace, other))
        if meant is None or not meant.cluster_ip:
            return f"the Service {ref.namespace}/{ref.name} is another name of {name}, which has no address"
        address = meant.cluster_ip
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return f"the Service {ref.namespace}/{ref.name} is another name of {name}, which is not of this cluster"
    if ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return f"the Service {ref.namespace}/{ref.name} leads to {name}, which would be the ingress itself or its node"
    return Backend(key, h2c, (Endpoint(str(ip), number),))
