"""Bodies and Shadows in virtual time: on one node and on several, one per Body and more, by the paper's readings."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulation.opt import with_opt, without_loading
from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.errors import GnomonError
from gnomon_core.pairs import MAX_SHADOWS, Pair
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile, Network
from gnomon_core.scaling import Action, ChangeShadow, CreateBody, CreateShadow, DestroyBody, DestroyShadow, PromoteShadow, Resize
from gnomon_core.settings import ScaleSettings, Settings, read_settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.profiles import Profile, modelled, read_profile
from gnomon_simulator.profiles import constant as constant_profile
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from tests.made_up_models import BlockPlan, made_up_profile
from tests.refusals import refused
from tests.unit.autoscaler.test_asyfunc_policy import ANNOTATIONS, SCATTERED
from tests.unit.simulator.scripted import Script

MB = 10**6
# Two samples take 1 s alone; with half of both blocks on the Shadow 0.5 s, and 0.25 s of that in each block.
HALVES = (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB))
MODEL = replace(
    made_up_profile(HALVES, (0.5, 1.0, 1.5, 2.0), cores=(1, 2), gmacs=4.0, overhead_bytes=100 * MB),
    loading={"shared": Loading(0.0, 0.0), "private": Loading(0.0, 0.01 / MB)}, body_start_s=1.0, shadow_start_s=0.1,
)  # fmt: skip
BOTH = Pair(1, (0, 1), (0, 1, 1, 2))
FIRST = Pair(1, (0,), (0, 1, 1, 2))


def run(
    actions: dict[float, Sequence[Action]],
    arrivals: list[float],
    nodes: Sequence[NodePlan] = (),
    *,
    model: ModelProfile | None = None,
    mode: str = "shared",
    cores: int = 4,
    **plan: Any,
) -> FunctionResult:
    """The policy's actions by the second, on one node of so many cores or on these."""
    settings = Settings(autoscaler="script", max_batch=4, scale=ScaleSettings(min=1, max=4))
    policies = {**BUILT_IN, "script": PolicyPlugin(lambda _: Script(actions), "As written.")}
    planned = FunctionPlan("f", settings, modelled(model or MODEL, mode), arrivals, "given", warm=1, policies=policies, **plan)
    return simulate([planned], nodes or [NodePlan("n1", cores)])["f"]


def created(pair: Pair = BOTH, at_s: float = 0.5) -> dict[float, Sequence[Action]]:
    return {at_s: (CreateShadow("f-1", pair),)}


def test_a_pair_is_quicker_once_its_shadow_has_loaded() -> None:
    # The Shadow is decided on at 0.5 and there at 0.6: the batch at 0.55 is the Body's alone, that at 2.0 the pair's.
    result = run(created(), [0.55, 0.55, 2.0, 2.0])
    # The first request leaves alone; its partner waits for it.
    assert list(result.requests.finished_s) == pytest.approx([1.05, 1.55, 2.5, 3.0])
    together = run(created(), [2.0, 2.1, 2.1])
    assert list(together.requests.finished_s) == pytest.approx([2.5, 3.0, 3.0])
    assert list(together.requests.batch) == [1, 2, 2]


def test_loading_takes_as_long_as_the_blocks_are_large() -> None:
    # Private: 20 MB take 0.2 s more, 100 MB take 1 s more.
    for pair, ready_s in ((FIRST, 0.8), (BOTH, 1.6)):
        for begin_s, seconds in ((ready_s - 0.51, 1.0), (ready_s + 0.01, 0.75 if pair is FIRST else 0.5)):
            result = run(created(pair), [begin_s, begin_s + 0.1, begin_s + 0.1], mode="private")
            first_s = begin_s + 0.5
            expected_s = first_s + (1.0 if first_s < ready_s else seconds)
            assert result.requests.finished_s[2] == pytest.approx(expected_s)


def test_a_changed_shadow_takes_its_new_share_from_the_next_batch_on() -> None:
    result = run(created(FIRST) | {2.0: (ChangeShadow("f-2", BOTH),)}, [1.0, 1.1, 1.1, 3.0, 3.1, 3.1])
    assert result.requests.finished_s[2] - result.requests.dispatched_s[2] == pytest.approx(0.75)
    assert result.requests.finished_s[5] - result.requests.dispatched_s[5] == pytest.approx(0.5)


