"""A node for all tests, whose pool imports torch, and a platform that speaks with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.integration.coordinator_node.node import Node
from tests.integration.coordinator_node.played_platform import Platform
from tests.waiting import until


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """In a short folder: sockets have addresses of at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    made = Node(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def bodies_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test's Bodies end with it: dozens of them keep a processor busy."""
    node: Node | None = request.getfixturevalue("node") if "node" in request.fixturenames else None
    yield
    if node is not None:
        node.end_bodies()


@pytest.fixture
async def platform(node: Node) -> AsyncIterator[Platform]:
    async with aiohttp.ClientSession() as session:
        made = Platform(node, session)
        await made.reach()
        yield made
        for shadow in made.pairs.instances("line.openfaas-fn"):
            made.pairs.destroy(shadow.id)
        await until(lambda: not made.pairs.instances("line.openfaas-fn"))
        await made.pairs.close()
