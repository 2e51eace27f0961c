"""`batch` and `batch+` choose the cores of an instance: which, why, within which bounds, and how instances come to have them."""

from typing import Any

import pytest

from gnomon_autoscaler.made_up_models import BlockPlan, made_up_profile
from gnomon_autoscaler.registry import require, scaling_policy
from gnomon_autoscaler.testing import Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceState
from gnomon_core.scaling import Resize, SetBufferPlan
from gnomon_core.seam_values import Capabilities
from gnomon_core.settings import ScaleSettings, Settings, read_settings

ONE_CORE_S = (0.30, 0.50, 0.70, 0.90)


def timeline(
    name: str = "batch",
    *,
    rps: float = 8.0,
    serial: float = 0.1,
    cores: tuple[int, ...] = (1, 2, 4),
    nodes: tuple[tuple[str, int], ...] = (("node-1", 64),),
    start_s: float = 0.0,
    **settings: Any,
) -> Timeline:
    """A model on 1, 2 and 4 cores; the function begins with `gnomon/cores` 1."""
    given = {"slo_s": 2.0, "max_batch": 4, "scale": ScaleSettings(max=20), "plan_cores": "any", **settings}
    profile = made_up_profile([BlockPlan(1.0, 1_000_000)], ONE_CORE_S, cores=cores, serial_fraction=serial)
    line = Timeline(Settings(autoscaler=name, **given), nodes=nodes, start_s=start_s, profile=profile)
    line.rps = rps
    row = profile.whole.seconds.get(line.settings.cores, {})
    line.latency_s = tuple(row[batch] for batch in sorted(row))
    return line


def cores_of(line: Timeline) -> set[int]:
    return {instance.cores for instance in line.instances.values()}


@pytest.mark.parametrize("name", ["batch", "batch+"])
def test_an_objective_that_one_core_cannot_meet_is_met_by_instances_with_more(name: str) -> None:
    line = timeline(name, slo_s=0.25)
    line.play(40)
    assert cores_of(line) == {2} or cores_of(line) == {4}
    assert "1 core: P95 300.0 ms at best" in line.reason
    assert f"{line.live} × {cores_of(line).pop()} cores" in line.reason
    assert not line.errors


def test_more_cores_are_not_taken_where_they_cost_more_and_the_reason_says_how_much() -> None:
    line = timeline(serial=0.5)
    line.play(40)
    assert cores_of(line) == {1}
    assert "; 2 cores: +" in line.reason
    assert "; 4 cores: +" in line.reason


@pytest.mark.parametrize(("bound", "chosen"), [({"plan_cores": "fixed"}, 1), ({"max_cores": 2}, 2)])
def test_a_function_bounds_or_fixes_them(bound: dict[str, Any], chosen: int) -> None:
    """0.16 s can be met by four cores alone: 0.3 · (0.1 + 0.9 / 4) = 98 ms."""
    line = timeline(slo_s=0.16, **bound)
    line.play(40)
    assert cores_of(line) == {chosen}
    assert "No plan has its P95 within 160 ms" in line.reason
    assert f"{line.live} × {chosen} core" in line.reason


def test_no_more_cores_are_planned_than_the_largest_node_has() -> None:
    line = timeline(slo_s=0.16, nodes=tuple((f"node-{number}", 2) for number in range(9)), rps=4.0)
    line.play(40)
    assert cores_of(line) == {2}
    assert "4 cores" not in line.reason


def test_instances_are_resized_in_place_and_the_buffer_is_told() -> None:
    line = timeline(slo_s=0.25)
    line.play(29)
    before = set(line.instances)
    decisions = line.play(5)
    actions = [action for decision in decisions for action in decision.actions]
    assert {action.id for action in actions if isinstance(action, Resize)} == before
    assert any(isinstance(action, SetBufferPlan) for action in actions)


def test_on_a_full_node_those_that_are_not_needed_make_room_and_some_serve_at_any_time() -> None:
    """Eight cores: eight instances of one each, kept by an operator's word until the plan comes."""
    line = timeline(slo_s=0.25, nodes=(("node-1", 8),), rps=4.0, start_s=3.0)
    line.requested = 8
    line.play(20)
    assert line.live == 8
    fewest = 8
    for _ in range(60):
        line.play(1)
        fewest = min(fewest, sum(one.state is InstanceState.READY for one in line.instances.values()))
    assert fewest >= 1
    assert cores_of(line) in ({2}, {4})
    assert not line.errors, "nothing was asked for that had no room"


def test_a_change_that_saves_less_than_a_tenth_is_not_made() -> None:
    """With hardly any serial work two cores are as good as two instances: what is there stays."""
    line = timeline(serial=0.02)
    line.play(40)
    first = cores_of(line)
    line.play(400)
    assert cores_of(line) == first
    assert not [action for _, decision in line.decisions[-3:] for action in decision.actions if isinstance(action, Resize)]


def test_the_chosen_cores_are_kept_over_a_restart() -> None:
    line = timeline(slo_s=0.25)
    line.play(100)
    chosen = cores_of(line)
    state = line.runner.state
    assert state.values["cores"] in chosen
    policy = scaling_policy("batch", line.settings)
    assert policy.name == state.policy


def test_what_says_its_cores_keeps_them() -> None:
    def plan_cores(**annotations: str) -> str:
        named = {f"gnomon/{name.replace('_', '-')}": value for name, value in annotations.items()}
        return read_settings({}, named).plan_cores

    assert plan_cores(autoscaler="batch") == plan_cores(autoscaler="batch+") == "any"
    assert plan_cores(autoscaler="batch", cores="2") == plan_cores(autoscaler="batch+", memory_mb="3008") == "fixed"
    assert plan_cores(autoscaler="batch", cores="2", plan_cores="any") == "any"
    assert plan_cores(autoscaler="lv") == "fixed"
    with pytest.raises(GnomonError, match="plan-cores"):
        plan_cores(plan_cores="some")


def test_a_platform_that_cannot_resize_keeps_functions_whose_cores_are_fixed() -> None:
    alike = Capabilities(place=True, size=False, victim=True, resize=False, pair=False)
    require(scaling_policy("batch", Settings(plan_cores="fixed")), alike)
    with pytest.raises(GnomonError, match="resize, size"):
        require(scaling_policy("batch", Settings(plan_cores="any")), alike)