def test_after_its_shadow_has_ended_a_body_computes_alone() -> None:
    for gone in ({"actions": {2.0: (DestroyShadow("f-2"),)}}, {"shadow_crashes_s": [2.0]}):
        actions = created() | gone.pop("actions", {})  # type: ignore[operator]
        result = run(actions, [3.0, 3.1, 3.1], **gone)
        assert result.requests.finished_s[2] == pytest.approx(4.5)
        assert result.cost.shadow_s == pytest.approx(1.5)


def test_a_shadow_ends_with_its_body() -> None:
    result = run(created() | {3.0: (CreateBody(1),)}, [6.0], crashes_s=[2.0])
    assert result.cost.shadow_s == pytest.approx(1.5)
    assert list(result.requests.status) == [200]


def test_a_shadow_needs_a_body_that_serves_and_room_on_its_node() -> None:
    many = run({0.5: (CreateShadow("f-1", BOTH),) * (MAX_SHADOWS + 1)}, [2.0], cores=10)
    assert any("no_such_body" in record.error for record in many.decisions)
    nobody = run({0.5: (CreateShadow("f-9", BOTH),)}, [2.0])
    assert any("no_such_body" in record.error for record in nobody.decisions)
    full = run(created(), [2.0], cores=1)
    assert any("no_capacity" in record.error for record in full.decisions)


def test_two_shadows_share_a_batch_with_their_body() -> None:
    """Three samples, one each, in 0.5 s: what one sample takes. With one Shadow two of them do, the third comes after."""
    pair = Pair(1, (0, 1), (0, 1, 1, 2))
    two = {0.5: (CreateShadow("f-1", pair), CreateShadow("f-1", replace(pair, split=(0, 0, 1, 1))))}
    batches = [2.0, 2.1, 2.1, 2.1]
    result = run(two, batches)
    assert result.requests.finished_s[3] - result.requests.dispatched_s[3] == pytest.approx(0.5)
    assert result.cost.shadow_busy_core_s == pytest.approx(1.0), "half a second each"
    alone = run(two | {1.5: (DestroyShadow("f-3"),)}, batches)
    assert list(alone.requests.finished_s) == pytest.approx([2.5, 3.0, 3.0, 3.5])
    crashed = run(two, batches, shadow_crashes_s=[1.5])
    # The first has gone; the second has its one sample of three, and the Body two.
    assert crashed.requests.finished_s[3] - crashed.requests.dispatched_s[3] == pytest.approx(1.0)
    assert list(crashed.requests.status) == [200] * 4


def test_a_shadow_that_waits_is_idle() -> None:
    # One batch of two by the pair: 0.5 s of the Body, which is all its time, and 0.5 s of the Shadow's two blocks of 0.25 s.
    result = run(created(), [1.0, 1.1, 1.1])
    assert result.cost.body_busy_core_s == pytest.approx(1.0)
    assert result.cost.shadow_busy_core_s == pytest.approx(0.5)
    assert result.cost.shadow_core_s == pytest.approx(result.duration_s - 0.5)
    assert result.cost.cpu_utility == pytest.approx(1.5 / (result.duration_s + result.duration_s - 0.5))
    # With the first block only, the Shadow computes 0.25 s.
    assert run(created(FIRST), [1.0, 1.1, 1.1]).cost.shadow_busy_core_s == pytest.approx(0.25)


def test_memory_is_what_each_holds_and_shared_weights_count_once_a_node() -> None:
    private = run(created(FIRST), [1.0], mode="private")
    body_s, shadow_s = private.duration_s, private.duration_s - 0.5
    assert private.cost.memory_byte_s == pytest.approx(200 * MB * body_s + 120 * MB * shadow_s)
    two = run(created(FIRST) | {1.0: (CreateBody(1),)}, [1.0, 5.0])
    both_s = two.duration_s + (two.duration_s - 1.0) + (two.duration_s - 0.5)
    assert two.cost.memory_byte_s == pytest.approx(100 * MB * both_s + 100 * MB * two.duration_s)


