"""Many starts at once: more than a socket holds messages for."""

import asyncio
from pathlib import Path

import pytest

from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_platforms.testing import NoModels, NothingBuilt, Recorder

CROWD = 500


@pytest.mark.timeout(90)
async def test_a_crowd_that_is_called_off_again_leaves_the_platform_working(tmp_path: Path) -> None:
    """The supervisor hands orders on, the zygote reports births: neither may wait for the other to listen."""
    told = Recorder()
    platform = LocalPlatform(tmp_path / "state", NoModels(), NothingBuilt(), cores=CROWD, preload_torch=False)
    await platform.start(told)
    try:
        spec = read_deployment(
            {"service": "crowd", "image": "functions/alpine", "envProcess": "cat", "limits": {"memory": "8Mi"}}
        )
        await platform.prepare(spec)
        crowd = [await platform.create(InstanceRequest(spec, 1, 1, None, {})) for _ in range(CROWD)]
        await told.channel(crowd[0].id)
        for instance in crowd:
            await platform.destroy(instance.id)
        for instance in crowd:
            await told.reason(instance.id)
        last = await platform.create(InstanceRequest(spec, 1, 1, None, {}))
        await told.channel(last.id)
    finally:
        await asyncio.wait_for(platform.stop(), 60)
