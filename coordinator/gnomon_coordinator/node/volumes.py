"""The pods' volumes on this node: published, found again after a restart, unpublished.

    /var/lib/kubelet/pods/UID/volumes/kubernetes.io~csi/NAME/mount/coordination.sock     the pod has `mount` as a volume
    STATE/VOLUME.json                                                                    what is published, for our successor

The folder is a plain one. A mount would have to reach the kubelet's mount namespace, for which a container has to be privileged;
a folder with a socket needs neither, and the container runtime binds it into the pod like any other volume. Only root writes
there. Publishing twice is publishing once, and so is unpublishing.

A record is written before its folder is made and removed after it has gone, so that every folder has a record.

Folders below another one are opened component by component (openat): no symbolic link is followed, whatever its owner.

A pod's volumes lie in folders of the kubelet, but a container that runs as root may write into the last of them. This process is
root on the node: a path opened by name could have been replaced by a link to anywhere; a path that is walked cannot.

With `podInfoOnMount` the kubelet itself puts the pod into the volume's context, over anything that a pod's author wrote there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gnomon_coordinator.node.csi_pb2 import NodePublishVolumeRequest, NodeUnpublishVolumeRequest
from gnomon_coordinator.node.pod_sockets import Accepted, Pod, PodSocket
from gnomon_core.atomic_files import replace_file

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(root: Path, names: Sequence[str]) -> Iterator[int]:
    """A descriptor of a folder below the root, closed on the way out.

    Raises:
        OSError: something on the way is missing, or is no folder.

    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            below = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def made(parent: int, name: str, mode: int) -> Iterator[int]:
    """Make our folder in another one unless it exists, and open it.

    Raises:
        OSError: it cannot be made, is no folder, or is not ours.

    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
    descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{name} belongs to another user")
        os.fchmod(descriptor, mode)
        yield descriptor
    finally:
        os.close(descriptor)


def removed(parent: int, name: str) -> None:
    """Remove a file or a folder tree if it exists; links are removed and not followed.

    Raises:
        OSError: it cannot be removed.

    """
    try:
        shutil.rmtree(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
    except OSError:
        # rmtree refuses a link with an error of its own.
        if not Path(f"/proc/self/fd/{parent}", name).is_symlink():
            raise
        os.unlink(name, dir_fd=parent)


NAME = "node.gnomon"
"""The driver's name, in the CSIDriver object and in each pod's volume."""
POD_KEY = "csi.storage.k8s.io/"
EPHEMERAL_KEY = POD_KEY + "ephemeral"
FUNCTION_KEY = "gnomon/function"
"""Attribute of a pod's volume with the pod's function, as our pod template sets it."""


_LOG = logging.getLogger("gnomon.node")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_FOLDER_MODE = 0o755
"""Mode of a volume's folder: a container that runs as any user must reach its socket; only root may write."""


