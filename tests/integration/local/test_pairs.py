"""Body and Shadow on the real platform: forked, sandboxed, computing; and whoever of them, or of their keepers, dies."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from gnomon_core import coordinator_client
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.pairs import Pair
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_platforms.common import MODEL_OVERHEAD_BYTES
from gnomon_platforms.profile_files import LayerFiles
from tests.integration.local.pairs_running import PAIR, PATIENCE_S, Running, begun, comm, shared_memory
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A platform for all tests: its zygote imports torch."""
    running = await begun(tmp_path_factory.mktemp("pairs"))
    yield running
    await running.platform.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def running(platform: Running) -> AsyncIterator[Running]:
    """The platform without instances, its pool filled."""
    await until(lambda: platform.supervised("gnomon empty"))
    yield platform
    for instance in platform.platform.instances("line.openfaas-fn"):
        await platform.platform.destroy(instance.id)
        await platform.events.reason(instance.id)


@contextlib.contextmanager
def profiled(running: Running, *, sample_s: float, memory_bytes: int = 0) -> Iterator[ModelProfile]:
    """A profile of the model by which a sample takes so long, for Shadows that are made within this block."""
    layers = LayerFiles().of(running.platform._recipes.find(running.spec).options)
    assert layers is not None
    table = LatencyTable({1: {batch: batch * sample_s for batch in range(1, 9)}})
    shares = (table,) * len(layers.blocks)
    profile = ModelProfile("line@1", layers, table, shares, {"shared": Loading(0, 0)}, 0, 0, memory_bytes, 0, 0)
    file = running.profiles / "line@1" / "here.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(profile.to_json()))
    try:
        yield profile
    finally:
        file.unlink()


@pytest.fixture
def slow_profile(running: Running) -> Iterator[None]:
    """Without a profile a Body gives a Shadow up after three waits of 5 ms, which a busy machine is enough for."""
    with profiled(running, sample_s=1.0):
        yield


async def test_a_shadow_is_made_listed_claimed_changed_and_ended(running: Running) -> None:
    platform, events = running.platform, running.events
    body = await running.body()
    before = platform.nodes()[0]
    shadow = await platform.create_shadow(body.id, PAIR)
    assert (shadow.kind, shadow.state, shadow.partner, shadow.pair) == (
        InstanceKind.SHADOW,
        InstanceState.STARTING,
        body.id,
        PAIR,
    )
    assert platform.nodes()[0].free_cores == before.free_cores - 1
    await events.until(lambda: (body.id, shadow.id) in events.pairs, PATIENCE_S)
    seen = running.seen(body.id)
    assert (seen.partner, seen.pair) == (shadow.id, PAIR)
    assert running.seen(shadow.id).state is InstanceState.READY
    for samples in (1, 2, 4, 8):
        await running.ask(body, samples)
    spent = platform.usage("line.openfaas-fn").cpu_s
    assert spent > 0
    other = Pair(2, (1, 2, 3), (0, 0, 1, 1))
    await platform.change_shadow(shadow.id, other)
    await events.until(lambda: running.seen(body.id).pair == other, PATIENCE_S)
    assert platform.nodes()[0].free_cores == before.free_cores - 2
    assert len(os.sched_getaffinity(running.pid(shadow))) == min(2, len(os.sched_getaffinity(0)))
    await running.ask(body)
    await platform.destroy(shadow.id)
    assert "stopped" in await events.reason(shadow.id)
    assert events.pairs[-1] == (body.id, None)
    assert events.times_gone[shadow.id] == 1
    assert running.seen(body.id).pair is None
    assert platform.nodes()[0] == before
    assert platform.usage("line.openfaas-fn").cpu_s >= spent
    await running.ask(body)
    assert shared_memory([os.getpid(), *running.supervised("gnomon line.ope"), await running.coordinator()]) == []


async def test_a_shadow_has_its_functions_user_and_sandbox(running: Running) -> None:
    body = await running.body()
    shadow = await running.paired(body)
    body_pid = running.platform._instances[body.id].pid
    assert body_pid is not None
    shadow_pid = running.pid(shadow)
    for name in ("Uid", "Gid", "NoNewPrivs", "CapEff"):
        mine, others = (field_of(pid, name) for pid in (shadow_pid, body_pid))
        assert mine == others, name
    if os.geteuid() == 0:
        assert field_of(shadow_pid, "Uid")[0] != "0"
    assert len(os.sched_getaffinity(shadow_pid)) == 1


def field_of(pid: int, name: str) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [found] = [line for line in lines if line.startswith(f"{name}:")]
    return found.split()[1:]


async def test_more_shadows_than_containers_are_forked(running: Running) -> None:
    bodies = [await running.body() for _ in range(3)]
    shadows = await asyncio.gather(*(running.paired(body) for body in bodies))
    assert len({shadow.id for shadow in shadows}) == 3
    for body in bodies:
        await running.ask(body)
    await until(lambda: running.supervised("gnomon empty"))


