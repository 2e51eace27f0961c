"""The Shadows that the platform requests on this node, from request to end.

    requested ▶ STARTING ─ registered ▶ READY ─ paired, unpaired … ▶ ENDING ▶ GONE, with the reason
                                            the platform has seen the state GONE ▶ removed

If the Body is on another node, the state for the platform has a token with which the Body connects to its Shadow
(`pair_listener`). On the Body's node the same Shadow is a request with that address, and has no process.

A request is kept until its Shadow has gone, and repeated to each new coordinator, as on one machine. The state for the platform
has each request as well as its result, so that a new leader can adopt its predecessor's Shadows.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from gnomon_coordinator import protocol
from gnomon_coordinator.node.bodies import Bodies
from gnomon_coordinator.node.pool import ZYGOTE, Cpus, Pool
from gnomon_coordinator.protocol import BadMessageError, Change, Way, read_change
from gnomon_coordinator.server import close
from gnomon_core import packets
from gnomon_core.coordination import SHADOW_KIND
from gnomon_core.errors import GnomonError
from gnomon_core.launch import Launch, Limits, Order, Sandbox

MAX_GONE = 200
"""The most ended Shadows that are kept until the platform has seen their end; the oldest are dropped first."""
_LOG = logging.getLogger("gnomon.node")


class State(StrEnum):
    """The state of a requested Shadow."""

    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    GONE = "gone"


@dataclass(slots=True)
class NodeShadow:
    """A requested Shadow. `body` is its Body's name among the instances of the node."""

    request: ShadowRequest
    body: str
    cpus: tuple[int, ...]
    fds: tuple[int, ...] = ()
    """File descriptors of the order and the log, until the Shadow has registered."""
    state: State = State.STARTING
    reason: str = ""
    paired: bool = False
    blocks: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    details: dict[str, float] = field(default_factory=dict)
    token: str = field(default="", repr=False)
    """The token that its Body on another node sends."""

    def row(self) -> dict[str, Any]:
        """The Shadow's entry in the state for the platform."""
        return {
            "id": self.request.shadow,
            "pod_uid": self.request.pod_uid,
            "state": self.state,
            "reason": self.reason,
            "cores": self.request.change.cores,
            "paired": self.paired,
            "blocks": list(self.blocks),
            "split": list(self.split),
            "wished": {"blocks": list(self.request.change.blocks), "split": list(self.request.change.split)},
            "memory_bytes": self.request.memory_bytes,
            "afar": self.request.afar,
            "elsewhere": self.request.way is not None,
            "token": self.token,
            **self.details,
        }


