"""The time until there is a second Body, by a Shadow's promotion and by a cold start, and the pair's latency meanwhile.

    python -m benchmarks.shadow.promotion [--quick]

A Body of ResNet50 answers batch after batch on one CPU and has a Shadow on the other, with 33 % of the weights. Then, in turn,
the Shadow is promoted, or another Body is created, while the first one serves. From the decision until the platform hears the new
Body's first word; in both weight modes. A promotion waits for the batch that the first Body is in. Beside it: the batches that
were answered while the Shadow loaded, and those of the same pair before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, write
from benchmarks.shadow.models import StoredModel, at_quantile, counted, first_share, quantile, stored
from benchmarks.shadow.node import Node, Serving, started
from gnomon_core.functions import FunctionSpec
from gnomon_core.pairs import Pair

MODEL = "resnet50"
SHARE = 1 / 3
SPLIT = (0, 1, 1, 2, 2, 3, 3, 4)
BATCH = 4
PAUSE_S = 0.3
CORES = 16
"""Cores that the platform gives away: more than there are CPUs, so that a second Body finds room. Only the first Body serves."""
BEFORE = 6
"""Batches of the pair before its Shadow is promoted."""
MODES = ("shared", "private")


@dataclass
class Runs:
    """Measurements of one weight mode, in milliseconds."""

    promoted_ms: list[float] = field(default_factory=list)
    created_ms: list[float] = field(default_factory=list)
    before_ms: list[float] = field(default_factory=list)
    meanwhile_ms: list[float] = field(default_factory=list)
    missed: int = 0
    """Batches that were answered meanwhile without the Shadow's rows."""


def main(pace: Pace) -> None:
    runs = asyncio.run(measure(stored(MODEL), pace))
    figures = [figure for mode in MODES for figure in figures_of(mode, runs[mode])]
    write("shadow_promotion", figures, repeats=len(runs["shared"].promoted_ms), packages=("gnomon", "torch"), folder=pace.results)


async def measure(model: StoredModel, pace: Pace) -> dict[str, Runs]:
    """Promotions and creations in turn."""
    count = 2 if pace.quick else 20
    found: dict[str, Runs] = {}
    async with started(cores=CORES) as node:
        for mode in MODES:
            found[mode] = Runs()
            spec = await node.function(model, f"promoted-{mode}", weight_mode=mode)
            for _ in range(count):
                serving = await node.serving(spec, model, BATCH)
                await _promote(node, serving, model, found[mode])
                await asyncio.sleep(PAUSE_S)
                found[mode].created_ms.append(await _create(node, spec, serving))
                await node.end(serving.instance.id)
            step(f"{count} promotions and cold starts with {mode} weights")
    return found


async def _create(node: Node, spec: FunctionSpec, body: Serving) -> float:
    """Milliseconds to another Body, beside one that serves as it does in a promotion."""
    body.begin()
    instance, seconds = await node.body(spec)
    await body.end()
    await node.end(instance.id)
    return 1e3 * seconds


async def _promote(node: Node, body: Serving, model: StoredModel, runs: Runs) -> None:
    """A pair that serves, and its Shadow's way to a Body."""
    shadow = await node.platform.create_shadow(body.instance.id, Pair(1, first_share(model.layers, SHARE), SPLIT))
    await node.paired(shadow.id)
    body.begin()
    while sum(batch.shared for batch in body.served) < BEFORE:
        await asyncio.sleep(0.01)
        if (error := body.failed()) is not None:
            raise error
    before = len(body.served)
    began_s = time.perf_counter()
    await node.platform.promote_shadow(shadow.id)
    events = node.events
    await events.until(lambda: shadow.id in events.ready or shadow.id in events.gone)
    if shadow.id in events.gone:
        raise RuntimeError(f"no Body: {events.gone[shadow.id][1]}")
    ready_s = events.ready[shadow.id][0]
    await body.end()
    runs.promoted_ms.append(1e3 * (ready_s - began_s))
    runs.before_ms += [1e3 * (batch.ended_s - batch.began_s) for batch in body.served[:before] if batch.shared]
    meanwhile = [batch for batch in body.served[before:] if batch.hand_overs and batch.ended_s < ready_s]
    runs.meanwhile_ms += [1e3 * (batch.ended_s - batch.began_s) for batch in meanwhile if batch.shared]
    runs.missed += sum(not batch.shared for batch in meanwhile)
    await node.end(shadow.id)


def figures_of(mode: str, runs: Runs) -> list[Figure]:
    """The figures of one weight mode."""
    ratio = quantile(runs.promoted_ms, 0.5) / quantile(runs.created_ms, 0.5)
    return [
        at_quantile(f"{mode}: a Body by promotion", runs.promoted_ms, "ms"),
        at_quantile(f"{mode}: a Body by a cold start", runs.created_ms, "ms"),
        counted(f"{mode}: promotion in relation to a cold start", ratio, "of the time", detail="medians"),
        *_pair_figures(mode, runs.before_ms, runs.meanwhile_ms),
        counted(f"{mode}: batches without the Shadow meanwhile", runs.missed, f"of {runs.missed + len(runs.meanwhile_ms)}"),
    ]


def _pair_figures(mode: str, before_ms: Sequence[float], meanwhile_ms: Sequence[float]) -> list[Figure]:
    before = at_quantile(f"{mode}: a batch of {BATCH} of the pair before", before_ms, "ms")
    if not meanwhile_ms:
        return [before]
    return [before, at_quantile(f"{mode}: a batch of {BATCH} of the pair meanwhile", meanwhile_ms, "ms")]


if __name__ == "__main__":
    start(main, __doc__)
