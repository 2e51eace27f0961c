"""The kubelet's half of CSI: its gRPC calls over the plugin's real sockets, and the folders that it makes for pods."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from gnomon_coordinator.node import volumes as csi
from gnomon_coordinator.node.pod_sockets import SOCKET
from gnomon_core import protobuf

PATIENCE_S = 20.0


@dataclass
class Pod:
    """One pod with our volume, whose folder the kubelet has made up to the volume itself."""

    pods: Path
    uid: str
    name: str = "resnet-1"
    namespace: str = "openfaas-fn"
    context: dict[str, str] = field(default_factory=dict)
    volume: str = "gnomon"

    def __post_init__(self) -> None:
        said = {"pod.uid": self.uid, "pod.name": self.name, "pod.namespace": self.namespace, "ephemeral": "true"}
        self.context |= {csi.POD_KEY + key: value for key, value in said.items()}
        self.target.parent.mkdir(parents=True, exist_ok=True)

    @property
    def target(self) -> Path:
        return self.pods / self.uid / "volumes" / "kubernetes.io~csi" / self.volume / "mount"

    @property
    def volume_id(self) -> str:
        return f"csi-{self.uid}-{self.volume}"

    def publish(self) -> csi.Publish:
        return csi.Publish(self.volume_id, str(self.target), self.context)

    def unpublish(self) -> csi.Unpublish:
        return csi.Unpublish(self.volume_id, str(self.target))

    def connect(self) -> socket.socket:
        """What the pod's Body does."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(PATIENCE_S)
        try:
            connection.connect(str(self.target / SOCKET))
        except OSError:
            connection.close()
            raise
        return connection


class Kubelet:
    """Finds the plugin as a kubelet's plugin watcher does, and asks it on the socket that it names."""

    def __init__(self, registration: Path) -> None:
        self._registration = grpc.insecure_channel(f"unix:{registration}")
        info = protobuf.read(self._ask(self._registration, csi.REGISTRATION, "GetInfo"))
        self.kind, self.driver, self.endpoint, self.versions = (protobuf.text(info, number) for number in (1, 2, 3, 4))
        self._driver = grpc.insecure_channel(f"unix:{self.endpoint}")

    def close(self) -> None:
        self._registration.close()
        self._driver.close()

    def notify(self, *, taken: bool, reason: str = "") -> None:
        self._ask(self._registration, csi.REGISTRATION, "NotifyRegistrationStatus", protobuf.written({1: taken, 2: reason}))

    def identity(self, method: str) -> protobuf.Fields:
        return protobuf.read(self._ask(self._driver, csi.IDENTITY, method))

    def node(self, method: str, request: bytes = b"") -> protobuf.Fields:
        return protobuf.read(self._ask(self._driver, csi.NODE, method, request))

    def publish(self, wanted: Pod | csi.Publish) -> None:
        self.node("NodePublishVolume", (wanted.publish() if isinstance(wanted, Pod) else wanted).written())

    def unpublish(self, wanted: Pod | csi.Unpublish) -> None:
        self.node("NodeUnpublishVolume", (wanted.unpublish() if isinstance(wanted, Pod) else wanted).written())

    @staticmethod
    def _ask(channel: grpc.Channel, service: str, method: str, request: bytes = b"") -> bytes:
        answer: bytes = channel.unary_unary(f"/{service}/{method}")(request, timeout=PATIENCE_S, wait_for_ready=True)
        return answer