class RefusedError(Exception):
    """A volume that cannot be published. `code` is the name of a gRPC status."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Volume:
    """A published volume: its pod, and its path below the folder of all pods."""

    id: str
    pod: Pod
    path_parts: tuple[str, ...]


class Volumes:
    """Every published volume. `accepted` gets the connections of their sockets, `removed_pod` each pod whose volume has gone."""

    def __init__(self, pods: Path, state: Path, accepted: Accepted, removed_pod: Callable[[Pod], None]) -> None:
        self._pods = pods
        self._state = state
        self._accepted = accepted
        self._removed_pod = removed_pod
        self._volumes: dict[str, Volume] = {}
        self._sockets: dict[str, PodSocket] = {}
        state.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __iter__(self) -> Iterator[Volume]:
        return iter(tuple(self._volumes.values()))

    def recover(self) -> None:
        """Reopen the sockets of an earlier process. Volumes of pods that have gone meanwhile are removed from the records."""
        for file in sorted(self._state.glob("*.json")):
            volume = self._recorded(file)
            if volume is None:
                file.unlink()
                continue
            try:
                self._open(volume, new=False)
            except OSError as error:
                _LOG.warning("volume %s of pod %s/%s is gone: %s", volume.id, volume.pod.namespace, volume.pod.name, error)
                file.unlink()
            else:
                self._volumes[volume.id] = volume

    def publish(self, request: NodePublishVolumeRequest) -> None:
        """Make the pod's folder, with a socket in it that is its own.

        Raises:
            RefusedError: the request is not what a kubelet asks for an inline volume, or the folder cannot be made.

        """
        volume = self._requested(request)
        published = self._volumes.get(volume.id)
        if published is not None and published != volume:
            raise RefusedError("ALREADY_EXISTS", f"volume {volume.id} is published for pod {published.pod.uid}, elsewhere")
        try:
            # The kubelet repeats the call until it succeeds, and after its own restart: a socket in use must not be replaced.
            if published is None or not self._is_published(volume):
                self._record(volume)
                self._open(volume, new=True)
        except OSError as error:
            self._forget(volume.id)
            raise RefusedError("INTERNAL", f"the volume's folder cannot be made: {error}") from error
        self._volumes[volume.id] = volume

    def unpublish(self, request: NodeUnpublishVolumeRequest) -> None:
        """Close the socket and remove the folder. Idempotent: an unknown volume is not an error.

        Raises:
            RefusedError: the path is none of a pod's volumes, or the folder cannot be removed.

        """
        path_parts = self._path_parts(request.volume_id, request.target_path)
        published = self._volumes.get(request.volume_id)
        if published is not None and published.path_parts != path_parts:
            raise RefusedError("INVALID_ARGUMENT", f"volume {published.id} is published elsewhere")
        # The socket before the folder: no connection may be accepted for a pod that is said to be gone.
        self._close_socket(request.volume_id)
        if published is not None:
            self._removed_pod(published.pod)
        try:
            with opened(self._pods, path_parts[:-1]) as parent:
                removed(parent, path_parts[-1])
        except FileNotFoundError:
            pass
        except OSError as error:
            raise RefusedError("INTERNAL", f"the volume's folder cannot be removed: {error}") from error
        self._forget(request.volume_id)

    def close(self) -> None:
        """Close the sockets; the folders stay for the next process."""
        for volume_id in list(self._sockets):
            self._close_socket(volume_id)

    # Requests

    def _requested(self, request: NodePublishVolumeRequest) -> Volume:
        path_parts = self._path_parts(request.volume_id, request.target_path)
        context = request.volume_context
        if request.volume_capability.HasField("block"):
            raise RefusedError("INVALID_ARGUMENT", "this volume is a folder, not a device")
        if context.get(EPHEMERAL_KEY) != "true":
            raise RefusedError("INVALID_ARGUMENT", "only an inline volume of a pod (csi: in its specification) is served")
        uid, namespace, name = (context.get(f"{POD_KEY}pod.{what}", "") for what in ("uid", "namespace", "name"))
        if not (_UID.fullmatch(uid) and _NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
            raise RefusedError("INVALID_ARGUMENT", "the pod is not named: the CSIDriver needs podInfoOnMount: true")
        if path_parts[0] != uid:
            raise RefusedError("INVALID_ARGUMENT", f"the path is pod {path_parts[0]}'s, the volume pod {uid}'s")
        function = context.get(FUNCTION_KEY, "")
        return Volume(request.volume_id, Pod(uid, namespace, name, function if _NAME.fullmatch(function) else ""), path_parts)

    def _path_parts(self, volume_id: str, target: str) -> tuple[str, ...]:
        """Return the path below the folder of all pods: UID, volumes, kubernetes.io~csi, NAME, mount, and nothing else."""
        if not _ID.fullmatch(volume_id):
            raise RefusedError("INVALID_ARGUMENT", "the volume's id is invalid")
        root = f"{self._pods}/"
        parts = target.removeprefix(root).rstrip("/").split("/") if target.startswith(root) else []
        match parts:
            case [uid, "volumes", "kubernetes.io~csi", name, "mount"] if _UID.fullmatch(uid) and _NAME.fullmatch(name):
                return tuple(parts)
        raise RefusedError("INVALID_ARGUMENT", f"{target[:300]!r} is not the path of a pod's volume below {self._pods}")

    # Folders, sockets and records

    def _open(self, volume: Volume, *, new: bool) -> None:
        self._close_socket(volume.id)
        with opened(self._pods, volume.path_parts[:-1]) as parent:
            if not new:  # raises OSError if the kubelet removed the folder while no coordinator ran
                with opened(self._pods, volume.path_parts):
                    pass
            with made(parent, volume.path_parts[-1], _FOLDER_MODE) as folder:
                self._sockets[volume.id] = PodSocket(volume.pod, folder, self._accepted)

    def _is_published(self, volume: Volume) -> bool:
        """True if its socket is open, and the folder in which it is still there."""
        return volume.id in self._sockets and self._pods.joinpath(*volume.path_parts).is_dir()

    def _close_socket(self, volume_id: str) -> None:
        socket = self._sockets.pop(volume_id, None)
        if socket is not None:
            socket.close()

    def _forget(self, volume_id: str) -> None:
        self._close_socket(volume_id)
        self._volumes.pop(volume_id, None)
        with contextlib.suppress(FileNotFoundError):
            (self._state / f"{volume_id}.json").unlink()

    def _record(self, volume: Volume) -> None:
        document = {"pod": asdict(volume.pod), "where": volume.path_parts}
        # A power failure ends the pods as well, and the kubelet publishes anew.
        replace_file(self._state / f"{volume.id}.json", json.dumps(document), durable=False)

    def _recorded(self, file: Path) -> Volume | None:
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            pod = Pod(**document["pod"])
            path_parts = self._path_parts(file.stem, "/".join([str(self._pods), *document["where"]]))
        except (ValueError, KeyError, TypeError, OSError, RefusedError) as error:
            _LOG.warning("the invalid volume record %s is ignored: %s", file.name, error)
            return None
        return Volume(file.stem, pod, path_parts)
