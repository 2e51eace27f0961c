"""Shadows from the node's pool for a Body that is a pod, beside the same on bare processes of the same machine.

    python -m benchmarks.kubernetes.burst [--quick] [--model resnet50] [--turns 15]

A Body with one core is a pod of the function; the DaemonSet's pod has the pool. Beside it the platform of one machine has the
same Body and the same pool as processes. First each starts a few Bodies, each until its first batch is answered. Then they take
turns: a few batches alone; then a Shadow is decided on while the Body answers batch after batch, until the first batch together
is answered; the same batches with it; it is ended. Decision is the call of `Platform.create_shadow`, ready is when the platform
has heard that the Shadow's pages are resident, paired that its Body works with it.

The ratio of the pair to the Body alone is of one turn, a figure the median of all turns; that of the pods is compared with that
of the processes. Every answer is compared with the Body's first. Of two cores the Body's pod may use one and asks for half of it,
since node, pool and Shadow need the rest; the second is the Shadow's, and this process's, which is the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.kubernetes.pods import Pods, pods_on, prepared
from benchmarks.programs import ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, write
from benchmarks.shadow.models import CATALOG, StoredModel, at_quantile, counted, first_share, named, quantile, samples_of, stored
from benchmarks.shadow.node import Place, Serving, started
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionSpec
from gnomon_core.pairs import Pair

MODEL, SHARE = "resnet50", 0.40
SPLIT = (0, 1, 1, 2, 2, 3, 3, 4)
BATCHES = (4, 8)
TURNS, QUICK_TURNS = 15, 3
"""The number of turns for each batch size. A turn is a start."""
BODIES, QUICK_BODIES = 5, 1
"""Starts of Bodies beside those of Shadows: a pod with torch and the weights; a process forked from one that has both."""
EACH = 5
"""Batches alone and batches together in a turn."""
READY_GOAL_MS, RATIO_GOAL = 100.0, 1.10
HALF = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "3Gi"}}
COME_LIMIT_S = 120.0
PAUSE_S = 0.5
"""Pause in seconds between turns, in which the pool's next container is forked and rehearses."""


