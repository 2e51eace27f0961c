"""A setting that is for some policies only (docs/annotations.md, "only with") is read by those, and by no other one."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gnomon_autoscaler.registry import BUILT_IN
from gnomon_autoscaler.testing import Timeline
from gnomon_core.settings import SCALE_TABLE, TABLE, ScaleSettings, Settings
from tests.made_up_models import BlockPlan, made_up_profile

ALL = (*TABLE, *SCALE_TABLE)
FOR_SOME = {setting.field for setting in ALL if setting.only_with}
PROFILE = made_up_profile(
    (BlockPlan(0.6, 20_000_000), BlockPlan(0.4, 80_000_000)), (0.1, 0.15, 0.2, 0.25), cores=(1, 2), gmacs=4.0
)
# Labels by which `openfaas` follows its rule or its formula, and cores that are said or planned.
WAYS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (({}, {}), ({"plan_cores": "any"}, {"type": "rps"}))


class _Watched:
    """Settings that know which of their fields a policy has read. A copy of them reads all, and counts for none."""

    read: set[str]

    def __getattribute__(self, name: str) -> Any:
        if sys._getframe(1).f_globals["__name__"].startswith("gnomon_autoscaler.policies"):
            type(self).read.add(name)
        return super().__getattribute__(name)


def fields_read(policy: str) -> set[str]:
    """Of a busy function, then an idle one, whichever way its settings lead the policy."""

    class WatchedSettings(_Watched, Settings):
        read: set[str] = set()  # noqa: RUF012 - one for each call

    class WatchedScale(_Watched, ScaleSettings):
        read = WatchedSettings.read

    for settings, scale in WAYS:
        cooldowns: dict[str, Any] = {"scale_out_cooldown_s": 1.0, "scale_in_cooldown_s": 1.0, "slo_s": 1.0, "max_batch": 4}
        line = Timeline(WatchedSettings(autoscaler=policy, scale=WatchedScale(**scale), **cooldowns, **settings), profile=PROFILE)
        line.latency_s = (0.1, 0.15, 0.2, 0.25)
        line.rps, line.concurrency, line.executing = 40.0, 5.0, 5
        line.play(240)
        line.rps = line.concurrency = 0.0
        line.executing = 0
        line.play(1200 if policy == "target-tracking" else 60)
    return WatchedSettings.read


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_a_policy_reads_what_is_said_to_be_for_it(policy: str) -> None:
    assert fields_read(policy) & FOR_SOME == {setting.field for setting in ALL if policy in setting.only_with}


def test_only_policies_that_there_are_are_named() -> None:
    assert {name for setting in ALL for name in setting.only_with} <= set(BUILT_IN)
