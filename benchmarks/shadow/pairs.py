"""A Body and its Shadow with one core each, against the Body alone.

    python -m benchmarks.shadow.pairs [--quick]

Processes as they serve, each on its CPU, the allocator tuned alike in all of them: a Body alone, a Body with a Shadow that holds
at most 40 % of the weights (contiguous from the input), a Body on two cores, and two whole Bodies that take half of a batch each.
They take turns, the order reversed every second time; a ratio is of two in the same turn, a figure the median of all turns.
The profile that chooses the split, and foretells the pair's latency, is measured at the beginning of the same run.
Every answer is compared with the unsplit model's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from benchmarks.programs import Pace, asked, ended_well, step
from benchmarks.report import Figure, write
from benchmarks.shadow.instances import Answer, Body, Cpus, ask_all, body_of, check, let_go, nursery, shadow_of, two_cpus
from benchmarks.shadow.models import (
    StoredModel,
    at_quantile,
    best_pair,
    first_share,
    in_mode,
    measured_profile,
    named,
    predicted_s,
    samples_of,
    stored,
    task_of,
)
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_runtime.pair.testing import Nursery, Task

MODELS = ("resnet50", "inception_v3")
BATCHES = (4, 8)
SHARE = 0.40
RATIO_GOAL = 0.65
PREDICTION_GOAL = 1.10
WARM_UPS = 2
EVERY = {"two cores": 2, "two Bodies": 2}
"""These take every second turn only: they are there to be seen beside the pair."""


@dataclass
class Turns:
    """Latencies of one batch size for each contestant, turn by turn, and how far the pair's answers were from the Body's."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    differences: list[float] = field(default_factory=list)
    lost: int = 0
    """Batches of the pair in which the Shadow's rows came too late, and were computed by the Body again."""

    def ratios(self, name: str) -> list[float]:
        """Of a contestant to the Body alone, turn by turn."""
        alone = self.seconds["alone"][:: EVERY.get(name, 1)]
        return [mine / one for mine, one in zip(self.seconds[name], alone, strict=True)]


def main(pace: Pace) -> None:
    turns = 6 if pace.quick else 30
    cpus = two_cpus()
    figures: list[Figure] = []
    for name in MODELS[:1] if pace.quick else MODELS:
        model = stored(name)
        profile = measured_profile(model, 2 if pace.quick else 3)
        pair = best_pair(profile, first_share(model.layers, SHARE))
        with nursery(cpus) as place:
            for batch, seen in measure(place, cpus, task_of(model, profile, pair), turns).items():
                figures += figures_of(model, profile, pair, batch, seen)
        # What has been measured is kept, whatever becomes of the next model.
        write("shadow_pairs", figures, repeats=turns, packages=("gnomon", "torch", "torchvision"), folder=pace.results)


def measure(place: Nursery, cpus: Cpus, task: Task, turns: int) -> dict[int, Turns]:
    """Turns of every contestant, by batch."""
    model = task.model
    assert isinstance(model, StoredModel)
    alone, with_shadow, other = (body_of(place, model, (cpu,)) for cpu in (cpus.body, cpus.body, cpus.shadow))
    wide = body_of(place, model, cpus.both)
    shadow = shadow_of(place, with_shadow, task, cpus.shadow)
    contestants: dict[str, Callable[[Tensor], list[Answer]]] = {
        "alone": lambda x: ask_all([(alone, x)]),
        "pair": lambda x: ask_all([(with_shadow, x)]),
        "two cores": lambda x: ask_all([(wide, x)]),
        "two Bodies": lambda x: ask_all([(alone, x[: len(x) // 2]), (other, x[len(x) // 2 :])]),
    }
    found: dict[int, Turns] = {}
    for batch in BATCHES:
        step(f"{model.entry.name}: b = {batch}, {turns} turns")
        x = samples_of(model, batch, seed=batch)
        for contestant in contestants.values():
            for _ in range(WARM_UPS):
                contestant(x)
        found[batch] = _turns(contestants, x, turns, alone)
    let_go(shadow, *(body.child for body in (alone, with_shadow, other, wide)))
    return found


def _turns(contestants: dict[str, Callable[[Tensor], list[Answer]]], x: Tensor, turns: int, alone: Body) -> Turns:
    seen = Turns({name: [] for name in contestants})
    expected = alone.ask(x).rows
    for turn in range(turns):
        present = [name for name in contestants if turn % EVERY.get(name, 1) == 0]
        for name in present[:: -1 if turn // 2 % 2 else 1]:
            answers = contestants[name](x)
            seen.seconds[name].append(max(answer.seconds for answer in answers))
            if name == "pair":
                seen.differences.append(check(answers[0], expected))
                seen.lost += not answers[0].shared
    return seen


def figures_of(model: StoredModel, profile: ModelProfile, pair: Pair, batch: int, seen: Turns) -> list[Figure]:
    key = f"{model.entry.name}, b = {batch}"
    there = pair.shadow_samples(batch)
    expected_s = predicted_s(profile, pair.blocks, batch, there)
    what = f"{there} of {batch} samples, {named(model.layers, pair.blocks)}"
    same = "bit-equal" if not any(seen.differences) else f"within {max(seen.differences):.1e}"
    answers = f"answers {same}" + (f", {seen.lost} without the Shadow's rows" if seen.lost else "")
    milliseconds = {name: [1e3 * one for one in seconds] for name, seconds in seen.seconds.items()}
    found = [
        at_quantile(f"{key}: pair ÷ Body alone", seen.ratios("pair"), "", at_most=RATIO_GOAL, detail=f"{what}; {answers}"),
        at_quantile(
            f"{key}: pair ÷ prediction",
            [one / expected_s for one in seen.seconds["pair"]],
            "",
            at_most=PREDICTION_GOAL,
            detail=f"predicted {1e3 * expected_s:.1f} ms",
        ),
        at_quantile(f"{key}: Body on two cores ÷ Body alone", seen.ratios("two cores"), ""),
        at_quantile(f"{key}: two Bodies, half each ÷ Body alone", seen.ratios("two Bodies"), ""),
        at_quantile(f"{key}: Body alone", milliseconds["alone"], "ms"),
        at_quantile(f"{key}: pair", milliseconds["pair"], "ms"),
    ]
    return in_mode(found)


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
