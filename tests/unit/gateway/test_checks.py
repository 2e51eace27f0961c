"""Checks before a function is served, and those that are not repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnomon_autoscaler.registry import BUILT_IN
from gnomon_core.errors import GnomonError, not_found
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import Capabilities, SchedulingPolicy
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.settings import Settings, read_settings
from gnomon_gateway.functions.validation import Checks, FunctionInputs
from gnomon_gateway.scheduling.policies import Fixed
from gnomon_gateway.scheduling.registry import SCHEDULING
from gnomon_gateway.store import SqliteStore
from gnomon_server.scaling import ScalingAdapter

SPEC = read_deployment({"service": "f", "image": "i", "secrets": ["gone", "there"]})


class Anything:
    """A platform that could run everything."""

    def check(self, spec: FunctionSpec) -> None:
        pass


class Cluster(Anything):
    """One whose instances outlive a gateway."""

    def adopt(self, spec: FunctionSpec, version: int) -> tuple[()]:
        raise NotImplementedError

    def scaling_conflict(self, function: str) -> None:
        raise NotImplementedError

    def revision(self, spec: FunctionSpec) -> str:
        return spec.image

    def signature(self, spec: FunctionSpec) -> None:
        pass

    def profile(self, spec: FunctionSpec) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "functions.db")
    opened.put_secret(FunctionKey("there"), b"value")
    yield opened
    opened.close()


async def no_model(_: str) -> None:
    pass


def checks(store: SqliteStore, platform: Any, **schedulers: PolicyPlugin[SchedulingPolicy]) -> Checks:
    capabilities = Capabilities(place=True, size=True, victim=True, resize=True, pair=True)
    scaling = ScalingAdapter(BUILT_IN, lambda: capabilities)
    return Checks(store, platform, scaling, no_model, SCHEDULING.built_in | schedulers)


def test_added_scheduling_policy_is_used_by_functions_that_name_it(store: SqliteStore) -> None:
    mine = checks(
        store, Anything(), mine=PolicyPlugin(lambda settings: Fixed(settings.max_batch, 1.0), "Fixed, always a second.")
    )
    assert isinstance(mine.policy(Settings(scheduler="mine")), Fixed)
    with pytest.raises(GnomonError, match="which is no scheduling policy"):
        checks(store, Anything()).policy(Settings(scheduler="mine"))


def test_a_setting_of_a_policy_that_nobody_knows_is_refused(store: SqliteStore) -> None:
    with pytest.raises(GnomonError, match="is a setting of a policy 'backlgo', which is not known") as refused:
        checks(store, Anything()).policy(read_settings({}, {"gnomon/backlgo.per-instance": "20"}))
    assert refused.value.code == "unknown_setting"


async def test_adopted_pods_serve_although_a_secret_is_missing(store: SqliteStore) -> None:
    means = await checks(store, Cluster()).spec(SPEC, again=True)
    assert means == FunctionInputs({"there": b"value"}, SPEC.image, None, None)


@pytest.mark.parametrize(("platform", "again"), [(Cluster(), False), (Anything(), True), (Anything(), False)])
async def test_new_instances_need_all_of_them(store: SqliteStore, platform: Anything, *, again: bool) -> None:
    with pytest.raises(GnomonError) as caught:
        await checks(store, platform).spec(SPEC, again=again)
    assert caught.value.code == "secret_not_found"


async def test_missing_model_is_400_and_not_404(store: SqliteStore) -> None:
    """faas-cli creates a function whose update answers 404, and would then be told that it is deployed already."""

    class WithoutModels(Anything):
        def check(self, _: FunctionSpec) -> None:
            raise not_found("model_not_found", "There is no model.", "There are: resnet50.")

    with pytest.raises(GnomonError) as refused:
        await checks(store, WithoutModels()).spec(SPEC)
    assert (refused.value.status, refused.value.code, refused.value.hint) == (400, "model_not_found", "There are: resnet50.")


@pytest.mark.parametrize("variable", ["exec_timeout", "read_timeout", "write_timeout"])
@pytest.mark.parametrize("text", ["soon", "1 minute", "-5s"])
async def test_a_timeout_that_is_no_duration_is_refused_when_a_function_is_deployed(
    store: SqliteStore, variable: str, text: str
) -> None:
    spec = replace(SPEC, secrets=("there",), environment={variable: text})
    with pytest.raises(GnomonError, match=f"{variable}: .*{text}.* is not a duration") as refused:
        await checks(store, Cluster()).spec(spec)
    assert (refused.value.status, refused.value.code) == (400, "invalid_setting")
    assert refused.value.hint == f"Example: {variable}: 30s"
    # A function that an earlier version accepted is served after a restart.
    await checks(store, Cluster()).spec(spec, again=True)
    await checks(store, Cluster()).spec(replace(spec, environment={variable: "1m30s"}))


@pytest.mark.parametrize("name", ["../../etc/passwd", "$(id)", "UPPER", "a b", "", ".hidden"])
async def test_a_hint_never_repeats_a_name_that_no_secret_can_have(store: SqliteStore, name: str) -> None:
    with pytest.raises(GnomonError, match="is not a name for a secret") as refused:
        await checks(store, Cluster()).spec(replace(SPEC, secrets=(name,)))
    assert (refused.value.status, refused.value.code) == (400, "invalid_name")
    assert "lower-case letters" in refused.value.hint
    assert "gnomon secret create" not in refused.value.hint