def test_a_larger_body_is_quicker_from_its_next_batch_on_and_costs_its_cores() -> None:
    # Two cores take half. The batch that is under way at 1.5 ends as it began, in 1 s. For 2.5 s there is a core more.
    actions: dict[float, Sequence[Action]] = {1.5: (Resize("f-1", 2), Resize("f-9", 2)), 4.0: (Resize("f-1", 1),)}
    result = run(actions, [0.4, 0.5, 0.5, 2.5, 2.6, 2.6, 5.0, 5.1, 5.1])
    took_s = [result.requests.finished_s[row] - result.requests.dispatched_s[row] for row in (2, 5, 8)]
    assert took_s == pytest.approx([1.0, 0.5, 1.0])
    assert result.cost.body_core_s == pytest.approx(result.duration_s + 2.5)
    full = run({1.5: (Resize("f-1", 2),)}, [2.0], cores=1)
    assert any("no_capacity: No node has 1 core free." in record.error for record in full.decisions)
    assert full.cost.body_core_s == pytest.approx(full.duration_s)


def test_a_promoted_shadow_works_on_until_the_rest_is_loaded_and_is_a_body_then() -> None:
    # Private: 80 MB more take 0.8 s, binding and the first batch 0.9 s: decided at 2.0, a Body from 3.7 on.
    actions = created(FIRST) | {2.0: (PromoteShadow("f-2"),)}
    result = run(actions, [2.5, 2.6, 2.6, 4.5, 4.5], mode="private")
    took_s = [result.requests.finished_s[row] - result.requests.dispatched_s[row] for row in range(5)]
    assert took_s == pytest.approx([0.5, 0.75, 0.75, 0.5, 0.5])
    assert result.requests.instance[3] != result.requests.instance[4]
    # A Shadow of 120 MB for 1.5 s, then a Body of 200 MB.
    assert result.cost.shadow_s == pytest.approx(1.5)
    assert result.cost.shadows == 1
    assert result.cost.instance_s == pytest.approx(result.duration_s + result.duration_s - 2.0)
    both_s = 2 * result.duration_s - 2.0
    assert result.cost.memory_byte_s == pytest.approx(200 * MB * both_s + 120 * MB * 1.5)
    assert result.most_instances == 2


def test_shadow_that_cannot_be_promoted_stays_a_shadow() -> None:
    wrong: list[dict[float, Sequence[Action]]] = [
        {0.5: (PromoteShadow("f-9"),)},
        {0.5: (PromoteShadow("f-1"),)},
        {0.5: (CreateShadow("f-1", BOTH), PromoteShadow("f-2"))},  # it has not registered
        created() | {1.0: (PromoteShadow("f-2"),), 1.5: (PromoteShadow("f-2"),)},
    ]
    for actions in wrong:
        errors = [record.error for record in run(actions, [3.0]).decisions if record.error]
        assert [error.partition(":")[0] for error in errors] == ["no_such_shadow"]
    planned = FunctionPlan(
        "f",
        Settings(autoscaler="script", max_batch=4, scale=ScaleSettings(min=1, max=4)),
        modelled(MODEL, "private"),
        [3.0],
        "given",
        warm=1,
        policies={
            **BUILT_IN,
            "script": PolicyPlugin(lambda _: Script(created(FIRST) | {1.5: (PromoteShadow("f-2"),)}), "As written."),
        },
    )
    # 200 MB for the Body and 120 for the Shadow leave 79 of the 80 that it would need.
    tight = simulate([planned], [NodePlan("n1", 4, 399 * MB)])["f"]
    assert any("no_capacity" in record.error for record in tight.decisions)
    assert (tight.cost.shadows, tight.most_instances) == (1, 1)


def test_shadow_ended_while_starting_leaves_its_body_alone() -> None:
    way = created(FIRST) | {2.0: (PromoteShadow("f-2"),)}
    ended = run(way | {2.5: (DestroyBody("f-2"),)}, [3.0, 3.1, 3.1], mode="private")
    assert ended.requests.finished_s[2] - ended.requests.dispatched_s[2] == pytest.approx(1.0)
    left = run(way, [5.0], mode="private", crashes_s=[2.5])
    assert list(left.requests.status) == [200]


