"""The ownership map on Kubernetes: a ConfigMap that the leader replaces, and the gateway's pods that share the functions.

    leader ──replace, bound to the version that it read, by a fenced writer──▶ ConfigMap ──informer──▶ every replica

A pod counts as long as it has an address, also while it terminates: it hands its functions over in that time. The leader checks
each replica's health itself; the pod's status would change seconds later.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from gnomon_core.addresses import http_url
from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipMap
from gnomon_platforms.kubernetes.client import Api, Document, Refused, Unreachable, to_gnomon_error
from gnomon_platforms.kubernetes.informer import Change, Informer, Source
from gnomon_platforms.kubernetes.resources import CONFIG_MAPS, PODS
from gnomon_platforms.kubernetes.writes import Create, Replace, Target, Write, Writer

NAME = "gnomon-owners"
KEY = "map.json"
INSIDE_PORT = 8082
"""The port on which replicas listen for each other; a NetworkPolicy admits only them."""
_ENDED = ("Succeeded", "Failed")


class ConfigMapBoard:
    """The `OwnershipBoard` (`gnomon_core.ownership`) in a ConfigMap.

    `pods` is the label selector of the gateway's pods in `namespace`. `writer` reads, and publishes while this process leads: its
    fence is the leader's tenure.
    """

    def __init__(self, api: Api, writer: Writer, namespace: str, pods: str, *, name: str = NAME, port: int = INSIDE_PORT) -> None:
        self._writer = writer
        self._target = Target(CONFIG_MAPS, namespace, name)
        ours = Source(CONFIG_MAPS, namespace, fields=f"metadata.name={name}")
        self._maps: Informer[OwnershipMap | None] = Informer(api, ours, _map_of)
        self._pods: Informer[str | None] = Informer(api, Source(PODS, namespace, labels=pods), partial(_address, port))

    async def start(self) -> None:
        """Start the informers.

        Raises:
            GnomonError: 503 `kubernetes_…`, with what to do.

        """
        await asyncio.gather(self._maps.start(), self._pods.start())

    async def stop(self) -> None:
        """Stop the informers."""
        await asyncio.gather(self._maps.stop(), self._pods.stop())

    async def read(self) -> OwnershipMap | None:
        try:
            return _map_of(await self._writer.read(self._target))
        except (Refused, Unreachable) as error:
            raise to_gnomon_error(error, f"read {self._target}") from error

    async def publish(self, new: OwnershipMap) -> bool:
        try:
            current = await self._writer.read(self._target)
            if not new.follows(_map_of(current)):
                return False
            await self._writer.write(self._target, self._write(new, current), current)
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused) and (error.conflict or error.missing):
                return False
            raise to_gnomon_error(error, f"publish the map of owners in {self._target}") from error
        return True

    def watch(self, changed: Callable[[OwnershipMap], None]) -> Callable[[], None]:
        def map_changed(change: Change[OwnershipMap | None]) -> None:
            if change.new is not None:
                changed(change.new)

        return self._maps.listen(map_changed)

    def addresses(self) -> Collection[str]:
        return frozenset(address for address in self._pods.values() if address is not None)

    def _write(self, new: OwnershipMap, current: Document | None) -> Write:
        metadata = {"name": self._target.name, "namespace": self._target.namespace}
        kept = metadata if current is None else current["metadata"]
        manifest = {
            "apiVersion": CONFIG_MAPS.api_version,
            "kind": CONFIG_MAPS.kind,
            "metadata": kept,
            "data": {KEY: json.dumps(new.to_json())},
        }
        return Create(manifest) if current is None else Replace(manifest)


def _map_of(document: Document | None) -> OwnershipMap | None:
    """The map in a ConfigMap; None if there is no readable one: the leader then publishes what the replicas know."""
    try:
        return OwnershipMap.from_json(json.loads(((document or {}).get("data") or {})[KEY]))
    except (KeyError, ValueError, TypeError, GnomonError):
        return None


def _address(port: int, pod: dict[str, Any]) -> str | None:
    """The URL on which a pod's replica listens for the others; None before the pod has an address, and after its end."""
    status = pod.get("status") or {}
    address = status.get("podIP")
    if not address or status.get("phase") in _ENDED:
        return None
    return http_url(address, port)
