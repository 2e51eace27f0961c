"""The pool of a cluster's node, cores and volumes."""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_coordinator.node import pool
from gnomon_coordinator.node.pool import Cpus, Pool, PoolEvents
from gnomon_core import packets
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

    assert cpus.claim("s1", 2) == (0, 1)
    assert cpus.claim("s2", 2) == (2, 3)
    assert cpus.claim("s3", 1) == (0,)
    assert cpus.claimed == 5
    cpus.release("s1")
    assert cpus.claim("s4", 2) == (0, 1)
    assert cpus.claimed == 5


def test_second_claim_replaces_the_first() -> None:
    cpus = Cpus([4, 7])

    assert cpus.claim("s1", 1) == (4,)
    assert cpus.claim("s1", 2) == (4, 7)
    assert cpus.claim("s2", 3) == (4, 7)
    assert cpus.claimed == 4
    cpus.release("s2")
    cpus.release("s2")
    assert cpus.claimed == 2
