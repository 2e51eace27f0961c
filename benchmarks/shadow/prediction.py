"""What the profile foretells of a pair, against what the pair takes: batch by batch, for many blocks and splits.

    python -m benchmarks.shadow.prediction [--quick]

Of each model the profile is measured first, and then every cell: a batch size, a set of blocks from the input on, and how many
of the samples the Shadow gets, with one core on each side. A pair's latency is the median of some batches, from their first byte
on the channel to the last answer; the profile foretells it by Eq. 6 and knows nothing of the channel. Every answer is compared
with the unsplit model's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from benchmarks.pace import Pace, asked, step
from benchmarks.programs import ended_well
from benchmarks.report import Figure, measured, write
from benchmarks.shadow.instances import Body, Cpus, body_of, check, let_go, nursery, patient, shadow_of, two_cpus
from benchmarks.shadow.models import StoredModel, first_share, named, samples_of, stored
from benchmarks.shadow.profiled import measured_profile, predicted_s, task_of
from benchmarks.shadow.samples import counted
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_runtime.pair.testing import Nursery, change

MODELS = ("efficientnet-lite0", "resnet50", "inception_v3")
SHARES = (0.10, 0.30, 0.40, 0.70)
SPLITS = {2: (1,), 4: (1, 2, 3), 8: (2, 4, 6)}
"""b_S to try, by batch."""
ERROR_GOAL = 10.0
CELLS_GOAL = 60
WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """One pair's latency for one split of one batch."""

    blocks: tuple[int, ...]
    batch: int
    there: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured; negative where it was too quick."""
        return self.predicted_s / self.measured_s - 1


def main(pace: Pace) -> None:
    repeats = 3 if pace.quick else 5
    cpus = two_cpus()
    found: list[Cell] = []
    figures: list[Figure] = []
    for name in MODELS[:1] if pace.quick else MODELS:
        model = stored(name)
        profile = measured_profile(model, 2 if pace.quick else 4)
        with nursery(cpus) as place:
            cells = list(cells_of(place, cpus, model, profile, repeats))
        figures += figures_of(model, cells)
        found += [cell for cell in cells if cell.blocks]
        # What has been measured is kept, whatever becomes of the next model.
        packages = ("gnomon", "torch", "torchvision")
        write("shadow_prediction", [*over_all(found), *figures], repeats=repeats, packages=packages, folder=pace.results)


def over_all(cells: Sequence[Cell]) -> list[Figure]:
    """The goals, over every model measured so far."""
    errors = [100 * abs(cell.error) for cell in cells]
    return [
        measured("all models: mean error", errors, "%", at_most=ERROR_GOAL, detail=f"{len(cells)} cells"),
        counted("cells", len(cells), "", at_least=CELLS_GOAL, detail="model, b, block set, split"),
    ]


def cells_of(place: Nursery, cpus: Cpus, model: StoredModel, profile: ModelProfile, repeats: int) -> Iterator[Cell]:
    """Every cell of a model; first those of the Body alone, which has no blocks offloaded."""
    body = body_of(place, model, (cpus.body,))
    batches = {batch: samples_of(model, batch) for batch in SPLITS}
    expected = {batch: body.ask(x).rows for batch, x in batches.items()}
    for batch, x in batches.items():
        yield _cell(profile, Pair(1, (), ()), batch, _seconds(body, x, expected[batch], repeats))
    sets = list(dict.fromkeys(first_share(model.layers, share) for share in SHARES))
    pairs = [Pair(1, blocks, split) for blocks in sets for split in splits()]
    task = patient(task_of(model, profile, pairs[0]))
    shadow = shadow_of(place, body, task, cpus.shadow)
    for pair in pairs:
        new = patient(task_of(model, profile, pair))
        change(body.child, shadow, task, new)
        task = new
        for batch, x in batches.items():
            if pair.shadow_samples(batch):
                yield _cell(profile, pair, batch, _seconds(body, x, expected[batch], repeats))
    step(f"{model.entry.name}: {len(sets)} block sets measured")
    let_go(body.child, shadow)


def splits() -> list[tuple[int, ...]]:
    """Tables from batch to b_S in which each wanted split of each batch is once.

    Example: 2: (1,) and 4: (1, 2) need the tables (0, 1, 0, 1) and (0, 0, 0, 2).
    """
    count = max(len(wanted) for wanted in SPLITS.values())
    return [tuple(_one_of(SPLITS.get(batch, ()), number) for batch in range(1, max(SPLITS) + 1)) for number in range(count)]


def _one_of(wanted: Sequence[int], number: int) -> int:
    return wanted[number] if number < len(wanted) else 0


def _cell(profile: ModelProfile, pair: Pair, batch: int, seconds: Sequence[float]) -> Cell:
    there = pair.shadow_samples(batch)
    return Cell(pair.blocks, batch, there, predicted_s(profile, pair.blocks, batch, there), statistics.median(seconds))


def _seconds(body: Body, x: Tensor, expected: Tensor, repeats: int) -> list[float]:
    """Batches whose Shadow's rows, where it has some, came in time."""
    answers = [body.ask(x) for _ in range(WARM_UPS + repeats)]
    for answer in answers:
        check(answer, expected)
    in_time = [answer.seconds for answer in answers[WARM_UPS:] if answer.shared or not answer.hand_overs]
    if not in_time:
        raise RuntimeError("the Shadow was late in every batch")
    return in_time


def figures_of(model: StoredModel, cells: Sequence[Cell]) -> list[Figure]:
    """A model's errors, those of its Body alone beside them, and every cell in the details."""
    name = model.entry.name
    alone = [cell for cell in cells if not cell.blocks]
    pairs = [cell for cell in cells if cell.blocks]
    detail = "; ".join(f"b = {cell.batch}: {100 * cell.error:+.1f} %" for cell in alone)
    found = [
        measured(f"{name}: mean error", [100 * abs(cell.error) for cell in pairs], "%", detail=f"{len(pairs)} cells"),
        measured(f"{name}: mean signed error", [100 * cell.error for cell in pairs], "%", detail="negative: foretold too quick"),
        measured(f"{name}: mean error of the Body alone", [100 * abs(cell.error) for cell in alone], "%", detail=detail),
    ]
    for blocks in dict.fromkeys(cell.blocks for cell in pairs):
        some = [cell for cell in pairs if cell.blocks == blocks]
        detail = ", ".join(f"{cell.there} of {cell.batch} {100 * cell.error:+.1f}" for cell in some)
        errors = [100 * abs(cell.error) for cell in some]
        found.append(measured(f"{name}: {named(model.layers, blocks)}", errors, "%", detail=f"samples and error: {detail}"))
    return found


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
