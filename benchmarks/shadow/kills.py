"""Shadows and coordinators killed at random moments under load: every answer is right, none is lost, no memory stays.

    python -m benchmarks.shadow.kills [--quick]

A platform as `gnomon serve` has it and a Body that answers batch after batch, each answer compared with what it answers alone.
Its Shadow is killed (SIGKILL) at a random moment from the decision for it on, and replaced, 500 times; meanwhile the coordinator
is killed 100 times, at random moments as well. A Shadow that is wished for while there is no coordinator waits for the next one.
After every 50 kills, and at the end, there is no Shadow for a moment: within five seconds no process of this platform may have a
pair's memory open or mapped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.programs import Pace, asked, ended_well, step
from benchmarks.report import Figure, write
from benchmarks.shadow.models import at_quantile, counted, first_share, stored
from benchmarks.shadow.node import WARM_UPS, Node, Serving, started
from gnomon_core.pairs import Pair

MODEL = "efficientnet-lite0"
BATCH = 2
SHARE = 0.6
SPLIT = (0, 1)
SEED = 4
LATEST_S = 0.4
"""After the decision for a Shadow at which it is killed: before it is born, while it loads, while it computes, while it waits."""
PAUSE_S = 0.01
"""Between batches, for everybody else who needs the machine."""
CLEAN_AFTER_S, LOOK_AGAIN_S = 5.0, 0.1
LOOK_EVERY = 50
NEXT_S = 30.0
"""The longest wait for a coordinator: one that was killed often is replaced after 5 s."""


@dataclass
class Toll:
    """Killed processes, and resources that are left behind."""

    shadows: int = 0
    coordinators: int = 0
    met: Counter[str] = field(default_factory=Counter)
    """What Shadows were doing when they were killed."""
    back_s: list[float] = field(default_factory=list)
    """From a coordinator's death to the next one's first word."""
    left: list[str] = field(default_factory=list)
    """Shared memory that was there when none should have been."""
    looks: int = 0


def main(pace: Pace) -> None:
    shadows, coordinators = (10, 2) if pace.quick else (500, 100)
    figures = asyncio.run(measure(shadows, coordinators))
    write("shadow_kills", figures, repeats=shadows, packages=("gnomon", "torch"), folder=pace.results)


async def measure(shadows: int, coordinators: int) -> list[Figure]:
    """All kills, on one platform."""
    model = stored(MODEL)
    async with started(cores=4) as node:
        spec = await node.function(model, "kills")
        serving = await node.serving(spec, model, BATCH)
        siege = Siege(node, serving, Pair(1, first_share(model.layers, SHARE), SPLIT), random.Random(SEED))
        serving.begin(PAUSE_S)
        await siege.lay(shadows, coordinators)
        await siege.look()
        await serving.end()
    return figures_of(serving, siege.toll)


@dataclass
class Siege:
    """Kills one Shadow after the other of a Body that serves."""

    node: Node
    serving: Serving
    pair: Pair
    chance: random.Random
    toll: Toll = field(default_factory=Toll)

    async def lay(self, shadows: int, coordinators: int) -> None:
        """Until so many are killed."""
        toll = self.toll
        while toll.shadows < shadows or toll.coordinators < coordinators:
            if (error := self.serving.failed()) is not None:
                raise error
            share = max(0.25, coordinators / shadows)
            await self._round(also_coordinator=toll.coordinators < coordinators and self.chance.random() < share)
            if toll.shadows % LOOK_EVERY == 0:
                await self.look()
                step(f"{toll.shadows} Shadows, {toll.coordinators} coordinators, {len(self.serving.served)} batches")

    async def look(self) -> None:
        """Note what shared memory there is although there is no pair, five seconds after the last one."""
        for _ in range(round(CLEAN_AFTER_S / LOOK_AGAIN_S)):
            found = _shared_memory(self.node)
            if not found:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        self.toll.looks += 1
        self.toll.left += found

    async def _round(self, *, also_coordinator: bool) -> None:
        """A Shadow from its decision to its death, and perhaps a coordinator's death in between."""
        node, toll = self.node, self.toll
        shadow = await node.platform.create_shadow(self.serving.instance.id, self.pair)
        killing = asyncio.create_task(self._kill_coordinator()) if also_coordinator else None
        await asyncio.sleep(self.chance.uniform(0.0, LATEST_S))
        await node.told.until(lambda: _pid(node, shadow.id) is not None or shadow.id in node.told.gone, NEXT_S)
        pid = _pid(node, shadow.id)
        if pid is not None:
            toll.met["at work" if shadow.id in node.told.paired else "loading"] += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                toll.shadows += 1
        await node.told.until(lambda: shadow.id in node.told.gone, NEXT_S)
        if killing is not None:
            await killing

    async def _kill_coordinator(self) -> None:
        """Kill the one that is there, or the next one, and wait until there is another."""
        await asyncio.sleep(self.chance.uniform(0.0, LATEST_S))
        pid = await _coordinator(self.node, not_pid=0)
        os.kill(pid, signal.SIGKILL)
        began_s = time.perf_counter()
        self.toll.coordinators += 1
        await _coordinator(self.node, not_pid=pid)
        self.toll.back_s.append(time.perf_counter() - began_s)


def _pid(node: Node, shadow_id: str) -> int | None:
    life = node.life(shadow_id)
    return None if life is None else life.pid


async def _coordinator(node: Node, *, not_pid: int) -> int:
    """The coordinator's process, waited for."""
    async with asyncio.timeout(NEXT_S):
        while True:
            for pid in children(node.supervisor()):
                if pid != not_pid and _command(pid)[-3:-2] == ["gnomon_coordinator"]:
                    return pid
            await asyncio.sleep(0.002)


def _shared_memory(node: Node) -> list[str]:
    """A pair's buffers, open or mapped in this process or one below the supervisor."""
    found: list[str] = []
    for pid in (os.getpid(), *descendants(node.supervisor())):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            files = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
            found += [f"{pid}: {text}" for text in (*files, *maps) if "memfd:there" in text or "memfd:back" in text]
    return found


def descendants(pid: int) -> list[int]:
    """A process and everything below it."""
    return [pid, *(below for child in children(pid) for below in descendants(child))]


def children(pid: int) -> list[int]:
    """The processes that a process has begun."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return []


def _command(pid: int) -> list[str]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return []


def figures_of(serving: Serving, toll: Toll) -> list[Figure]:
    """Counts, and how the batches went. A wrong or lost answer would have ended the run."""
    outcomes = Counter(one["outcome"] for batch in serving.served for one in batch.hand_overs)
    lost = serving.asked - len(serving.served) - WARM_UPS
    met = ", ".join(f"{count} {what}" for what, count in sorted(toll.met.items()))
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    seconds = [batch.ended_s - batch.began_s for batch in serving.served]
    return [
        counted("Shadows killed", toll.shadows, "", detail=met),
        counted("coordinators killed", toll.coordinators, ""),
        counted("answers lost or wrong", lost, "", at_most=0, detail=f"{len(serving.served)} batches; hand-overs: {said}"),
        counted("shared memory left after 5 s", len(toll.left), "", at_most=0, detail=f"{toll.looks} looks; {toll.left[:3]}"),
        at_quantile("the next coordinator is there after", [1e3 * one for one in toll.back_s], "ms"),
        at_quantile("a batch, p99", [1e3 * one for one in seconds], "ms", share=0.99, detail=f"batches of {BATCH}"),
    ]


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
