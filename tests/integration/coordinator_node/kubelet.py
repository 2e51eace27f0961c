"""The kubelet's half of CSI: its gRPC calls over the plugin's real sockets, and the folders that it makes for pods."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from gnomon_coordinator.node import csi, csi_pb2, plugin_registration_pb2
from gnomon_coordinator.node.pod_sockets import SOCKET
from gnomon_coordinator.node.volumes import POD_KEY

PATIENCE_S = 20.0


@dataclass
class Pod:
    """A pod with our volume, whose folder the kubelet has made up to the volume itself."""

    pods: Path
    uid: str
    name: str = "resnet-1"
    namespace: str = "openfaas-fn"
    context: dict[str, str] = field(default_factory=dict)
    volume: str = "gnomon"

    def __post_init__(self) -> None:
        said = {"pod.uid": self.uid, "pod.name": self.name, "pod.namespace": self.namespace, "ephemeral": "true"}
        self.context |= {POD_KEY + key: value for key, value in said.items()}
        self.target.parent.mkdir(parents=True, exist_ok=True)

    @property
    def target(self) -> Path:
        return self.pods / self.uid / "volumes" / "kubernetes.io~csi" / self.volume / "mount"

    @property
    def volume_id(self) -> str:
        return f"csi-{self.uid}-{self.volume}"

    def publish(self) -> csi_pb2.NodePublishVolumeRequest:
        return publish_request(self.volume_id, str(self.target), self.context)

    def unpublish(self) -> csi_pb2.NodeUnpublishVolumeRequest:
        return csi_pb2.NodeUnpublishVolumeRequest(volume_id=self.volume_id, target_path=str(self.target))

    def connect(self) -> socket.socket:
        """Connect as the pod's Body does."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(PATIENCE_S)
        try:
            connection.connect(str(self.target / SOCKET))
        except OSError:
            connection.close()
            raise
        return connection


def publish_request(
    volume_id: str, target: str, context: dict[str, str] | None = None, *, block: bool = False
) -> csi_pb2.NodePublishVolumeRequest:
    """The request of a kubelet: mounted, or as a device, by one node, for writing."""
    capability = csi_pb2.VolumeCapability(
        access_mode=csi_pb2.VolumeCapability.AccessMode(mode=csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)
    )
    (capability.block if block else capability.mount).SetInParent()
    return csi_pb2.NodePublishVolumeRequest(
        volume_id=volume_id, target_path=target, volume_capability=capability, volume_context=context or {}
    )


class Kubelet:
    """Finds the plugin as a kubelet's plugin watcher does, and asks it on the socket that it names."""

    def __init__(self, registration: Path) -> None:
        self._registration = grpc.insecure_channel(f"unix:{registration}")
        info = plugin_registration_pb2.PluginInfo.FromString(self._ask(self._registration, csi.REGISTRATION, "GetInfo"))
        self.kind, self.driver, self.endpoint, self.versions = info.type, info.name, info.endpoint, list(info.supported_versions)
        self._driver = grpc.insecure_channel(f"unix:{self.endpoint}")

    def close(self) -> None:
        self._registration.close()
        self._driver.close()

    def notify(self, *, taken: bool, reason: str = "") -> None:
        status = plugin_registration_pb2.RegistrationStatus(plugin_registered=taken, error=reason)
        self._ask(self._registration, csi.REGISTRATION, "NotifyRegistrationStatus", status.SerializeToString())

    def identity(self, method: str) -> bytes:
        return self._ask(self._driver, csi.IDENTITY, method)

    def node(self, method: str, request: bytes = b"") -> bytes:
        return self._ask(self._driver, csi.NODE, method, request)

    def publish(self, wanted: Pod | csi_pb2.NodePublishVolumeRequest) -> None:
        self.node("NodePublishVolume", (wanted.publish() if isinstance(wanted, Pod) else wanted).SerializeToString())

    def unpublish(self, wanted: Pod | csi_pb2.NodeUnpublishVolumeRequest) -> None:
        self.node("NodeUnpublishVolume", (wanted.unpublish() if isinstance(wanted, Pod) else wanted).SerializeToString())

    @staticmethod
    def _ask(channel: grpc.Channel, service: str, method: str, request: bytes = b"") -> bytes:
        answer: bytes = channel.unary_unary(f"/{service}/{method}")(request, timeout=PATIENCE_S, wait_for_ready=True)
        return answer
