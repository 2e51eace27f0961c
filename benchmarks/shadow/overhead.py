"""The overhead of pairing for a Body that has no Shadow, against a Body that could have none.

    python -m benchmarks.shadow.overhead [--quick]

With: the model has layer blocks, so the Body has a coordination socket that it looks at before each batch; a coordinator knows
it, and the pool holds an empty container. Without: the same files but the layer blocks, no coordination socket, no pool. Both run
on the same CPU and answer the same batches in turns, the order reversed each time; a sample is the ratio of their medians over
the life of two processes, since two processes of one kind already differ by where their memory lies.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

from benchmarks import gnomon
from benchmarks.programs import Pace, asked, ended_well, step
from benchmarks.report import Figure, measured, write
from benchmarks.shadow.models import StoredModel, in_mode, stored
from benchmarks.shadow.node import Node, Serving, started
from gnomon_core.interfaces import ModelEntry
from gnomon_profiler.repository import DirectoryRepository

CASES = (("efficientnet-lite0", 1, 24), ("resnet50", 4, 8))
"""Model, batch and turns of a sample."""
GOAL_PERCENT = 2.0


def main(pace: Pace) -> None:
    samples = 3 if pace.quick else 12
    figures: list[Figure] = []
    for name, batch, turns in CASES[: 1 if pace.quick else 2]:
        figures.append(asyncio.run(measure(name, batch, turns, samples)))
        write("shadow_overhead", figures, repeats=samples, packages=("gnomon", "torch"), folder=pace.results)


async def measure(name: str, batch: int, turns: int, samples: int) -> Figure:
    """How much slower a Body with the machinery is, in percent."""
    model = stored(name)
    with gnomon.temporary() as folder:
        bare_models = DirectoryRepository(folder / "models")
        bare = _without_blocks(bare_models, model)
        async with started(cores=1) as equipped, started(cores=1, pool=0, models=bare_models) as plain:
            sides = (equipped, model), (plain, bare)
            percent = [await _sample(sides, batch, turns, plain_first=bool(number % 2)) for number in range(samples)]
    step(f"{name}: {' '.join(f'{one:+.2f}' for one in percent)} %")
    return figure_of(f"{name}, b = {batch}", percent, turns)


def figure_of(key: str, percent: Sequence[float], turns: int) -> Figure:
    detail = f"paired Bodies, {turns} alternating batches each"
    figure = measured(f"{key}: with the machinery, slower by", percent, "%", at_most=GOAL_PERCENT, detail=detail)
    return in_mode([figure])[0]


def _without_blocks(models: DirectoryRepository, model: StoredModel) -> StoredModel:
    entry: ModelEntry = model.entry
    files = {"program.json": entry.program.read_bytes(), "weights.safetensors": entry.weights.read_bytes()}
    return StoredModel(model.folder, models.put(entry.name, entry.version, files))


Side = tuple[Node, StoredModel]


async def _sample(sides: tuple[Side, Side], batch: int, turns: int, *, plain_first: bool) -> float:
    """One process of each kind. The order alternates from sample to sample, because the first process gets other memory."""
    bodies: dict[int, Serving] = {}
    for index in (1, 0) if plain_first else (0, 1):
        node, model = sides[index]
        bodies[index] = await node.serving(await node.function(model, "overhead"), model, batch)
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for index in (0, 1)[:: -1 if turn % 2 else 1]:
            answer = await bodies[index].ask()
            seconds[index].append(answer.ended_s - answer.began_s)
    for index, body in bodies.items():
        await sides[index][0].end(body.instance.id)
    with_it, without = map(statistics.median, seconds)
    return 100 * (with_it / without - 1)


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
