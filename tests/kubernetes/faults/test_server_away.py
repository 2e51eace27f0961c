"""The API server is away: instances and Revisions serve on, none is taken for gone, and decisions are carried out afterwards.

    users ─▶ gateway ─▶ pods        the autoscaler class asks both, and cannot write

No part of it is started anew."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest

from benchmarks.kubernetes.pods import Plane, booted
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from tests.cluster import build
from tests.cluster.client import Cluster, reached
from tests.contracts.test_platform import deployment, instance_of
from tests.kubernetes.faults.conftest import Breakable, answers
from tests.kubernetes.faults.serving import load
from tests.kubernetes.kinds import install_kinds
from tests.kubernetes.knative_autoscaler.conftest import KINDS, knative, played_as
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import K, running, until
from tests.kubernetes.knative_batching.conftest import ENV, Pods, pods
from tests.kubernetes.knative_batching.test_serving_revisions import BATCHES, annotate, ingress, largest, serving
from tests.kubernetes.knative_batching.users import Users
from tests.platform_testing import Recorder

AWAY_S, SOAK_S = 4.0, 60.0
BACK_S = 150.0
SERVED = 20
"""So many batches or requests show that serving goes on."""
FUNCTION = "echo.openfaas-fn"


Breaking = Callable[[Plane, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Takes the server away for as long as this takes."""


async def frozen(plane: Plane, away: Callable[[], Awaitable[None]]) -> None:
    """Connections stay open, and silent."""
    process = plane.process("apiserver")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        await away()
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def killed(plane: Plane, away: Callable[[], Awaitable[None]]) -> None:
    """Connections break, new ones are refused; the next server remembers nothing of what was watched."""
    command = await asyncio.to_thread(plane.kill, "apiserver")
    try:
        await away()
    finally:
        plane.start("apiserver", command)


@pytest.mark.parametrize("breaking", [frozen, killed])
@pytest.mark.parametrize("away_s", [AWAY_S, pytest.param(SOAK_S, marks=pytest.mark.slow)])
async def test_serving_goes_on_and_decisions_are_carried_out_afterwards(
    breakable: Breakable, breaking: Breaking, away_s: float
) -> None:
    api = await asyncio.to_thread(connect, breakable.plane.kubeconfig)
    platform, listener = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0)), Recorder()
    await platform.start(listener)
    try:
        made = [await platform.create(instance_of(deployment())) for _ in range(3)]
        async with load() as sent:
            await listener.until(lambda: len(listener.ready) == len(made), BACK_S)
            for instance in made:
                sent.add(instance.id, listener.channels[instance.id])
            await sent.more(SERVED, BACK_S)

            async def away() -> None:
                await asyncio.sleep(away_s / 2)
                await sent.more(SERVED, BACK_S)
                # Decisions that cannot be written now.
                sent.left.add(made[0].id)
                await platform.destroy(made[0].id)
                made.append(await platform.create(instance_of(deployment())))
                await asyncio.sleep(away_s / 2)
                await sent.more(SERVED, BACK_S)
                assert listener.gone == {}

            await breaking(breakable.plane, away)
            await listener.until(lambda: made[3].id in listener.ready and made[0].id in listener.gone, BACK_S)
            assert listener.gone == {made[0].id: "stopped"}
            sent.add(made[3].id, listener.channels[made[3].id])
            await sent.more(SERVED, BACK_S)
        assert sent.lost == 0
        assert listener.times_gone == {made[0].id: 1}
        assert {instance.id for instance in platform.instances(FUNCTION)} == {instance.id for instance in made[1:]}
    finally:
        await platform.stop()
        api.close()


__all__ = ["knative", "played_as", "pods"]

REVISION = "f-00001"


@pytest.fixture(scope="module")
def planes(compiled: build.Programs) -> Iterator[tuple[Plane, Cluster]]:
    """A control plane without controllers, which Knative is played on. What a test breaks of it, it mends."""
    with booted() as plane:
        cluster = reached(plane.kubeconfig)
        install_kinds(cluster, compiled, *KINDS)
        yield plane, cluster
        cluster.api.close()


@pytest.fixture
def knative_kinds(planes: tuple[Plane, Cluster]) -> Cluster:
    return planes[1]


@pytest.mark.parametrize("breaking", [frozen, killed])
@pytest.mark.parametrize("away_s", [AWAY_S, pytest.param(SOAK_S, marks=pytest.mark.slow)])
async def test_requests_go_on_and_all_of_it_follows_again(
    planes: tuple[Plane, Cluster], knative: PlayedKnative, pods: Pods, breaking: Breaking, away_s: float
) -> None:
    plane, cluster = planes
    async with contextlib.AsyncExitStack() as stack:
        # It has no Lease: who leads is another question, and a leader that cannot renew ends.
        await stack.enter_async_context(running(cluster, knative, lease_namespace=None))
        gateway = await stack.enter_async_context(serving(cluster, knative))
        knative.revision(REVISION, {**BATCHES, K + "min-scale": "1"}, env=ENV)
        session = await stack.enter_async_context(ingress(gateway, knative, REVISION))
        few, many = Users(session, "/", callers=4), Users(session, "/", word="slow ")
        calling = [asyncio.create_task(few.keep_asking())]
        await few.more(SERVED)
        assert knative.replicas(REVISION) == 1

        async def away() -> None:
            await asyncio.sleep(away_s / 2)
            await few.more(SERVED)
            # More pods are wished for, and cannot be had.
            calling.append(asyncio.create_task(many.keep_asking()))
            await asyncio.sleep(away_s / 2)
            await few.more(SERVED)
            await many.more(SERVED)

        await breaking(plane, away)
        await until(lambda: answers(cluster, "default"), "the API server")
        await until(lambda: knative.replicas(REVISION) > 1, "the class follows the load")
        function = f"{REVISION}.{knative.namespace}"
        await until(lambda: len(gateway.platform.instances(function)) > 1, "the gateway follows pods")
        await asyncio.to_thread(annotate, cluster, knative, {"gnomon/max-batch": "3"})
        await until(lambda: largest(gateway, knative) == {3}, "the gateway follows Revisions")
        await many.more(SERVED)
        for users in (few, many):
            users.end()
        await asyncio.gather(*calling)
        assert [*few.wrong_answers, *many.wrong_answers] == []
    assert {path for path, _ in pods.seen} == {"/gnomon/batch"}
