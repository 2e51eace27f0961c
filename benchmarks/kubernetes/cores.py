"""A Body's pod gets a second core in place, and gives it back, while it answers batch after batch.

    python -m benchmarks.kubernetes.cores [--quick]

ResNet50 in a pod that asks for one core and may use no more; batches of four without a pause. Decision is the call of
`Platform.resize`; applied is when the kubelet's status of the container shows the new limit and the gateway has heard of it,
which tells the process to use another thread; in effect is the first answer at the pace of two cores, counted to its arrival.
Answers are compared with the first, none may be lost, and the container may not be restarted. A node of two cores has no room
then for anything that asks for some of them, so that no coordinator is installed.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field

from benchmarks.kubernetes.pods import Ground, Pods, pods_on, prepared
from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, write
from benchmarks.shadow.models import StoredModel, at_quantile, counted, stored
from benchmarks.shadow.node import Serving

MODEL, BATCH = "resnet50", 4
ROUNDS, QUICK_ROUNDS = 12, 2
GOAL_S = 4.0
QUICKER = 0.75
"""A batch counts as computed on two cores if it takes at most this share of its time on one."""
SETTLED = 6
"""Batches between two changes."""
LIMIT_S = 60.0


@dataclass
class Seen:
    """Seconds from each decision, and what batches took before and after."""

    applied_s: list[float] = field(default_factory=list)
    effect_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    one_core_s: list[float] = field(default_factory=list)
    two_cores_s: list[float] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    restarts: int = 0


def main(pace: Pace) -> None:
    rounds = QUICK_ROUNDS if pace.quick else ROUNDS
    with prepared(shadows=False) as ground:
        seen = asyncio.run(measure(ground, stored(MODEL), rounds))
    packages = ("gnomon", "torch", "torchvision", "kubernetes")
    write("kubernetes_cores", figures_of(seen), repeats=rounds, packages=packages, folder=pace.results)


async def measure(ground: Ground, model: StoredModel, rounds: int) -> Seen:
    """Rounds of more and fewer cores for one Body that serves."""
    seen = Seen()
    async with pods_on(ground) as pods:
        step("a Body's pod")
        body = await pods.serving(pods.function(model, "cores"), model, BATCH)
        before = body.asked
        body.begin()
        for number in range(rounds):
            step(f"round {number + 1} of {rounds}")
            await _round(pods, body, seen)
        await body.end()
        pod = await asyncio.to_thread(ground.pod_of, body.instance.id)
        seen.restarts = pod.status.container_statuses[0].restart_count
        seen.asked, seen.answered = body.asked - before, len(body.served)
        await pods.end(body.instance.id)
    return seen


async def _round(pods: Pods, body: Serving, seen: Seen) -> None:
    alone_s = await _settled(body)
    seen.one_core_s.append(alone_s)
    began_s, before = time.perf_counter(), len(body.served)
    await pods.platform.resize(body.instance.id, 2)
    seen.applied_s.append(await _applied(pods, body, 2) - began_s)

    def quicker() -> float | None:
        found = (batch for batch in body.served[before:] if batch.ended_s - batch.began_s <= QUICKER * alone_s)
        return next((batch.ended_s for batch in found), None)

    async with asyncio.timeout(LIMIT_S):
        while (at_s := quicker()) is None:
            await _another(body)
    seen.effect_s.append(at_s - began_s)
    seen.two_cores_s.append(await _settled(body))
    began_s = time.perf_counter()
    await pods.platform.resize(body.instance.id, 1)
    seen.back_s.append(await _applied(pods, body, 1) - began_s)


async def _settled(body: Serving) -> float:
    """The median latency of the next few batches."""
    before = len(body.served)
    while len(body.served) < before + SETTLED:
        await _another(body)
    return statistics.median(batch.ended_s - batch.began_s for batch in body.served[before:])


async def _applied(pods: Pods, body: Serving, cores: int) -> float:
    """Wait until the platform reports this number of cores; return the time."""
    async with asyncio.timeout(LIMIT_S):
        while next(instance.cores for instance in pods.platform.instances(body.instance.function)) != cores:
            await _another(body, 0.005)
    return time.perf_counter()


async def _another(body: Serving, pause_s: float = 0.01) -> None:
    """Let it go on. Raises what it has failed by."""
    if (error := body.failed()) is not None:
        raise error
    await asyncio.sleep(pause_s)


def figures_of(seen: Seen) -> list[Figure]:
    """The published figures."""
    gain = [second / first for first, second in zip(seen.one_core_s, seen.two_cores_s, strict=True)]
    return [
        at_quantile("1 → 2 cores: in effect", seen.effect_s, "s", at_most=GOAL_S, detail="the first answer at the pace of two"),
        counted("1 → 2 cores: longest", max(seen.effect_s), "s", at_most=GOAL_S),
        counted("restarts", seen.restarts, "", at_most=0),
        counted("batches not answered", seen.asked - seen.answered, "", at_most=0, detail=f"of {seen.asked} batches of {BATCH}"),
        at_quantile("1 → 2 cores: applied by the kubelet and heard of", seen.applied_s, "s"),
        at_quantile("2 → 1 cores: applied by the kubelet and heard of", seen.back_s, "s"),
        at_quantile("a batch on two cores ÷ on one", gain, ""),
    ]


if __name__ == "__main__":
    start(main, __doc__)
