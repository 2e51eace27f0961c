"""Latency of a pair, predicted by the profile and measured: batch by batch, for many blocks and splits.

    python -m benchmarks.shadow.prediction [--quick]

Of each model the profile is measured first, and then every cell: a batch size, a set of blocks, and how many of the samples the
Shadow gets, with one core on each side. Sets are those from the input on, one run with one barrier, and those that `asyfunc`
makes (`block_sets`): by MACs for each byte of weights, in several runs where they scatter, each with a barrier. A pair's latency
is the median of some batches, from their first byte on the channel to the last answer; the profile foretells it by Eq. 6 and
knows nothing of the channel. Every answer is compared with the unsplit model's.

The pair and a Body alone take turns. How long the Body alone takes against its profile says how much slower or faster the machine
is than when it was profiled; the same error *corrected* by that is what the gateway goes by, which learns it from served batches.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from benchmarks.programs import Pace, asked, ended_well, step
from benchmarks.report import Figure, measured, write
from benchmarks.shadow.instances import Body, Cpus, body_of, check, let_go, nursery, patient, shadow_of, two_cpus
from benchmarks.shadow.models import (
    StoredModel,
    counted,
    first_share,
    in_mode,
    measured_profile,
    named,
    predicted_s,
    samples_of,
    stored,
    task_of,
)
from gnomon_autoscaler.policies.asyfunc.pairing import block_sets
from gnomon_core.blocks import Layers
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_runtime.pair.testing import Nursery, change

MODELS = ("efficientnet-lite0", "resnet50", "inception_v3")
SHARES = (0.10, 0.30, 0.40, 0.70)
"""Of the weights, for the sets from the input on."""
CHOSEN_SHARES = (0.30, 0.70)
"""And for those that `asyfunc` makes."""
SPLITS = {2: (1,), 4: (1, 2, 3), 8: (2, 4, 6)}
"""b_S to try, by batch."""
ERROR_GOAL = 10.0
CELLS_GOAL = 60
WARM_UPS = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """Latency of a pair for one split of one batch. `drift` is the Body's own latency meanwhile ÷ its profile's."""

    blocks: tuple[int, ...]
    batch: int
    there: int
    predicted_s: float
    measured_s: float
    drift: float

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured; negative where it was too quick."""
        return self.predicted_s / self.measured_s - 1

    @property
    def corrected_error(self) -> float:
        """The same of the prediction that knows how the machine has changed since it was profiled."""
        return self.predicted_s * self.drift / self.measured_s - 1


def main(pace: Pace) -> None:
    repeats = 3 if pace.quick else 5
    cpus = two_cpus()
    found: list[Cell] = []
    figures: list[Figure] = []
    for name in MODELS[:1] if pace.quick else MODELS:
        model = stored(name)
        profile = measured_profile(model, 2 if pace.quick else 8)
        with nursery(cpus) as place:
            cells = list(cells_of(place, cpus, model, profile, repeats))
        figures += figures_of(model, cells)
        found += cells
        # What has been measured is kept, whatever becomes of the next model.
        packages = ("gnomon", "torch", "torchvision")
        write("shadow_prediction", [*over_all(found), *figures], repeats=repeats, packages=packages, folder=pace.results)


def over_all(cells: Sequence[Cell]) -> list[Figure]:
    """The goals, over every model measured so far."""
    errors = [100 * abs(cell.error) for cell in cells]
    corrected = [100 * abs(cell.corrected_error) for cell in cells]
    beside = "by what a Body alone took beside it, as served latencies correct it"
    found = [
        measured("all models: mean error", errors, "%", at_most=ERROR_GOAL, detail=f"{len(cells)} cells"),
        measured("all models: mean error, corrected", corrected, "%", at_most=ERROR_GOAL, detail=beside),
        counted("cells", len(cells), "", at_least=CELLS_GOAL, detail="model, b, block set, split"),
    ]
    return in_mode(found)


