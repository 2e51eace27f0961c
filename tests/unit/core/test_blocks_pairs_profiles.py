"""Layer blocks, profiles and splits: worked examples, and what holds for every table."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.blocks import Block, Layers
from gnomon_core.pairs import Pair, best_split, pair_seconds, split_seconds
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile

NAMES = ("x", "a", "b", "c", "d")


def chain() -> Layers:
    """Four blocks x → a → b → c → d, of which the last also reads a, as a skip connection does."""
    blocks = tuple(
        Block(
            f"block{n}",
            2 * n,
            2 * n + 2,
            (NAMES[n], *(("a",) if n == 3 else ())),
            (NAMES[n + 1],),
            (f"w{n}",),
            1000 * n,
            8 * n,
            splittable=True,
        )
        for n in range(4)
    )
    return Layers("digest", ("d",), blocks, {"x": 100, "a": 80, "b": 60, "c": 40, "d": 4})


def profile(per_sample_s: tuple[float, ...] = (0.001, 0.004, 0.004, 0.001), fixed_s: float = 0.0) -> ModelProfile:
    """Blocks whose time grows in proportion to the batch, half as long on two cores."""
    tables = tuple(
        LatencyTable({cores: {1: (fixed_s + one) / cores, 8: (fixed_s + 8 * one) / cores} for cores in (1, 2)})
        for one in per_sample_s
    )
    whole = LatencyTable({cores: {b: sum(t.at(cores, b) or 0.0 for t in tables) for b in range(1, 9)} for cores in (1, 2)})
    loading = {"shared": Loading(0.001, 0.0), "private": Loading(0.001, 1e-9)}
    return ModelProfile("m@1", chain(), whole, tables, loading, 0.02, 0.01, 50_000_000, 0.0001, 1e-10)


def test_neighbours_are_one_run_and_what_crosses_its_border_is_read_before_or_after_it() -> None:
    first, last = chain().runs([3, 1, 0])
    assert (first.first, first.last, first.begin, first.end) == (0, 1, 0, 4)
    # b leaves for block 2, a for block 3, which skips.
    assert (first.reads, set(first.makes), first.input_bytes, first.output_bytes) == (("x",), {"a", "b"}, 100, 140)
    assert (last.reads, last.makes) == (("c", "a"), ("d",))
    assert chain().runs([]) == ()


def test_layers_travel_as_json() -> None:
    assert Layers.from_json(json.loads(json.dumps(chain().to_json()))) == chain()
    assert ModelProfile.from_json(json.loads(json.dumps(profile().to_json()))) == profile()


@pytest.mark.parametrize("field", ["blocks", "outputs", "value_bytes", "format", "program_sha256"])
def test_invalid_layers_document_is_refused(field: str) -> None:
    document = chain().to_json()
    del document[field]
    with pytest.raises(ValueError, match="layer"):
        Layers.from_json(document)


def test_blocks_must_follow_each_other() -> None:
    document = chain().to_json()
    document["blocks"][2]["operations"] = [5, 6]
    with pytest.raises(ValueError, match="block2"):
        Layers.from_json(document)


def test_a_table_is_read_on_straight_lines_and_beyond_its_end_in_proportion() -> None:
    table = LatencyTable({1: {2: 0.2, 4: 0.6}})
    assert [table.at(1, batch) for batch in (0, 1, 2, 3, 4, 8)] == pytest.approx([0.0, 0.2, 0.2, 0.4, 0.6, 1.2])
    assert table.at(2, 1) is None


def test_unmeasured_cores_follow_amdahl_once_a_serial_fraction_is_declared() -> None:
    table = LatencyTable({1: {1: 0.19}, 2: {1: 0.1}}, serial_fraction=0.05)
    assert table.at(8, 1) == pytest.approx(0.02875)
    assert not table.measured(8)
    assert table.at(2, 1) == 0.1


def test_a_pair_of_equals_halves_what_is_offloaded() -> None:
    measured = profile()
    split = best_split(measured, (1, 1), [1, 2], 8)
    assert split[0] == 0
    assert split[7] == 4
    # 80 ms alone, of which 64 are offloaded: 16 + 32, and 0.2 ms for two hand-overs besides the bytes.
    assert pair_seconds(measured, 1, Pair(1, (1, 2), split), 8) == pytest.approx(0.0482, abs=1e-6)


def test_nothing_is_split_where_a_split_gains_nothing() -> None:
    slow = profile(fixed_s=0.0).extrapolated(0.05)
    dear = ModelProfile.from_json(slow.to_json() | {"transfer": {"fixed_s": 10.0, "seconds_per_byte": 0.0}})
    assert best_split(dear, (1, 1), [1, 2], 8) == (0,) * 8


@given(
    per_sample_s=st.tuples(*(st.floats(1e-5, 0.01) for _ in range(4))),
    fixed_s=st.floats(0, 0.01),
    chosen=st.sets(st.integers(0, 3)),
    cores=st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2])),
)
def test_the_best_split_is_never_worse_than_any_other(
    per_sample_s: tuple[float, ...], fixed_s: float, chosen: set[int], cores: tuple[int, int]
) -> None:
    measured = profile(per_sample_s, fixed_s)
    split = best_split(measured, cores, chosen, 8)
    runs = measured.layers.runs(chosen)
    for batch, there in enumerate(split, start=1):
        assert 0 <= there < batch
        best_s = split_seconds(measured, cores, runs, batch, there)
        assert best_s is not None
        others = [split_seconds(measured, cores, runs, batch, other) for other in range(batch)]
        assert all(best_s <= other for other in others if other is not None)


def test_a_split_goes_on_beyond_its_table_in_proportion() -> None:
    pair = Pair(1, (0,), (0, 1, 1, 2))
    assert [pair.shadow_samples(batch) for batch in (1, 2, 3, 4, 8)] == [0, 1, 1, 2, 4]
    assert Pair(1, (0,), ()).shadow_samples(8) == 0