class NodeShadows:
    """Every requested Shadow. `models` is the model repository in the pool's container; `changed` is called after a change."""

    def __init__(self, pool: Pool, bodies: Bodies, cpus: Cpus, models: Path, changed: Callable[[], None]) -> None:
        self._pool = pool
        self._bodies = bodies
        self._cpus = cpus
        self._models = models
        self._changed = changed
        self._shadows: dict[str, NodeShadow] = {}

    def rows(self) -> list[dict[str, Any]]:
        return [shadow.row() for shadow in self._shadows.values()]

    # Requests

    def create(self, request: ShadowRequest) -> NodeShadow:
        """Create a Shadow. Idempotent: an existing Shadow is returned unchanged.

        Raises:
            GnomonError: 409 `no_such_body`, 409 `shadow_exists`, 503 `no_pool`, 503 `no_capacity`.

        """
        existing = self._shadows.get(request.shadow)
        if existing is not None:
            if existing.request.pod_uid != request.pod_uid or existing.state is State.GONE:
                raise GnomonError(
                    409, "shadow_exists", f"{request.shadow} is the name of another Shadow on this node.", "Choose another."
                )
            return existing
        body = self._body_of(request)
        if not self._pool.coordinated or not (self._pool.warm or request.way is not None):
            raise GnomonError(503, "no_pool", "This node's pool is not ready.", "Try again in a moment.")
        shadow = NodeShadow(request, body, ()) if request.way is not None else self._create_here(request, body)
        self._shadows[request.shadow] = shadow
        self._send_request(shadow)
        self._changed()
        return shadow

    def _body_of(self, request: ShadowRequest) -> str:
        """The Body's name among the instances of the node; a Body on another node is named by its pod's uid."""
        if request.afar:
            return request.pod_uid
        pod = self._bodies.of_pod(request.pod_uid)
        if pod is None:
            text = f"No Body of pod {request.pod_uid} has connected to this node's coordinator."
            raise GnomonError(409, "no_such_body", text, "Its pod needs the volume of driver node.gnomon, and a Body in it.")
        return pod.instance

    def _create_here(self, request: ShadowRequest, body: str) -> NodeShadow:
        """Create a Shadow in this node's pool, with its CPUs, its order and its log."""
        cpus = self._cpus_for(request)
        fds: list[int] = []
        try:
            fds.append(packets.sealed_file("order", request.order(body, cpus, self._models).to_json().encode()))
            fds.append(os.dup(sys.stderr.fileno()))
        except OSError as error:
            close(fds)
            self._cpus.release(request.shadow)
            text = f"This node cannot create a Shadow now: {error}."
            raise GnomonError(503, "no_capacity", text, "Try again in a moment.") from error
        return NodeShadow(request, body, cpus, tuple(fds), token=secrets.token_urlsafe() if request.afar else "")

    def _cpus_for(self, request: ShadowRequest) -> tuple[int, ...]:
        """Allocate as many CPUs as are requested, instead of the Shadow's present ones."""
        if request.change.cores > len(self._cpus):
            raise GnomonError(503, "no_capacity", f"This node has {len(self._cpus)} CPUs.", "Ask for fewer cores.")
        return self._cpus.allocate(request.shadow, request.change.cores)

    def change(self, shadow_id: str, document: Mapping[str, Any]) -> None:
        """Change a Shadow's task. An unknown Shadow has ended, and is ignored.

        Raises:
            BadMessageError: the change is not valid.
            GnomonError: 503 `no_capacity`; the task stays as it was.

        """
        shadow = self._running(shadow_id)
        if shadow is None:
            return
        request = shadow.request.changed(document)
        if request.way is None:
            shadow.cpus = self._cpus_for(request)
        shadow.request = request
        self._pool.request({"do": "change", "shadow": shadow_id, **shadow.request.task(shadow.cpus)})
        self._changed()

    def destroy(self, shadow_id: str) -> None:
        """End a Shadow, or remove one that has gone. An unknown Shadow is ignored."""
        shadow = self._running(shadow_id)
        if shadow is None:
            self._shadows.pop(shadow_id, None)
            return
        shadow.state, shadow.reason = State.ENDING, shadow.reason or "stopped"
        self._pool.request({"do": "destroy", "shadow": shadow_id})
        self._changed()

    # Bodies of other nodes

    def of_token(self, token: str) -> NodeShadow | None:
        """The Shadow whose Body sends this token."""
        ready_shadows = [shadow for shadow in self._shadows.values() if shadow.token and shadow.state is State.READY]
        shown = token.encode("utf-8", "surrogateescape")
        return next((shadow for shadow in ready_shadows if hmac.compare_digest(shadow.token.encode(), shown)), None)

    def body_connected(self, shadow: NodeShadow, connection: int) -> None:
        """Hand a copy of the Body's connection to the pool, for the Shadow."""
        self._pool.request({"do": "join", "shadow": shadow.request.shadow}, [connection])

    # Events

    def coordinator_event(self, event: Mapping[str, Any]) -> None:
        """Handle an event of the coordinator."""
        if event["event"] == "ready":
            for shadow in self._shadows.values():
                self._repeat_request(shadow)
            return
        known = self._running(str(event.get("shadow", "")))
        if known is not None:
            self._apply_event(known, event)
            self._changed()

    def _apply_event(self, shadow: NodeShadow, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "registered":
            _close_fds(shadow)
            shadow.details = {"resident_bytes": event["resident_bytes"], "load_ms": event["load_ms"]}
            if shadow.state is State.STARTING:
                shadow.state = State.READY
        elif kind == "paired":
            shadow.paired, shadow.blocks, shadow.split = True, tuple(event["blocks"]), tuple(event["split"])
            if shadow.state is State.STARTING:
                # A Shadow on another node registers there.
                shadow.state = State.READY
        elif kind == "unpaired":
            shadow.paired = False
        elif kind == "ending":
            shadow.state, shadow.reason = State.ENDING, shadow.reason or str(event["reason"])
        elif kind == "failed":
            self._end(shadow, str(event["reason"]))

    def ended(self, instance: str, reason: str) -> None:
        """Handle the end of a process of the pool."""
        shadow = self._running(instance)
        if shadow is not None:
            self._end(shadow, reason)
            self._changed()

    def lost(self) -> None:
        """Handle the end of the pool, and with it of every Shadow."""
        for shadow in self._shadows.values():
            if shadow.state is not State.GONE:
                self._end(shadow, "the node's pool has ended")
        self._changed()

    def _end(self, shadow: NodeShadow, reason: str) -> None:
        _close_fds(shadow)
        self._cpus.release(shadow.request.shadow)
        shadow.state, shadow.paired = State.GONE, False
        shadow.reason = shadow.reason or reason
        _LOG.info("Shadow %s has ended: %s", shadow.request.shadow, shadow.reason)
        gone = [name for name, other in self._shadows.items() if other.state is State.GONE]
        for name in gone[:-MAX_GONE]:
            del self._shadows[name]

    def _repeat_request(self, shadow: NodeShadow) -> None:
        """Repeat the request to a new coordinator, which has no requests yet."""
        if shadow.state is State.ENDING:
            self._pool.request({"do": "destroy", "shadow": shadow.request.shadow})
        elif shadow.state is not State.GONE:
            self._send_request(shadow)

    def _send_request(self, shadow: NodeShadow) -> None:
        self._pool.request(shadow.request.create(shadow.body, shadow.cpus, self._models), shadow.fds)

    def _running(self, shadow_id: str) -> NodeShadow | None:
        found = self._shadows.get(shadow_id)
        return None if found is None or found.state is State.GONE else found


def _close_fds(shadow: NodeShadow) -> None:
    fds, shadow.fds = shadow.fds, ()
    close(fds)


FILES = ("program", "weights", "layers")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp"}  # noqa: S108 - the container's own


@dataclass(frozen=True, slots=True)
class ShadowRequest:
    """A request for a Shadow for the Body in this pod.

    `files` are paths in the model repository, which every node has as a volume.

    `memory_bytes` is the memory that the platform has reserved for the Shadow: kept for the next leader, which reads it here.

    With `afar` the pod is on another node, and its Body connects to the Shadow. With a `way` the Shadow is on another node: no
    process is made here, and the Body gets the Shadow's URL and token.
    """

    shadow: str
    pod_uid: str
    function: str
    files: Mapping[str, str]
    weight_mode: str
    max_batch: int
    memory_bytes: int
    change: Change
    afar: bool = False
    way: Way | None = None

    @staticmethod
    def read(shadow: str, document: Mapping[str, Any]) -> ShadowRequest:
        """Parse a request. Raises BadMessageError."""
        weight_mode = document.get("weight_mode")
        if weight_mode not in ("shared", "private"):
            raise BadMessageError("weight_mode is missing or unknown")
        function = document.get("function")
        if not isinstance(function, str) or len(function) > protocol.MAX_PATH:
            raise BadMessageError("function is missing or too long")
        afar, way = protocol.read_flag(document, "afar"), protocol.read_way(document)
        if afar and way is not None:
            raise BadMessageError("neither the Shadow nor the Body is on this node")
        return ShadowRequest(
            shadow=protocol.read_id({"shadow": shadow}, "shadow"),
            pod_uid=protocol.read_id(document, "pod_uid"),
            function=function,
            files={name: _within(document.get(name), name) for name in FILES},
            weight_mode=str(weight_mode),
            max_batch=protocol.read_integer(document, "max_batch", 1, protocol.MAX_BATCH),
            memory_bytes=_claimed(document, 0),
            change=read_change({**document, "cpus": []}),
            afar=afar,
            way=way,
        )

    def changed(self, document: Mapping[str, Any]) -> ShadowRequest:
        """Return the request with another task. Raises BadMessageError."""
        memory_bytes = _claimed(document, self.memory_bytes)
        return replace(self, change=read_change({**document, "cpus": []}), memory_bytes=memory_bytes)

    def create(self, body: str, cpus: tuple[int, ...], models: Path) -> dict[str, Any]:
        """The request as a message to the node's coordinator."""
        message = {"do": "create", "zygote": ZYGOTE, "shadow": self.shadow, "body": body, "join": [], "afar": self.afar}
        if self.way is not None:
            message |= {"url": self.way.url, "token": self.way.token}
        return message | self._options(models) | {"max_batch": self.max_batch} | self.task(cpus)

    def task(self, cpus: tuple[int, ...]) -> dict[str, Any]:
        """The task that the Shadow does for its Body, on these CPUs."""
        change = self.change
        return {
            "cores": change.cores,
            "cpus": list(cpus),
            "blocks": list(change.blocks),
            "split": list(change.split),
            "expected_ms": [list(row) for row in change.expected_ms],
        }

    def order(self, body: str, cpus: tuple[int, ...], models: Path) -> Order:
        """The order for its container. The pool's own container is the sandbox: it runs layer programs, which are data."""
        options = {**self._options(models), "body": body}
        launch = Launch(SHADOW_KIND, self.function, self.shadow, self.change.cores, self.max_batch, _ENVIRONMENT, options)
        return Order(launch, Sandbox(limits=Limits()), entered=True, cpus=cpus)

    def _options(self, models: Path) -> dict[str, Any]:
        return {**{name: str(models / path) for name, path in self.files.items()}, "weight_mode": self.weight_mode}


def _claimed(document: Mapping[str, Any], otherwise: int) -> int:
    """The reserved memory in bytes; gateways of earlier versions do not send it."""
    return protocol.read_integer({"memory_bytes": otherwise, **document}, "memory_bytes", 0, protocol.MAX_BYTES)


def _within(value: object, name: str) -> str:
    """A path in the repository."""
    if not isinstance(value, str) or not value or len(value) > protocol.MAX_PATH or "\0" in value:
        raise BadMessageError(f"{name} is not a path")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise BadMessageError(f"{name} is outside the repository")
    return str(path)
