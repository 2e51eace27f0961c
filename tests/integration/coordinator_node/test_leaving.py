"""The agent as its pod's end is played to it: SIGTERM while pods of the node have volumes."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gnomon_coordinator.node import volumes
from tests.integration.coordinator_node.kubelet import Kubelet, Pod
from tests.integration.coordinator_node.node import Started

STAY_S = "60"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: sockets have addresses of at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="gnomon-"))
    (path / "pods").mkdir()
    yield path
    shutil.rmtree(path)


def agent_in(folder: Path) -> Started:
    """As the manifest starts it, without a pool."""
    where = ["--kubelet", str(folder), "--pool", str(folder / "pool.sock"), "--port", "0", "--pair-port", "0"]
    return Started(folder, "agent", ["-I", "-m", "gnomon_coordinator.node", "--node", "node-a", *where, "--stay", STAY_S])


def test_told_to_end_it_first_lets_the_pods_go_that_end_with_it(folder: Path) -> None:
    agent = agent_in(folder)
    try:
        agent.port(r"listening on 127\.0\.0\.1:")
        with closing(Kubelet(folder / "plugins_registry" / f"{volumes.NAME}-reg.sock")) as kubelet:
            first, other = Pod(folder / "pods", "uid-1"), Pod(folder / "pods", "uid-2")
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


def test_told_to_end_with_no_pod_it_ends(folder: Path) -> None:
    agent = agent_in(folder)
    try:
        agent.port(r"listening on 127\.0\.0\.1:")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(30) == 0
    finally:
        agent.kill()
