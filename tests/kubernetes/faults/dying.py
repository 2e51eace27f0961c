"""A process that looks after one function and is killed right before one of its writes, whichever is named.

Two instances, a third, the first again destroyed, the second with other cores: whatever is written, it is written here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path

from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from tests.contracts.test_platform import deployment, instance_of
from tests.platform_testing import Recorder

SPEC = deployment(annotations={"gnomon/cores": "1"})
ALL_WRITTEN = 0
"""How it ends where it was not killed before."""


def main(kubeconfig: Path, last: int) -> None:
    """Live until write number `last` is to be sent; the first is 0."""
    asyncio.run(_live(kubeconfig, last))


async def _live(kubeconfig: Path, last: int) -> None:
    numbers = itertools.count()

    def fence() -> None:
        # It is asked right before each write is sent, in the thread that sends it.
        if next(numbers) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    platform, listener = OpenFaasPlatform(connect(kubeconfig), OpenFaasOptions(adopting_s=0.0), fence=fence), Recorder()
    await platform.start(listener)
    made = [await platform.create(instance_of(SPEC)) for _ in range(2)]
    for instance in made:
        await listener.channel(instance.id)
    await listener.channel((await platform.create(instance_of(SPEC))).id)
    await platform.destroy(made[0].id)
    await listener.reason(made[0].id)
    await platform.resize(made[1].id, 2)
    async with asyncio.timeout(60.0):
        while made[1].id not in {instance.id for instance in platform.instances(made[1].function) if instance.cores == 2}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    os._exit(ALL_WRITTEN)
