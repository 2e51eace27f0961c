"""A Body and its Shadows: the split of a batch among them, and its latency.

A Shadow holds some blocks. In each run of them a batch of b is split: Shadow j computes b_Sj samples while the Body computes the
other b_B = b − Σ b_Sj; everything else the Body computes alone (AsyFunc, Eq. 6, with one barrier for each run):

    t(b) = t_np(b) + Σ over runs of max( t_B(b_B), max over j of t_Sj(b_Sj) + hand-over of b_Sj samples there and back )

Times are from the profile, at the Body's and at each Shadow's cores. For each batch size the shares minimise t(b), with at least
one sample on the Body (whose rows must be available if a Shadow's are late). If no split is faster, the shares are 0 and the Body
computes alone. One sample is never split.

The paper has one Shadow per Body. Several Shadows hold the same blocks, so that a run begins and ends for all of them together.

**JSON.** The leader sends pairs to the replicas that make batches, and a Body reports its pairs with each of its results.

    {"cores": 2, "blocks": [3, 4], "split": [0, 1, 1, 2], "node": null}

The head of a result lists them under "shadows", in the order of their rows, each with its Shadow's name; a Body without Shadows
has no list. The sender of batches thus knows how the next batch will be computed, even without the leader.

A Body runs a user's code: its JSON is parsed within bounds, and an invalid document counts as a Body without Shadows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gnomon_core.wire import Frame, WireError

if TYPE_CHECKING:
    from gnomon_core.blocks import Run
    from gnomon_core.profiles import ModelProfile


MAX_SHADOWS = 8
"""The most Shadows of one Body. Each needs at least a sample of a batch to be of use, and B_max is 8."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The part of a Body's work that a Shadow does.

    `split[b − 1]` is b_S for a batch of b; the last share applies beyond the end.
    `node` is the Shadow's node if it is not its Body's; hand-overs then include network time. For a Body with several Shadows,
    the fields describe the first one and `others` the further ones, in the order of their rows, so that one value predicts the
    latency of a batch.
    """

    shadow_cores: int
    blocks: tuple[int, ...]
    split: tuple[int, ...]
    node: str | None = None
    others: tuple[Pair, ...] = ()

    def shadow_samples(self, batch: int) -> int:
        """b_S of this Shadow for a batch of this many samples.

        Example: split (0, 1, 1, 2) gives 2 of 4, and 4 of 8.
        """
        if not self.split or batch < 2:  # noqa: PLR2004 - one sample cannot be split
            return 0
        if batch <= len(self.split):
            return self.split[batch - 1]
        return self.split[-1] * batch // len(self.split)

    @property
    def each(self) -> tuple[Pair, ...]:
        """The pairs of the single Shadows, one for each."""
        return (replace(self, others=()), *self.others) if self.others else (self,)

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores of every Shadow."""
        return (self.shadow_cores, *(other.shadow_cores for other in self.others))

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """The numbers of the Shadows that are on another node than their Body."""
        return tuple(number for number, pair in enumerate((self, *self.others)) if pair.node is not None)

    def shares(self, batch: int) -> tuple[int, ...]:
        """b_Sj of every Shadow. The Body keeps at least one sample, even if the splits are changed one after another.

        Example: splits (0, 1, 1, 2) and (0, 0, 1, 2) of a batch of 4: 2 and 1.
        """
        return shares((self, *self.others), batch)


def shares(pairs: Sequence[Pair], batch: int) -> tuple[int, ...]:
    """The samples of a batch that each of these Shadows computes, whatever `others` says."""
    shares_: list[int] = []
    remaining = batch - 1
    for pair in pairs:
        shares_.append(min(pair.shadow_samples(batch), remaining))
        remaining -= shares_[-1]
    return tuple(shares_)


def together(pairs: Sequence[Pair]) -> Pair | None:
    """Join the pairs of a Body's Shadows into one; None if there are none."""
    return replace(pairs[0], others=tuple(pairs[1:])) if pairs else None


