"""The pool of a cluster's node: containers, volumes, and how many cores a Shadow may have."""

import asyncio
import errno
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_coordinator.node import pool
from gnomon_coordinator.node.bodies import Bodies
from gnomon_coordinator.node.pool import Cpus, Pool, PoolEvents
from gnomon_coordinator.node.shadows import NodeShadows, ShadowRequest
from gnomon_core import packets
from tests.refusals import refused
from tests.waiting import until

LIBRARIES = {"LD_PRELOAD": "/of/the/container/libjemalloc.so.2"}


class Container:
    """The pool's container: whom the agent connects to."""

    def __init__(self, path: Path) -> None:
        self._arrivals = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._arrivals.bind(str(path))
        self._arrivals.listen()
        self._arrivals.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self.supervisor: socket.socket | None = None
        self.asked: list[dict[str, Any]] = []
        """For which zygotes the present supervisor was asked."""

    async def begin(self) -> None:
        """Another supervisor, which says hello to its owner and is asked for a zygote."""
        self.end()
        self.asked.clear()
        self.supervisor, _ = await asyncio.get_running_loop().sock_accept(self._arrivals)
        self.supervisor.setblocking(False)  # noqa: FBT003 - as above
        self.tell(event="hello", isolation=None, python="/usr/bin/python3", libraries=LIBRARIES)
        await until(self.zygotes)

    def tell(self, **event: Any) -> None:
        assert self.supervisor is not None
        packets.send(self.supervisor, event)

    def zygotes(self) -> int:
        """How many zygotes were asked for so far."""
        assert self.supervisor is not None
        while True:
            try:
                message, descriptors = packets.receive(self.supervisor)
            except BlockingIOError:
                return len(self.asked)
            for descriptor in descriptors:
                os.close(descriptor)
            if message["do"] == "zygote":
                self.asked.append(message)

    def end(self) -> None:
        if self.supervisor is not None:
            self.supervisor.close()
            self.supervisor = None

    def close(self) -> None:
        self.end()
        self._arrivals.close()


@pytest.fixture
async def container(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Container]:
    """In a short folder: sockets have addresses of at most 107 bytes."""
    monkeypatch.setattr(pool, "RETRY_S", 0.05)
    with tempfile.TemporaryDirectory(prefix="gnomon-") as folder:
        path = Path(folder, "pool.sock")
        made = Container(path)
        ours = Pool(path, 1, 1, PoolEvents(lambda: None, lambda: None, lambda _: None, lambda *_: None))
        finding = asyncio.create_task(ours.run())
        await made.begin()
        yield made
        ours.close()
        await finding
        made.close()


async def test_ended_zygote_is_replaced_once(container: Container) -> None:
    [first] = container.asked
    container.tell(event="zygote_gone", zygote=first["id"], start=first["start"], reason="killed")
    await until(lambda: container.zygotes() == 2)
    # What is told of the first again does not mean the second.
    container.tell(event="zygote_gone", zygote=first["id"], start=first["start"], reason="killed")
    await asyncio.sleep(3 * pool.RETRY_S)
    assert container.zygotes() == 2


async def test_no_zygote_is_started_for_a_pool_that_has_ended(container: Container) -> None:
    [first] = container.asked
    container.tell(event="zygote_gone", zygote=first["id"], start=first["start"], reason="killed")
    await container.begin()
    await asyncio.sleep(3 * pool.RETRY_S)
    assert container.zygotes() == 1, "the new pool's own"


async def test_zygote_gets_the_library_paths_of_its_own_container(container: Container) -> None:
    [zygote] = container.asked
    assert zygote["environment"].items() >= LIBRARIES.items()


def test_cpus_with_the_fewest_shadows_are_claimed() -> None:
    cpus = Cpus([0, 1, 2, 3])

    assert cpus.allocate("s1", 2) == (0, 1)
    assert cpus.allocate("s2", 2) == (2, 3)
    assert cpus.allocate("s3", 1) == (0,)
    assert cpus.allocated == 5
    cpus.release("s1")
    assert cpus.allocate("s4", 2) == (0, 1)
    assert cpus.allocated == 5


def test_second_claim_replaces_the_first() -> None:
    cpus = Cpus([4, 7])

    assert cpus.allocate("s1", 1) == (4,)
    assert cpus.allocate("s1", 2) == (4, 7)
    assert cpus.allocate("s2", 3) == (4, 7)
    assert cpus.allocated == 4
    cpus.release("s2")
    cpus.release("s2")
    assert cpus.allocated == 2


FILES = {"program": "m/program.json", "weights": "m/weights.safetensors", "layers": "m/layers.json"}


def what(cores: int) -> dict[str, Any]:
    return {"cores": cores, "blocks": [0], "split": [0, 1], "expected_ms": [[5.0]]}


# Its Body is on another node.
ABOUT = {"pod_uid": "u-1", "function": "f.ns", "weight_mode": "shared", "max_batch": 2, "afar": True}
WISH = ShadowRequest.read("s-1", ABOUT | FILES | what(1))


def a_node(folder: Path) -> tuple[NodeShadows, Cpus]:
    """A node of two CPUs, whose pool is ready, but for its processes."""
    ears = PoolEvents(lambda: None, lambda: None, lambda _: None, lambda *_: None)
    pool, cpus = Pool(folder / "pool", 1, 1, ears), Cpus([0, 1])
    pool.warm = pool.coordinated = True
    return NodeShadows(pool, Bodies(pool.to_supervisor, lambda: None), cpus, folder, lambda: None), cpus


async def test_shadow_that_cannot_be_created_holds_no_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, cpus = a_node(tmp_path)

    def no_more(descriptor: int) -> int:
        raise OSError(errno.EMFILE, f"no descriptor like {descriptor}")

    before = descriptors()
    monkeypatch.setattr(os, "dup", no_more)
    with refused(503, "no_capacity", match="no descriptor"):
        node.create(WISH)
    assert (node.rows(), cpus.allocated) == ([], 0)
    assert descriptors() == before
    monkeypatch.undo()
    node.create(WISH)
    assert cpus.allocated == 1
    node.lost()


def descriptors() -> set[str]:
    """Of this process."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def has(shadows: NodeShadows) -> tuple[int, list[int]]:
    [row] = shadows.rows()
    return row["cores"], row["wished"]["blocks"]


async def test_change_of_cores_is_bounded_by_the_node(tmp_path: Path) -> None:
    shadows, _ = a_node(tmp_path)
    shadows.create(WISH)
    shadows.change("s-1", what(2))
    assert has(shadows) == (2, [0])
    with refused(503, "no_capacity", match="has 2 CPUs"):
        shadows.change("s-1", what(3) | {"blocks": [1]})
    assert has(shadows) == (2, [0]), "it does what it did"
    shadows.lost()