async def test_shadows_are_made_again_after_the_zygote_they_are_forked_from_was_killed(running: Running) -> None:
    """No Body need begin for that: a burst is when Shadows are wanted."""
    body = await running.body()
    killed = [*running.supervised("gnomon zygote"), *running.supervised("gnomon empty")]
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):  # what was forked from the zygote ends with it
            os.kill(pid, signal.SIGKILL)
    await until(lambda: not set(killed) & set(running.supervised("gnomon empty")))
    await until(lambda: running.supervised("gnomon empty"))
    await running.paired(body)
    await running.ask(body)


async def test_shadow_of_an_unsplittable_model_is_refused(running: Running) -> None:
    body = await running.body()
    before = running.platform.nodes()
    with pytest.raises(GnomonError) as refused:
        await running.platform.create_shadow(body.id, Pair(64, (0,), (0, 1)))
    assert (refused.value.status, refused.value.code) == (503, "no_capacity")
    for unknown, pair in (("nobody", PAIR), (body.id, Pair(1, (99,), (0, 1)))):
        with pytest.raises(GnomonError) as refused:
            await running.platform.create_shadow(unknown, pair)
        assert (refused.value.status, refused.value.code) == (409, "no_such_body")
    assert running.platform.nodes() == before
    await running.platform.change_shadow("nobody", PAIR)


async def test_a_container_that_dies_in_the_pool_is_replaced_and_one_that_is_frozen_costs_a_shadow_only(running: Running) -> None:
    body = await running.body()
    containers = await running.containers()
    os.kill(containers[0], signal.SIGKILL)
    await until(lambda: set(running.supervised("gnomon empty")) - set(containers))
    await running.paired(body)
    await running.ask(body)


async def test_a_body_takes_its_shadow_along(running: Running) -> None:
    body = await running.body()
    shadow = await running.paired(body)
    before = len(running.events.pairs)
    await running.platform.destroy(body.id)
    await running.events.reason(body.id)
    assert "its Body has gone" in await running.events.reason(shadow.id)
    # Whether the coordinator has told of the pair's end before the supervisor of the Body's is chance.
    assert running.events.pairs[before:] in ([], [(body.id, None)])
    assert running.platform.instances("line.openfaas-fn") == ()


async def test_twenty_shadows_die_and_no_answer_is_wrong(running: Running) -> None:
    body = await running.body()
    for number in range(20):
        shadow = await running.paired(body)
        asking = [asyncio.ensure_future(running.ask(body))]
        await asyncio.sleep(0.002 * (number % 5))
        os.kill(running.pid(shadow), signal.SIGKILL)
        await asyncio.gather(*asking)
        assert "SIGKILL" in await running.events.reason(shadow.id)
        assert running.events.pairs[-1] == (body.id, None)
        await running.ask(body)
    assert shared_memory([*running.supervised("gnomon line.ope"), await running.coordinator()]) == []


async def test_a_frozen_shadow_is_given_up_by_its_body_and_ended(running: Running) -> None:
    body = await running.body()
    shadow = await running.paired(body)
    os.kill(running.pid(shadow), signal.SIGSTOP)
    for _ in range(4):
        await running.ask(body)
    await running.events.until(lambda: running.events.pairs[-1] == (body.id, None), PATIENCE_S)
    assert await asyncio.wait_for(running.events.reason(shadow.id), 15)
    await running.ask(body)
    await running.paired(body)


@pytest.mark.usefixtures("slow_profile")
async def test_eight_coordinators_die_under_load_and_no_answer_is_wrong(running: Running) -> None:
    bodies = [await running.body() for _ in range(2)]
    for body in bodies:
        await running.paired(body)
    stop = False

    async def load(body: Instance) -> None:
        while not stop:
            await running.ask(body)

    asking = [asyncio.ensure_future(load(body)) for body in bodies]
    for number in range(8):
        pid = await running.coordinator()
        await asyncio.sleep(0.01 * (number % 7))
        if number % 4 == 3:
            # In the middle of an end and a beginning.
            [shadow] = [
                instance for instance in running.platform.instances("line.openfaas-fn") if instance.partner == bodies[0].id
            ][:1]
            await running.platform.destroy(shadow.id)
            await asyncio.sleep(0.001 * (number % 5))
            os.kill(pid, signal.SIGKILL)
            await asyncio.wait_for(running.events.reason(shadow.id), 20)
            await running.paired(bodies[0])
        else:
            os.kill(pid, signal.SIGKILL)
        await until(lambda old=pid: [found for found in running.supervised("gnomon coord") if found != old])
    stop = True
    await asyncio.gather(*asking)
    assert running.numbers > 16
    # The pairs are as they were, and can still be changed and ended.
    for body in bodies:
        shadow_id = running.seen(body.id).partner
        assert shadow_id is not None
        other = Pair(1, (1, 2), (0, 1, 1, 2))
        await running.platform.change_shadow(shadow_id, other)
        await running.events.until(lambda instance_id=body.id, wanted=other: running.seen(instance_id).pair == wanted, 40)
        await running.ask(body)
        await running.platform.destroy(shadow_id)
        await asyncio.wait_for(running.events.reason(shadow_id), 20)
    everybody = [*running.supervised("gnomon line.ope"), *running.supervised("gnomon empty"), await running.coordinator()]
    await until(lambda: not shared_memory(everybody), limit_s=5.0)


