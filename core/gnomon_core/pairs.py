"""A Body and its Shadow: who computes how much, and how long a batch takes them.

The Shadow holds some blocks. In each run of them a batch of b is split: the Shadow computes b_S samples while the Body computes
the other b_B = b − b_S; everything else the Body computes alone (AsyFunc, Eq. 6, with one barrier for each run):

    t(b) = t_np(b) + Σ over runs of max( t_B(b_B), t_S(b_S) + hand-over of b_S samples there and back )

Times are those of the profile at the Body's and at the Shadow's cores. b_S is chosen for each batch size to make t(b) smallest,
with at least one sample on the Body (whose rows must be there when the Shadow's are late); where no split gains anything, b_S = 0
and the Body computes alone. One sample is never split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnomon_core.blocks import Run
    from gnomon_core.profiles import ModelProfile


@dataclass(frozen=True, slots=True)
class Pair:
    """What a Shadow does for its Body. `split[b − 1]` is b_S for a batch of b; beyond its end the last share is kept."""

    shadow_cores: int
    blocks: tuple[int, ...]
    split: tuple[int, ...]

    def shadow_samples(self, batch: int) -> int:
        """b_S for a batch of this many samples.

        Example: split (0, 1, 1, 2) gives 2 of 4, and 4 of 8.
        """
        if not self.split or batch < 2:  # noqa: PLR2004 - one sample cannot be split
            return 0
        if batch <= len(self.split):
            return self.split[batch - 1]
        return self.split[-1] * batch // len(self.split)


def pair_seconds(profile: ModelProfile, body_cores: int, pair: Pair, batch: int) -> float | None:
    """How long a batch takes the pair; None where the profile knows one of the core counts not."""
    cores = (body_cores, pair.shadow_cores)
    return split_seconds(profile, cores, profile.layers.runs(pair.blocks), batch, pair.shadow_samples(batch))


def split_seconds(
    profile: ModelProfile, cores: tuple[int, int], runs: Sequence[Run], batch: int, shadow_samples: int
) -> float | None:
    """Eq. 6 for one split of one batch; `cores` are the Body's and the Shadow's."""
    body_cores, shadow_cores = cores
    whole_s = profile.whole.at(body_cores, batch)
    if whole_s is None or not shadow_samples:
        return whole_s
    total_s = whole_s
    for run in runs:
        alone_s = profile.run_seconds(run, body_cores, batch)
        body_s = profile.run_seconds(run, body_cores, batch - shadow_samples)
        shadow_s = shadow_seconds(profile, run, shadow_cores, shadow_samples)
        if alone_s is None or body_s is None or shadow_s is None:
            return None
        # What the Body would take for the run alone is part of the whole: its place is taken by the slower half.
        total_s += max(body_s, shadow_s) - alone_s
    return total_s


def shadow_seconds(profile: ModelProfile, run: Run, shadow_cores: int, samples: int) -> float | None:
    """t_pS: what the Shadow takes for its samples of a run, and the hand-over there and back."""
    seconds = profile.run_seconds(run, shadow_cores, samples)
    if seconds is None:
        return None
    return seconds + profile.transfer_seconds(samples * run.input_bytes, samples * run.output_bytes)


def best_split(profile: ModelProfile, cores: tuple[int, int], blocks: Iterable[int], max_batch: int) -> tuple[int, ...]:
    """b_S for batches of 1, 2, … `max_batch`: what makes each of them quickest."""
    runs = profile.layers.runs(blocks)
    table: list[int] = []
    for batch in range(1, max_batch + 1):
        tried = [(split_seconds(profile, cores, runs, batch, there), there) for there in range(batch)]
        table.append(min([(seconds, there) for seconds, there in tried if seconds is not None], default=(0.0, 0))[1])
    return tuple(table)
