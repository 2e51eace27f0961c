"""The API server is away while a Revision is served through the gateway: requests go on, then all of it follows.

    users ─▶ gateway ─▶ pods        the autoscaler class asks both, and cannot write

No part of it is started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from benchmarks.kubernetes.pods import Plane, booted
from tests.cluster import build
from tests.cluster.client import Cluster, reached
from tests.kubernetes.faults.conftest import answers
from tests.kubernetes.faults.test_server_away import AWAY_S, SOAK_S, Breaking, frozen, killed
from tests.kubernetes.kinds import install_kinds
from tests.kubernetes.knative_autoscaler.conftest import KINDS, knative, played_as
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import K, running, until
from tests.kubernetes.knative_batching.conftest import ENV, Pods, pods
from tests.kubernetes.knative_batching.test_serving_revisions import BATCHES, annotate, ingress, largest, serving
from tests.kubernetes.knative_batching.users import Users

__all__ = ["knative", "played_as", "pods"]

REVISION = "f-00001"
SERVED = 20
"""So many requests show that serving goes on."""


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
