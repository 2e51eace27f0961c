"""What decisions about Shadows do, and what is made of what a platform tells: in whatever order it comes."""
# ruff: noqa: ARG002 - who stands in for a seam takes what the seam gives

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState, Node
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import (
    ChangeShadow,
    CreateBody,
    CreateShadow,
    DestroyBody,
    DestroyShadow,
    PromoteShadow,
    SetBufferPlan,
)
from gnomon_core.seam_values import Capabilities, InstanceRequest, Usage
from gnomon_core.seams import BatchChannel, PlatformListener
from gnomon_core.settings import Settings
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Frame
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.lifecycle.deployed import Deployed
from gnomon_gateway.lifecycle.instances import Instances
from gnomon_gateway.scheduling.immediate import Immediate
from gnomon_gateway.service import DecisionRecord
from gnomon_gateway.serving.function_runtime import FunctionRuntime

NAME = "fn.openfaas-fn"
PAIR = Pair(2, (1, 2), (0, 1, 1, 2))
OTHER = Pair(2, (1,), (0, 1, 1, 2))


class Silent:
    """A `BatchChannel` of an instance that nothing is sent to."""

    unread = True

    def run(self, frame: Frame, done: object, stream: object = None) -> None:
        raise AssertionError

    def cancel(self, batch_id: int) -> None: ...

    async def probe(self, timeout_s: float) -> bool:
        return True


class Scripted:
    """A `Platform` that does as it is told and says only what the test lets it say."""

    name = "scripted"
    capabilities = Capabilities(place=True, size=True, victim=True, resize=True, pair=True)

    def __init__(self) -> None:
        self.there: dict[str, Instance] = {}
        self.destroyed: list[str] = []
        self.changed: list[tuple[str, Pair]] = []
        self.refuses: GnomonError | None = None
        self.dies_at_once = False

    async def start(self, listener: PlatformListener) -> None: ...
    async def stop(self) -> None: ...
    def check(self, spec: FunctionSpec) -> None: ...
    async def prepare(self, spec: FunctionSpec) -> None: ...
    async def resize(self, instance_id: str, cores: int) -> None: ...

    def revision(self, spec: FunctionSpec) -> str:
        return "1"

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        return None

    def nodes(self) -> tuple[Node, ...]:
        return ()

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        return None

    def usage(self, function: str) -> Usage:
        return Usage(0.0, 0)

    def instances(self, function: str) -> tuple[Instance, ...]:
        return tuple(self.there.values())

    async def create(self, request: InstanceRequest) -> Instance:
        name = f"b{len(self.there) + 1}"
        body = Instance(name, NAME, request.version, "n", request.cores, 0, InstanceState.STARTING, 0.0)
        self.there[name] = body
        return body

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        if self.refuses is not None:
            raise self.refuses
        name = f"s-of-{body_id}"
        body = self.there[body_id]
        shadow = Instance(
            name, NAME, body.version, "n", 2, 0, InstanceState.STARTING, 0.0, kind=InstanceKind.SHADOW, partner=body_id, pair=pair
        )
        if not self.dies_at_once:
            self.there[name] = shadow
        await asyncio.sleep(0)
        return shadow

    async def promote_shadow(self, shadow_id: str) -> Instance:
        if self.refuses is not None:
            raise self.refuses
        shadow = self.there[shadow_id]
        risen = replace(shadow, kind=InstanceKind.BODY, state=InstanceState.STARTING, partner=None, pair=None)
        self.there[shadow_id] = risen
        return risen

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        self.changed.append((shadow_id, pair))

    async def destroy(self, instance_id: str) -> None:
        self.destroyed.append(instance_id)


class Scaling:
    """A `ScalingControl` that counts how often it was poked, and how often a start was forgiven."""

    def __init__(self) -> None:
        self.pokes = 0
        self.forgiven = 0

    def check(self, settings: Settings) -> str:
        return "immediate"

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None: ...

    def poke(self, function: str) -> None:
        self.pokes += 1

    def served(self, function: str) -> None:
        self.forgiven += 1

    def request(self, function: str, instances: int) -> None: ...
    def redeployed(self, function: str) -> None: ...
    def removed(self, function: str) -> None: ...

    def desired(self, function: str) -> int | None:
        return 1

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]:
        return ()

    def policies(self) -> dict[str, str]:
        return {}


