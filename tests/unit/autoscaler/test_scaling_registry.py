"""Policies by name, refusals that help, and entry points that only count when they are named."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from gnomon_autoscaler import registry
from gnomon_autoscaler.made_up_models import BlockPlan, made_up_profile
from gnomon_autoscaler.registry import BUILT_IN, GROUP, require, require_profile, scaling_policy, with_entry_points
from gnomon_core.errors import GnomonError
from gnomon_core.seam_values import Capabilities
from gnomon_core.settings import Settings

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


def offered(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    points = EntryPoints(EntryPoint(name, value, GROUP) for name, value in values.items())
    monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))


def test_an_installed_policy_counts_only_when_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # A module that does not exist stands for a package whose import must not happen.
    offered(monkeypatch, theirs="no_such_module:offer", mine="tests_policy_offer:OFFER")
    assert set(with_entry_points([])) == set(BUILT_IN)
    with pytest.raises(ModuleNotFoundError):
        with_entry_points(["theirs"])


def test_a_named_policy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "OFFERED_FOR_TEST", BUILT_IN["od"], raising=False)
    offered(monkeypatch, mine="gnomon_autoscaler.registry:OFFERED_FOR_TEST")
    policies = with_entry_points(["mine"])
    assert scaling_policy("mine", Settings(), policies).name == "od"


@pytest.mark.parametrize(
    ("name", "code"),
    [("absent", "unknown_policy"), ("od", "unknown_policy"), ("wrong", "invalid_policy")],
)
def test_a_name_that_cannot_be_loaded_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> None:
    offered(monkeypatch, wrong="gnomon_autoscaler.registry:GROUP", od="gnomon_autoscaler.registry:GROUP")
    with pytest.raises(GnomonError) as refused:
        with_entry_points([name])
    assert refused.value.code == code
