"""The profiles that this repository publishes can be read, hold together and say where they come from."""

from pathlib import Path

import pytest

from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.profiles import ModelProfile
from gnomon_profiler.measuring.store import read_profile

PROFILES = sorted((Path(__file__).parents[3] / "profiles").glob("*.json"))
LARGEST_BYTES = 300_000


@pytest.fixture(params=PROFILES, ids=lambda path: path.stem)
def profile(request: pytest.FixtureRequest) -> ModelProfile:
    assert request.param.stat().st_size < LARGEST_BYTES
    return read_profile(request.param)


def test_there_are_some() -> None:
    assert PROFILES


def test_blocks_sum_to_the_whole_in_every_cell(profile: ModelProfile) -> None:
    for cores, row in profile.whole.seconds.items():
        for batch, whole_s in row.items():
            blocks_s = sum(table.seconds[cores][batch] for table in profile.blocks)
            assert blocks_s == pytest.approx(whole_s, rel=1e-4), (cores, batch)


def test_larger_batches_take_longer(profile: ModelProfile) -> None:
    for row in profile.whole.seconds.values():
        seconds = [row[batch] for batch in sorted(row)]
        assert seconds == sorted(seconds)


def test_more_cores_are_quicker_and_not_more_than_they_are(profile: ModelProfile) -> None:
    for cores, row in profile.whole.seconds.items():
        for batch, seconds in row.items():
            one_core_s = profile.whole.seconds[1][batch]
            # Two cores have two caches: a few percent beyond their number is possible.
            assert seconds <= one_core_s
            assert one_core_s < 1.1 * cores * seconds


def test_published_profile_has_quiet_cells(profile: ModelProfile) -> None:
    assert set(profile.spread) == {f"{cores}/{batch}" for cores, row in profile.whole.seconds.items() for batch in row}
    assert max(profile.spread.values()) < 0.1


def test_published_profile_names_its_provenance(profile: ModelProfile) -> None:
    named = {"machine", "machine_id", "torch", "python", "gnomon", "date", "weights", "allocator", "loading_private", "starts"}
    assert named <= profile.provenance.keys()


def test_a_half_of_the_batch_elsewhere_is_worth_it(profile: ModelProfile) -> None:
    blocks = tuple(number for number, block in enumerate(profile.layers.blocks) if block.splittable)
    split = best_split(profile, (1, 1), blocks, 4)
    paired_s = pair_seconds(profile, 1, Pair(1, blocks, split), 4)
    assert paired_s is not None
    assert paired_s < 0.7 * profile.whole.seconds[1][4]
