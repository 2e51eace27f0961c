"""The Bodies of the node, which have connected over their pods' sockets.

A Body's connection is held here as long as the Body keeps it open; each supervisor of the pool gets a duplicate. So a Body only
loses its Shadows when the pool restarts, and notices nothing when the coordinator restarts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnomon_coordinator.node.pod_sockets import Pod

_LOG = logging.getLogger("gnomon.node")
ToPool = Callable[[Mapping[str, Any], Sequence[int]], None]
"""Sends to the pool's supervisor; dropped while there is none. Takes the descriptors over."""


class Bodies:
    """The connected Bodies by instance. `changed` is called when one connects or disconnects."""

    def __init__(self, to_pool: ToPool, changed: Callable[[], None]) -> None:
        self._to_pool = to_pool
        self._changed = changed
        self._disconnects = Disconnects()
        self._connected: dict[str, tuple[Pod, socket.socket]] = {}

    def connected(self, pod: Pod, connection: socket.socket) -> None:
        """Add the Body that has connected from a pod; it replaces an earlier Body of that pod."""
        if pod.instance in self._connected:
            self._disconnect(pod.instance)
        self._connected[pod.instance] = (pod, connection)
        self._disconnects.watch(connection, lambda: self._disconnect(pod.instance))
        self._introduce(pod, connection)
        _LOG.info("the Body of pod %s/%s has connected", pod.namespace, pod.name)
        self._changed()

    def introduce_all(self) -> None:
        """Send every Body's connection to a new pool."""
        for pod, connection in self._connected.values():
            self._introduce(pod, connection)

    def of_pod(self, uid: str) -> Pod | None:
        """The Body in this pod; None if none is connected."""
        return next((pod for pod, _ in self._connected.values() if pod.uid == uid), None)

    def volume_removed(self, pod: Pod) -> None:
        """Disconnect the Body of a pod whose volume has been removed."""
        if pod.instance in self._connected:
            self._disconnect(pod.instance)

    def rows(self) -> list[dict[str, str]]:
        """The connected Bodies, as entries of the state for the platform."""
        return [
            {"pod_uid": pod.uid, "namespace": pod.namespace, "name": pod.name, "function": pod.function}
            for pod, _ in self._connected.values()
        ]

    def close(self) -> None:
        """Close every connection. Bodies reconnect to the next process."""
        self._disconnects.close()
        for _, connection in self._connected.values():
            connection.close()
        self._connected.clear()

    def _introduce(self, pod: Pod, connection: socket.socket) -> None:
        self._to_pool({"do": "adopt", "id": pod.instance, "kind": "body"}, [os.dup(connection.fileno())])

    def _disconnect(self, instance: str) -> None:
        pod, connection = self._connected.pop(instance)
        self._disconnects.forget(connection)
        connection.close()
        self._to_pool({"do": "forget", "id": instance}, ())
        _LOG.info("the Body of pod %s/%s has disconnected", pod.namespace, pod.name)
        self._changed()


class Disconnects:
    """Watches for the disconnection of peers on sockets that another process reads. Runs on an event loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, connection: socket.socket, act: Callable[[], None]) -> None:
        """Call `act` when the other side closes its end."""
        self._watched[connection.fileno()] = act
        # Without EPOLLIN: the data is for the process that reads the socket.
        self._epoll.register(connection, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, connection: socket.socket) -> None:
        """Stop watching a connection. Does nothing if it is not watched."""
        if self._watched.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection)

    def close(self) -> None:
        """Stop watching all connections."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._watched.clear()

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            act = self._watched.get(descriptor)
            if act is not None:
                act()
