"""A pretrained network in a real pod: it classifies a photograph, and has a Shadow from its node's pool."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.kubernetes.burst import HALF, shadow_of
from benchmarks.kubernetes.pods import Ground, Pods, pods_on
from benchmarks.shadow.models import StoredModel
from benchmarks.shadow.node import Serving
from gnomon_cli.commands.run import photograph_path
from gnomon_core.pairs import Pair
from tests.kubernetes.openfaas.gateways import GNOMON, ROOT, Gateway
from tests.waiting import eventually, until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


PATIENCE_S = 300.0
FUNCTION = "classify"


@pytest.fixture
def gateway(ground: Ground, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway as an operator starts it where functions' pods have models from a claim, and Shadows."""
    token = tmp_path / "token"
    token.write_text(ground.token)
    gateway_process = Gateway(ground.cluster.kubeconfig, tmp_path / "state", environment={"POD_NAMESPACE": ground.namespace})
    gateway_process.start(
        "--cluster-wide", "--models", str(ground.folder), "--models-claim", "models", "--coordinator-token", str(token)
    )
    yield gateway_process
    assert gateway_process.end() == 0


def test_the_photograph_is_classified_by_a_pod(ground: Ground, gateway: Gateway) -> None:
    command = [*GNOMON, "deploy", "-g", gateway.url, "-f", str(ROOT / "stack.yml"), "--filter", FUNCTION]
    named = {**os.environ, "GNOMON_BODY_IMAGE": ground.images.body}
    done = subprocess.run(
        [*command, "--namespace", ground.namespace], env=named, capture_output=True, text=True, check=False, cwd=gateway.state
    )
    assert done.returncode == 0, done.stderr
    name = f"{FUNCTION}.{ground.namespace}"
    eventually(lambda: gateway.status(name).get("availableReplicas") == 1, "no pod serves", PATIENCE_S)
    answer = gateway.call("POST", f"/function/{name}", photograph_path().read_bytes())
    assert (answer.status, json.loads(answer.data)["label"]) == (200, "espresso")

    [pod] = ground.pods()
    [container] = pod.status.container_statuses
    assert (container.restart_count, container.image) == (0, ground.images.body)
    said = ground.cluster.core.read_namespaced_pod_log(pod.metadata.name, ground.namespace)
    assert "works with the coordinator of its node" in said
    gateway.call("DELETE", "/system/functions", {"functionName": FUNCTION, "namespace": ground.namespace})
    eventually(lambda: not ground.pods(), "its pod stays", PATIENCE_S)


async def test_a_pod_has_a_shadow_from_its_nodes_pool(ground: Ground, network: StoredModel) -> None:
    """The Body's answers with its Shadow are those that it gives alone: `Serving.ask` compares them."""
    blocks = tuple(number for number, block in enumerate(network.layers.blocks) if block.splittable)
    async with pods_on(ground) as pods:
        body = await pods.serving(pods.function(network, "pair", HALF), network, 4)
        assert not (await body.ask()).hand_overs

        shadow = await shadow_of(pods, body, Pair(1, blocks, (0, 1, 1, 2)))
        assert (await body.ask()).hand_overs
        await pods.end(shadow.id)
        assert not (await body.ask()).hand_overs

        pod = await asyncio.to_thread(ground.pod_of, body.instance.id)
        assert pod.status.container_statuses[0].restart_count == 0
        await pods.end(body.instance.id)


RESIZE_PATIENCE_S = 120.0
CORES = 2


def cores(pods: Pods, body: Serving) -> int:
    [instance] = pods.platform.instances(body.instance.function)
    return instance.cores


def free_cores(pods: Pods) -> float:
    return max(node.free_cores for node in pods.platform.nodes())


async def answers(pods: Pods, body: Serving, wanted: int) -> None:
    """Return when the platform counts on so many cores, and some batches have been answered since."""
    await until(lambda: cores(pods, body) == wanted, f"its pod has {cores(pods, body)} cores", RESIZE_PATIENCE_S)
    answered = len(body.served)
    await until(lambda: body.failed() or len(body.served) > answered + 5, "nothing is answered", RESIZE_PATIENCE_S)
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
        end_s = time.monotonic() + RESIZE_PATIENCE_S
        await until(lambda: free_cores(pods) >= CORES or time.monotonic() > end_s, limit_s=2 * RESIZE_PATIENCE_S)
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
