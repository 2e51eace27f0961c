"""What is known of the cluster, by informers: Ingresses, Services, EndpointSlices, certificates, and Revisions if they matter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_platforms.knative.autoscaler.objects import BATCH_ANNOTATIONS, buffered
from gnomon_platforms.knative.ingress.backends import (
    Gateway,
    GatewayPlace,
    ServiceFacts,
    SliceFacts,
    gateway_of,
    service_facts,
    slice_facts,
)
from gnomon_platforms.knative.ingress.certificates import Certificates, Takes, secret_pem
from gnomon_platforms.knative.ingress.model import Key, SeenIngress, seen_ingress
from gnomon_platforms.knative.ingress.names import CERTIFICATE_LABEL, SERVICE_LABEL
from gnomon_platforms.knative.resources import CLASS, INGRESSES, REVISIONS
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.informer import Informer, Source
from gnomon_platforms.kubernetes.resources import ENDPOINT_SLICES, SECRETS, SERVICES


@dataclass(frozen=True, slots=True)
class SeeingOptions:
    """What is looked at. Only Secrets with this label are, which Knative's certificates have; empty for all Secrets."""

    ingress_class: str = CLASS
    gateway: GatewayPlace | None = None
    domain: str = "cluster.local"
    secret_labels: str = CERTIFICATE_LABEL


class Seeing:
    """See `backends.View`. `changed` is called on the event loop for whatever changes."""

    def __init__(self, api: Api, options: SeeingOptions, changed: Callable[[], None]) -> None:
        self._options, self._changed = options, changed
        self._ingresses: Informer[SeenIngress] = Informer(api, Source(INGRESSES), seen_ingress)
        self._services: Informer[ServiceFacts] = Informer(api, Source(SERVICES), service_facts)
        self._slices: Informer[SliceFacts] = Informer(api, Source(ENDPOINT_SLICES), slice_facts, index=(SERVICE_LABEL,))
        secrets = Source(SECRETS, labels=options.secret_labels)
        self._secrets: Informer[tuple[Key, str]] = Informer(api, secrets, secret_pem)
        self._certificates = Certificates()
        self._revisions: Informer[Mapping[str, str]] | None = None
        if options.gateway is not None:
            self._revisions = Informer(api, Source(REVISIONS), batch_annotations)

    async def start(self) -> None:
        """Return when all that is there is known.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await asyncio.gather(*(informer.start() for informer in self._informers()))
        for informer in self._informers():
            informer.listen(lambda _: self._changed())

    async def stop(self) -> None:
        """Watch no longer."""
        await asyncio.gather(*(informer.stop() for informer in self._informers()))

    @property
    def domain(self) -> str:
        return self._options.domain

    @property
    def gateway(self) -> Gateway:
        place = self._options.gateway
        return Gateway() if place is None else gateway_of(place, self)

    def ingresses(self) -> dict[Key, SeenIngress]:
        """Those of our class."""
        return {one.key: one for one in self._ingresses.values() if one.ingress_class == self._options.ingress_class}

    def service(self, key: Key) -> ServiceFacts | None:
        return self._services.get(*key)

    def slices(self, key: Key) -> Iterable[SliceFacts]:
        return [one for one in self._slices.labelled(SERVICE_LABEL, key[1]) if one.service == key]

    def revision(self, key: Key) -> Mapping[str, str] | None:
        return self._revisions.get(*key) if self._revisions is not None else None

    def certificate(self, key: Key) -> str | None:
        return self._certificates.pem(key)

    def certificate_fault(self, key: Key) -> str:
        return self._certificates.fault(key)

    async def try_certificates(self, named: Iterable[Key], takes: Takes) -> None:
        """Look at the certificates of these Secrets: from now on those are known, and no others."""
        found = {key: known[1] if (known := self._secrets.get(*key)) is not None else None for key in named}
        await self._certificates.renew(found, takes)

    def _informers(self) -> list[Informer[Any]]:
        always: list[Informer[Any]] = [self._ingresses, self._services, self._slices, self._secrets]
        return always if self._revisions is None else [*always, self._revisions]


def batch_annotations(document: dict[str, Any]) -> Mapping[str, str]:
    """The annotations of a Revision by which it batches; none of one that does not."""
    annotations = (document["metadata"].get("annotations") or {}) if buffered(document) else {}
    return {name: str(annotations[name]) for name in BATCH_ANNOTATIONS if name in annotations}
