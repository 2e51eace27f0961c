"""The API server is away: instances go on serving, none is taken for gone, and what was decided is done afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.kubernetes.pods import Plane
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_platforms.testing import Recorder
from tests.contracts.test_platform import deployment, instance_of
from tests.kubernetes.faults.conftest import Breakable
from tests.kubernetes.faults.serving import load

AWAY_S, SOAK_S = 4.0, 60.0
BACK_S = 150.0
SERVED = 20
"""So many batches show that serving goes on."""
FUNCTION = "echo.openfaas-fn"


Breaking = Callable[[Plane, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Takes the server away for as long as this takes."""


async def frozen(plane: Plane, away: Callable[[], Awaitable[None]]) -> None:
    """Connections stay open, and silent."""
    process = plane.process("apiserver")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        await away()
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def killed(plane: Plane, away: Callable[[], Awaitable[None]]) -> None:
    """Connections break, new ones are refused; the next server remembers nothing of what was watched."""
    command = await asyncio.to_thread(plane.kill, "apiserver")
    try:
        await away()
    finally:
        plane.start("apiserver", command)


@pytest.mark.parametrize("breaking", [frozen, killed])
@pytest.mark.parametrize("away_s", [AWAY_S, pytest.param(SOAK_S, marks=pytest.mark.slow)])
async def test_serving_goes_on_and_decisions_are_carried_out_afterwards(
    breakable: Breakable, breaking: Breaking, away_s: float
) -> None:
    api = await asyncio.to_thread(connect, breakable.plane.kubeconfig)
    platform, listener = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0)), Recorder()
    await platform.start(listener)
    try:
        made = [await platform.create(instance_of(deployment())) for _ in range(3)]
        async with load() as sent:
            await listener.until(lambda: len(listener.ready) == len(made), BACK_S)
            for instance in made:
                sent.add(instance.id, listener.channels[instance.id])
            await sent.more(SERVED, BACK_S)

            async def away() -> None:
                await asyncio.sleep(away_s / 2)
                await sent.more(SERVED, BACK_S)
                # Decisions that cannot be written now.
                sent.left.add(made[0].id)
                await platform.destroy(made[0].id)
                made.append(await platform.create(instance_of(deployment())))
                await asyncio.sleep(away_s / 2)
                await sent.more(SERVED, BACK_S)
                assert listener.gone == {}

            await breaking(breakable.plane, away)
            await listener.until(lambda: made[3].id in listener.ready and made[0].id in listener.gone, BACK_S)
            assert listener.gone == {made[0].id: "stopped"}
            sent.add(made[3].id, listener.channels[made[3].id])
            await sent.more(SERVED, BACK_S)
        assert sent.lost == 0
        assert listener.times_gone == {made[0].id: 1}
        assert {instance.id for instance in platform.instances(FUNCTION)} == {instance.id for instance in made[1:]}
    finally:
        await platform.stop()
        api.close()
