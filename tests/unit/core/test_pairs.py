"""Layer blocks, profiles and splits; the price of a Shadow on another node; and how pairs are written."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.blocks import Block, Layers
from gnomon_core.pairs import (
    ELSEWHERE,
    MAX_SHADOWS,
    Pair,
    best_split,
    pair_from_json,
    pair_seconds,
    pair_to_json,
    shadows_of,
    split_seconds,
)
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile, Network
from gnomon_core.wire import Frame, Kind
from tests.made_up_models import BlockPlan, made_up_profile
from tests.refusals import refused

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
        LatencyTable({cores: {1: (fixed_s + value) / cores, 8: (fixed_s + 8 * value) / cores} for cores in (1, 2)})
        for value in per_sample_s
    )
    whole = LatencyTable({cores: {b: sum(t.at(cores, b) or 0.0 for t in tables) for b in range(1, 9)} for cores in (1, 2)})
    loading = {"shared": Loading(0.001, 0.0), "private": Loading(0.001, 1e-9)}
    return ModelProfile("m@1", chain(), whole, tables, loading, 0.02, 0.01, 50_000_000, 0.0001, 1e-10)


def test_adjacent_blocks_form_one_run_with_the_tensors_at_its_borders() -> None:
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


def test_latency_tables_interpolate_linearly_and_extrapolate_in_proportion() -> None:
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


HOME, AFAR = Pair(2, (1, 2), (0, 1, 1, 2)), Pair(1, (1, 2), (0, 0, 1, 1), ELSEWHERE)
SAID = {"shadow": "s-1", **pair_to_json(HOME)}


def result(head: Any) -> Frame:
    return Frame(Kind.RESULT, 1, head=head if isinstance(head, bytes) else json.dumps(head).encode())


def test_shadows_are_read_in_the_order_of_their_rows() -> None:
    said = [{"shadow": name, **pair_to_json(pair)} for name, pair in (("s-2", AFAR), ("s-1", HOME))]
    found = shadows_of(result({"outputs": [], "shadows": said}))
    assert list(found.items()) == [("s-2", AFAR), ("s-1", HOME)]
    assert pair_from_json(json.loads(json.dumps(pair_to_json(AFAR)))) == AFAR


@pytest.mark.parametrize(
    "head",
    [
        b"",
        {},
        {"pair": []},
        {"shadows": []},
        {"shadows": None},
        {"shadows": 3},
        {"shadows": {"s-1": {}}},
        {"shadows": ["s-1"]},
        {"shadows": [pair_to_json(HOME)]},
        {"shadows": [SAID | {"cores": 0}]},
        {"shadows": [SAID | {"cores": 1 << 40}]},
        {"shadows": [SAID | {"cores": float("inf")}]},
        {"shadows": [SAID | {"blocks": [-1]}]},
        {"shadows": [SAID | {"blocks": 7}]},
        {"shadows": [SAID | {"split": [0, -1]}]},
        {"shadows": [SAID | {"split": ["x"]}]},
        {"shadows": [SAID | {"split": [0] * 2000}]},
        {"shadows": [SAID | {"shadow": f"s-{number}"} for number in range(MAX_SHADOWS + 1)]},
        {"shadows": [SAID | {"shadow": "x" * (1 << 16)}]},
        b"[" * 5000,
        b'{"shadows": [{"shadow": "s-1"',
        b"[]",
        b"\xff\xfe",
    ],
    ids=lambda head: str(head)[:40],
)
def test_report_without_shadows_is_of_a_body_alone(head: Any) -> None:
    assert shadows_of(result(head)) == {}


MB = 10**6
# 0.1 s a sample, one block, 1 MB a sample over each border; 10 ms and 5 ms/MB each way to another node.
PROFILE = made_up_profile(
    (BlockPlan(1.0, 20 * MB),), tuple(0.1 * size for size in range(1, 9)), border_bytes=MB, network=Network(0.01, 5e-9)
)


def test_a_hand_over_to_another_node_costs_what_the_network_takes() -> None:
    # 4 + 4 of eight: 0.4 s, and 10 ms + 4 MB · 5 ms each way on top of the Shadow's: 0.46 s. 5 + 3 would take the Body 0.5 s.
    split = best_split(PROFILE, (1, 1), [0], 8, elsewhere=True)
    assert split == (0, 1, 1, 2, 2, 3, 3, 4)
    far, near = Pair(1, (0,), split, "n2"), Pair(1, (0,), split)
    assert pair_seconds(PROFILE, 1, far, 8) == pytest.approx(0.46)
    assert pair_seconds(PROFILE, 1, near, 8) == pytest.approx(0.4)
    assert pair_seconds(PROFILE, 1, far, 1) == pytest.approx(0.1)


def test_a_dear_network_moves_the_split_and_a_dearer_one_forbids_it() -> None:
    # 40 ms and 20 ms/MB: three samples there take 0.3 + 0.08 + 0.12 s while the Body has five.
    dear = replace(PROFILE, network=Network(0.04, 2e-8))
    assert best_split(dear, (1, 1), [0], 8, elsewhere=True)[7] == 3
    assert pair_seconds(dear, 1, Pair(1, (0,), (0,) * 7 + (3,), "n2"), 8) == pytest.approx(0.5)
    dearer = replace(PROFILE, network=Network(1.0, 0.0))
    assert best_split(dearer, (1, 1), [0], 8, elsewhere=True) == (0,) * 8
    assert best_split(dearer, (1, 1), [0], 8)[7] == 4


def test_without_a_price_nothing_is_known_of_a_pair_over_the_network() -> None:
    unpriced = replace(PROFILE, network=None)
    assert unpriced.over_network() is None
    assert best_split(unpriced, (1, 1), [0], 8, elsewhere=True) == (0,) * 8
    assert pair_seconds(unpriced, 1, Pair(1, (0,), (0, 1), "n2"), 2) is None
    assert pair_seconds(unpriced, 1, Pair(1, (0,), (0, 1)), 2) == pytest.approx(0.1)


def test_remote_one_of_two_shadows_pays_for_the_network() -> None:
    near, far = Pair(1, (0,), (0, 0, 1)), Pair(1, (0,), (0, 0, 1), "n2")
    assert pair_seconds(PROFILE, 1, replace(near, others=(near,)), 3) == pytest.approx(0.1)
    assert pair_seconds(PROFILE, 1, replace(near, others=(far,)), 3) == pytest.approx(0.1 + 0.02 + 0.01)


def test_a_declared_network_is_added_to_what_the_software_takes() -> None:
    network = Network.of(10, 0.2, Network(50e-6, 0.4e-9))
    assert network.fixed_s == pytest.approx(150e-6)
    assert network.seconds_per_byte == pytest.approx(1.2e-9)
    assert network.source == "declared: 10 Gbit/s, 0.2 ms there and back"
    assert Network.of(1, 0) == Network(0.0, 8e-9, "declared: 1 Gbit/s, 0 ms there and back")
    for gbps, rtt_ms in ((0, 1), (-1, 1), (float("nan"), 1), (1, -1), (1, float("inf"))):
        with refused(400, "bad_network", match="no such thing as a network"):
            Network.of(gbps, rtt_ms)


def test_the_price_travels_with_the_profile_and_old_profiles_have_none() -> None:
    document = json.loads(json.dumps(PROFILE.to_json()))
    assert ModelProfile.from_json(document) == PROFILE
    del document["network"]
    assert ModelProfile.from_json(document) == replace(PROFILE, network=None)
    wrong: object
    for wrong in ({"fixed_s": -1.0, "seconds_per_byte": 0.0}, {"fixed_s": 0.0}, {"fixed_s": 0.0, "seconds_per_byte": "inf"}, []):
        with pytest.raises(ValueError, match=r"network|no profile"):
            ModelProfile.from_json(document | {"network": wrong})


@given(fixed_s=st.floats(0, 1), per_byte_s=st.floats(0, 1e-6), more_s=st.floats(0, 1))
def test_a_dearer_network_never_makes_the_best_pair_quicker(fixed_s: float, per_byte_s: float, more_s: float) -> None:
    def best_s(network: Network) -> float:
        profile = replace(PROFILE, network=network)
        split = best_split(profile, (1, 1), [0], 8, elsewhere=True)
        seconds = pair_seconds(profile, 1, Pair(1, (0,), split, "n2"), 8)
        assert seconds is not None
        return seconds

    assert best_s(Network(fixed_s, per_byte_s)) <= best_s(Network(fixed_s + more_s, per_byte_s)) + 1e-12 <= 0.8 + 1e-9