def test_asyfunc_promotes_as_it_does_live() -> None:
    settings = Settings(
        autoscaler="asyfunc", slo_s=4.0, deadline_s=20.0, max_batch=4, max_cores=1, promotion=True, scale=ScaleSettings(max=4)
    )
    arrivals = [*constant(1.0, 20.0), *(20.0 + at_s for at_s in constant(3.0, 30.0))]
    result = simulate([FunctionPlan("f", settings, modelled(MODEL), arrivals, warm=1)], [NodePlan("n1", 2)])["f"]
    actions = [action["action"] for record in result.decisions for action in record.to_json()["actions"]]  # type: ignore[index, union-attr, call-overload]
    assert actions == ["CreateShadow", "PromoteShadow"]
    assert result.most_instances == 2
    assert list(result.requests.status) == [200] * len(arrivals)


def test_asyfunc_grows_a_body_as_it_does_live() -> None:
    settings = Settings(
        autoscaler="asyfunc", slo_s=4.0, deadline_s=20.0, max_batch=4, max_cores=2, kappa=100.0, readings=("kappa",),
        burst_cores="resize",
        scale=ScaleSettings(max=4),
    )  # fmt: skip
    model = replace(MODEL, whole=LatencyTable({cores: {1: 0.5 / cores**0.8} for cores in (1, 2)}))
    arrivals = [
        *constant(1.0, 20.0),
        *(20.0 + at_s for at_s in constant(4.0, 1.5)),
        *(21.5 + at_s for at_s in constant(1.0, 18.0)),
    ]
    result = simulate([FunctionPlan("f", settings, modelled(model), arrivals, warm=1)], [NodePlan("n1", 2)])["f"]
    actions = [action["action"] for record in result.decisions for action in record.to_json()["actions"]]  # type: ignore[index, union-attr, call-overload]
    assert actions == ["Resize", "Resize"]
    assert list(result.requests.status) == [200] * len(arrivals)
    assert result.cost.shadows == 0
    assert result.duration_s + 2.0 < result.cost.body_core_s < result.duration_s + 6.0


def test_asyfunc_runs_as_it_does_live() -> None:
    settings = Settings(autoscaler="asyfunc", slo_s=4.0, deadline_s=20.0, max_batch=4, max_cores=1, scale=ScaleSettings(max=4))
    # 2 rps a Body, 4 with its Shadow; a burst of 4 rps for 4 s, then 1 rps.
    arrivals = [
        *constant(1.0, 20.0),
        *(20.0 + at_s for at_s in constant(4.0, 4.0)),
        *(24.0 + at_s for at_s in constant(1.0, 16.0)),
    ]
    result = simulate([FunctionPlan("f", settings, modelled(MODEL), arrivals, warm=1)], [NodePlan("n1", 2)])["f"]
    actions = [action["action"] for record in result.decisions for action in record.to_json()["actions"]]  # type: ignore[index, union-attr, call-overload]
    assert actions[:2] == ["CreateShadow", "DestroyShadow"]
    assert list(result.requests.status) == [200] * len(arrivals)
    assert json.loads(json.dumps(result.summary()))["shadows"] == actions.count("CreateShadow")


def test_asyfunc_needs_a_models_profile() -> None:
    plan = FunctionPlan("f", Settings(autoscaler="asyfunc"), constant_profile("v", 0.1), [1.0])
    with refused(400, match="gnomon models profile"):
        simulate([plan], [NodePlan("n1", 2)])


def test_third_party_policy_without_a_profile_is_simulated_by_a_table() -> None:
    policies = {**BUILT_IN, "asyfunc-mine": PolicyPlugin(BUILT_IN["od"].make, "As od.")}
    plan = FunctionPlan("f", Settings(autoscaler="asyfunc-mine"), constant_profile("v", 0.1), [1.0], policies=policies)
    assert list(simulate([plan], [NodePlan("n1", 2)])["f"].requests.status) == [200]


