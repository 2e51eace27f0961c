"""Messages and coordination of pairs in any order."""

import math
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.pairs import Pair, best_split, best_splits, pair_seconds, shares, split_seconds, together
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import DATATYPE_BYTES
from gnomon_runtime.pair.headers import DATATYPES, HEADER, MAX_AXES, ROW, Kind, Message, NonsenseError, Row, decode, encode
from tests.made_up_models import BlockPlan, made_up_profile

BUFFER = 1 << 16


@st.composite
def rows(draw: st.DrawFn, samples: int) -> Row:
    datatype = draw(st.sampled_from(DATATYPES))
    shape = (samples, *draw(st.lists(st.integers(0, 3), max_size=MAX_AXES - 1)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    length = math.prod(shape) * DATATYPE_BYTES[datatype]
    return Row(64 * draw(st.integers(0, max(0, (BUFFER - length) // 64))), length, datatype, shape, order)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    samples = draw(st.integers(1, 8))
    begin = draw(st.integers(0, 1000))
    return Message(
        draw(st.sampled_from(Kind)),
        draw(st.integers(0, 2**64 - 1)),
        begin,
        begin + draw(st.integers(1, 1000)),
        samples,
        tuple(draw(st.lists(rows(samples), max_size=4))),
        draw(st.integers(0, 10**12)) / 1e9,
    )


def sound(message: Message) -> bool:
    return all(
        row.offset >= 0
        and row.offset + row.length <= BUFFER
        and row.offset % 64 == 0
        and row.length == math.prod(row.shape) * DATATYPE_BYTES[row.datatype]
        and row.shape[0] == message.samples
        and sorted(row.order) == list(range(len(row.shape)))
        for row in message.rows
    )


@given(messages())
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert decode(encode(message), BUFFER) == message


@given(messages(), st.data())
def test_a_changed_message_is_sound_or_nonsense(message: Message, data: st.DataObject) -> None:
    """Bytes changed, cut off or added, anywhere."""
    damaged = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for candidate in (bytes(damaged), bytes(damaged[:cut]), bytes(damaged) + bytes(cut)):
        with suppress(NonsenseError):
            assert sound(decode(candidate, BUFFER))


@given(st.binary(max_size=HEADER.size + 3 * ROW.size))
def test_noise_is_nonsense(noise: bytes) -> None:
    with suppress(NonsenseError):
        assert sound(decode(b"GNP1" + noise, BUFFER))


@given(messages(), st.data())
def test_every_number_may_be_the_largest(message: Message, data: st.DataObject) -> None:
    """Each field of a row set to what would wrap around in fixed-width arithmetic."""
    if not message.rows:
        return
    fields = list(ROW.unpack(encode(message)[HEADER.size : HEADER.size + ROW.size]))
    index = data.draw(st.integers(0, len(fields) - 1))
    widths = [64, 64, 8, 8, *[32] * 8, *[8] * 8]
    fields[index] = data.draw(st.sampled_from([2 ** widths[index] - 1, 2 ** (widths[index] - 1), 2 ** (widths[index] // 2)]))
    raw = encode(message)
    with suppress(NonsenseError):
        assert sound(decode(raw[: HEADER.size] + ROW.pack(*fields) + raw[HEADER.size + ROW.size :], BUFFER))


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
