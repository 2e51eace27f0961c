"""The start of a Shadow while its Body serves: from the decision to its registration with its pages resident.

    python -m benchmarks.shadow.starts [--quick]

A platform as `gnomon serve` has it, a Body of ResNet50 that answers batch after batch on one CPU, and Shadows for it that begin
on the other: with the blocks from the input on, up to 10, 20 and 34 MB of weights, and with larger blocks up to 40 MB, in turn.
From the pool's container; from a fresh fork, the node having no pool; and in bursts, where several Bodies ask at once. Decision
is the call of `Platform.create_shadow`; registered is when the platform has heard that the blocks are resident. Beside it: where
the time goes, the first batch with right rows of the Shadow in it, a Body's start, and both in the weight mode `private`; and the
reserved core of a full node, which a Shadow and a Body get in turn.

A pool that has seen one burst keeps as many containers as it took, and bursts are counted from the second one on. Not among "all
starts", and beside them: bursts on a node without a pool, where each is forked, as are all but one of a node's very first burst.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, write
from benchmarks.shadow.models import MEGABYTE, StoredModel, at_quantile, first_blocks, in_mode, largest_blocks, stored
from benchmarks.shadow.node import Node, Serving, reclaim_figures, started
from gnomon_core.pairs import Pair

MODEL = "resnet50"
SIZES_MB = (10, 20, 34, 40)
LARGEST_MB = 40
"""Filled with the largest blocks: no border from the input on comes near it."""
SPLIT = (0, 1, 1, 2, 2, 3, 3, 4)
BATCH = 2
MEDIAN_GOAL_MS, P99_GOAL_MS = 25.0, 50.0
PAUSE_S = 0.25
"""Pause in seconds between starts, in which the pool's next container is forked and rehearses."""
PER_BURST = 3
FORKED_BURST = "burst without a pool"
CORES = 16
"""Cores that the platform gives away: more than there are CPUs, so that a burst finds room. One Body serves, the others wait."""


@dataclass(frozen=True, slots=True)
class Start:
    """Milliseconds from the decision to each step of one Shadow's start."""

    size_mb: int
    ordered_ms: float
    born_ms: float
    registered_ms: float
    paired_ms: float
    answered_ms: float | None = None
    """The first batch with its rows; None where its Body did not serve."""


def main(pace: Pace) -> None:
    figures = asyncio.run(measure(stored(MODEL), pace))
    write("shadow_starts", figures, repeats=200 if not pace.quick else 20, packages=("gnomon", "torch"), folder=pace.results)


