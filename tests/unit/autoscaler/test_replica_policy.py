"""Replica counts turned into actions, and the wrappers around policies."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from gnomon_autoscaler.registry import counted
from gnomon_autoscaler.replica_policy import DesiredCount, Memory, ReplicaPolicy, Wish, actions_towards
from gnomon_autoscaler.wrappers import Bounds, DownDelay, OperatorOverride, RateLimit, ScaleToZero, WakeOnRequest
from gnomon_core.fleet import Instance, InstanceState, Node
from gnomon_core.scaling import CreateBody, DestroyBody, History, Observation, PolicyState
from gnomon_core.settings import ScaleSettings, Settings


def instance(id_: str, state: InstanceState = InstanceState.READY, **changes: object) -> Instance:
    return replace(Instance(id_, "f.ns", 1, "n1", 1, 100, state, started_s=0.0), **changes)


def seen(*instances: Instance, nodes: tuple[Node, ...] = (), cores: int = 1) -> Observation:
    return Observation(0.0, "f.ns", Settings(cores=cores), instances, nodes, 0, 0, 0.0, 0.0, History(0.5, 0.0))


def test_enough_is_left_alone() -> None:
    assert actions_towards(2, seen(instance("a"), instance("b"))) == ()


def test_draining_instances_do_not_count() -> None:
    assert actions_towards(1, seen(instance("a", InstanceState.DRAINING))) == (CreateBody(1),)


def test_the_youngest_idle_one_ends_first() -> None:
    there = (instance("old"), instance("young", started_s=5.0), instance("youngest", started_s=9.0, busy=True, in_flight=1))
    assert actions_towards(2, seen(*there)) == (DestroyBody("young"),)
    assert actions_towards(1, seen(*there)) == (DestroyBody("young"), DestroyBody("old"))


def test_busy_instance_with_fewest_requests_in_flight_ends_first() -> None:
    there = (instance("a", busy=True, in_flight=8), instance("b", busy=True, in_flight=2))
    assert actions_towards(1, seen(*there)) == (DestroyBody("b"),)


def test_starting_instances_end_before_serving_ones() -> None:
    there = (instance("serves"), instance("starts", InstanceState.STARTING, started_s=1.0))
    assert actions_towards(1, seen(*there)) == (DestroyBody("starts"),)


def test_never_more_than_there_are() -> None:
    assert actions_towards(0, seen(instance("a"))) == (DestroyBody("a"),)


def test_new_instances_spread_over_the_nodes_with_most_room() -> None:
    nodes = (Node("n1", 4, 1000, 2, 1000), Node("n2", 4, 1000, 4, 1000))
    assert actions_towards(2, seen(nodes=nodes, cores=2)) == (CreateBody(2, "n2"), CreateBody(2, "n1"))


def test_a_node_without_memory_is_passed_over_once_the_need_is_known() -> None:
    nodes = (Node("full", 8, 1000, 8, 50), Node("free", 4, 1000, 4, 1000))
    assert actions_towards(2, seen(instance("a"), nodes=nodes)) == (CreateBody(1, "free"),)


def test_without_room_anywhere_the_platform_is_asked_and_may_refuse() -> None:
    nodes = (Node("n1", 1, 1000, 1, 1000),)
    assert actions_towards(2, seen(nodes=nodes)) == (CreateBody(1, "n1"), CreateBody(1, None))


@dataclass
class Says:
    """A policy with one wish, and a memory that counts its questions."""

    count: int
    name: str = "says"
    version: int = 1
    period_s: float = 1.0
    default_scheduler: str = "immediate"

    def desired_count(self, seen: Observation, memory: Memory) -> DesiredCount:  # noqa: ARG002 - it looks at nothing
        asked = memory.get("asked", 0)
        assert isinstance(asked, int)
        return DesiredCount(self.count, "said so", {"asked": asked + 1})


@dataclass
class Conversation:
    """A wrapper around `Says` that is asked at chosen times."""

    wrap: Callable[[ReplicaPolicy], ReplicaPolicy]
    scale: ScaleSettings = field(default_factory=ScaleSettings)
    says: Says = field(default_factory=lambda: Says(0))
    memory: Memory = field(default_factory=dict)
    reason: str = ""

    def ask(self, now_s: float, count: int, *, live: int = 0, **changes: object) -> int:
        self.says.count = count
        instances = tuple(Instance(str(i), "f.ns", 1, "n", 1, 0, InstanceState.READY, 0.0) for i in range(live))
        seen = Observation(now_s, "f.ns", Settings(scale=self.scale), instances, (), 0, 0, 0.0, 0.0, History(0.5, now_s))
        desired = self.wrap(self.says).desired_count(replace(seen, **changes), self.memory)
        self.memory, self.reason = desired.memory, desired.reason
        return desired.count


WRAPPERS: dict[str, Callable[[ReplicaPolicy], ReplicaPolicy]] = {
    "bounds": Bounds,
    "delay": lambda policy: DownDelay(policy, lambda _: 10.0),
    "rate": lambda policy: RateLimit(policy, up=2.0),
    "operator": OperatorOverride,
    "idle": ScaleToZero,
    "awake": WakeOnRequest,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_goes_by_what_it_wraps_and_hands_its_memory_on(name: str) -> None:
    talk = Conversation(WRAPPERS[name])
    wrapped = WRAPPERS[name](talk.says)
    assert (wrapped.name, wrapped.version, wrapped.period_s, wrapped.default_scheduler) == ("says", 1, 1.0, "immediate")
    for now_s in range(3):
        talk.ask(now_s, 1, live=1)
    inner = talk.memory.get("inner", talk.memory)
    assert inner == {"asked": 3}
    assert "said so" in talk.reason


def test_bounds_keep_the_count_between_minimum_and_maximum() -> None:
    talk = Conversation(Bounds, ScaleSettings(min=2, max=5))
    assert [talk.ask(0, count) for count in (0, 2, 5, 6)] == [2, 2, 5, 5]
    assert "at most 5 (scale.max)" in talk.reason


def test_a_lower_wish_must_last() -> None:
    talk = Conversation(WRAPPERS["delay"])
    assert talk.ask(0, 5) == 5
    assert talk.ask(1, 2) == 5
    assert talk.ask(9, 2) == 5  # 5 was wished for 9 s ago
    assert "still 5" in talk.reason
    assert talk.ask(10, 2) == 2


def test_a_rise_is_followed_at_once_and_starts_the_wait_again() -> None:
    talk = Conversation(WRAPPERS["delay"])
    assert [talk.ask(0, 5), talk.ask(8, 7), talk.ask(12, 1), talk.ask(17, 1), talk.ask(18, 1)] == [5, 7, 7, 7, 1]


def test_going_down_takes_the_steps_that_were_wished_for() -> None:
    talk = Conversation(WRAPPERS["delay"])
    desired_counts = {0: 5, 4: 3, 8: 1}
    assert [talk.ask(at_s, count) for at_s, count in desired_counts.items()] == [5, 5, 5]
    assert [talk.ask(at_s, 1) for at_s in (10, 14, 18)] == [3, 1, 1]


def test_the_rate_limit_takes_the_larger_of_its_two_allowances() -> None:
    def first(count: int, live: int) -> int:
        return Conversation(lambda policy: RateLimit(policy, up=2.0, up_by=4, down=2.0)).ask(0, count, live=live)

    assert first(100, live=3) == 7
    assert first(100, live=10) == 20
    assert first(100, live=0) == 4
    assert first(0, live=9) == 4
    assert first(0, live=1) == 0


def test_the_rate_limit_goes_on_from_its_last_wish_whatever_lives() -> None:
    talk = Conversation(lambda policy: RateLimit(policy, up=2.0, down=2.0))
    assert [talk.ask(0, 100, live=3), talk.ask(1, 100, live=3), talk.ask(2, 1, live=50)] == [6, 12, 6]


def test_an_operators_number_holds_until_the_wish_changes() -> None:
    talk = Conversation(OperatorOverride)
    assert talk.ask(0, 1) == 1
    assert talk.ask(1, 1, requested=30) == 30
    assert talk.ask(2, 1) == 30
    assert "an operator asked for 30" in talk.reason
    assert talk.ask(3, 2) == 2
    assert talk.ask(4, 1) == 1  # it does not come back


def test_a_second_request_replaces_the_first() -> None:
    talk = Conversation(OperatorOverride)
    talk.ask(0, 1, requested=30)
    assert talk.ask(1, 1, requested=3) == 3
    assert talk.ask(2, 1) == 3


@pytest.mark.parametrize("arrival", [{"queued": 1}, {"executing": 1}, {"last_request_s": 4.0}])
def test_an_operators_zero_lasts_until_a_request_arrives(arrival: dict[str, float]) -> None:
    talk = Conversation(OperatorOverride)
    assert talk.ask(1, 1, requested=0, last_request_s=0.5) == 0
    assert talk.ask(2, 1, last_request_s=0.5) == 0
    assert talk.ask(4, 1, **{"last_request_s": 0.5, **arrival}) == 1


def test_an_idle_function_goes_to_zero_and_comes_back() -> None:
    talk = Conversation(ScaleToZero, ScaleSettings(zero=True, zero_duration_s=60.0))
    assert talk.ask(0, 1) == 1  # just deployed
    assert talk.ask(59, 1) == 1
    assert talk.ask(60, 1) == 0
    assert talk.ask(61, 1, last_request_s=60.5) == 1
    assert talk.ask(120, 1, last_request_s=60.5) == 1
    assert talk.ask(120.5, 1, last_request_s=60.5) == 0


def test_a_long_request_is_not_idleness() -> None:
    talk = Conversation(ScaleToZero, ScaleSettings(zero=True, zero_duration_s=60.0))
    talk.ask(0, 1)
    assert talk.ask(100, 1, executing=1) == 1
    assert talk.ask(130, 1) == 1  # it ended between 100 and 130
    assert talk.ask(160, 1) == 0


def test_an_operators_request_is_not_idleness_either() -> None:
    talk = Conversation(ScaleToZero, ScaleSettings(zero=True, zero_duration_s=60.0))
    talk.ask(0, 1)
    assert talk.ask(100, 1, requested=3) == 1
    assert talk.ask(150, 1) == 1


@pytest.mark.parametrize(("scale", "zero"), [(ScaleSettings(), False), (ScaleSettings(min=0), True)])
def test_only_a_function_that_may_goes_to_zero(scale: ScaleSettings, *, zero: bool) -> None:
    talk = Conversation(ScaleToZero, scale)
    talk.ask(0, 1)
    assert (talk.ask(901, 1) == 0) is zero


def test_nothing_ends_under_a_request() -> None:
    talk = Conversation(WakeOnRequest)
    assert talk.ask(0, 0) == 0
    assert talk.ask(0, 0, queued=1) == 1
    assert talk.ask(0, 0, executing=1) == 1
    assert talk.ask(0, 3, queued=1) == 3


class Former:
    """A policy of a package that was written for the former names."""

    name, version, period_s, default_scheduler = "former", 1, 1.0, "immediate"

    def wish(self, seen: Observation, memory: Memory) -> Wish:  # noqa: ARG002 - it remembers nothing
        return Wish(2, "two")


def test_policy_package_with_the_former_names_still_decides() -> None:
    policy = counted(lambda _: Former(), "Two.").make(Settings())
    decision, state = policy.decide(seen(instance("a")), PolicyState())
    assert (decision.desired, decision.reason, decision.actions) == (2, "two", (CreateBody(1),))
    assert (state.policy, state.version) == ("former", 1)
