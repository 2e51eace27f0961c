"""An owner of a local platform that can be killed: it starts instances, prints every process id below it, and waits."""

import asyncio
import os
import sys
from pathlib import Path

from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_platforms.local.platform import LocalPlatform
from tests.platform_testing import NoModels, NothingBuilt, Recorder, request_frame


def descendants(pid: int) -> list[int]:
    children = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(below for child in children for below in descendants(child))]


async def main(state: Path) -> None:
    platform, events = LocalPlatform(state, NoModels(), NothingBuilt(), preload_torch=False), Recorder()
    await platform.start(events)
    # One leaves a process of its own session behind, as a daemon would.
    spec = read_deployment({"service": "busy", "image": "functions/alpine", "envProcess": "sh"})
    script = b"setsid sleep 1000 </dev/null >/dev/null 2>&1 & sleep 1000"
    for _ in range(3):
        instance = await platform.create(InstanceRequest(spec, 1, 1, None, {}))
        (await events.channel(instance.id)).run(request_frame(script), lambda _: None)
    supervisor = descendants(os.getpid())[0]
    # Supervisor, zygote, its waiting child, and for each instance itself, its shell and two sleeps.
    while len(below := descendants(supervisor)) < 2 + 3 * 4:  # noqa: ASYNC110 - nobody tells us about processes
        await asyncio.sleep(0.05)
    print(supervisor, *below, flush=True)  # noqa: T201 - this is what the test reads
    await asyncio.sleep(1000)


asyncio.run(main(Path(sys.argv[1])))
