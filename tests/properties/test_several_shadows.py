"""Whatever the profile: what several Shadows of a Body share, and what that does to a batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.pairs import Pair, best_split, best_splits, pair_seconds, shares, split_seconds, together
from gnomon_core.profiles import ModelProfile
from tests.made_up_models import BlockPlan, made_up_profile

MAX_BATCH = 8
SPLITS = st.lists(st.integers(0, 9), max_size=MAX_BATCH).map(tuple)


@st.composite
def profiles(draw: st.DrawFn) -> ModelProfile:
    """Up to four blocks, one or two core counts, times that need not grow with the batch."""
    plans = [BlockPlan(draw(st.floats(0.05, 1.0)), 1000) for _ in range(draw(st.integers(1, 4)))]
    fixed_s, each_s = draw(st.floats(0, 0.05)), draw(st.floats(1e-4, 0.05))
    times_s = [fixed_s + each_s * size * draw(st.floats(0.8, 1.2)) for size in range(1, MAX_BATCH + 1)]
    made = made_up_profile(plans, tuple(times_s), cores=(1, 2), border_bytes=1000, transfer_seconds_per_byte=1e-7)
    return replace(made, transfer_fixed_s=draw(st.sampled_from([0.0, 1e-4, 0.01])))


@st.composite
def teams(draw: st.DrawFn) -> tuple[ModelProfile, tuple[int, ...], tuple[int, ...]]:
    """A profile, some blocks, and the cores of a Body and of one to three Shadows."""
    profile = draw(profiles())
    blocks = draw(st.sets(st.integers(0, len(profile.layers.blocks) - 1), min_size=1))
    cores = draw(st.lists(st.sampled_from([1, 2]), min_size=2, max_size=4))
    return profile, tuple(sorted(blocks)), tuple(cores)


@given(st.lists(SPLITS, max_size=4), st.integers(1, 20))
def test_the_body_keeps_a_sample_whatever_the_splits_say(splits: list[tuple[int, ...]], batch: int) -> None:
    pairs = [Pair(1, (0,), split) for split in splits]
    found = shares(pairs, batch)
    assert len(found) == len(pairs)
    assert all(there >= 0 for there in found)
    assert sum(found) <= batch - 1
    assert all(there <= pair.shadow_samples(batch) for there, pair in zip(found, pairs, strict=True))
    both = together(pairs)
    if both is not None:
        assert both.shares(batch) == found
        assert both.each == tuple(pairs)


@given(teams())
def test_best_splits_add_up_and_leave_the_body_a_sample(team: tuple[ModelProfile, tuple[int, ...], tuple[int, ...]]) -> None:
    profile, blocks, cores = team
    splits = best_splits(profile, cores, blocks, MAX_BATCH)
    assert [len(split) for split in splits] == [MAX_BATCH] * (len(cores) - 1)
    for batch in range(1, MAX_BATCH + 1):
        assert 0 <= sum(split[batch - 1] for split in splits) < batch


@given(teams())
def test_the_best_split_is_never_slower_than_with_fewer_shadows(
    team: tuple[ModelProfile, tuple[int, ...], tuple[int, ...]],
) -> None:
    profile, blocks, cores = team

    def seconds(count: int, batch: int) -> float:
        """With the first `count` of them."""
        splits = best_splits(profile, cores[: count + 1], blocks, MAX_BATCH)
        pair = together([Pair(each, blocks, split) for each, split in zip(cores[1:], splits, strict=False)])
        found = profile.whole.at(cores[0], batch) if pair is None else pair_seconds(profile, cores[0], pair, batch)
        assert found is not None
        return found

    for batch in (1, 2, 5, 8):
        times = [seconds(count, batch) for count in range(len(cores))]
        assert all(later <= earlier + 1e-12 for earlier, later in pairwise(times))


@given(teams())
def test_one_shadow_is_the_special_case_of_several(team: tuple[ModelProfile, tuple[int, ...], tuple[int, ...]]) -> None:
    profile, blocks, cores = team
    alone = best_split(profile, (cores[0], cores[1]), blocks, MAX_BATCH)
    assert best_splits(profile, cores[:2], blocks, MAX_BATCH) == (alone,)
    idle = Pair(cores[0], blocks, (0,) * MAX_BATCH)
    pair = Pair(cores[1], blocks, alone)
    for batch in range(1, MAX_BATCH + 1):
        one_s = pair_seconds(profile, cores[0], pair, batch)
        assert one_s == pair_seconds(profile, cores[0], replace(pair, others=(idle,)), batch)


@given(teams(), st.integers(2, MAX_BATCH), st.data())
def test_a_batch_takes_as_long_as_the_slowest_of_all(
    team: tuple[ModelProfile, tuple[int, ...], tuple[int, ...]], batch: int, data: st.DataObject
) -> None:
    """Eq. 6 with several: no quicker than with any one of the shares alone taken away from the Body."""
    profile, blocks, cores = team
    given_away: list[int] = []
    for _ in cores[1:]:
        given_away.append(data.draw(st.integers(0, batch - 1 - sum(given_away))))
    runs = profile.layers.runs(blocks)
    together_s = split_seconds(profile, cores, runs, batch, *given_away)
    assert together_s is not None
    own_s = sum(profile.run_seconds(run, cores[0], batch - sum(given_away)) or 0.0 for run in runs)
    rest_s = (profile.whole.at(cores[0], batch) or 0.0) - sum(profile.run_seconds(run, cores[0], batch) or 0.0 for run in runs)
    assert together_s >= rest_s + own_s - 1e-9 or not any(given_away)
