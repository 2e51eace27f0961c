"""What the kubelet says to a node plugin, and what it is answered: the parts of CSI 1.x that an inline ephemeral volume needs.

    Registration (kubelet's plugin watcher)   GetInfo, NotifyRegistrationStatus
    csi.v1.Identity                           GetPluginInfo, GetPluginCapabilities, Probe
    csi.v1.Node                               NodeGetInfo, NodeGetCapabilities, NodePublishVolume, NodeUnpublishVolume

Field numbers are those of the public csi.proto (container-storage-interface/spec) and of the kubelet's pluginregistration/v1.
With `podInfoOnMount` the kubelet itself puts the pod into the volume's context, over whatever a pod's author wrote there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gnomon_core import protobuf

NAME = "node.gnomon"
"""The driver's name, in the CSIDriver object and in each pod's volume."""
REGISTRATION, IDENTITY, NODE = "pluginregistration.Registration", "csi.v1.Identity", "csi.v1.Node"
POD_KEY = "csi.storage.k8s.io/"
EPHEMERAL_KEY = POD_KEY + "ephemeral"
FUNCTION_KEY = "gnomon/function"
"""In the attributes of a pod's volume: the function that it is a part of, as our pod template says it."""


@dataclass(frozen=True, slots=True)
class Publish:
    """NodePublishVolume: make this volume appear at this path, for the pod that `context` names."""

    volume_id: str
    target: str
    context: Mapping[str, str] = field(default_factory=dict)
    block: bool = False

    @staticmethod
    def read(data: bytes) -> Publish:
        """Raises WireFormatError."""
        found = protobuf.read(data)
        capability = protobuf.read(_message(found, 5))
        return Publish(protobuf.text(found, 1), protobuf.text(found, 4), protobuf.texts(found, 8), block=1 in capability)

    def written(self) -> bytes:
        """As a kubelet sends it: mounted, by one node, for writing."""
        access = protobuf.written({2: b"", 3: b"\x08\x01"} if not self.block else {1: b"", 3: b"\x08\x01"})
        return protobuf.written({1: self.volume_id, 4: self.target, 5: access, 8: self.context})


@dataclass(frozen=True, slots=True)
class Unpublish:
    """NodeUnpublishVolume: undo it."""

    volume_id: str
    target: str

    @staticmethod
    def read(data: bytes) -> Unpublish:
        """Raises WireFormatError."""
        found = protobuf.read(data)
        return Unpublish(protobuf.text(found, 1), protobuf.text(found, 2))

    def written(self) -> bytes:
        return protobuf.written({1: self.volume_id, 2: self.target})


def registration(endpoint: str) -> bytes:
    """PluginInfo: a CSI driver whose services are behind this socket."""
    return protobuf.written({1: "CSIPlugin", 2: NAME, 3: endpoint, 4: "1.0.0"})


def registered(data: bytes) -> tuple[bool, str]:
    """RegistrationStatus: whether the kubelet has taken the driver, and why not. Raises WireFormatError."""
    found = protobuf.read(data)
    return protobuf.flag(found, 1), protobuf.text(found, 2)


def plugin_info(version: str) -> bytes:
    """GetPluginInfoResponse."""
    return protobuf.written({1: NAME, 2: version})


def ready(*, is_ready: bool) -> bytes:
    """ProbeResponse, whose field is a message: false and unknown are different."""
    return protobuf.written({1: protobuf.written({1: is_ready})})


def node_info(node: str) -> bytes:
    """NodeGetInfoResponse: the node, by the name that Kubernetes has for it."""
    return protobuf.written({1: node})


NOTHING = b""
"""A response without fields; no capabilities, where capabilities are asked for."""


def _message(found: protobuf.Fields, number: int) -> bytes:
    value = found.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise protobuf.WireFormatError(f"field {number} is no message")
    return value