def pair_seconds(
    profile: ModelProfile, body_cores: int, pair: Pair, batch: int, runs: Sequence[Run] | None = None
) -> float | None:
    """Seconds of a batch on a Body and its Shadows; None where the profile knows one of the core counts not, or no network.

    `runs` are those of the pair's blocks, where they are at hand.
    """
    block_runs = profile.layers.runs(pair.blocks) if runs is None else runs
    return split_seconds(profile, (body_cores, *pair.cores), block_runs, batch, *pair.shares(batch), elsewhere=pair.elsewhere)


def split_seconds(
    profile: ModelProfile,
    cores: tuple[int, ...],
    runs: Sequence[Run],
    batch: int,
    *shadow_samples: int,
    elsewhere: Collection[int] = (),
) -> float | None:
    """Seconds by Eq. 6 for one split of a batch; `cores` are the Body's and each Shadow's, `shadow_samples` each Shadow's share.

    The Shadows of the numbers `elsewhere` are on other nodes. None where one of the times is not known.
    """
    body_cores, *shadows_cores = cores
    whole_s = profile.whole.at(body_cores, batch)
    over_network = profile.over_network() if elsewhere else None
    working = [
        (over_network if number in elsewhere else profile, shadows_cores[number], samples)
        for number, samples in enumerate(shadow_samples)
        if samples
    ]
    if whole_s is None or not working:
        return whole_s
    total_s = whole_s
    for run in runs:
        alone_s = profile.run_seconds(run, body_cores, batch)
        body_s = profile.run_seconds(run, body_cores, batch - sum(shadow_samples))
        shadows_s = [None if priced is None else shadow_seconds(priced, run, *placement) for priced, *placement in working]
        known_s = [seconds for seconds in shadows_s if seconds is not None]
        if alone_s is None or body_s is None or len(known_s) < len(shadows_s):
            return None
        # All parts of a run meet at its end (barrier), so that the slowest part decides.
        # The Body's time for the whole run is part of `whole_s`: the slowest part's time replaces it.
        total_s += max(body_s, *known_s) - alone_s
    return total_s


def shadow_seconds(profile: ModelProfile, run: Run, shadow_cores: int, samples: int) -> float | None:
    """t_pS: seconds of the Shadow for its samples of a run, with the hand-over there and back."""
    seconds = profile.run_seconds(run, shadow_cores, samples)
    if seconds is None:
        return None
    return seconds + profile.transfer_seconds(samples * run.input_bytes, samples * run.output_bytes)


def predicted_ms(profile: ModelProfile | None, pair: Pair) -> list[list[float]]:
    """Milliseconds of the Shadow for 1, 2, … samples, one row per run, hand-over included; empty if any is unknown."""
    profile = profile.over_network() if profile is not None and pair.node is not None else profile
    if profile is None:
        return []
    most = max(pair.split, default=0)
    table: list[list[float]] = []
    for run in profile.layers.runs(pair.blocks):
        row = [shadow_seconds(profile, run, pair.shadow_cores, samples) for samples in range(1, most + 1)]
        if any(seconds is None for seconds in row):
            return []
        table.append([round(1000 * seconds, 3) for seconds in row if seconds is not None])
    return table


def best_split(
    profile: ModelProfile, cores: tuple[int, int], blocks: Iterable[int], max_batch: int, *, elsewhere: bool = False
) -> tuple[int, ...]:
    """The quickest split b_S for batches of 1, 2, … `max_batch`, with one Shadow.

    With the Shadow `elsewhere`, on another node, hand-overs cost what the network does; where that has no price, all is 0.
    """
    return best_splits(profile, cores, blocks, max_batch, elsewhere=(0,) if elsewhere else ())[0]


