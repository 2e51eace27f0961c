"""Bodies on the real platform that borrow their node's cores for each batch, and all the ways in which the cores come back."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
import torch

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest, LendsCores, Platform
from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.platform_testing import NothingBuilt, Recorder, answers, send
from tests.refusals import refused

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]
CORES = 4
MODEL = {"gnomon/model": "line@1"}


@dataclass
class Lending:
    """A platform that gives four cores away, with one model for several functions."""

    platform: LocalPlatform
    events: Recorder

    async def body(self, name: str, *, idle_cores: int | None = 1, cores: int = CORES) -> Instance:
        spec = read_deployment({"service": name, "image": "gnomon/body", "annotations": MODEL})
        instance = await self.platform.create(InstanceRequest(spec, 1, cores, None, {}, idle_cores=idle_cores))
        await self.events.channel(instance.id)
        return self.seen(instance)

    def seen(self, instance: Instance) -> Instance:
        return next(seen for seen in self.platform.instances(instance.function) if seen.id == instance.id)

    def pid(self, instance: Instance) -> int:
        pid = self.platform._instances[instance.id].pid
        assert pid is not None
        return pid

    async def ask(self, instance: Instance, number: int, cores: int) -> None:
        """Send a batch on so many cores, and check its answer."""
        signature = self.platform.signature(read_deployment({"service": "s", "image": "gnomon/body", "annotations": MODEL}))
        assert signature is not None
        head = json.dumps({"kind": "tensors", "inputs": [tensor.to_json() for tensor in signature.inputs]}).encode()
        members = [Member(0, 1, b"", struct.pack("<2f", 1, 10))]
        frame = Frame(Kind.BATCH, number, 1, 10.0, head, members, cores)
        assert answers(await send(self.events.channels[instance.id], frame)) == [(200, struct.pack("<f", 32))]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lending]:
    """A platform for all tests: its zygote imports torch."""
    state = tmp_path_factory.mktemp("lending") / "state"
    repository = DirectoryRepository(state / "models")
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[2.0, 3.0]]))
        module.bias.zero_()
    repository.put("line", "1", capture(module.eval(), (torch.ones(2, 2),), Description("line", "1")))
    local, events = LocalPlatform(state, repository, NothingBuilt(), cores=CORES, lend_cores=True), Recorder()
    await local.start(events)
    yield Lending(local, events)
    await local.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def lending(platform: Lending) -> AsyncIterator[Lending]:
    """The platform without instances."""
    yield platform
    for name in ("one", "other", "handler", "asks"):
        for instance in platform.platform.instances(f"{name}.openfaas-fn"):
            await platform.platform.destroy(instance.id)
            await platform.events.reason(instance.id)


async def test_two_functions_borrow_from_one_node(lending: Lending) -> None:
    platform: Platform = lending.platform
    assert isinstance(platform, LendsCores)
    assert all(node.lends for node in platform.nodes())
    first_body = await lending.body("one")
    assert (first_body.cores, first_body.idle_cores, first_body.state) == (CORES, 1, InstanceState.READY)
    assert lending.platform.nodes()[0].free_cores == CORES - 1
    assert os.sched_getaffinity(lending.pid(first_body)) == os.sched_getaffinity(0), "its threads may run on every CPU"
    assert platform.lend(first_body.id, CORES) == CORES
    await lending.ask(first_body, 1, CORES)
    platform.give_back(first_body.id)
    other = await lending.body("other")
    assert (platform.share(first_body.id), platform.share(other.id)) == (2, 2)
    assert (platform.lend(first_body.id, CORES), platform.lend(other.id, CORES)) == (2, 2)
    await lending.ask(first_body, 2, 2)
    await lending.ask(other, 1, 1)


async def test_an_instance_that_is_killed_gives_its_cores_back(lending: Lending) -> None:
    first, second = await lending.body("one"), await lending.body("other")
    lending.platform.lend(first.id, CORES)
    os.kill(lending.pid(first), signal.SIGKILL)
    await lending.events.reason(first.id)
    lending.platform.give_back(first.id)
    assert lending.platform.lend(second.id, CORES) == CORES
    assert lending.platform.lend(first.id, CORES) == CORES, "it has gone: nothing counts what it asks for"
    assert lending.platform.nodes()[0].free_cores == CORES - 1


async def test_a_frozen_instance_gives_its_cores_back_when_it_is_destroyed(lending: Lending) -> None:
    first, second = await lending.body("one"), await lending.body("other")
    assert lending.platform.lend(first.id, CORES) == 2
    os.kill(lending.pid(first), signal.SIGSTOP)
    await lending.platform.destroy(first.id)
    # Before it has ended, which takes seconds.
    assert first.id not in lending.events.gone
    assert lending.platform._node._arbiter.free == CORES - 2
    assert lending.platform.lend(second.id, CORES) == 2
    os.kill(lending.pid(first), signal.SIGKILL)
    await lending.events.reason(first.id)
    assert lending.platform.lend(second.id, CORES) == CORES


async def test_the_end_of_the_supervisor_gives_all_cores_back(lending: Lending) -> None:
    first_body = await lending.body("one")
    lending.platform.lend(first_body.id, CORES)
    os.kill(lending.platform._supervisor.pid, signal.SIGKILL)
    await lending.events.reason(first_body.id)
    again = await lending.body("one")
    assert lending.platform.lend(again.id, CORES) == CORES


async def test_an_instance_borrows_after_a_resize_and_has_cores_of_its_own_after_another(lending: Lending) -> None:
    body = await lending.body("one", idle_cores=None, cores=2)
    assert (body.idle_cores, lending.platform.share(body.id)) == (None, 0)
    assert len(os.sched_getaffinity(lending.pid(body))) <= 2
    await lending.platform.resize(body.id, CORES, 1)
    assert (lending.seen(body).cores, lending.seen(body).idle_cores) == (CORES, 1)
    assert lending.platform.nodes()[0].free_cores == CORES - 1
    assert lending.platform.lend(body.id, CORES) == CORES
    await lending.ask(body, 1, CORES)
    await lending.platform.resize(body.id, 2)
    assert (lending.seen(body).cores, lending.seen(body).idle_cores) == (2, None)
    assert lending.platform.nodes()[0].free_cores == CORES - 2
    assert lending.platform.share(body.id) == 0
    await lending.ask(body, 2, 0)


async def test_function_that_cannot_change_its_threads_for_a_batch_does_not_borrow(lending: Lending) -> None:
    spec = read_deployment({"service": "handler", "image": "functions/alpine", "envProcess": "cat"})
    with refused(409, "cannot_borrow"):
        await lending.platform.create(InstanceRequest(spec, 1, 2, None, {}, idle_cores=1))
    instance = await lending.platform.create(InstanceRequest(spec, 1, 1, None, {}))
    await lending.events.channel(instance.id)
    with refused(409, "cannot_borrow"):
        await lending.platform.resize(instance.id, 2, 1)


async def test_cores_that_a_deployment_requests_are_kept_between_batches(lending: Lending) -> None:
    document = {"service": "asks", "image": "gnomon/body", "annotations": MODEL, "requests": {"cpu": "2"}}
    spec = read_deployment(document)
    instance = await lending.platform.create(InstanceRequest(spec, 1, CORES, None, {}, idle_cores=1))
    await lending.events.channel(instance.id)
    assert lending.seen(instance).idle_cores == 2
    assert lending.platform.nodes()[0].free_cores == CORES - 2
    assert lending.platform.lend(instance.id, 1) == 2, "a batch has at least what its instance keeps"
