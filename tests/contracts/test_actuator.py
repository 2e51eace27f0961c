"""Every actuator carries out decisions alike: that of the gateway, of a Revision on Knative, of the simulator, and in memory."""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import pytest

from gnomon_autoscaler.testing import FUNCTION, MemoryFleet, MemoryFunction
from gnomon_core.actuation import Actuator, PartlyRefused, carry_out, carry_out_async
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.pairs import Pair
from gnomon_core.scaling import (
    Action,
    ChangeShadow,
    CreateBody,
    CreateShadow,
    DestroyBody,
    DestroyShadow,
    PromoteShadow,
    Resize,
    SetBufferPlan,
)
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_platforms.knative.autoscaler.instances import RevisionInstances
from gnomon_simulator.events import Events, stream
from gnomon_simulator.profiles import modelled
from gnomon_simulator.simulated_platform import NodePlan, SimulatedPlatform
from gnomon_simulator.simulation import FunctionPlan, SimulatedFunction
from tests.made_up_models import BlockPlan, made_up_profile
from tests.unit.gateway.stage import NAME, Scripted, Stage
from tests.unit.knative_autoscaler.played import Played, cluster_of, policies

NODE_CORES = 8
TOO_MANY = NODE_CORES + 1
PLAN = SetBufferPlan(4, 0.25)
SETTINGS = Settings(autoscaler="fixed", max_batch=8, scale=ScaleSettings(min=1, max=8))


def shadow_without_room(body: str) -> CreateShadow:
    return CreateShadow(body, Pair(TOO_MANY, (0,), (0, 1)))


class World(Protocol):
    """A function with one Body of one core, and the actuator of its decisions."""

    async def begin(self) -> None: ...
    async def apply(self, actions: Sequence[Action]) -> None: ...
    async def bodies(self) -> list[str]: ...
    def plan(self) -> SetBufferPlan | None: ...


class Memory:
    def __init__(self) -> None:
        self._fleet = MemoryFleet(lambda: 0.0, (("n", NODE_CORES),))
        self._function = self._fleet.known[FUNCTION] = MemoryFunction(SETTINGS)

    async def begin(self) -> None:
        await self.apply([CreateBody(1)])

    async def apply(self, actions: Sequence[Action]) -> None:
        await self._fleet.apply(FUNCTION, actions)

    async def bodies(self) -> list[str]:
        return list(self._function.instances)

    def plan(self) -> SetBufferPlan | None:
        return self._function.plan


class Simulated:
    def __init__(self) -> None:
        self._events = Events()
        self._platform = SimulatedPlatform([NodePlan("n", NODE_CORES)], self._events, stream(1, "execution"))
        plan = FunctionPlan("f", SETTINGS, modelled(made_up_profile((BlockPlan(1.0, 10**6),), (0.1,) * 8)), (), "given", warm=1)
        self._function = SimulatedFunction(plan, self._platform, self._events)

    async def begin(self) -> None:
        self._function.begin()
        self._events.run()

    async def apply(self, actions: Sequence[Action]) -> None:
        carry_out(self._function, actions)

    async def bodies(self) -> list[str]:
        return [instance.id for instance in self._platform.instances("f")]

    def plan(self) -> SetBufferPlan | None:
        return self._function.buffer_plan


class Small(Scripted):
    """A platform with one node of `NODE_CORES`."""

    def _refuse(self, cores: int) -> None:
        if cores > NODE_CORES:
            raise GnomonError(503, "no_capacity", "The node has no room.")

    async def create(self, request: InstanceRequest) -> Instance:
        self._refuse(request.cores)
        return await super().create(request)

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        self._refuse(pair.shadow_cores)
        return await super().create_shadow(body_id, pair)


class Gateway:
    def __init__(self) -> None:
        self._stage = Stage(Small())

    async def begin(self) -> None:
        await self._stage.begin()

    async def apply(self, actions: Sequence[Action]) -> None:
        await self._stage.instances.apply(NAME, actions)

    async def bodies(self) -> list[str]:
        await self._stage.settle()
        there = self._stage.platform.there.values()
        return [
            instance.id
            for instance in there
            if instance.kind is InstanceKind.BODY and instance.id not in self._stage.platform.destroyed
        ]

    def plan(self) -> SetBufferPlan | None:
        return self._stage.deployed.plan


class _FullNodes:
    """Shadows of a Revision whose Bodies' nodes have no room."""

    async def create(self, _body_id: str, _pair: Pair) -> None:
        raise GnomonError(503, "no_capacity", "The node has no room.")

    def body_gone(self, body_id: str) -> None: ...


class Knative:
    def __init__(self) -> None:
        self._played = Played()
        self._instances = RevisionInstances(self._played.facts.key, cluster_of(shadows=_FullNodes()), policies())

    async def begin(self) -> None:
        self._instances.begin(1)

    async def apply(self, actions: Sequence[Action]) -> None:
        await self._instances.apply(actions, self._played.rules)

    async def bodies(self) -> list[str]:
        return list(self._instances._bodies)

    def plan(self) -> SetBufferPlan | None:
        planned = self._instances.buffer(self._played.rules.settings)
        return None if planned is None else planned.plan