def test_a_models_profile_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL.to_json()))
    shared, private = read_profile(path), read_profile(path, "private")
    assert (shared.load_s, private.load_s) == (1.0, 2.0)
    assert (shared.memory_bytes, private.memory_bytes) == (100 * MB, 200 * MB)
    assert shared.seconds("", 1, 2, BOTH) == pytest.approx(0.5)
    assert shared.seconds("", 1, 3) == 1.5
    with pytest.raises(GnomonError, match="weights"):
        read_profile(path, "borrowed")


def test_a_table_of_latencies_knows_nothing_of_pairs() -> None:
    assert constant_profile("v", 0.1).seconds("v", 1, 2, BOTH) is None


def test_opt_sees_what_comes_and_loads_in_no_time() -> None:
    arrivals = [
        *constant(4.0, 10.0),
        *(10.0 + at_s for at_s in constant(36.0, 10.0)),
        *(20.0 + at_s for at_s in constant(4.0, 10.0)),
    ]
    settings = Settings(autoscaler="opt", slo_s=1.0, max_batch=1, scale=ScaleSettings(max=20))
    slow = replace(constant_profile("v", 0.2), load_s=30.0)

    def simulated(profile: Profile) -> FunctionResult:
        plan = FunctionPlan("f", settings, profile, arrivals, "given", warm=1, policies=with_opt(arrivals))
        return simulate([plan], [NodePlan("n1", 20)])["f"]

    result = simulated(without_loading(slow))
    assert result.violations == 0
    # 36 rps / 5 rps: eight for ten seconds, and they are there before the first of them arrives.
    assert (result.fewest_instances, result.most_instances) == (1, 8)
    assert result.instance_s < 8 * 11.5 + 2 * 22
    assert simulated(slow).violations > 0


def test_a_shadow_that_is_refused_holds_up_no_body() -> None:
    larger_than_the_node = replace(BOTH, shadow_cores=9)
    result = run({0.5: (CreateShadow("f-1", larger_than_the_node), Resize("f-1", 9), CreateBody(1))}, [3.0])
    assert result.most_instances == 2
    assert [record.error.split(":")[0] for record in result.decisions if record.error] == ["no_capacity"]


def test_the_seconds_of_a_stretch_are_those_of_the_bodies_that_lived_in_it() -> None:
    settings = Settings(autoscaler="fixed", scale=ScaleSettings(min=2, max=2))
    model = Profile("v", LatencyTable({1: {1: 0.1}}))
    plan = FunctionPlan("f", settings, model, constant(2.0, 20.0), "given", warm=2, crashes_s=(10.25,))
    result = simulate([plan], [NodePlan("node-1", 4)])["f"]
    assert len(result.bodies_s) == 3
    crashed = min(result.bodies_s, key=lambda body: body[1])
    assert crashed == (0.0, 10.25)
    assert result.instance_s_between(0.0, 10.0) == pytest.approx(20.0)
    assert result.instance_s_between(5.0, 6.0) == pytest.approx(2.0)
    assert result.instance_s_between(0.0, result.duration_s) == pytest.approx(result.instance_s)
    assert result.instance_s_between(result.duration_s, result.duration_s + 5.0) == 0.0


# Two samples take 1 s alone and 0.5 s with one of them on a Shadow. Elsewhere 50 ms and 10 ms/MB each way: 0.5 + 0.12 s.
NETWORKED = made_up_profile(
    HALVES, (0.5, 1.0, 1.5, 2.0), gmacs=4.0, overhead_bytes=100 * MB, border_bytes=MB, network=Network(0.05, 1e-8)
)
SPLIT = (0, 1, 1, 2)
FAR = Pair(1, (0, 1), SPLIT, "n2")
NODES = (NodePlan("n1", 5), NodePlan("n2", 4))
"""The Body is where most cores are free: on n1."""


def remote_run(
    actions: dict[float, Sequence[Action]], arrivals: list[float], nodes: Sequence[NodePlan] = NODES
) -> FunctionResult:
    return run(actions, arrivals, nodes, model=NETWORKED)


