"""Policies by name, and refusals that help."""

import pytest

from gnomon_autoscaler.registry import BUILT_IN, require, require_profile, scaling_policy
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import Capabilities
from gnomon_core.settings import Settings
from tests.made_up_models import BlockPlan, made_up_profile

NOTHING = Capabilities(place=False, size=False, victim=False, resize=False, pair=False)


def test_the_documented_policies_are_there() -> None:
    counting = {"fixed", "hpa", "k-lv", "kpa", "lv", "mark", "od", "openfaas", "target-tracking"}
    assert set(BUILT_IN) == counting | {"asyfunc", "asyfunc-", "batch", "batch+"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policy_goes_by_its_name_and_is_described(name: str) -> None:
    assert scaling_policy(name, Settings()).name == name
    assert BUILT_IN[name].about.endswith(".")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(GnomonError) as refused:
        scaling_policy("openfass", Settings())
    assert (refused.value.status, refused.value.code) == (400, "unknown_policy")
    assert refused.value.hint == f"Known ones: {', '.join(sorted(BUILT_IN))}."
    assert "k-lv, kpa, lv, mark, od" in refused.value.hint


def test_the_table_is_sorted() -> None:
    assert list(BUILT_IN) == sorted(BUILT_IN)


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"asyfunc", "asyfunc-"}))
def test_every_policy_that_counts_can_work_on_every_platform(name: str) -> None:
    require(scaling_policy(name, Settings()), NOTHING)


def test_asyfunc_needs_a_platform_that_can_pair_and_place() -> None:
    with pytest.raises(GnomonError, match="pair, place, size"):
        require(scaling_policy("asyfunc", Settings()), NOTHING)
    require(scaling_policy("asyfunc", Settings()), Capabilities(place=True, size=True, victim=False, resize=False, pair=True))
    # Without layer-level scaling there is nothing to pair.
    with pytest.raises(GnomonError, match="do: place, size"):
        require(scaling_policy("asyfunc-", Settings()), NOTHING)


def test_a_policy_that_needs_more_than_the_platform_can_is_refused() -> None:
    policy = scaling_policy("od", Settings())
    policy.needs = frozenset({"resize", "pair"})  # type: ignore[attr-defined]
    with pytest.raises(GnomonError, match="pair, resize") as refused:
        require(policy, NOTHING)
    assert (refused.value.status, refused.value.code) == (400, "unsupported_policy")
    require(policy, Capabilities(place=True, size=True, victim=True, resize=True, pair=True))


def test_a_policy_that_decides_by_a_profile_is_refused_without_one() -> None:
    profile = made_up_profile((BlockPlan(1.0, 10),), (0.1, 0.2), cores=(2,))
    asyfunc = scaling_policy("asyfunc", Settings())
    for settings, found, said in (
        (Settings(), None, "the function has no model"),
        (Settings(model="resnet50"), None, "resnet50 has none here"),
        (Settings(model="resnet50", max_cores=1), profile, "no number of cores up to gnomon/max-cores, 1"),
    ):
        with pytest.raises(GnomonError, match=said) as refused:
            require_profile(asyfunc, settings, found)
        assert (refused.value.status, refused.value.code) == (400, "no_profile")
        assert f"`gnomon models profile {settings.model or 'NAME'}`" in refused.value.hint
    require_profile(asyfunc, Settings(model="resnet50"), profile)
    require_profile(scaling_policy("od", Settings()), Settings(), None)