def cells_of(place: Nursery, cpus: Cpus, model: StoredModel, profile: ModelProfile, repeats: int) -> Iterator[Cell]:
    """Every cell of a model."""
    alone, body = body_of(place, model, (cpus.body,)), body_of(place, model, (cpus.body,))
    batches = {batch: samples_of(model, batch) for batch in SPLITS}
    expected = {batch: alone.ask(x).rows for batch, x in batches.items()}
    sets = sets_of(model.layers)
    pairs = [Pair(1, blocks, split) for blocks in sets for split in splits()]
    task = patient(task_of(model, profile, pairs[0]))
    shadow = shadow_of(place, body, task, cpus.shadow)
    for pair in pairs:
        new = patient(task_of(model, profile, pair))
        change(body.child, shadow, task, new)
        task = new
        for batch, x in batches.items():
            if there := pair.shadow_samples(batch):
                alone_s, pair_s = _turns(alone, body, x, expected[batch], repeats)
                drift = alone_s / predicted_s(profile, (), batch, 0)
                yield Cell(pair.blocks, batch, there, predicted_s(profile, pair.blocks, batch, there), pair_s, drift)
    step(f"{model.entry.name}: {len(sets)} block sets measured")
    let_go(shadow, alone.child, body.child)


def sets_of(layers: Layers) -> list[tuple[int, ...]]:
    """The block sets to try, each once."""
    prefixes = [first_share(layers, share) for share in SHARES]
    return list(dict.fromkeys((*prefixes, *(chosen_share(layers, share) for share in CHOSEN_SHARES))))


def chosen_share(layers: Layers, share: float) -> tuple[int, ...]:
    """The largest of `asyfunc`'s sets with at most this share of the weights; its first where that has more.

    Example: sets of 10, 20 and 90 % of the weights: 0.3 gives the second, 0.05 the first.
    """
    sets = block_sets(layers)
    within = [one for one in sets if one.parameter_bytes <= share * layers.parameter_bytes()]
    return (within or sets[:1])[-1].blocks


def splits() -> list[tuple[int, ...]]:
    """Tables from batch to b_S in which each wanted split of each batch is once.

    Example: 2: (1,) and 4: (1, 2) need the tables (0, 1, 0, 1) and (0, 0, 0, 2).
    """
    count = max(len(wanted) for wanted in SPLITS.values())
    return [tuple(_one_of(SPLITS.get(batch, ()), number) for batch in range(1, max(SPLITS) + 1)) for number in range(count)]


def _one_of(wanted: Sequence[int], number: int) -> int:
    return wanted[number] if number < len(wanted) else 0


def _turns(alone: Body, body: Body, x: Tensor, expected: Tensor, repeats: int) -> tuple[float, float]:
    """Median seconds of the Body alone and of the pair, in turns; of batches whose Shadow's rows came in time."""
    seconds: dict[int, list[float]] = {id(alone): [], id(body): []}
    for turn in range(WARM_UPS + repeats):
        for one in (alone, body)[:: -1 if turn % 2 else 1]:
            answer = one.ask(x)
            check(answer, expected)
            if turn >= WARM_UPS and (one is alone or answer.shared):
                seconds[id(one)].append(answer.seconds)
    if not all(seconds.values()):
        raise RuntimeError("the Shadow was late in every batch")
    return statistics.median(seconds[id(alone)]), statistics.median(seconds[id(body)])


def figures_of(model: StoredModel, pairs: Sequence[Cell]) -> list[Figure]:
    """A model's errors, how far its Body alone was from its profile beside them, and every cell in the details."""
    name = model.entry.name
    drifts = [100 * (cell.drift - 1) for cell in pairs]
    found = [
        measured(f"{name}: mean error", [100 * abs(cell.error) for cell in pairs], "%", detail=f"{len(pairs)} cells"),
        measured(f"{name}: mean error, corrected", [100 * abs(cell.corrected_error) for cell in pairs], "%"),
        measured(f"{name}: mean signed error", [100 * cell.error for cell in pairs], "%", detail="negative: foretold too quick"),
        measured(f"{name}: a Body alone against its profile", drifts, "%", detail="negative: quicker than profiled"),
    ]
    for blocks in dict.fromkeys(cell.blocks for cell in pairs):
        some = [cell for cell in pairs if cell.blocks == blocks]
        detail = ", ".join(f"{cell.there} of {cell.batch} {100 * cell.error:+.1f}" for cell in some)
        errors = [100 * abs(cell.error) for cell in some]
        found.append(measured(f"{name}: {named(model.layers, blocks)}", errors, "%", detail=f"samples and error: {detail}"))
    return in_mode(found)


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