class Stage:
    """One function on a scripted platform, with one Body that is ready."""

    def __init__(self) -> None:
        self.platform = Scripted()
        self.scaling = Scaling()
        self.log: list[str] = []
        self.instances = Instances(self.platform, self._line, self.scaling, lambda _: Immediate())
        spec = read_deployment({"service": "fn", "image": "i"})
        runtime = FunctionRuntime(spec.key, spec.settings, Immediate(), LearnedLatency())
        self.deployed = Deployed(spec, 1, "1", {}, 0.0, runtime)
        self.instances.adopt(self.deployed)

    def _line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        self.log.append(text)

    async def begin(self) -> None:
        await self.instances.apply(NAME, [CreateBody(1)])
        body = self.platform.there["b1"] = replace(self.platform.there["b1"], state=InstanceState.READY)
        channel: BatchChannel = Silent()
        self.instances.instance_ready(body, channel)

    async def shadow(self, body: str = "b1") -> None:
        await self.instances.apply(NAME, [CreateShadow(body, PAIR)])

    def paired(self, pair: Pair | None, partner: str | None = "s-of-b1") -> None:
        body = replace(self.platform.there["b1"], pair=pair, partner=partner if pair else None)
        self.platform.there["b1"] = body
        self.instances.pair_changed(body)

    def gone(self, name: str) -> None:
        self.platform.there.pop(name, None)
        self.instances.instance_gone(name, "it was killed")

    async def settle(self) -> None:
        await self.instances.settle()

    @property
    def known(self) -> Pair | None:
        """What the dispatcher believes of the Body."""
        return self.deployed.runtime.dispatcher.workers.by_id["b1"].pair


@pytest.fixture
async def stage() -> Stage:
    made = Stage()
    await made.begin()
    return made


async def test_a_shadow_is_used_once_its_body_says_so_and_counts_as_no_replica(stage: Stage) -> None:
    await stage.shadow()
    assert stage.known is None
    pokes = stage.scaling.pokes
    stage.paired(PAIR)
    assert stage.known == PAIR
    assert stage.scaling.pokes == pokes + 1
    runtime = stage.deployed.runtime
    assert runtime.ready == 1
    assert runtime.dispatcher.workers.starting == 0
    load = stage.instances.load(NAME)
    assert load is not None
    assert [one.kind for one in load.instances] == [InstanceKind.BODY, InstanceKind.SHADOW]
    assert [one.id for one in stage.deployed.live(stage.platform.instances(NAME))] == ["b1"]
    stage.deployed.version = 2
    assert [one.id for one in stage.deployed.old(stage.platform.instances(NAME))] == ["b1"]
    runtime.close()


async def test_changing_and_ending_a_pair(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [ChangeShadow("s-of-b1", OTHER)])
    assert stage.platform.changed == [("s-of-b1", OTHER)]
    assert stage.known == PAIR, "the Body says when it has changed"
    stage.paired(OTHER)
    assert stage.known == OTHER
    await stage.instances.apply(NAME, [DestroyShadow("s-of-b1")])
    await stage.settle()
    assert stage.platform.destroyed == ["s-of-b1"]
    [_, leaving] = stage.instances.seen(NAME)
    assert leaving.state is InstanceState.DRAINING
    stage.paired(None)
    stage.gone("s-of-b1")
    assert stage.known is None
    assert stage.deployed.shadows == {}
    assert stage.deployed.draining == set()
    assert stage.log == [], "what was asked for is no news"