async def test_a_coordinator_killed_while_a_shadow_begins(running: Running) -> None:
    body = await running.body()
    for pause_s in (0.0, 0.012):
        pid = await running.coordinator()
        shadow = await running.platform.create_shadow(body.id, PAIR)
        await asyncio.sleep(pause_s)
        os.kill(pid, signal.SIGKILL)
        await running.events.until(
            lambda shadow_id=shadow.id: (body.id, shadow_id) in running.events.pairs or shadow_id in running.events.gone, 40
        )
        assert shadow.id not in running.events.gone, running.events.gone[shadow.id]
        await running.ask(body)
        await running.platform.destroy(shadow.id)
        await running.events.reason(shadow.id)


async def test_a_frozen_coordinator_is_replaced(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_client, "FROZEN_S", 0.5)
    body = await running.body()
    pid = await running.coordinator()
    os.kill(pid, signal.SIGSTOP)
    await running.paired(body)
    assert comm(pid) == ""
    await running.ask(body)


async def test_a_killed_supervisor_takes_pairs_along_and_they_can_be_made_again(running: Running) -> None:
    body = await running.body()
    shadow = await running.paired(body)
    assert running.platform._supervisor is not None
    os.kill(running.platform._supervisor.pid, signal.SIGKILL)
    assert "supervisor" in await running.events.reason(shadow.id)
    await running.events.reason(body.id)
    again = await running.body()
    await running.paired(again)
    await running.ask(again)


@pytest.mark.parametrize("wait_s", [0.0, 0.03])
async def test_a_killed_supervisor_takes_what_becomes_a_body_along(running: Running, wait_s: float) -> None:
    body = await running.body()
    shadow = await running.paired(body)
    await running.platform.promote_shadow(shadow.id)
    await asyncio.sleep(wait_s)
    assert running.platform._supervisor is not None
    os.kill(running.platform._supervisor.pid, signal.SIGKILL)
    assert "supervisor" in await running.events.reason(shadow.id)
    await running.events.reason(body.id)
    assert (running.events.times_gone[body.id], running.events.times_gone[shadow.id]) == (1, 1)
    again = await running.body()
    promoted = await running.paired(again)
    await running.platform.promote_shadow(promoted.id)
    await running.events.channel(promoted.id)
    await running.ask(again)
    await running.ask(running.seen(promoted.id))


async def test_a_promoted_shadow_leaves_no_shared_memory_behind(running: Running) -> None:
    body = await running.body()
    shadow = await running.paired(body)
    pids = [running.pid(shadow), running.platform._instances[body.id].pid or 0]
    assert shared_memory(pids)
    await running.platform.promote_shadow(shadow.id)
    await running.events.channel(shadow.id)
    assert running.platform._instances[shadow.id].pid == pids[0], "it is the same process"
    await until(lambda: not shared_memory(pids))


async def test_a_body_that_is_older_than_its_models_profile_has_shadows_by_that(running: Running) -> None:
    """A model is deployed first and measured then: what a Shadow takes is claimed, and predicted for its Body, as measured."""
    body = await running.body()
    taken = 123 << 20
    with profiled(running, sample_s=0.01, memory_bytes=taken) as measured:
        assert running.platform.profile(running.spec) == measured
        assert (await running.paired(body)).memory_bytes == taken


async def test_a_body_reserves_the_memory_that_its_models_profile_has_measured(running: Running) -> None:
    """Without a profile it is an estimate. What is reserved in excess keeps others out; what is not reserved kills them."""
    estimated = await running.body()
    with profiled(running, sample_s=0.01, memory_bytes=MODEL_OVERHEAD_BYTES + (123 << 20)):
        measured = await running.body()
    assert measured.memory_bytes == estimated.memory_bytes + (123 << 20)


async def test_stop_ends_pairs_as_well(running: Running) -> None:
    """The last test: nothing is begun again after this."""
    body = await running.body()
    shadow = await running.paired(body)
    await running.platform.stop()
    assert (running.events.times_gone[body.id], running.events.times_gone[shadow.id]) == (1, 1)
    assert running.platform.instances("line.openfaas-fn") == ()