@pytest.fixture(params=[Memory, Simulated, Gateway, Knative])
async def world(request: pytest.FixtureRequest) -> World:
    made: World = request.param()
    await made.begin()
    assert len(await made.bodies()) == 1
    return made


async def test_bodies_come_and_go_and_the_buffer_plan_is_in_force(world: World) -> None:
    [first] = await world.bodies()
    await world.apply([CreateBody(1), CreateBody(1), PLAN])
    assert len(await world.bodies()) == 3
    assert world.plan() == PLAN
    await world.apply([DestroyBody(first)])
    assert first not in await world.bodies()
    assert len(await world.bodies()) == 2


async def test_refused_shadow_delays_no_action_and_the_error_lists_those_done(world: World) -> None:
    [body] = await world.bodies()
    done = (CreateBody(1), PLAN)
    with pytest.raises(PartlyRefused) as refused:
        await world.apply([shadow_without_room(body), *done])
    assert (refused.value.status, refused.value.code) == (503, "no_capacity")
    assert refused.value.done == done
    assert len(await world.bodies()) == 2
    assert world.plan() == PLAN


# Not on Knative: the Deployment only gets another number, and whether a pod finds a node shows later.
@pytest.mark.parametrize("world", [Memory, Simulated, Gateway], indirect=True)
async def test_a_body_that_is_refused_ends_the_decision(world: World) -> None:
    [body] = await world.bodies()
    with pytest.raises(PartlyRefused, match=r"no room|cores free|No node") as refused:
        await world.apply([PLAN, CreateBody(TOO_MANY), DestroyBody(body)])
    assert refused.value.done == (PLAN,)
    assert await world.bodies() == [body], "it would have been replaced"


# The interpreter by itself


FIRST, SECOND = (CreateShadow(name, Pair(1, (0,), (0, 1))) for name in ("a", "b"))
ALL = [
    CreateBody(1),
    DestroyBody("a"),
    FIRST,
    ChangeShadow("a", Pair(1, (0,), (0, 1))),
    DestroyShadow("a"),
    PromoteShadow("a"),
    Resize("a", 2),
    PLAN,
]
METHODS = (
    *("create_body", "destroy_body", "create_shadow", "change_shadow", "destroy_shadow", "promote_shadow", "resize"),
    "set_buffer_plan",
)


class Recorded:
    """An actuator that records the calls, and refuses some actions."""

    def __init__(self, refused: Sequence[Action] = (), error: Exception | None = None) -> None:
        self.calls: list[tuple[str, Action]] = []
        self._refused, self._error = refused, error

    def __getattr__(self, method: str) -> Any:
        def call(action: Action) -> None:
            if action in self._refused:
                raise self._error or GnomonError(503, "no_capacity", f"No room for {action}.", "Wait.", 1.0)
            self.calls.append((method, action))

        return call


class Awaited:
    """The actuator of the contract, with coroutines."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def __getattr__(self, method: str) -> Any:
        async def call(action: Action) -> None:
            getattr(self._recorded, method)(action)

        return call


@pytest.fixture(params=["sync", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


async def perform(recorded: Recorded, actions: Sequence[Action], *, asynchronous: bool) -> PartlyRefused | None:
    try:
        if asynchronous:
            await carry_out_async(cast("Actuator[Any]", Awaited(recorded)), actions)
        else:
            carry_out(cast("Actuator[None]", recorded), actions)
    except PartlyRefused as refused:
        return refused
    return None


async def test_each_action_is_one_method_in_the_order_of_the_decision(asynchronous: bool) -> None:  # noqa: FBT001
    recorded = Recorded()
    assert await perform(recorded, ALL, asynchronous=asynchronous) is None
    assert recorded.calls == list(zip(METHODS, ALL, strict=True))


@pytest.mark.parametrize(
    ("decision", "refused", "done", "reported"),
    [
        ([FIRST, CreateBody(1)], [FIRST], [CreateBody(1)], FIRST),
        ([FIRST, Resize("c", 2), SECOND, CreateBody(1)], [FIRST, SECOND], [Resize("c", 2), CreateBody(1)], SECOND),
        ([FIRST, CreateBody(1), DestroyBody("c")], [CreateBody(1)], [FIRST], CreateBody(1)),
        *(([ALL[n], CreateBody(3)], [ALL[n]], [CreateBody(3)], ALL[n]) for n in (2, 3, 5, 6)),
        *(([ALL[n], CreateBody(3)], [ALL[n]], [], ALL[n]) for n in (0, 1, 4, 7)),
    ],
)
async def test_the_last_refusal_is_told_with_what_was_done(
    asynchronous: bool,  # noqa: FBT001
    decision: list[Action],
    refused: list[Action],
    done: list[Action],
    reported: Action,
) -> None:
    recorded = Recorded(refused)
    error = await perform(recorded, decision, asynchronous=asynchronous)
    assert [action for _, action in recorded.calls] == done
    assert error == PartlyRefused(503, "no_capacity", f"No room for {reported}.", "Wait.", 1.0, tuple(done))


async def test_an_error_that_is_no_refusal_is_raised_as_it_is(asynchronous: bool) -> None:  # noqa: FBT001
    with pytest.raises(ZeroDivisionError):
        await perform(Recorded([FIRST], ZeroDivisionError()), [FIRST], asynchronous=asynchronous)
