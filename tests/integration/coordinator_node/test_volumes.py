"""The node plugin as a kubelet meets it: registered, asked to publish, restarted, asked for too much, and told to end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from gnomon_coordinator.node import csi_pb2, pod_sockets, volumes
from gnomon_coordinator.node.csi import CsiPlugin
from gnomon_coordinator.node.volumes import Volumes
from tests.integration.coordinator_node.kubelet import Kubelet, Pod, publish_request
from tests.integration.coordinator_node.node import Started

SOMEBODY = 12_000


class Plugin:
    """The plugin's parts on this loop, in folders as a kubelet has them; whoever came is remembered."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pods = folder, folder / "pods"
        self.pods.mkdir(exist_ok=True)
        self.came: list[tuple[pod_sockets.Pod, socket.socket]] = []
        self.went: list[pod_sockets.Pod] = []
        self.volumes = Volumes(self.pods, folder / "state", lambda *who: self.came.append(who), self.went.append)
        self.volumes.recover()
        self.registration = folder / "registry" / "node.gnomon-reg.sock"
        self._csi = CsiPlugin("node-a", self.volumes, folder / "csi.sock", self.registration)

    async def start(self) -> Kubelet:
        self._csi.start()
        self.kubelet = await asyncio.to_thread(Kubelet, self.registration)
        return self.kubelet

    async def stop(self) -> None:
        self.kubelet.close()
        await self._csi.stop()
        self.volumes.close()
        for _, connection in self.came:
            connection.close()

    async def who(self, pod: Pod) -> tuple[pod_sockets.Pod, socket.socket]:
        """The pod that the coordinator sees when this pod connects."""
        before = len(self.came)
        with await asyncio.to_thread(pod.connect):
            for _ in range(2000):
                if len(self.came) > before:
                    return self.came[-1]
                await asyncio.sleep(0.005)
        raise AssertionError("nobody came")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: gRPC's own sockets have addresses of at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="gnomon-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def plugin(folder: Path) -> AsyncIterator[Plugin]:
    begun = Plugin(folder)
    await begun.start()
    yield begun
    await begun.stop()


