"""Instances that are asked for at once: as many begin as are missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gnomon_core.fleet import Instance
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_gateway.functions.instances import RollingUpdate
from gnomon_gateway.replicas.state_sync import OtherReplicas
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_platforms.testing import NoModels, NothingBuilt, Recorder

SPEC = read_deployment({"service": "echo", "image": "functions/alpine:latest", "envProcess": "cat"})
NAME = str(SPEC.key)


class Bodies:
    """Those of one function, made by its platform."""

    def __init__(self, platform: LocalPlatform) -> None:
        self._platform = platform

    def of(self, deployed: Any) -> tuple[Instance, ...]:
        return self._platform.instances(deployed.name)

    async def create(self, deployed: Any, cores: int) -> None:
        await self._platform.create(InstanceRequest(deployed.spec, 1, cores, None, {}))

    def stop(self, deployed: Any, instance_id: str) -> None:
        raise AssertionError((deployed, instance_id))


async def test_two_that_make_room_at_once_get_one_successor_where_one_is_wanted(tmp_path: Path) -> None:
    platform = LocalPlatform(tmp_path / "state", NoModels(), NothingBuilt(), preload_torch=False)
    await platform.start(Recorder())
    deployed = SimpleNamespace(name=NAME, spec=SPEC, live=lambda instances: instances)
    scaling = SimpleNamespace(desired=lambda _: 1, poke=lambda _: None)
    updates = RollingUpdate(Bodies(platform), cast("Any", scaling), OtherReplicas())
    try:
        await asyncio.gather(*(updates.take_place(cast("Any", deployed)) for _ in range(2)))
        assert len(platform.instances(NAME)) == 1
    finally:
        await platform.stop()