def test_a_pair_over_the_network_takes_its_way_as_well() -> None:
    near = remote_run({0.5: (CreateShadow("f-1", replace(FAR, node=None)),)}, [2.0, 2.1, 2.1])
    far = remote_run({0.5: (CreateShadow("f-1", FAR),)}, [2.0, 2.1, 2.1])
    assert list(near.requests.finished_s) == pytest.approx([2.5, 3.0, 3.0])
    assert list(far.requests.finished_s) == pytest.approx([2.5, 3.12, 3.12])
    assert list(far.requests.status) == [200] * 3


def test_while_tensors_are_on_their_way_the_shadow_is_idle() -> None:
    result = remote_run({0.5: (CreateShadow("f-1", FAR),), 4.0: (DestroyShadow("f-2"),)}, [2.0, 2.1, 2.1, 5.0])
    assert result.cost.shadow_busy_core_s == pytest.approx(0.5)
    assert result.cost.shadow_core_s == pytest.approx(3.5)
    assert result.cost.body_busy_core_s == pytest.approx(0.5 + 0.62 + 0.5)


def test_remote_shadow_needs_memory_for_its_blocks() -> None:
    near, far = (remote_run({0.5: (CreateShadow("f-1", pair),)}, [2.0]) for pair in (replace(FAR, node=None), FAR))
    shadow_s = far.duration_s - 0.5
    assert far.cost.memory_byte_s - near.cost.memory_byte_s == pytest.approx(100 * MB * shadow_s)


def test_remote_shadow_uses_cores_of_its_node() -> None:
    full = remote_run({0.5: (CreateShadow("f-1", FAR),)}, [2.0], [NodePlan("n1", 5), NodePlan("n2", 1, 199 * MB)])
    assert any("no_capacity" in record.error for record in full.decisions)
    nowhere = remote_run({0.5: (CreateShadow("f-1", replace(FAR, node="n9")),)}, [2.0])
    assert any("no_such_node" in record.error for record in nowhere.decisions)


def test_a_change_leaves_it_where_it_is() -> None:
    moved: dict[float, Sequence[Action]] = {
        0.5: (CreateShadow("f-1", FAR),),
        1.5: (ChangeShadow("f-2", replace(FAR, node=None)),),
    }
    result = remote_run(moved, [2.0, 2.1, 2.1])
    assert list(result.requests.finished_s) == pytest.approx([2.5, 3.12, 3.12])


def test_asyfunc_carries_a_burst_with_a_shadow_on_another_node() -> None:
    """A Body fills its node and sustains 2 rps. The burst is of 3; with a Shadow elsewhere two samples take 0.62 s, not 1."""
    settings = Settings(autoscaler="asyfunc", slo_s=4.0, deadline_s=20.0, max_batch=4, max_cores=1, scale=ScaleSettings(max=1))
    arrivals = [
        *constant(1.0, 20.0),
        *(20.0 + at_s for at_s in constant(3.0, 4.0)),
        *(24.0 + at_s for at_s in constant(1.0, 16.0)),
    ]
    results = {}
    for name, network in (("priced", NETWORKED.network), ("unpriced", None), ("too dear", Network(5.0, 0.0))):
        plan = FunctionPlan("f", settings, modelled(replace(NETWORKED, network=network)), arrivals, warm=1)
        results[name] = simulate([plan], [NodePlan("n1", 1), NodePlan("n2", 1, 200 * MB)])["f"]
    actions = [action["action"] for record in results["priced"].decisions for action in record.to_json()["actions"]]  # type: ignore[index, union-attr, call-overload]
    assert actions[:2] == ["CreateShadow", "DestroyShadow"]
    assert results["unpriced"].cost.shadows == results["too dear"].cost.shadows == 0
    for result in results.values():
        assert list(result.requests.status) == [200] * len(arrivals)
    spent_s = {name: sum(result.requests.finished_s) - sum(arrivals) for name, result in results.items()}
    assert spent_s["priced"] < spent_s["unpriced"] == spent_s["too dear"]


