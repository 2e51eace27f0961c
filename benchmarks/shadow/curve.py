"""The pair's latency ÷ the Body's alone, by the share of the model that the Shadow holds.

    python -m benchmarks.shadow.curve [--quick]

The blocks are contiguous from the input, up to 10, 20 … 100 % of the weights; shares at which no block ends give the same blocks
as the share before, and are measured once. A batch of 8 is halved. Body alone and pair take turns, with one core each; every
answer is compared with the unsplit model's. A model whose package is not installed is left out, and a figure names it.
"""

from __future__ import annotations

import time

from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, left_out, unless_missing, write
from benchmarks.shadow.instances import Body, Cpus, body_of, check, let_go, nursery, patient, shadow_of, two_cpus
from benchmarks.shadow.models import (
    CATALOG,
    MEGABYTE,
    StoredModel,
    at_quantile,
    first_share,
    in_mode,
    named,
    on_fastest_engine,
    samples_of,
    share_of,
    stored,
)
from gnomon_core.engines import PROGRAM, engine_of
from tests.pair_harness import Nursery, Task, change

BATCH = 8
HALVES = tuple(batch // 2 for batch in range(1, BATCH + 1))
ON_ENGINES = ("resnet50",)
"""Models that are measured once more on the engine that functions have by default."""
SHARES = tuple(tenth / 10 for tenth in range(1, 11))
LEAST_TURNS = 3
MOST_TURNS = 9


def main(pace: Pace) -> None:
    figures: list[Figure] = []
    missing: list[str] = []
    cpus = two_cpus()
    for name in ("efficientnet-lite0",) if pace.quick else CATALOG:
        model = stored_or_none(name)
        if model is None:
            missing.append(name)
        else:
            with nursery(cpus) as place:
                figures += points(place, cpus, model, 1.0 if pace.quick else 5.0)
                if name in ON_ENGINES:
                    figures += points(place, cpus, on_fastest_engine(model), 5.0)
        # What has been measured is kept, whatever becomes of the next model.
        found = [*figures, *left_out(missing)]
        write("shadow_curve", found, repeats=LEAST_TURNS, packages=("gnomon", "torch", "torchvision"), folder=pace.results)


def stored_or_none(name: str) -> StoredModel | None:
    """A model of `CATALOG`; None where its package is not installed, which is said."""
    return unless_missing(name, lambda: stored(name))


def points(place: Nursery, cpus: Cpus, model: StoredModel, budget_s: float) -> list[Figure]:
    """The curve of a model; each point gets `budget_s`, and more where that is less than `LEAST_TURNS`."""
    alone, body = body_of(place, model, (cpus.body,)), body_of(place, model, (cpus.body,))
    tasks = [Task(model, blocks, HALVES) for blocks in dict.fromkeys(first_share(model.layers, share) for share in SHARES)]
    tasks = [patient(task) for task in tasks if task.blocks]
    shadow = shadow_of(place, body, tasks[0], cpus.shadow)
    found: list[Figure] = []
    for old, task in zip([tasks[0], *tasks], tasks, strict=False):
        change(body.child, shadow, old, task)
        found.append(figure_of(model, tuple(task.blocks), *_turns(alone, body, model, budget_s)))
    step(f"{model.entry.name}: {len(found)} block sets")
    let_go(shadow, alone.child, body.child)
    return found


def figure_of(model: StoredModel, blocks: tuple[int, ...], ratios: list[float], difference: float) -> Figure:
    """A point of the curve; `difference` is how far the farthest answer was from the unsplit model's."""
    size_mb = model.layers.parameter_bytes(blocks) / MEGABYTE
    share = f"{100 * share_of(model.layers, blocks):3.0f} % of the weights"
    answers = f"within {difference:.1e}" if difference else "bit-equal"
    detail = f"{named(model.layers, blocks).partition(',')[0]}, {size_mb:.1f} MB; answers {answers}"
    engine = engine_of(model.entry.files, model.engine).name
    name = model.entry.name if engine == PROGRAM else f"{model.entry.name} on {engine}"
    [figure] = in_mode([at_quantile(f"{name}: {share}, pair ÷ Body alone", ratios, "", detail=detail)])
    return figure


def _turns(alone: Body, body: Body, model: StoredModel, budget_s: float) -> tuple[list[float], float]:
    """Ratios of neighbours in alternating turns, and how far the farthest answer was from the Body's alone."""
    x = samples_of(model, BATCH)
    expected = alone.ask(x).rows
    check(body.ask(x), expected)
    ratios: list[float] = []
    difference = 0.0
    end_s = time.monotonic() + budget_s
    while len(ratios) < LEAST_TURNS or (time.monotonic() < end_s and len(ratios) < MOST_TURNS):
        first, second = (alone, body)[:: -1 if len(ratios) % 2 else 1]
        answers = {id(body): body.ask(x) for body in (first, second)}
        ratios.append(answers[id(body)].seconds / answers[id(alone)].seconds)
        difference = max(difference, check(answers[id(body)], expected))
    return ratios, difference


if __name__ == "__main__":
    start(main, __doc__)
