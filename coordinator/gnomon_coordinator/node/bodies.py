"""The Bodies of the node that have come through the doors of their pods.

A Body's connection is kept here for as long as the Body keeps it; the pool's supervisor gets a copy, and each one after it. So a
Body notices nothing when the pool is restarted but that its Shadows have ended, and nothing at all when the coordinator is.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnomon_coordinator.node.pod_sockets import HangUps, Pod

_LOG = logging.getLogger("gnomon.node")
ToPool = Callable[[Mapping[str, Any], Sequence[int]], None]
"""Reaches the pool's supervisor, if there is one just now. Takes the descriptors over."""


class Bodies:
    """Who is there. `changed` is called when that is somebody else."""

    def __init__(self, to_pool: ToPool, changed: Callable[[], None]) -> None:
        self._to_pool = to_pool
        self._changed = changed
        self._hang_ups = HangUps()
        self._there: dict[str, tuple[Pod, socket.socket]] = {}

    def came(self, pod: Pod, connection: socket.socket) -> None:
        """A pod's Body has connected; it takes the place of an earlier one of its pod."""
        if pod.instance in self._there:
            self._leave(pod.instance)
        self._there[pod.instance] = (pod, connection)
        self._hang_ups.watch(connection, lambda: self._leave(pod.instance))
        self._introduce(pod, connection)
        _LOG.info("pod %s/%s has come", pod.namespace, pod.name)
        self._changed()

    def introduce_all(self) -> None:
        """There is a new pool: it has met nobody yet."""
        for pod, connection in self._there.values():
            self._introduce(pod, connection)

    def of_pod(self, uid: str) -> Pod | None:
        """The Body in this pod; None while none has come."""
        return next((pod for pod, _ in self._there.values() if pod.uid == uid), None)

    def shut_out(self, pod: Pod) -> None:
        """The pod's volume has been taken away: its Body is nobody's any more."""
        if pod.instance in self._there:
            self._leave(pod.instance)

    def rows(self) -> list[dict[str, str]]:
        """Who is there, for the platform."""
        return [
            {"pod_uid": pod.uid, "namespace": pod.namespace, "name": pod.name, "function": pod.function}
            for pod, _ in self._there.values()
        ]

    def close(self) -> None:
        """Let go of all. They will come again when somebody listens."""
        self._hang_ups.close()
        for _, connection in self._there.values():
            connection.close()
        self._there.clear()

    def _introduce(self, pod: Pod, connection: socket.socket) -> None:
        self._to_pool({"do": "adopt", "id": pod.instance, "kind": "body"}, [os.dup(connection.fileno())])

    def _leave(self, instance: str) -> None:
        pod, connection = self._there.pop(instance)
        self._hang_ups.forget(connection)
        connection.close()
        self._to_pool({"do": "forget", "id": instance}, ())
        _LOG.info("pod %s/%s has gone", pod.namespace, pod.name)
        self._changed()