# 0.1 s a sample on one core: 10 rps alone, 20 with one Shadow, 30 with two. A Body takes a minute to load, a Shadow 0.1 s.
SLOW_BODY = replace(
    made_up_profile(HALVES, tuple(0.1 * size for size in range(1, 9)), gmacs=4.0, overhead_bytes=100 * MB, border_bytes=MB),
    loading={"shared": Loading(0.0, 0.0)}, body_start_s=60.0, shadow_start_s=0.1,
)  # fmt: skip
CALM = [number / 5 for number in range(50)]
BURST = [10.0 + number / 25 for number in range(250)]
AFTER = [20.0 + number / 5 for number in range(50)]
ONE_NODE = (NodePlan("n1", 4),)


def burst_run(max_shadows: int, nodes: Sequence[NodePlan] = ONE_NODE, model: ModelProfile = SLOW_BODY) -> FunctionResult:
    """5 rps, ten seconds of 25, and 5 again, on one node of four cores or on these, one for each instance."""
    settings = Settings(
        autoscaler="asyfunc", slo_s=1.0, deadline_s=1.0, max_batch=8, max_cores=1, kappa=1.0, readings=("kappa",),
        max_shadows=max_shadows,
        scale=ScaleSettings(min=1, max=1),
    )  # fmt: skip
    plan = FunctionPlan("f", settings, modelled(model), [*CALM, *BURST, *AFTER], "given", warm=1)
    return simulate([plan], nodes)["f"]


def test_a_burst_that_one_shadow_cannot_carry_is_carried_by_two() -> None:
    first, second = burst_run(1), burst_run(2)
    assert (first.cost.shadows, second.cost.shadows) == (1, 2)
    assert second.violations < first.violations / 4
    actions = [action for record in second.decisions for action in record.actions]
    made = [action for action in actions if isinstance(action, CreateShadow)]
    ended = [action for action in actions if isinstance(action, DestroyShadow)]
    assert len(made) == len(ended) == 2, "and both go when it is over"
    assert len({action.id for action in ended}) == 2
    assert any(isinstance(action, ChangeShadow) for action in actions), "they share anew when the second serves"


def test_the_second_may_be_on_another_node() -> None:
    """n1 has room for the Body and one Shadow. 1 ms and 1 ms/MB each way: 29 rps, where two at home give 30."""
    nodes, priced = (NodePlan("n1", 2), NodePlan("n2", 1)), replace(SLOW_BODY, network=Network(0.001, 1e-9))
    first, second = burst_run(1, nodes, priced), burst_run(2, nodes, priced)
    made = [action for record in second.decisions for action in record.actions if isinstance(action, CreateShadow)]
    assert [action.pair.node for action in made] == [None, "n2"]
    assert second.violations < first.violations / 4
    assert burst_run(2, nodes).cost.shadows == 1, "the way there has no price"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = burst_run(3), burst_run(3)
    assert list(first.requests.finished_s) == list(second.requests.finished_s)


# A Body carries 10 rps. In the burst more come than it carries, and its queue goes on when it is over.
ARRIVALS = [
    *constant(6.0, 20.0),
    *(20.0 + at_s for at_s in constant(30.0, 2.0)),
    *(22.0 + at_s for at_s in constant(6.0, 12.0)),
]


def read_run(**more: str) -> FunctionResult:
    settings = read_settings({}, ANNOTATIONS | {f"gnomon/{name}": value for name, value in more.items()})
    return simulate([FunctionPlan("f", settings, modelled(SCATTERED), ARRIVALS, warm=1)], [NodePlan("n1", 2)])["f"]


def blocks(result: FunctionResult) -> tuple[int, ...]:
    made = [action for record in result.decisions for action in record.actions if isinstance(action, CreateShadow)]
    return made[0].pair.blocks


def test_a_shadow_holds_the_best_blocks_or_neighbours() -> None:
    assert blocks(read_run()) == (0, 2)
    assert blocks(read_run(blocks="contiguous")) == (0,)


def test_a_reading_changes_what_is_decided() -> None:
    # R_burst by arrivals alone forgets what waits: the Shadow goes while the queue of the burst still stands.
    assert read_run(reading="arrivals").cost.shadow_s < read_run().cost.shadow_s