async def refused(act: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.to_thread(act)
    code: grpc.StatusCode = caught.value.code()
    return code


async def test_a_kubelet_finds_the_plugin_and_what_it_can_do(plugin: Plugin, caplog: pytest.LogCaptureFixture) -> None:
    kubelet = plugin.kubelet

    assert (kubelet.kind, kubelet.driver, kubelet.versions) == ("CSIPlugin", volumes.NAME, ["1.0.0"])
    assert kubelet.endpoint == str(plugin.folder / "csi.sock")
    info = csi_pb2.GetPluginInfoResponse.FromString(await asyncio.to_thread(kubelet.identity, "GetPluginInfo"))
    assert info.name == volumes.NAME
    # Bytes as the wire format's documentation has them: a message in field 1 whose field 1 is true, and a text in field 1.
    assert await asyncio.to_thread(kubelet.identity, "Probe") == b"\x0a\x02\x08\x01"
    assert await asyncio.to_thread(kubelet.identity, "GetPluginCapabilities") == b""
    assert await asyncio.to_thread(kubelet.node, "NodeGetInfo") == b"\x0a\x06node-a"
    assert await asyncio.to_thread(kubelet.node, "NodeGetCapabilities") == b""
    await asyncio.to_thread(kubelet.notify, taken=True)
    await asyncio.to_thread(kubelet.notify, taken=False, reason="another has this name")
    assert "another has this name" in caplog.text
    assert await refused(lambda: kubelet.node("NodeStageVolume")) is grpc.StatusCode.UNIMPLEMENTED


async def test_connection_through_a_pod_socket_identifies_the_pod(plugin: Plugin) -> None:
    first = Pod(plugin.pods, "uid-1", "resnet-1", context={volumes.FUNCTION_KEY: "resnet"})
    other = Pod(plugin.pods, "uid-2", "vgg-7", "tenant")
    for pod in (first, other):
        await asyncio.to_thread(plugin.kubelet.publish, pod)

    assert (await plugin.who(first))[0] == pod_sockets.Pod("uid-1", "openfaas-fn", "resnet-1", "resnet")
    assert (await plugin.who(other))[0] == pod_sockets.Pod("uid-2", "tenant", "vgg-7", "")


async def test_the_folder_is_readable_for_any_user_and_writable_for_none(plugin: Plugin) -> None:
    pod = Pod(plugin.pods, "uid-1")
    await asyncio.to_thread(plugin.kubelet.publish, pod)

    assert stat.S_IMODE(pod.target.stat().st_mode) == 0o755
    assert stat.S_IMODE((pod.target / pod_sockets.SOCKET).stat().st_mode) == 0o666
    assert os.umask(0o022) == 0o022


async def test_publishing_twice_is_publishing_once(plugin: Plugin) -> None:
    pod = Pod(plugin.pods, "uid-1")
    await asyncio.to_thread(plugin.kubelet.publish, pod)
    socket_before = (pod.target / pod_sockets.SOCKET).stat().st_ino
    await asyncio.to_thread(plugin.kubelet.publish, pod)

    assert (pod.target / pod_sockets.SOCKET).stat().st_ino == socket_before
    assert (await plugin.who(pod))[0].uid == "uid-1"
    # Somebody has cleared the folder away: the kubelet asks again, and gets what it asks for.
    shutil.rmtree(pod.target)
    await asyncio.to_thread(plugin.kubelet.publish, pod)
    assert (await plugin.who(pod))[0].uid == "uid-1"


async def test_unpublishing_removes_the_folder_and_may_be_asked_again(plugin: Plugin) -> None:
    pod = Pod(plugin.pods, "uid-1")
    await asyncio.to_thread(plugin.kubelet.publish, pod)
    (pod.target / "left by the pod").write_text("x")
    for _ in range(2):
        await asyncio.to_thread(plugin.kubelet.unpublish, pod)

    assert not pod.target.exists()
    assert pod.target.parent.is_dir()
    assert [gone.uid for gone in plugin.went] == ["uid-1"]
    assert list(plugin.volumes) == []
    assert list((plugin.folder / "state").iterdir()) == []


async def test_a_successor_opens_the_doors_again_for_pods_that_are_still_there(folder: Path) -> None:
    earlier = Plugin(folder)
    kubelet = await earlier.start()
    stays, goes = Pod(earlier.pods, "uid-1"), Pod(earlier.pods, "uid-2")
    for pod in (stays, goes):
        await asyncio.to_thread(kubelet.publish, pod)
    inode = stays.target.stat().st_ino
    await earlier.stop()
    with pytest.raises(ConnectionRefusedError):
        stays.connect()
    shutil.rmtree(folder / "pods" / "uid-2")
    (folder / "state" / "torn.json").write_text('{"pod": {"uid": ')

    later = Plugin(folder)
    await later.start()
    assert (await later.who(stays))[0] == pod_sockets.Pod("uid-1", "openfaas-fn", "resnet-1")
    # The pod has this folder mounted, and would not see another in its place.
    assert stays.target.stat().st_ino == inode
    assert [volume.pod.uid for volume in later.volumes] == ["uid-1"]
    await asyncio.to_thread(later.kubelet.unpublish, goes)
    await asyncio.to_thread(later.kubelet.unpublish, stays)
    assert list((folder / "state").iterdir()) == []
    await later.stop()


@pytest.mark.parametrize(
    "target",
    [
        "/etc",
        "",
        "relative/volumes/kubernetes.io~csi/gnomon/mount",
        "{pods}/uid-1/volumes/kubernetes.io~csi/gnomon/mount/../../../../../../elsewhere",
        "{pods}/../pods/uid-1/volumes/kubernetes.io~csi/gnomon/mount",
        "{pods}/../volumes/kubernetes.io~csi/gnomon/mount",
        "{pods}/uid-1/volumes/kubernetes.io~secret/gnomon/mount",
        "{pods}/uid-1/volumes/kubernetes.io~csi/../mount",
        "{pods}/uid-1/volumes/kubernetes.io~csi/gnomon",
        "{pods}/uid-1",
        "{pods}",
    ],
)
async def test_nothing_is_made_or_removed_outside_a_pods_volumes(plugin: Plugin, target: str) -> None:
    pod, kubelet = Pod(plugin.pods, "uid-1"), plugin.kubelet
    await asyncio.to_thread(kubelet.publish, pod)
    where = target.format(pods=plugin.pods)

    code = await refused(lambda: kubelet.publish(publish_request("csi-2", where, pod.context)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert (
        await refused(lambda: kubelet.unpublish(csi_pb2.NodeUnpublishVolumeRequest(volume_id="csi-2", target_path=where)))
        is grpc.StatusCode.INVALID_ARGUMENT
    )
    assert pod.target.is_dir()


async def test_a_volume_is_for_the_pod_whose_path_it_is(plugin: Plugin) -> None:
    mine, theirs, kubelet = Pod(plugin.pods, "uid-1"), Pod(plugin.pods, "uid-2"), plugin.kubelet
    # A pod's path with another pod's name in the context: whoever asks this is no kubelet.
    wanted = publish_request(mine.volume_id, str(theirs.target), mine.context)

    assert await refused(lambda: kubelet.publish(wanted)) is grpc.StatusCode.INVALID_ARGUMENT
    assert not theirs.target.exists()
    await asyncio.to_thread(kubelet.publish, mine)
    # The same volume for somebody else, or taken away from somewhere else.
    again = publish_request(mine.volume_id, str(theirs.target), theirs.context)
    assert await refused(lambda: kubelet.publish(again)) is grpc.StatusCode.ALREADY_EXISTS
    away = csi_pb2.NodeUnpublishVolumeRequest(volume_id=mine.volume_id, target_path=str(theirs.target))
    assert await refused(lambda: kubelet.unpublish(away)) is grpc.StatusCode.INVALID_ARGUMENT
    assert (await plugin.who(mine))[0].uid == "uid-1"


@pytest.mark.parametrize(
    "context",
    [
        {volumes.EPHEMERAL_KEY: "false"},
        {volumes.POD_KEY + "pod.uid": ""},
        {volumes.POD_KEY + "pod.name": "Not a name"},
        {volumes.POD_KEY + "pod.namespace": "../other"},
    ],
)
async def test_only_an_inline_volume_of_a_named_pod_is_served(plugin: Plugin, context: dict[str, str]) -> None:
    pod = Pod(plugin.pods, "uid-1")
    pod.context |= context

    assert await refused(lambda: plugin.kubelet.publish(pod)) is grpc.StatusCode.INVALID_ARGUMENT
    assert not pod.target.exists()


async def test_a_request_that_is_no_message_or_asks_for_a_device_is_refused(plugin: Plugin) -> None:
    pod, kubelet = Pod(plugin.pods, "uid-1"), plugin.kubelet
    device = publish_request(pod.volume_id, str(pod.target), pod.context, block=True)

    assert await refused(lambda: kubelet.node("NodePublishVolume", b"\x0a\xff")) is grpc.StatusCode.INVALID_ARGUMENT
    assert await refused(lambda: kubelet.publish(device)) is grpc.StatusCode.INVALID_ARGUMENT
    assert await refused(lambda: kubelet.publish(publish_request("../x", str(pod.target)))) is grpc.StatusCode.INVALID_ARGUMENT


async def test_links_on_the_way_lead_nowhere(plugin: Plugin) -> None:
    elsewhere = plugin.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    pod, kubelet = Pod(plugin.pods, "uid-1"), plugin.kubelet
    pod.target.symlink_to(elsewhere)

    assert await refused(lambda: kubelet.publish(pod)) is grpc.StatusCode.INTERNAL
    assert [file.name for file in elsewhere.iterdir()] == ["precious"]
    await asyncio.to_thread(kubelet.unpublish, pod)
    assert not pod.target.is_symlink()
    # Higher up as well: nothing is made or removed through it.
    other = Pod(plugin.pods, "uid-2")
    other.target.parent.rmdir()
    other.target.parent.symlink_to(elsewhere)
    assert await refused(lambda: kubelet.publish(other)) is grpc.StatusCode.INTERNAL
    assert await refused(lambda: kubelet.unpublish(other)) is grpc.StatusCode.INTERNAL
    assert (elsewhere / "precious").read_text() == "x"


async def test_a_link_in_the_place_of_the_socket_is_not_followed_after_a_restart(folder: Path) -> None:
    earlier = Plugin(folder)
    kubelet = await earlier.start()
    pod = Pod(earlier.pods, "uid-1")
    await asyncio.to_thread(kubelet.publish, pod)
    await earlier.stop()
    precious = folder / "precious"
    precious.write_text("x")
    precious.chmod(0o600)
    (pod.target / pod_sockets.SOCKET).unlink()
    (pod.target / pod_sockets.SOCKET).symlink_to(precious)

    later = Plugin(folder)
    await later.start()
    assert (await later.who(pod))[0].uid == "uid-1"
    assert precious.read_text() == "x"
    assert stat.S_IMODE(precious.stat().st_mode) == 0o600
    await later.stop()


@pytest.mark.root
async def test_a_folder_of_another_user_in_the_place_of_ours_is_refused(plugin: Plugin) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    pod = Pod(plugin.pods, "uid-1")
    pod.target.mkdir()
    os.chown(pod.target, SOMEBODY, SOMEBODY)

    assert await refused(lambda: plugin.kubelet.publish(pod)) is grpc.StatusCode.INTERNAL
    assert list(pod.target.iterdir()) == []


STAY_S = "60"


@pytest.fixture
def agent_folder() -> Iterator[Path]:
    """A short one: sockets have addresses of at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="gnomon-"))
    (path / "pods").mkdir()
    yield path
    shutil.rmtree(path)


def agent_in(agent_folder: Path) -> Started:
    """Start the agent as the manifest does, without a pool."""
    where = ["--kubelet", str(agent_folder), "--pool", str(agent_folder / "pool.sock"), "--port", "0", "--pair-port", "0"]
    return Started(agent_folder, "agent", ["-I", "-m", "gnomon_coordinator.node", "--node", "node-a", *where, "--stay", STAY_S])


def test_told_to_end_it_first_lets_the_pods_go_that_end_with_it(agent_folder: Path) -> None:
    agent = agent_in(agent_folder)
    try:
        agent.port(r"listening on 127\.0\.0\.1:")
        with closing(Kubelet(agent_folder / "plugins_registry" / f"{volumes.NAME}-reg.sock")) as kubelet:
            first, other = Pod(agent_folder / "pods", "uid-1"), Pod(agent_folder / "pods", "uid-2")
            for pod in (first, other):
                kubelet.publish(pod)
            agent.process.send_signal(signal.SIGTERM)
            kubelet.unpublish(first)
            # There is one that it is needed for; the kubelet may ask as often as it likes.
            assert agent.process.poll() is None
            kubelet.unpublish(other)
        assert agent.process.wait(30) == 0
    finally:
        agent.kill()
    assert not first.target.exists()
    assert not other.target.exists()


def test_told_to_end_with_no_pod_it_ends(agent_folder: Path) -> None:
    agent = agent_in(agent_folder)
    try:
        agent.port(r"listening on 127\.0\.0\.1:")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(30) == 0
    finally:
        agent.kill()
