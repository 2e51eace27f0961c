"""The price of a Shadow on another node, worked by hand."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.profiles import ModelProfile, Network
from tests.made_up_models import BlockPlan, made_up_profile
from tests.refusals import refused

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


def test_of_two_shadows_the_one_elsewhere_pays_for_its_way() -> None:
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
