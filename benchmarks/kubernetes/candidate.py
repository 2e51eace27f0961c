"""A process that stands for a Lease, and writes one object as often as it can while it leads.

Two kinds. A guarded one is what Gnomon's leaders are: each write asks how much of the term is left right before it is sent, and
is bound to the version that it was decided from. An unguarded one has the election alone, as many controllers do.

SIGUSR1 freezes it at the worst moment: its next write has been decided, it may be sent, and it is not sent yet. Whoever thaws it
by SIGCONT finds it there.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

import kubernetes  # noqa: F401 - in the process that candidates are forks of, so that none of them loads it

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.client import MERGE_PATCH, Api, Document, Fence, Refused, Unreachable, connect
from gnomon_platforms.kubernetes.lease import Leader, LeaseTiming, Tenure, Watchdog
from gnomon_platforms.kubernetes.resources import CONFIG_MAPS, LEASES
from gnomon_platforms.kubernetes.writes import Patch, Target, Write, Writer

TIMING = LeaseTiming(duration_s=3, renew_deadline_s=2.0, retry_s=0.3)
PAUSE_S = 0.02
"""Between two writes, for everybody else who needs the machine."""


class Freezing:
    """Freezes the process between a decision and its sending, when it was asked to by SIGUSR1."""

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGUSR1, self._ask)

    def after(self, fence: Fence) -> Fence:
        """The fence, and what comes right after it."""

        def fenced() -> None:
            fence()
            if self._asked:
                self._asked = False
                os.kill(os.getpid(), signal.SIGSTOP)

        return fenced

    def _ask(self, _number: int, _frame: object) -> None:
        self._asked = True


def main(kubeconfig: Path, namespace: str, identity: str, looked: Event, *, guarded: bool = True) -> None:
    """Stand, lead and write until the process ends. `looked` is set when it has seen the Lease for the first time."""
    asyncio.run(_lead(kubeconfig, namespace, identity, looked, guarded=guarded))


async def _lead(kubeconfig: Path, namespace: str, identity: str, looked: Event, *, guarded: bool) -> None:
    api, clock, rng = connect(kubeconfig), WallClock(), random.Random(identity)
    freezing = Freezing()
    written = Target(CONFIG_MAPS, namespace, "written")
    # Without guards the time of a term never ends; it is over when somebody else is seen to have the Lease.
    tenure = Tenure() if guarded else Tenure(gone=lambda _: None, boot_s=lambda: 0.0)
    if guarded:
        Watchdog(tenure).start()
    leader = Leader(Writer(api, clock, rng), Target(LEASES, namespace, "gnomon"), identity, tenure, clock, timing=TIMING)
    await leader.attempt()
    looked.set()
    standing = asyncio.create_task(leader.run())
    await leader.leading.wait()
    if guarded:
        writer = Writer(api, clock, rng, freezing.after(tenure.check))
        await _write(writer, written, tenure, standing)
    else:
        await _write_unguarded(api, written, tenure.epoch, leader, freezing.after(lambda: None))


async def _write(writer: Writer, written: Target, tenure: Tenure, standing: asyncio.Task[None]) -> None:
    def decide(seen: Document | None) -> Write | None:
        return Patch(_next(seen, tenure.epoch))

    while not standing.done():
        try:
            await writer.settle(written, decide, "write")
        except GnomonError as error:
            sys.stderr.write(f"{error}\n")
        await asyncio.sleep(PAUSE_S)


async def _write_unguarded(api: Api, written: Target, epoch: int, leader: Leader, fence: Fence) -> None:
    loop = asyncio.get_running_loop()
    while leader.leading.is_set():
        try:
            seen = await loop.run_in_executor(None, api.call, "GET", written.path())
            changes = _next(seen, epoch)
            patch = partial(api.call, "PATCH", written.path(), body=changes, content_type=MERGE_PATCH, fence=fence)
            await loop.run_in_executor(None, patch)
        except (Refused, Unreachable) as error:
            sys.stderr.write(f"{error}\n")
        await asyncio.sleep(PAUSE_S)


def _next(seen: Document | None, epoch: int) -> Document:
    """The change that a leader of this epoch makes: its epoch, and one more than how often the object has been written."""
    count = int(((seen or {}).get("data") or {}).get("count", 0))
    return {"data": {"epoch": str(epoch), "count": str(count + 1)}}
