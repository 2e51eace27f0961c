"""A Shadow is asked for once its model has been read, beside the event loop; whatever fails then leaves nothing claimed."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec
from gnomon_platforms.nodes.models import ServedModels
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.coordinator_node.node import Node
from tests.integration.coordinator_node.played_platform import Platform, a_pair, refusal
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


def left(platform: Platform) -> tuple[object, object]:
    """What is claimed, and which Shadows there are."""
    return platform.claimed, platform.pairs.instances("line.openfaas-fn")


class Slow(ServedModels):
    """Reads for as long as a test wants."""

    def __init__(self, node: Node) -> None:
        super().__init__(DirectoryRepository(node.models), node.models)
        self.reading, self.goes_on = threading.Event(), threading.Event()

    def files(self, spec: FunctionSpec) -> dict[str, str]:
        self.reading.set()
        assert self.goes_on.wait(20.0), "the loop has waited for it"
        return super().files(spec)


async def test_a_repository_that_is_slow_holds_nothing_up_and_a_body_may_go_meanwhile(node: Node) -> None:
    node.epoch += 1
    models = Slow(node)
    async with aiohttp.ClientSession() as session:
        platform = Platform(node, session, models)
        await platform.reach()
        await platform.body("p-13")
        creating = asyncio.create_task(platform.pairs.create("p-13", a_pair(node), "p-13-s1"))
        await until(models.reading.is_set)
        assert left(platform) == ({}, [])
        del platform.bodies["p-13"]
        models.goes_on.set()
        assert await refusal(creating) == "no_such_body"
        assert left(platform) == ({}, [])
        await platform.pairs.close()


async def test_nodes_that_have_no_folder_of_the_repository_make_no_shadows(node: Node, tmp_path: Path) -> None:
    node.epoch += 1
    shutil.copytree(node.models, tmp_path / "fetched")
    async with aiohttp.ClientSession() as session:
        for folder, why in ((None, "the repository is elsewhere"), (node.models, "is not in ")):
            platform = Platform(node, session, ServedModels(DirectoryRepository(tmp_path / "fetched"), folder))
            platform.pairs.connections.set_address("node-a", f"http://127.0.0.1:{node.port}")
            await until(lambda known=platform: "node-a" in known.pairs.connections.states, "the node is not connected", 120.0)
            await platform.body("p-14")
            assert platform.pools == (set() if folder is None else {"node-a"}), "policies see whether Shadows can be made there"
            with pytest.raises(GnomonError, match=why) as caught:
                await platform.pairs.create("p-14", a_pair(node), "p-14-s1")
            assert caught.value.code == "no_such_body"
            assert left(platform) == ({}, [])
            await platform.pairs.close()


async def test_whatever_fails_while_a_shadow_is_asked_for_it_is_given_back(
    platform: Platform, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await platform.body("p-15")

    async def broken(method: str, path: str, document: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        raise ValueError(f"{method} {path} {document}")

    with monkeypatch.context() as patched:
        patched.setattr(platform.pairs.connections.clients["node-a"], "request", broken)
        with pytest.raises(ValueError, match="PUT"):
            await platform.pairs.create("p-15", a_pair(node), "p-15-s1")
    assert left(platform) == ({}, [])
    await platform.pairs.create("p-15", a_pair(node), "p-15-s2")
    await until(lambda: ("p-15", ["p-15-s2"]) in platform.pairs_told)
