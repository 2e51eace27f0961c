"""What a platform wishes for on this node, read from JSON. Nothing is taken on trust but that whoever asks may ask.

Paths are those in the model repository, which every node has as a volume; where that is mounted in the pool is ours to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from gnomon_coordinator import protocol
from gnomon_coordinator.protocol import BadMessageError, Change, Way, read_change
from gnomon_core.coordination import SHADOW_KIND
from gnomon_core.launch import Launch, Limits, Order, Sandbox

ZYGOTE = "torch"
FILES = ("program", "weights", "layers")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp"}  # noqa: S108 - the container's own


@dataclass(frozen=True, slots=True)
class Wish:
    """A Shadow for the Body in this pod. `files` are the model's in the repository; `cpus` are given to it here.

    `memory_bytes` is what the platform has claimed for it: kept for the next leader, who finds the Shadow here.

    With `afar` the pod is on another node, and its Body comes to the Shadow. With a `way` the Shadow is on another node: nothing
    is made here, and the Body is told where to go.
    """

    shadow: str
    pod_uid: str
    function: str
    files: Mapping[str, str]
    weight_mode: str
    max_batch: int
    memory_bytes: int
    what: Change
    afar: bool = False
    way: Way | None = None

    @staticmethod
    def read(shadow: str, document: Mapping[str, Any]) -> Wish:
        """Raises BadMessageError."""
        weight_mode = document.get("weight_mode")
        if weight_mode not in ("shared", "private"):
            raise BadMessageError("no weight mode")
        function = document.get("function")
        if not isinstance(function, str) or len(function) > protocol.MAX_PATH:
            raise BadMessageError("no function")
        afar, way = protocol.read_flag(document, "afar"), protocol.read_way(document)
        if afar and way is not None:
            raise BadMessageError("neither its Shadow nor the Body is here")
        return Wish(
            shadow=protocol.read_id({"shadow": shadow}, "shadow"),
            pod_uid=protocol.read_id(document, "pod_uid"),
            function=function,
            files={name: _within(document.get(name), name) for name in FILES},
            weight_mode=str(weight_mode),
            max_batch=protocol.read_integer(document, "max_batch", 1, protocol.MAX_BATCH),
            memory_bytes=_claimed(document, 0),
            what=read_change({**document, "cpus": []}),
            afar=afar,
            way=way,
        )

    def changed(self, document: Mapping[str, Any]) -> Wish:
        """The same Shadow doing something else. Raises BadMessageError."""
        memory_bytes = _claimed(document, self.memory_bytes)
        return replace(self, what=read_change({**document, "cpus": []}), memory_bytes=memory_bytes)

    def create(self, body: str, cpus: tuple[int, ...], models: Path) -> dict[str, Any]:
        """The wish to the coordinator of the node."""
        about = {"do": "create", "zygote": ZYGOTE, "shadow": self.shadow, "body": body, "join": [], "afar": self.afar}
        if self.way is not None:
            about |= {"url": self.way.url, "token": self.way.token}
        return about | self._options(models) | {"max_batch": self.max_batch} | self.task(cpus)

    def task(self, cpus: tuple[int, ...]) -> dict[str, Any]:
        """What it does for its Body."""
        what = self.what
        return {
            "cores": what.cores,
            "cpus": list(cpus),
            "blocks": list(what.blocks),
            "split": list(what.split),
            "expected_ms": [list(row) for row in what.expected_ms],
        }

    def order(self, body: str, cpus: tuple[int, ...], models: Path) -> Order:
        """Who a container becomes. The pool's own container is its sandbox: it runs layer programs, which are data."""
        options = {**self._options(models), "body": body}
        launch = Launch(SHADOW_KIND, self.function, self.shadow, self.what.cores, self.max_batch, _ENVIRONMENT, options)
        return Order(launch, Sandbox(limits=Limits()), entered=True, cpus=cpus)

    def _options(self, models: Path) -> dict[str, Any]:
        return {**{name: str(models / path) for name, path in self.files.items()}, "weight_mode": self.weight_mode}


def _claimed(document: Mapping[str, Any], otherwise: int) -> int:
    """What is said to be claimed; a gateway of an earlier version says nothing."""
    return protocol.read_integer({"memory_bytes": otherwise, **document}, "memory_bytes", 0, protocol.MAX_BYTES)


def _within(value: object, name: str) -> str:
    """A path in the repository."""
    if not isinstance(value, str) or not value or len(value) > protocol.MAX_PATH or "\0" in value:
        raise BadMessageError(f"{name} is no path")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise BadMessageError(f"{name} leads out of the repository")
    return str(path)
