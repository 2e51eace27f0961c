"""Leaders that are killed or frozen: nothing is lost, doubled or written after a successor, and requests at zero are served."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kubernetes.leader import chain
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from tests.cluster import build
from tests.cluster.client import Cluster
from tests.contracts.test_platform import instance_of
from tests.kubernetes.faults import dying
from tests.kubernetes.faults.conftest import NAMESPACE, Breakable, left
from tests.kubernetes.kinds import install_kinds
from tests.kubernetes.knative_autoscaler.conftest import KINDS
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import grace, until
from tests.kubernetes.knative_batching.conftest import ENV, Pods, pods
from tests.kubernetes.knative_batching.test_serving_revisions import BATCHES, all_of, ingress, serving
from tests.kubernetes.knative_batching.users import Users
from tests.platform_testing import Recorder, answers, request_frame, send

SOME = 3
MANY = 60
"""More than it writes: the last rounds end by themselves, and so do all."""
WANTED = 2

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([dying.__name__])


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(sorted(random.Random(35).sample(range(2, 22), SOME)), id="some"),
        pytest.param(list(range(MANY)), id="all", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
async def test_the_next_process_goes_on_from_what_was_written(breakable: Breakable, moments: list[int]) -> None:
    for moment in moments:
        process = _PROCESSES.Process(target=dying.main, args=(breakable.plane.kubeconfig, moment), daemon=True)
        process.start()
        await asyncio.to_thread(process.join, 120.0)
        assert process.exitcode in (-signal.SIGKILL, dying.ALL_WRITTEN), f"before write {moment}: {process.exitcode}"
        await goes_on(breakable, moment)
        if process.exitcode == dying.ALL_WRITTEN:
            return
    assert len(moments) == SOME, f"there were more than {MANY} writes"


async def goes_on(breakable: Breakable, moment: int) -> None:
    """The next process is asked for two instances, and comes to exactly two, which answer."""
    core, apps = breakable.cluster.core, breakable.cluster.apps
    api = await asyncio.to_thread(connect, breakable.plane.kubeconfig)
    platform, listener = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=3.0)), Recorder()
    await platform.start(listener)
    try:
        made = [await platform.create(instance_of(dying.SPEC)) for _ in range(WANTED)]
        for instance in made:
            body = f"after {moment}".encode()
            assert answers(await send(await listener.channel(instance.id), request_frame(body))) == [(200, body)]

        def settled() -> str:
            """The differences from the desired state."""
            pods = [pod for pod in core.list_namespaced_pod(NAMESPACE).items if pod.metadata.deletion_timestamp is None]
            owners = sorted(str((pod.metadata.annotations or {}).get("gnomon/instance")) for pod in pods)
            replicas = [deployment.spec.replicas for deployment in apps.list_namespaced_deployment(NAMESPACE).items]
            services = [service.metadata.name for service in core.list_namespaced_service(NAMESPACE).items]
            wanted = sorted(instance.id for instance in made), [WANTED], ["echo"]
            found = owners, replicas, services
            return "" if found == wanted else f"{found}, not {wanted}"

        await until_nothing(settled, moment)
        assert listener.gone == {}
    finally:
        await platform.stop()
        api.close()
    await asyncio.to_thread(apps.delete_collection_namespaced_deployment, NAMESPACE, propagation_policy="Foreground")

    await until_nothing(lambda: ", ".join(left(breakable.cluster)), moment)


async def until_nothing(amiss: Any, moment: int) -> None:
    """Return when nothing is amiss."""
    for _ in range(600):
        found = await asyncio.to_thread(amiss)
        if not found:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"killed before write {moment}: {found}")


ROUNDS = 3


async def test_a_frozen_leader_writes_nothing_after_its_successor(control_plane: Cluster) -> None:
    """`python -m benchmarks.kubernetes leader` does the same 200 times, and without the guards, where writes are late."""
    name = f"leading-{secrets.token_hex(3)}"
    found = await asyncio.gather(*(chain(control_plane.kubeconfig, f"{name}-{seed}", ROUNDS, seed) for seed in (1, 2)))
    for tally in found:
        assert tally.rounds == ROUNDS
        assert tally.writes > ROUNDS
        assert (tally.late, tally.unnoticed) == (0, 0)
        assert tally.ended == ROUNDS


__all__ = ["pods"]

SYSTEM = "knative-serving"
LEADS = b"Gnomon scales Revisions of the class gnomon. Ctrl-C stops it.\n"
TAKEOVER_S = 90.0
OCTET = 97
"""Nobody else's loopback addresses."""


@pytest.fixture
def knative_kinds(own_plane: Cluster, compiled: build.Programs) -> Cluster:
    install_kinds(own_plane, compiled, *KINDS)
    return own_plane


@pytest.fixture
def knative(knative_kinds: Cluster) -> Iterator[PlayedKnative]:
    """Where the installed class looks for Knative's system."""
    played = PlayedKnative(knative_kinds, "users", SYSTEM, OCTET)
    played.start()
    yield played
    played.stop()


@contextlib.asynccontextmanager
async def candidate(kubeconfig: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A replica of the class."""
    gnomon = Path(sys.executable).with_name("gnomon")
    arguments = ["serve", "--platform", "knative", "--kubeconfig", str(kubeconfig), "--port", "0"]
    process = await asyncio.create_subprocess_exec(gnomon, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 60.0)


async def leads(process: asyncio.subprocess.Process) -> None:
    """Return when it does."""
    assert process.stdout is not None
    async with asyncio.timeout(TAKEOVER_S):
        assert await process.stdout.readline() == LEADS


async def test_nothing_is_lost_and_the_next_one_wakes_what_waits(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods
) -> None:
    grace(knative_kinds, knative)
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(candidate(knative_kinds.kubeconfig))
        await leads(first)
        second = await stack.enter_async_context(candidate(knative_kinds.kubeconfig))
        gateway = await stack.enter_async_context(serving(knative_kinds, knative))
        for name in ("busy-00001", "asleep-00001"):
            knative.revision(name, BATCHES, env=ENV)
        busy, asleep = [
            await stack.enter_async_context(ingress(gateway, knative, name)) for name in ("busy-00001", "asleep-00001")
        ]
        users = Users(busy, "/", word="slow ")
        calling = asyncio.create_task(users.keep_asking())
        # Sixteen that always wait, of 10 a pod at 70 %.
        await until(lambda: knative.replicas("busy-00001") == 3, "three pods")
        await until(lambda: knative.replicas("asleep-00001") == 0, "none")

        first.kill()
        assert await first.wait() == -signal.SIGKILL
        bodies = [b"%d" % number for number in range(8)]
        woken = asyncio.create_task(all_of(asleep, bodies))
        await users.more(100)
        await leads(second)
        assert await woken == [(200, body) for body in bodies]
        await users.more(100)
        assert knative.replicas("busy-00001") >= 2, "the next one goes on with what there is"
        users.end()
        await calling
        assert users.wrong_answers == []
        await until(lambda: knative.replicas("busy-00001") < 2, "it follows the load")
    assert all(path == "/gnomon/batch" for path, _ in pods.seen)
