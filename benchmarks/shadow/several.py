"""A second Shadow of one Body: what its link costs, and what the profile foretells that several gain.

    python -m benchmarks.shadow.several [--quick]

Several Shadows gain where each has a CPU of its own; a machine with two CPUs can show what a second link costs, and no gain. The
Bodies are on one CPU, all Shadows on the other, and as many samples are given away in all cases: to one Shadow, to two that have
half of them each, and to one beside a second that never has any. They take turns, the order reversed every second time; a ratio
is of two in the same turn. Two that share a CPU also compute smaller batches, and switch: that is in the figure, so that the link
by itself costs less.

The gain is arithmetic (Eq. 6 with one barrier for all Shadows) on the profile that is measured in the same run. Answers are
compared with the Body's alone.
"""

from __future__ import annotations

from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, write
from benchmarks.shadow.instances import Body, Cpus, body_of, check, let_go, nursery, patient, shadow_of, two_cpus
from benchmarks.shadow.models import (
    StoredModel,
    at_quantile,
    first_share,
    in_mode,
    known,
    measured_profile,
    named,
    samples_of,
    stored,
    whole_s,
)
from gnomon_core.pairs import Pair, best_splits, pair_seconds, together
from gnomon_core.profiles import ModelProfile
from tests.pair_harness import Child, Nursery, Task

MODELS = ("efficientnet-lite0", "resnet50")
BATCH, SHARE = 8, 0.40
WARM_UPS = 2
MOST = 4
CASES = {"one Shadow": (4,), "two Shadows": (2, 2), "two Shadows, one of them idle": (4, 0)}
"""The samples of eight that each Shadow has, by case."""


def main(pace: Pace) -> None:
    turns = 6 if pace.quick else 40
    cpus, figures = two_cpus(), list[Figure]()
    for name in MODELS[:1] if pace.quick else MODELS:
        model = stored(name)
        blocks = first_share(model.layers, SHARE)
        with nursery(cpus) as place:
            figures += figures_of(model, blocks, measure(place, cpus, model, blocks, turns))
        figures += predicted_gain(model, measured_profile(model, 2 if pace.quick else 3), blocks)
        write("shadow_several", figures, repeats=turns, packages=("gnomon", "torch", "torchvision"), folder=pace.results)


def measure(place: Nursery, cpus: Cpus, model: StoredModel, blocks: tuple[int, ...], turns: int) -> dict[str, list[float]]:
    """Latency of a batch in each case, turn by turn. Batches without the rows of all Shadows do not count."""
    made = {case: _body_with(place, cpus, model, blocks, given) for case, given in CASES.items()}
    x = samples_of(model, BATCH)
    alone = body_of(place, model, (cpus.body,))
    expected = alone.ask(x).rows
    seconds: dict[str, list[float]] = {case: [] for case in CASES}
    step(f"{model.entry.name}: {turns} turns")
    for turn in range(turns + WARM_UPS):
        answers = {case: made[case][0].ask(x) for case in list(CASES)[:: -1 if turn % 2 else 1]}
        for case, answer in answers.items():
            check(answer, expected)
            if not answer.shared:
                raise RuntimeError(f"{case}: {[hand_over['outcome'] for hand_over in answer.hand_overs]}")
            if turn >= WARM_UPS:
                seconds[case].append(answer.seconds)
    let_go(alone.child, *(child for body, shadows in made.values() for child in (body.child, *shadows)))
    return seconds


def _body_with(
    place: Nursery, cpus: Cpus, model: StoredModel, blocks: tuple[int, ...], given: tuple[int, ...]
) -> tuple[Body, list[Child]]:
    body = body_of(place, model, (cpus.body,))
    tasks = [patient(Task(model, blocks, (0,) * (BATCH - 1) + (samples,))) for samples in given]
    return body, [shadow_of(place, body, task, cpus.shadow) for task in tasks]


def figures_of(model: StoredModel, blocks: tuple[int, ...], seconds: dict[str, list[float]]) -> list[Figure]:
    key, one_s = f"{model.entry.name}, b = {BATCH}", seconds["one Shadow"]
    figures = [at_quantile(f"{key}: one Shadow", [1e3 * each for each in one_s], "ms", detail=named(model.layers, blocks))]
    for case in list(CASES)[1:]:
        ratios = [mine / value for mine, value in zip(seconds[case], one_s, strict=True)]
        costs_ms = [1e3 * (mine - value) for mine, value in zip(seconds[case], one_s, strict=True)]
        figures += [
            at_quantile(f"{key}: {case} ÷ one Shadow, on the same CPU", ratios, ""),
            at_quantile(f"{key}: {case}, longer by", costs_ms, "ms"),
        ]
    return in_mode(figures)


def predicted_gain(model: StoredModel, profile: ModelProfile, blocks: tuple[int, ...]) -> list[Figure]:
    """The latency that the profile predicts with 1, 2, … Shadows of one core."""
    figures: list[Figure] = []
    for count in range(1, MOST + 1):
        splits = best_splits(profile, (1,) * (count + 1), blocks, BATCH)
        pair = together([Pair(1, blocks, split) for split in splits])
        assert pair is not None
        there = pair.shares(BATCH)
        ratio = known(pair_seconds(profile, 1, pair, BATCH)) / whole_s(profile, BATCH)
        parts = " + ".join(map(str, (BATCH - sum(there), *there)))
        key = f"{model.entry.name}, b = {BATCH}: {count} Shadow{'s' * (count > 1)} ÷ Body alone, foretold"
        what = f"{parts} samples on a core each, {named(model.layers, blocks)}; not measured"
        figures.append(Figure(key, ratio, "", detail=what))
    return figures


if __name__ == "__main__":
    start(main, __doc__)
