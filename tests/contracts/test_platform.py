"""The contract of every platform. A new implementation inherits `PlatformContract`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, Explains, InstanceRequest, Platform
from gnomon_platforms.aws_lambda.platform import LambdaPlatform
from gnomon_platforms.aws_lambda.testing.account import Account
from gnomon_platforms.local.platform import LocalPlatform
from tests.contracts.knative_world import KnativeWorld
from tests.garbage import collected_only_when_asked, garbage, is_ours
from tests.platform_testing import NoModels, NothingBuilt, Recorder, answers, request_frame, send
from tests.waiting import until

Started = tuple[Platform, Recorder]


def deployment(service: str = "echo", process: str = "cat", **fields: object) -> FunctionSpec:
    return read_deployment({"service": service, "image": "functions/alpine:latest", "envProcess": process, **fields})


def instance_of(spec: FunctionSpec, *, node: str | None = None, version: int = 1) -> InstanceRequest:
    return InstanceRequest(spec, version, 1, node, {})


class World(Protocol):
    """A platform with the Recorder that it was started with; `begin` returns a new instance of a function that echoes."""

    platform: Platform
    listener: Recorder

    async def begin(self, service: str = "echo") -> Instance: ...


class InstanceContract:
    """The contract of instances regardless of their origin: created by request, or found, such as a Revision's pods.

    Needs the fixture `world`.
    """

    async def test_an_instance_becomes_ready_and_answers(self, world: World) -> None:
        instance = await world.begin()
        assert instance.function == "echo.openfaas-fn"
        channel = await world.listener.channel(instance.id)
        assert world.listener.ready[instance.id].state is InstanceState.READY
        assert [live.id for live in world.platform.instances("echo.openfaas-fn")] == [instance.id]
        assert answers(await send(channel, request_frame(b"hello"))) == [(200, b"hello")]
        assert await channel.probe(5.0)

    async def test_a_destroyed_instance_is_gone_exactly_once(self, world: World) -> None:
        instance = await world.begin()
        await world.listener.channel(instance.id)
        await world.platform.destroy(instance.id)
        await world.platform.destroy(instance.id)
        await world.listener.reason(instance.id)
        await world.platform.destroy(instance.id)
        assert world.listener.times_gone == {instance.id: 1}
        assert instance.id not in [live.id for live in world.platform.instances("echo.openfaas-fn")]

    async def test_an_instance_destroyed_before_it_began_is_gone_as_well(self, world: World) -> None:
        instance = await world.begin()
        await world.platform.destroy(instance.id)
        await world.listener.reason(instance.id)
        assert world.listener.times_gone == {instance.id: 1}

    async def test_unknown_instances_are_ignored(self, world: World) -> None:
        await world.platform.destroy("nobody")
        await world.platform.resize("nobody", 2)

    async def test_instances_are_told_apart_by_function_and_listed_oldest_first(self, world: World) -> None:
        made = [await world.begin("one") for _ in range(3)]
        other = await world.begin("two")
        for instance in (*made, other):
            await world.listener.channel(instance.id)
        assert [live.id for live in world.platform.instances("one.openfaas-fn")] == [instance.id for instance in made]
        assert [live.id for live in world.platform.instances("two.openfaas-fn")] == [other.id]

    async def test_an_instance_without_room_is_refused_or_waits_with_the_reason_and_takes_nothing(self, world: World) -> None:
        platform, before = world.platform, world.platform.nodes()
        too_large = instance_of(deployment(limits={"cpu": "5000"}))
        if platform.capabilities.own_scheduler:
            instance = await platform.create(too_large)
            assert isinstance(platform, Explains)
            await until(lambda: "cpu" in platform.trouble("echo.openfaas-fn"), "no reason is given")
            assert [live.state for live in platform.instances("echo.openfaas-fn")] == [InstanceState.STARTING]
            assert platform.nodes() == before
            await platform.destroy(instance.id)
            await world.listener.reason(instance.id)
            assert platform.trouble("echo.openfaas-fn") == ""
        else:
            with pytest.raises(GnomonError) as refused:
                await platform.create(too_large)
            assert (refused.value.status, refused.value.code) == (503, "no_capacity")
        assert platform.nodes() == before
        assert platform.instances("echo.openfaas-fn") == ()

    async def test_an_ended_instance_leaves_nothing_to_the_garbage_collector(self, world: World) -> None:
        with collected_only_when_asked():
            for destroyed_early in (False, True, False, False):
                instance = await world.begin()
                if not destroyed_early:
                    await send(await world.listener.channel(instance.id), request_frame(b"hello"))
                await world.platform.destroy(instance.id)
                await world.listener.reason(instance.id)
                world.listener.channels.clear()
            assert garbage(is_ours) == Counter()

    async def test_stop_ends_every_instance(self, world: World) -> None:
        made = [await world.begin() for _ in range(4)]
        await world.listener.channel(made[0].id)
        await world.platform.stop()
        assert world.listener.times_gone == {instance.id: 1 for instance in made}
        assert world.platform.instances("echo.openfaas-fn") == ()


@dataclass
class Created:
    """A platform whose owner creates the instances."""

    platform: Platform
    listener: Recorder

    async def begin(self, service: str = "echo") -> Instance:
        return await self.platform.create(instance_of(deployment(service)))


class PlatformContract(InstanceContract):
    """Needs the fixture `started`: a platform and the Recorder that it was started with, and a node with at least one core."""

    @pytest.fixture
    def world(self, started: Started) -> Created:
        return Created(*started)

    async def test_create_returns_at_once_with_the_version_that_was_asked_for(self, started: Started) -> None:
        platform, listener = started
        instance = await platform.create(instance_of(deployment(), version=4))
        assert (instance.state, instance.version) == (InstanceState.STARTING, 4)
        await listener.channel(instance.id)

    async def test_an_instance_counts_from_when_it_was_asked_for(self, started: Started) -> None:
        """A policy that looks while the instance is being made, and asks for what is missing, would have two."""
        platform, listener = started
        creation = asyncio.create_task(platform.create(instance_of(deployment())))
        await asyncio.sleep(0)
        [seen] = platform.instances("echo.openfaas-fn")
        assert (await creation).id == seen.id
        assert [live.id for live in platform.instances("echo.openfaas-fn")] == [seen.id]
        await listener.channel(seen.id)

    async def test_instance_destroyed_at_once_is_reported_gone_exactly_once(self, started: Started) -> None:
        platform, listener = started
        creation = asyncio.create_task(platform.create(instance_of(deployment())))
        await asyncio.sleep(0)
        [seen] = platform.instances("echo.openfaas-fn")
        await platform.destroy(seen.id)
        await listener.reason((await creation).id)
        assert listener.times_gone == {seen.id: 1}
        assert platform.instances("echo.openfaas-fn") == ()

    async def test_the_place_of_a_destroyed_instance_is_free_again(self, started: Started) -> None:
        platform, listener = started
        before = platform.nodes()
        instance = await platform.create(instance_of(deployment()))
        if not platform.capabilities.own_scheduler:
            assert platform.nodes()[0].free_cores < before[0].free_cores, "the next instance would get the same place"
        await listener.channel(instance.id)
        await until(lambda: platform.nodes()[0].free_cores < before[0].free_cores, "the instance takes no place")
        await platform.destroy(instance.id)
        await listener.reason(instance.id)
        assert platform.instances("echo.openfaas-fn") == ()
        if not platform.capabilities.own_scheduler:
            assert platform.nodes() == before
        await until(lambda: platform.nodes() == before, "the place is not free again")

    async def test_an_unknown_node_is_refused_or_the_scheduler_chooses_another(self, started: Started) -> None:
        platform, listener = started
        wanted = instance_of(deployment(), node="elsewhere")
        if platform.capabilities.own_scheduler:
            instance = await platform.create(wanted)
            await listener.channel(instance.id)
            assert listener.ready[instance.id].node in {node.name for node in platform.nodes()}
            return
        with pytest.raises(GnomonError) as refused:
            await platform.create(wanted)
        assert refused.value.status == 503

    async def test_a_function_that_can_never_run_is_refused_with_what_is_allowed(self, started: Started) -> None:
        platform, _ = started
        with pytest.raises(GnomonError) as refused:
            platform.check(read_deployment({"service": "x", "image": "nobody/knows:1"}))
        assert refused.value.status == 400
        platform.check(deployment())
        await platform.prepare(deployment())
        assert platform.signature(deployment()) is None

    async def test_instance_that_can_never_start_is_refused_without_leftovers(self, started: Started) -> None:
        platform, _ = started
        with pytest.raises(GnomonError, match="names none"):
            await platform.create(instance_of(deployment(process=" ")))
        assert platform.instances("echo.openfaas-fn") == ()

    async def test_output_of_a_function_is_logged_line_by_line(self, started: Started) -> None:
        platform, listener = started
        instance = await platform.create(instance_of(deployment()))
        await send(await listener.channel(instance.id), request_frame(b"four"))
        await listener.until(lambda: len(listener.lines) >= 2)
        assert [name for name, _ in listener.lines] == ["echo.openfaas-fn"] * 2
        first, second = (text.lstrip("0123456789/: ") for _, text in listener.lines)
        assert first == "Forking fprocess."
        assert second.startswith("Wrote 4 Bytes - Duration: ")

    async def test_usage_counts_instances_that_have_ended(self, started: Started) -> None:
        platform, listener = started
        spec = deployment(process="python3 -c sum(range(10**7))")
        instance = await platform.create(instance_of(spec))
        await send(await listener.channel(instance.id), request_frame(b""))
        during = platform.usage("echo.openfaas-fn")
        assert during.cpu_s > 0.02
        assert during.memory_bytes > 0
        await platform.destroy(instance.id)
        await listener.reason(instance.id)
        after = platform.usage("echo.openfaas-fn")
        assert after.cpu_s >= during.cpu_s
        assert after.memory_bytes == 0


class TestLocalPlatform(PlatformContract):
    @pytest.fixture
    async def started(self, tmp_path: Path) -> AsyncIterator[Started]:
        platform, listener = LocalPlatform(tmp_path / "state", NoModels(), NothingBuilt(), preload_torch=False), Recorder()
        await platform.start(listener)
        yield platform, listener
        await platform.stop()

    async def test_an_unknown_image_is_refused_with_the_name_of_the_table(self, started: Started) -> None:
        platform, _ = started
        with pytest.raises(GnomonError) as refused:
            platform.check(read_deployment({"service": "x", "image": "nobody/knows:1"}))
        assert refused.value.code == "unknown_image"
        assert "--images FILE" in refused.value.hint
        assert "functions/alpine" in refused.value.hint

    async def test_a_model_function_without_a_model_is_refused(self, started: Started) -> None:
        platform, _ = started
        with pytest.raises(GnomonError) as refused:
            platform.check(read_deployment({"service": "x", "image": "gnomon/body:latest"}))
        assert (refused.value.status, refused.value.code) == (400, "model_missing")
        with pytest.raises(GnomonError) as refused:
            platform.check(
                read_deployment({"service": "x", "image": "gnomon/body:latest", "annotations": {"gnomon/model": "unheard-of"}})
            )
        assert refused.value.status == 404

    async def test_redirector(self, started: Started) -> None:
        platform, listener = started
        spec = read_deployment(
            {
                "service": "away",
                "image": "docker.io/theaxer/redirector:latest",
                "envProcess": "./handler",
                "envVars": {"destination": "http://example.com"},
            }
        )
        instance = await platform.create(instance_of(spec))
        frame = await send(await listener.channel(instance.id), request_frame(b""))
        assert frame is not None
        assert [(member.code, member.meta) for member in frame.members] == [(302, b"Location: http://example.com")]

    async def test_resize_pins_to_more_cpus_and_back(self, started: Started) -> None:
        platform, listener = started
        node = platform.nodes()[0]
        spec = deployment(process="grep Cpus_allowed_list /proc/self/status")
        instance = await platform.create(instance_of(spec))
        channel = await listener.channel(instance.id)
        assert await allowed_cpus(channel) == 1
        await platform.resize(instance.id, node.cores)
        assert await allowed_cpus(channel) == node.cores
        assert platform.instances("echo.openfaas-fn")[0].cores == node.cores

    async def test_a_burst_of_instances_is_ready_together(self, started: Started) -> None:
        platform, listener = started
        made = [await platform.create(instance_of(deployment())) for _ in range(8)]
        await asyncio.gather(*(listener.channel(instance.id) for instance in made))
        assert len(platform.instances("echo.openfaas-fn")) == 8


class TestLambdaPlatform(PlatformContract):
    @pytest.fixture
    async def started(self, aws: Account) -> AsyncIterator[Started]:
        platform, listener = LambdaPlatform(aws.options(), NoModels(), NothingBuilt()), Recorder()
        await platform.start(listener)
        yield platform, listener
        await platform.stop()

    async def test_nothing_is_left_on_lambda_when_it_stops(self, started: Started, aws: Account) -> None:
        platform, listener = started
        instance = await platform.create(instance_of(deployment()))
        await listener.channel(instance.id)
        assert aws.functions() == ["gnomon-echo-openfaas-fn-zip"]
        await platform.stop()
        assert aws.functions() == []

    async def test_more_slots_than_the_concurrency_are_refused(self, started: Started) -> None:
        platform, _ = started
        made = [await platform.create(instance_of(deployment())) for _ in range(8)]
        with pytest.raises(GnomonError) as refused:
            await platform.create(instance_of(deployment()))
        assert (refused.value.code, len(made)) == ("no_capacity", 8)

    async def test_slots_of_two_memory_sizes_serve_side_by_side_each_by_its_version(self, started: Started, aws: Account) -> None:
        platform, listener = started
        spec, reports = deployment(process="printenv AWS_LAMBDA_FUNCTION_MEMORY_SIZE"), []
        own = await platform.create(instance_of(spec))
        other = await platform.create(InstanceRequest(spec, 1, 2, None, {}, memory_mb=3008))
        assert (own.memory_mb, own.size, own.memory_bytes) == (None, 1, 1769 * 2**20)
        assert (other.memory_mb, other.size, other.memory_bytes) == (3008, 3008, 3008 * 2**20)
        for instance in (own, other, own):
            [(status, text)] = answers(await send(await listener.channel(instance.id), request_frame(b"")))
            assert status == 200
            reports.append(int(text))
        assert reports == [1769, 3008, 1769]
        assert aws.functions() == ["gnomon-echo-openfaas-fn-zip"], "one function, a version of each size"
        await platform.destroy(own.id)
        await listener.reason(own.id)
        assert answers(await send(await listener.channel(other.id), request_frame(b""))) == [(200, b"3008\n")]

    async def test_a_memory_size_that_lambda_has_not_is_refused_and_the_own_one_is_no_other(self, started: Started) -> None:
        platform, _ = started
        for memory_mb in (64, 20_000):
            with pytest.raises(GnomonError) as refused:
                await platform.create(InstanceRequest(deployment(), 1, 1, None, {}, memory_mb=memory_mb))
            assert refused.value.code == "no_capacity"
        instance = await platform.create(InstanceRequest(deployment(), 1, 1, None, {}, memory_mb=1769))
        assert instance.memory_mb is None

    async def test_free_capacity_is_counted_in_slots(self, started: Started) -> None:
        """A slot of 512 MB takes the place of one of 10,240 MB: what is bounded is how many there are."""
        platform, _ = started
        small = deployment(annotations={"gnomon/memory-mb": "512"})
        for taken in range(8):
            [node] = platform.nodes()
            assert node.free_memory_bytes == (8 - taken) * 10_240 * 2**20
            await platform.create(instance_of(small))
        assert (platform.nodes()[0].free_cores, platform.nodes()[0].free_memory_bytes) == (0, 0)


async def allowed_cpus(channel: BatchChannel) -> int:
    [(status, text)] = answers(await send(channel, request_frame(b"")))
    assert status == 200
    ranges = [part.split("-") for part in text.decode().split(":")[1].strip().split(",")]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ranges)


class TestKnativePlatform(InstanceContract):
    """Revisions' pods behind the gateway: the autoscaler class creates them."""

    @pytest.fixture
    async def world(self) -> AsyncIterator[KnativeWorld]:
        made = KnativeWorld()
        await made.start()
        yield made
        await made.stop()

    async def test_a_slot_that_was_destroyed_is_opened_again_while_its_pod_is_ready(self, world: KnativeWorld) -> None:
        instance = await world.begin()
        await world.listener.channel(instance.id)
        await world.platform.destroy(instance.id)
        await world.listener.reason(instance.id)
        await until(lambda: [live.state for live in world.platform.instances("echo.openfaas-fn")] == [InstanceState.READY])
