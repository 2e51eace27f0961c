"""How policies are registered, named and configured, and docs/howto/add-a-policy.md executed as a reader would follow it."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_autoscaler.registry import BUILT_IN, SCALING, require, require_profile, scaling_policy
from gnomon_autoscaler.testing import Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import Capabilities
from gnomon_core.settings import SCALE_TABLE, TABLE, ScaleSettings, Settings, read_settings
from gnomon_gateway.scheduling.registry import SCHEDULING, scheduling_policy
from tests.made_up_models import BlockPlan, made_up_profile
from tests.refusals import refused
from tests.timelines import play

NOTHING = Capabilities(place=False, size=False, victim=False, resize=False, pair=False)


def test_the_documented_policies_are_there() -> None:
    counting = {"fixed", "hpa", "k-lv", "kpa", "lv", "mark", "od", "openfaas", "target-tracking"}
    assert set(BUILT_IN) == counting | {"asyfunc", "asyfunc-", "batch", "batch+", "fixed+shadows", "gnomon"}


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
    with refused(400, "unsupported_policy", match="pair, resize"):
        require(policy, NOTHING)
    require(policy, Capabilities(place=True, size=True, victim=True, resize=True, pair=True))


def test_a_policy_that_decides_by_a_profile_is_refused_without_one() -> None:
    profile = made_up_profile((BlockPlan(1.0, 10),), (0.1, 0.2), cores=(2,))
    asyfunc = scaling_policy("asyfunc", Settings())
    for settings, found, said in (
        (Settings(), None, "the function has no model"),
        (Settings(model="resnet50"), None, "resnet50 has none here"),
        (Settings(model="resnet50", max_cores=1), profile, "no number of cores up to gnomon/max-cores, 1"),
    ):
        with refused(400, "no_profile", match=said, hint=f"`gnomon models profile {settings.model or 'NAME'}`"):
            require_profile(asyfunc, settings, found)
    require_profile(asyfunc, Settings(model="resnet50"), profile)
    require_profile(scaling_policy("od", Settings()), Settings(), None)


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
        play(line, 240, latency_s=(0.1, 0.15, 0.2, 0.25), rps=40.0, concurrency=5.0, executing=5)
        play(line, 1200 if policy == "target-tracking" else 60, rps=0.0, concurrency=0.0, executing=0)
    return WatchedSettings.read


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_a_policy_reads_what_is_said_to_be_for_it(policy: str) -> None:
    assert fields_read(policy) & FOR_SOME == {setting.field for setting in ALL if policy in setting.only_with}


def test_only_policies_that_there_are_are_named() -> None:
    assert {name for setting in ALL for name in setting.only_with} <= set(BUILT_IN)


PAGE = Path(__file__).parents[3] / "docs" / "howto" / "add-a-policy.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(PAGE.read_text()) if kind == language]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of the page, as an installed package."""
    names = []
    for text in blocks("python"):
        name = text.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
        names.append(name.removesuffix(".py"))
    (points,) = (tomllib.loads(text)["project"]["entry-points"] for text in blocks("toml"))
    installed = tmp_path / "backlog-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: backlog\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in entries.items()) for group, entries in points.items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["test_backlog", "test_few"])
def test_the_pages_tests_pass(name: str) -> None:
    module = importlib.import_module(name)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


@pytest.mark.usefixtures("package")
def test_the_pages_policies_are_found_when_they_are_named_and_only_then() -> None:
    assert {"backlog", "few"}.isdisjoint(SCALING.with_named([]) | SCHEDULING.with_named([]))
    assert {"backlog", "few"}.isdisjoint(sys.modules)
    names = ["backlog", "few"]
    settings = read_settings({}, {"gnomon/autoscaler": "backlog", "gnomon/backlog.per-instance": "20", "gnomon/scheduler": "few"})
    assert scaling_policy("backlog", settings, SCALING.with_named(names)).name == "backlog"
    assert scheduling_policy("few", settings, SCHEDULING.with_named(names)).name == "few"
    wrong = read_settings({}, {"gnomon/backlog.per-instance": "0"})
    with pytest.raises(GnomonError, match="must be a whole number from 1 to 1000"):
        scaling_policy("backlog", wrong, SCALING.with_named(names))