async def measure(model: StoredModel, pace: Pace) -> list[Figure]:
    """Measure all kinds of starts."""
    some = 6 if pace.quick else 70
    seen: dict[str, list[Start]] = {}
    async with started(cores=CORES) as node:
        seen["pool"] = await one_by_one(node, model, some)
        step(f"{some} starts from the pool")
        bursts = await in_bursts(node, model, max(2, some // PER_BURST))
        step(f"{max(2, some // PER_BURST)} bursts")
        bodies_ms = {mode: await body_starts(node, model, mode, pace.starts) for mode in ("shared", "private")}
        private = await one_by_one(node, model, max(4, some // 5), weight_mode="private")
    async with started(cores=CORES, pool=0) as node:
        seen["fork"] = await one_by_one(node, model, some)
        step(f"{some} starts from fresh forks")
        forked = await in_bursts(node, model, max(2, some // PER_BURST // 2))
    seen |= {f"burst, number {number}": starts for number, starts in bursts.items()}
    seen |= {f"{FORKED_BURST}, number {number}": starts for number, starts in forked.items()}
    pair = Pair(1, blocks_of(model, SIZES_MB[0]), SPLIT)
    return figures_of(seen, private, bodies_ms) + await reclaim_figures(model, pair, pace.starts)


async def one_by_one(node: Node, model: StoredModel, count: int, weight_mode: str = "shared") -> list[Start]:
    """Starts for one Body that serves."""
    spec = await node.function(model, f"one-{weight_mode}-{node.supervisor()}", weight_mode=weight_mode)
    serving = await node.serving(spec, model, BATCH)
    serving.begin()
    found: list[Start] = []
    for number in range(count):
        size_mb = SIZES_MB[number % len(SIZES_MB)]
        await asyncio.sleep(PAUSE_S)
        found.append(await _start(node, serving, model, size_mb, answered=True))
    await serving.end()
    await node.end(serving.instance.id)
    return found


async def in_bursts(node: Node, model: StoredModel, count: int) -> dict[int, list[Start]]:
    """Starts of several Shadows at once, by their number in the burst. The first Body serves meanwhile."""
    spec = await node.function(model, "bursts")
    bodies = [await node.serving(spec, model, BATCH) for _ in range(PER_BURST)]
    bodies[0].begin()
    found: dict[int, list[Start]] = defaultdict(list)
    for number in range(1 + count):
        size_mb = SIZES_MB[number % len(SIZES_MB)]
        await asyncio.sleep(PAUSE_S * PER_BURST)
        burst = await asyncio.gather(*(_start(node, body, model, size_mb, answered=False) for body in bodies))
        if number:
            # Of the first one the pool learns how large bursts are.
            for at, start in enumerate(burst, start=1):
                found[at].append(start)
    await bodies[0].end()
    for body in bodies:
        await node.end(body.instance.id)
    return found


async def body_starts(node: Node, model: StoredModel, weight_mode: str, count: int) -> list[float]:
    """Milliseconds from the decision to a Body that has answered its first, empty batch."""
    spec = await node.function(model, f"body-{weight_mode}", weight_mode=weight_mode)
    found: list[float] = []
    for _ in range(count):
        await asyncio.sleep(PAUSE_S)
        instance, seconds = await node.body(spec)
        found.append(1e3 * seconds)
        await node.end(instance.id)
    return found


def blocks_of(model: StoredModel, size_mb: int) -> tuple[int, ...]:
    """Blocks of up to so many megabytes of weights."""
    choose = largest_blocks if size_mb == LARGEST_MB else first_blocks
    return choose(model.layers, at_most_bytes=size_mb * MEGABYTE)


async def _start(node: Node, body: Serving, model: StoredModel, size_mb: int, *, answered: bool) -> Start:
    """Start one Shadow and end it again."""
    pair = Pair(1, blocks_of(model, size_mb), SPLIT)
    served_before = len(body.served)
    began_s = time.perf_counter()
    shadow = await node.platform.create_shadow(body.instance.id, pair)
    ordered_s = time.perf_counter()
    stamps = _watch(node, shadow.id)
    await node.paired(shadow.id)
    answered_s = await _first_shared(node, body, served_before, shadow.id) if answered else None
    await node.end(shadow.id)

    def after(at_s: float) -> float:
        return 1e3 * (at_s - began_s)

    return Start(
        size_mb,
        after(ordered_s),
        after(stamps["born"]),
        after(stamps["registered"]),
        after(node.events.paired[shadow.id]),
        None if answered_s is None else after(answered_s),
    )


def _watch(node: Node, shadow_id: str) -> dict[str, float]:
    """The times at which the platform hears of each step of a Shadow's start, from now on."""
    record = node.record_of(shadow_id)
    assert record is not None
    stamps: dict[str, float] = {}
    forked, registered = record.forked, record.registered

    def stamped_forked(pid: int) -> None:
        stamps["born"] = time.perf_counter()
        forked(pid)

    def stamped_registered() -> None:
        stamps["registered"] = time.perf_counter()
        registered()

    record.forked, record.registered = stamped_forked, stamped_registered  # type: ignore[method-assign]
    return stamps


async def _first_shared(node: Node, body: Serving, since: int, shadow_id: str) -> float | None:
    """The time of the first complete answer with correct rows of the Shadow; None if the Body dropped the Shadow before."""
    while not any(batch.shared for batch in body.served[since:]):
        if (error := body.failed()) is not None:
            raise error
        if shadow_id in node.events.gone:
            return None
        await asyncio.sleep(0.002)
    return next(batch.ended_s for batch in body.served[since:] if batch.shared)


def figures_of(seen: dict[str, list[Start]], private: Sequence[Start], bodies_ms: dict[str, list[float]]) -> list[Figure]:
    """Each kind's median and 99th percentile, and where the time goes."""
    every = [start for kind, starts in seen.items() for start in starts if not kind.startswith(FORKED_BURST)]
    figures = _goals("all starts", every)
    for kind, starts in seen.items():
        figures += _goals(kind, starts)
    for kind in ("pool", "fork"):
        figures += _phases(kind, seen[kind])
        for size_mb in SIZES_MB:
            some = [start.registered_ms for start in seen[kind] if start.size_mb == size_mb]
            figures.append(at_quantile(f"{kind}, up to {size_mb} MB: registered", some, "ms"))
    own = at_quantile("pool, private weights: registered", [start.registered_ms for start in private], "ms")
    figures = [*in_mode(figures), *in_mode([own], "private")]
    for mode, values in bodies_ms.items():
        figures += in_mode([at_quantile(f"a Body, {mode} weights: ready", values, "ms")], mode)
    return figures


def _goals(kind: str, starts: Sequence[Start]) -> list[Figure]:
    registered = [start.registered_ms for start in starts]
    return [
        at_quantile(f"{kind}: registered, median", registered, "ms", at_most=MEDIAN_GOAL_MS),
        at_quantile(f"{kind}: registered, p99", registered, "ms", share=0.99, at_most=P99_GOAL_MS),
    ]


def _phases(kind: str, starts: Sequence[Start]) -> list[Figure]:
    return [
        at_quantile(f"{kind}: claimed and ordered", [start.ordered_ms for start in starts], "ms"),
        at_quantile(f"{kind}: a container named", [start.born_ms - start.ordered_ms for start in starts], "ms"),
        at_quantile(f"{kind}: sandbox and blocks", [start.registered_ms - start.born_ms for start in starts], "ms"),
        at_quantile(
            f"{kind}: its Body told", [start.paired_ms - start.registered_ms for start in starts], "ms", detail="between batches"
        ),
        at_quantile(
            f"{kind}: first right batch together",
            [start.answered_ms for start in starts if start.answered_ms is not None],
            "ms",
            detail=f"batches of {BATCH}, one of them under way when the Shadow is decided on",
        ),
    ]


if __name__ == "__main__":
    start(main, __doc__)
