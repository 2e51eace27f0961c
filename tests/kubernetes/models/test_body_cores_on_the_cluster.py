"""A real kubelet gives a Body's pod a second core and takes it back, while batch after batch is answered."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from benchmarks.kubernetes.pods import Ground, Pods, pods_on
from benchmarks.shadow.models import StoredModel
from benchmarks.shadow.node import Serving
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
PATIENCE_S = 120.0
CORES = 2


def cores(pods: Pods, body: Serving) -> int:
    [instance] = pods.platform.instances(body.instance.function)
    return instance.cores


def free_cores(pods: Pods) -> float:
    return max(node.free_cores for node in pods.platform.nodes())


async def answers(pods: Pods, body: Serving, wanted: int) -> None:
    """Return when the platform counts on so many cores, and some batches have been answered since."""
    await until(lambda: cores(pods, body) == wanted, f"its pod has {cores(pods, body)} cores", PATIENCE_S)
    answered = len(body.served)
    await until(lambda: body.failed() or len(body.served) > answered + 5, "nothing is answered", PATIENCE_S)
    if (error := body.failed()) is not None:
        raise error


async def test_a_body_gets_a_core_and_gives_it_back_while_it_serves(
    bare_ground: Ground, network: StoredModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gnomon.openfaas")
    async with pods_on(bare_ground) as pods:
        if max(node.cores for node in pods.platform.nodes()) < CORES:
            pytest.skip(f"no node has {CORES} cores")
        # Pods of tests that ran before may be about to go.
        end_s = time.monotonic() + PATIENCE_S
        await until(lambda: free_cores(pods) >= CORES or time.monotonic() > end_s, limit_s=2 * PATIENCE_S)
        if free_cores(pods) < CORES:
            pytest.skip(f"no node has {CORES} cores that nobody asks for, but {free_cores(pods):g}")
        body = await pods.serving(pods.function(network, "grows"), network, 4)
        asked = body.asked
        body.begin()
        for wanted in (CORES, 1):
            await pods.platform.resize(body.instance.id, wanted)
            await answers(pods, body, wanted)
            pod = await asyncio.to_thread(bare_ground.pod_of, body.instance.id)
            assert pod.spec.containers[0].resources.limits["cpu"] == str(wanted)
            assert pod.status.container_statuses[0].restart_count == 0
        await body.end()
        assert body.asked - asked == len(body.served)
        # Its process was told each time.
        assert not [line for line in caplog.messages if "was not told" in line]
        await pods.end(body.instance.id)