async def test_a_shadow_that_dies_is_no_failed_body(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    stage.gone("s-of-b1")
    assert stage.known is None, "the Body has not even found out"
    assert stage.scaling.forgiven == 0
    assert stage.deployed.runtime.ready == 1
    assert stage.log == ["gnomon: Shadow s-of-b1 of b1 has ended: it was killed"]
    stage.paired(None)
    assert stage.known is None


async def test_the_end_of_an_earlier_shadow_does_not_take_the_present_one_away(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    stage.paired(OTHER, "another")
    stage.gone("s-of-b1")
    assert stage.known == OTHER


async def test_a_body_takes_its_shadow_along_whether_it_is_stopped_or_dies(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [DestroyBody("b1")])
    await stage.settle()
    assert stage.platform.destroyed == ["s-of-b1", "b1"]
    again = Stage()
    await again.begin()
    await again.shadow()
    again.paired(PAIR)
    again.gone("b1")
    await again.settle()
    assert again.platform.destroyed == ["s-of-b1"]
    again.gone("s-of-b1")
    assert len(again.log) == 1, "of the Body only"


async def test_a_body_that_left_meanwhile_is_no_error_and_want_of_room_is(stage: Stage) -> None:
    stage.platform.refuses = GnomonError(409, "no_such_body", "b1 has gone.", "")
    await stage.shadow()
    stage.platform.refuses = GnomonError(503, "no_capacity", "Full.", "")
    with pytest.raises(GnomonError, match="Full"):
        await stage.shadow()
    stage.platform.refuses = None
    stage.deployed.draining.add("b1")
    await stage.shadow()
    assert stage.deployed.shadows == {}


async def test_a_shadow_that_ended_while_it_was_begun_is_not_waited_for(stage: Stage) -> None:
    stage.platform.dies_at_once = True
    await stage.shadow()
    assert stage.deployed.shadows == {}


async def test_a_function_that_is_removed_takes_its_shadows_along(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    stage.instances.release(stage.deployed)
    await stage.settle()
    assert sorted(stage.platform.destroyed) == ["b1", "s-of-b1"]
    before = len(stage.platform.destroyed)
    late = asyncio.create_task(stage.instances._create_shadow(stage.deployed, "b1", PAIR))
    stage.deployed.draining.clear()
    await late
    await stage.settle()
    assert stage.platform.destroyed[before:] == ["s-of-b1"], "one that was being made when its function went"


async def test_another_buffer_plan_leaves_pairs_alone(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [SetBufferPlan(4, 0.01)])
    assert stage.known == PAIR
    assert stage.deployed.runtime.largest_batches() == {"b1": 4}


async def test_a_buffer_plan_changes_batches_and_nothing_that_was_deployed(stage: Stage) -> None:
    runtime, settings = stage.deployed.runtime, replace(stage.deployed.spec.settings, max_batch=8)
    runtime.update(settings, Immediate())
    for batch in range(1, 9):
        runtime.latency.observe(runtime.variant, 1, batch, 0.1 * batch)
    told = runtime.latency_s()
    await stage.instances.apply(NAME, [SetBufferPlan(2, 0.01)])
    assert runtime.settings == settings, "a request may be as large as before"
    assert runtime.latency_s() == told
    assert len(told) == 8, "a policy sees how long larger batches than the plan's take"
    assert runtime.largest_batches() == {"b1": 2}
    late = replace(stage.platform.there["b1"], id="b2")
    runtime.instance_ready(late, Silent())
    assert runtime.largest_batches() == {"b1": 2, "b2": 2}, "one that comes later as well"
    runtime.update(settings, Immediate())
    assert runtime.largest_batches() == {"b1": 8, "b2": 8}, "until the next deployment"


async def test_a_model_that_is_only_sent_events_has_a_known_latency(stage: Stage) -> None:
    runtime, settings = stage.deployed.runtime, replace(stage.deployed.spec.settings, max_batch=2)
    runtime.update(settings, Immediate(), ModelSignature("m", "1", (), ()))
    events, tensors = runtime.event_lane.variant, runtime.tensor_lane.variant
    assert events != tensors
    for batch in (1, 2):
        runtime.latency.observe(events, 1, batch, 0.1 * batch)
    assert runtime.latency_s() == pytest.approx((0.1, 0.2))
    for batch in (1, 2):
        runtime.latency.observe(tensors, 1, batch, 0.15)
    assert runtime.latency_s() == pytest.approx((0.15, 0.2)), "the slower of both"


async def test_a_shadow_that_becomes_a_body_counts_as_one_that_starts_and_takes_batches_when_it_is_ready(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [PromoteShadow("s-of-b1")])
    runtime = stage.deployed.runtime
    assert (runtime.ready, runtime.dispatcher.workers.starting) == (1, 1)
    assert stage.known == PAIR, "it goes on working for its Body"
    assert len(stage.deployed.live(stage.platform.instances(NAME))) == 2
    stage.paired(None)
    body = stage.platform.there["s-of-b1"] = replace(stage.platform.there["s-of-b1"], state=InstanceState.READY)
    stage.instances.instance_ready(body, Silent())
    assert (runtime.ready, runtime.dispatcher.workers.starting) == (2, 0)
    stage.gone("b1")
    await stage.settle()
    assert stage.platform.destroyed == [], "it is nobody's Shadow any more"
    runtime.close()


async def test_one_that_dies_on_the_way_is_a_failed_body_and_one_that_is_gone_no_error(stage: Stage) -> None:
    await stage.shadow()
    stage.paired(PAIR)
    await stage.instances.apply(NAME, [PromoteShadow("s-of-b1"), PromoteShadow("s-of-b1"), PromoteShadow("nobody")])
    stage.paired(None)
    stage.gone("s-of-b1")
    assert stage.deployed.runtime.dispatcher.workers.starting == 0
    assert stage.log == ["gnomon: instance s-of-b1 has ended: it was killed"]
    await stage.shadow()
    stage.paired(PAIR)
    for code, told in (("no_such_shadow", False), ("no_capacity", True)):
        stage.platform.refuses = GnomonError(409 if not told else 503, code, "No.", "")
        if told:
            with pytest.raises(GnomonError, match="No"):
                await stage.instances.apply(NAME, [PromoteShadow("s-of-b1")])
        else:
            await stage.instances.apply(NAME, [PromoteShadow("s-of-b1")])
        assert stage.deployed.shadows == {"s-of-b1": "b1"}, "it stays the Shadow that it is"


async def test_one_of_two_shadows_dies_and_the_other_is_counted_on(stage: Stage) -> None:
    await stage.shadow()
    stage.deployed.shadows["s2"] = "b1"
    body = stage.platform.there["b1"] = stage.platform.there["b1"].working_with({"s-of-b1": PAIR, "s2": OTHER})
    stage.instances.pair_changed(body)
    assert stage.known == replace(PAIR, others=(OTHER,))
    stage.gone("s-of-b1")
    assert stage.known == OTHER