def best_splits(
    profile: ModelProfile, cores: tuple[int, ...], blocks: Iterable[int], max_batch: int, *, elsewhere: Collection[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """The splits b_Sj for batches of 1, 2, … `max_batch`, a row per Shadow. `cores` are the Body's and each Shadow's.

    The Shadows of the numbers `elsewhere` are on other nodes; where the network has no price, they get nothing.
    The samples that the Body gives away are assigned greedily, each to the Shadow that would finish it first: optimal if all have
    the same cores or there is one run. The first Shadow alone, the first two, … are considered too, so that another Shadow never
    makes a batch slower.
    """
    runs = profile.layers.runs(blocks)
    priced = [profile.over_network() if number in elsewhere else profile for number in range(len(cores) - 1)]
    shadows_s = [_all_runs(shadow_rows, runs, each, max_batch) for shadow_rows, each in zip(priced, cores[1:], strict=True)]
    assignments = [
        assignment
        for shadow_count in range(1, len(shadows_s) + 1)
        for assignment in _dealt(shadows_s[:shadow_count], len(shadows_s), max_batch)
    ]
    no_split = (0.0, (0,) * len(shadows_s))
    chosen: list[tuple[int, ...]] = []
    for batch in range(1, max_batch + 1):
        timed = [
            (split_seconds(profile, cores, runs, batch, *assignment, elsewhere=elsewhere), assignment)
            for assignment in assignments
            if sum(assignment) < batch
        ]
        chosen.append(min([(seconds, assignment) for seconds, assignment in timed if seconds is not None], default=no_split)[1])
    return tuple(zip(*chosen, strict=True))


def _dealt(shadows_s: Sequence[Sequence[float]], count: int, max_batch: int) -> list[tuple[int, ...]]:
    """Assignments of 0, 1, … samples to the first of `count` Shadows; `shadows_s` has each one's seconds for 0, 1, … samples."""
    assignment = [0] * count
    assignments = [tuple(assignment)]
    for _ in range(max_batch - 1):
        assignment[min(range(len(shadows_s)), key=lambda number: shadows_s[number][assignment[number] + 1])] += 1
        assignments.append(tuple(assignment))
    return assignments


def _all_runs(profile: ModelProfile | None, runs: Sequence[Run], cores: int, max_batch: int) -> list[float]:
    """Seconds of a Shadow for 0, 1, … samples of all runs; infinite if unknown."""
    times: list[float] = []
    for samples in range(max_batch + 1):
        seconds = [None if profile is None else shadow_seconds(profile, run, cores, samples) for run in runs]
        times.append(sum(float("inf") if each is None else each for each in seconds))
    return times


SHADOWS = "shadows"
_NAMED = b'"shadows"'
"""The key in each head that names Shadows. A head without it need not be parsed."""
ELSEWHERE = "elsewhere"
"""The node of a Shadow on another node as its Body reports it: the Body does not know the node's name."""
_MOST_HEAD_BYTES = 1 << 16
"""The longest head that is parsed: eight Shadows take some 2,000 bytes, and parsing a longer one would block the event loop."""
_MOST_CORES, _MOST_NUMBERS = 1 << 10, 1 << 10


def pair_to_json(pair: Pair) -> dict[str, Any]:
    """The JSON object of one Shadow's part, without `others`."""
    return {"cores": pair.shadow_cores, "blocks": pair.blocks, "split": pair.split, "node": pair.node}


def pair_from_json(document: Mapping[str, Any]) -> Pair:
    """Parse the JSON object of a pair.

    Raises:
        KeyError, TypeError, ValueError: the document is not a pair.

    """
    node = document["node"]
    blocks, split = (tuple(map(int, document[name])) for name in ("blocks", "split"))
    return Pair(int(document["cores"]), blocks, split, None if node is None else str(node))


def shadows_of(result: Frame) -> dict[str, Pair]:
    """The Shadows that a Body reports with this result, each with its pair."""
    # Most results name no Shadows: a search for the key is cheaper than parsing the head as JSON.
    if _NAMED not in result.head or len(result.head) > _MOST_HEAD_BYTES:
        return {}
    try:
        listed = result.head_json().get(SHADOWS, [])
        pairs = {str(entry["shadow"]): pair_from_json(entry) for entry in listed}
    except (WireError, RecursionError, LookupError, TypeError, ValueError, OverflowError):
        return {}
    return pairs if len(pairs) <= MAX_SHADOWS and all(map(_possible, pairs.values())) else {}


def _possible(pair: Pair) -> bool:
    """Return whether the pair's numbers are within bounds."""
    is_bounded = max(len(pair.blocks), len(pair.split)) <= _MOST_NUMBERS
    return is_bounded and 1 <= pair.shadow_cores <= _MOST_CORES and min((0, *pair.blocks, *pair.split)) == 0
