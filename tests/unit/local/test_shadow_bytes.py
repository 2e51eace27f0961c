"""A Shadow takes as much memory of its node as the policy that chose it has counted, and the simulator counts the same."""

from __future__ import annotations

import pytest

from gnomon_autoscaler.policies.asyfunc.lls import shadow_memory_bytes
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_core.settings import Settings
from gnomon_platforms.common import MODEL_OVERHEAD_BYTES, shadow_bytes
from gnomon_simulator.profiles import modelled
from tests.made_up_models import BlockPlan, made_up_profile

MB = 10**6
PROFILE = made_up_profile(
    (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB)), tuple(0.1 * size for size in range(1, 9)), overhead_bytes=100 * MB
)
KNOWN = Knowledge(PROFILE, Settings(slo_s=1.0, max_batch=8), Options())


@pytest.mark.parametrize("weight_mode", ["shared", "private"])
def test_platform_policy_and_simulator_count_the_same(weight_mode: str) -> None:
    for pairing in KNOWN.pairings.ranked(1, 1):
        claimed = shadow_bytes(PROFILE.layers, pairing.pair, PROFILE, weight_mode)
        assert claimed == shadow_memory_bytes(KNOWN, Options(weight_mode=weight_mode), pairing.parameter_bytes, elsewhere=False)
        assert claimed == modelled(PROFILE, weight_mode).shadow_memory_bytes(pairing.pair)


def test_shared_weights_are_the_bodys_and_private_ones_its_own() -> None:
    pair = KNOWN.pairings.ranked(1, 1)[0].pair
    assert pair.blocks == (0, 1)
    assert shadow_bytes(PROFILE.layers, pair, PROFILE, "shared") == 100 * MB
    assert shadow_bytes(PROFILE.layers, pair, PROFILE, "private") == 200 * MB
    assert shadow_bytes(PROFILE.layers, pair, None, "shared") == MODEL_OVERHEAD_BYTES