@dataclass
class Turns:
    """Measurements of one place for Shadows."""

    body_ms: list[float] = field(default_factory=list)
    body_answered_ms: dict[int, list[float]] = field(default_factory=lambda: {batch: [] for batch in BATCHES})
    """Milliseconds until a new Body has answered its first batch, by the batch's size."""
    ready_ms: list[float] = field(default_factory=list)
    paired_ms: list[float] = field(default_factory=list)
    answered_ms: dict[int, list[float]] = field(default_factory=lambda: {batch: [] for batch in BATCHES})
    alone_s: dict[int, list[float]] = field(default_factory=lambda: {batch: [] for batch in BATCHES})
    pair_s: dict[int, list[float]] = field(default_factory=lambda: {batch: [] for batch in BATCHES})
    lost: int = 0
    """Batches of the pair in which the Shadow's rows came too late, and were computed by the Body again."""

    def ratios(self, batch: int) -> list[float]:
        """The latency of the pair ÷ the Body's alone, turn by turn."""
        return [pair / alone for pair, alone in zip(self.pair_s[batch], self.alone_s[batch], strict=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--model", default=MODEL, choices=sorted(CATALOG), help=f"default {MODEL}")
    parser.add_argument("--turns", type=int, help=f"of each batch size; {TURNS} unless quick")
    given = parser.parse_args(arguments)
    pace, model = pace_of(given), stored(given.model)
    pair = Pair(1, first_share(model.layers, SHARE), SPLIT)
    turns = given.turns or (QUICK_TURNS if pace.quick else TURNS)
    bodies = QUICK_BODIES if pace.quick else BODIES
    with prepared(shadows=True) as ground:
        seen = asyncio.run(measure(partial(pods_on, ground), model, pair, turns, bodies))
    write(
        "kubernetes_burst",
        figures_of(seen, f"{given.model}, half of a batch, {named(model.layers, pair.blocks)}; {machine_load()}"),
        repeats=turns * len(BATCHES),
        packages=("gnomon", "torch", "torchvision", "kubernetes"),
        folder=pace.results,
    )


def machine_load() -> str:
    """The machine's run queue during the measurement; on a quiet machine only this benchmark fills it."""
    return f"load {os.getloadavg()[1]:.1f} on {os.cpu_count()} CPUs"


async def measure(
    make_pods: Callable[[], contextlib.AbstractAsyncContextManager[Pods]], model: StoredModel, pair: Pair, turns: int, starts: int
) -> dict[str, Turns]:
    """Turns on pods and on processes, alternating."""
    seen = {"pods": Turns(), "processes": Turns()}
    async with make_pods() as pods, started(cores=2) as node:
        step(f"{starts} starts of a Body's pod, and of a Body's process")
        places: dict[str, tuple[Place, FunctionSpec]] = {
            "pods": (pods, pods.function(model, "burst", HALF)),
            "processes": (node, await node.function(model, "burst")),
        }
        for _ in range(starts):
            for kind, (place, spec) in places.items():
                for batch in BATCHES:
                    body, took_s = await place.body(spec)
                    first = await place.asked_of(body, model, batch).ask()
                    seen[kind].body_ms.append(1e3 * took_s)
                    seen[kind].body_answered_ms[batch].append(1e3 * (took_s + first.ended_s - first.began_s))
                    await place.end(body.id)
        bodies = {kind: (place, await place.serving(spec, model, BATCHES[0])) for kind, (place, spec) in places.items()}
        for place, serving in bodies.values():
            await place.end((await shadow_of(place, serving, pair)).id)
        for batch in BATCHES:
            step(f"{turns} turns, batches of {batch}")
            for _, serving in bodies.values():
                serving.take(samples_of(model, batch, seed=batch))
                await serving.ask()
            for turn in range(turns):
                for kind in sorted(bodies, reverse=bool(turn % 2)):
                    await asyncio.sleep(PAUSE_S)
                    await _turn(*bodies[kind], pair, batch, seen[kind])
        for place, serving in bodies.values():
            await place.end(serving.instance.id)
    return seen


async def shadow_of(place: Place, body: Serving, pair: Pair) -> Instance:
    """A Shadow that works with a Body, as soon as there can be one: the Body has come to its coordinator, and the pool is warm.

    Raises:
        RuntimeError: it has ended instead.

    """
    shadow = None
    async with asyncio.timeout(COME_LIMIT_S):
        while shadow is None:
            try:
                shadow = await place.platform.create_shadow(body.instance.id, pair)
            except GnomonError as error:
                if error.code not in ("no_such_body", "no_pool"):
                    raise
                await asyncio.sleep(0.2)
    await place.paired(shadow.id)
    return shadow


async def _turn(place: Place, body: Serving, pair: Pair, batch: int, seen: Turns) -> None:
    alone = [await body.ask() for _ in range(EACH)]
    before = len(body.served)
    body.begin()
    await asyncio.sleep(0.01)
    began_s = time.perf_counter()
    shadow = await place.platform.create_shadow(body.instance.id, pair)
    await _until_ready(place, body, shadow.id)
    seen.ready_ms.append(1e3 * (time.perf_counter() - began_s))
    await place.paired(shadow.id)
    seen.paired_ms.append(1e3 * (place.events.paired[shadow.id] - began_s))
    while not any(batch.shared for batch in body.served[before:]):
        if (error := body.failed()) is not None:
            raise error
        await asyncio.sleep(0.002)
    first = next(batch for batch in body.served[before:] if batch.shared)
    seen.answered_ms[batch].append(1e3 * (first.ended_s - began_s))
    await body.end()
    together = [await body.ask() for _ in range(EACH)]
    await place.end(shadow.id)
    seen.lost += sum(not batch.shared for batch in together)
    seen.alone_s[batch].append(statistics.median(batch.ended_s - batch.began_s for batch in alone))
    seen.pair_s[batch].append(statistics.median(batch.ended_s - batch.began_s for batch in together))


async def _until_ready(place: Place, body: Serving, shadow_id: str) -> None:
    """Return when the platform knows that the Shadow's blocks are resident."""
    while True:
        known = next(
            (instance for instance in place.platform.instances(body.instance.function) if instance.id == shadow_id), None
        )
        if known is None:
            raise RuntimeError(f"no Shadow: {place.events.gone.get(shadow_id)}")
        if known.state is InstanceState.READY:
            return
        await asyncio.sleep(0.001)


def figures_of(seen: dict[str, Turns], what: str) -> list[Figure]:
    """The published figures."""
    pods, processes = seen["pods"], seen["processes"]
    figures = [at_quantile("pods: a Shadow ready, median", pods.ready_ms, "ms", at_most=READY_GOAL_MS, detail=what)]
    for batch in BATCHES:
        of_pods, of_processes = (quantile(run.ratios(batch), 0.5) for run in (pods, processes))
        detail = f"pair ÷ Body alone: {of_pods:.3f} of pods, {of_processes:.3f} of processes"
        figures.append(
            counted(
                f"b = {batch}: ratio of pods ÷ ratio of processes", of_pods / of_processes, "", at_most=RATIO_GOAL, detail=detail
            )
        )
    for kind, pods_seen in seen.items():
        figures.append(
            counted(
                f"{kind}: batches without the Shadow's rows",
                pods_seen.lost,
                "batches",
                detail=f"of {EACH * len(pods_seen.ready_ms)}",
            )
        )
        figures += [
            at_quantile(f"{kind}: {name}", values, "ms")
            for name, values in (
                ("a Body ready", pods_seen.body_ms),
                ("a Shadow ready", pods_seen.ready_ms),
                ("its Body told", pods_seen.paired_ms),
            )
        ]
        for batch in BATCHES:
            figures += [
                at_quantile(f"{kind}, b = {batch}: a Body's first batch", pods_seen.body_answered_ms[batch], "ms"),
                at_quantile(f"{kind}, b = {batch}: first batch together", pods_seen.answered_ms[batch], "ms"),
                at_quantile(f"{kind}, b = {batch}: pair ÷ Body alone", pods_seen.ratios(batch), ""),
                at_quantile(f"{kind}, b = {batch}: Body alone", [1e3 * each for each in pods_seen.alone_s[batch]], "ms"),
                at_quantile(f"{kind}, b = {batch}: pair", [1e3 * each for each in pods_seen.pair_s[batch]], "ms"),
            ]
    return figures


if __name__ == "__main__":
    ended_well(main)
