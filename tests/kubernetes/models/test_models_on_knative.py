"""Bodies, their cores and their Shadows on Knative, under a real kubelet, with all that deploy/knative-models installs.

Each service is asked by way of the ingress and the gateway's pods. One node with two cores has all of it: a Body asks for a tenth
of a core and may use one, its Shadow has the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes import client

from benchmarks.shadow.models import StoredModel
from gnomon_cli.commands.run import photograph_path
from gnomon_profiler.measuring.store import ProfileStore
from tests.cluster import build, envoy
from tests.cluster.client import Cluster, Kubectl, until
from tests.cluster.knative import SERVING
from tests.cluster.phases import CannotBeHad
from tests.cluster.settings import INTERFACE, NODE_ADDRESS
from tests.kubernetes.installation.test_doctor_on_kubernetes import examine
from tests.kubernetes.measured import MAX_BATCH, SLOWER, measured_s, profile_of
from tests.kubernetes.models.conftest import MODEL
from tests.kubernetes.models.ksvcs import K, Ksvc
from tests.kubernetes.models.on_knative import Installed, installed

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
LABEL, CALLERS = "espresso", 8
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def sample_s(models: Path, network: StoredModel) -> Iterator[float]:
    """How long the network takes for a sample; the installation knows a profile of it."""
    found = measured_s(network.entry.program, network.entry.weights)
    profile = profile_of(network.reference, network.layers, SLOWER * found)
    file = ProfileStore(models).put(network.reference, "here", profile)
    try:
        yield found
    finally:
        shutil.rmtree(file.parent)


@pytest.fixture(scope="module")
def on(
    cluster: Cluster,
    compiled: build.Programs,
    models: Path,
    sample_s: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installed]:
    if not Path("/sys/class/net", INTERFACE).exists():
        pytest.skip("pods of this cluster have no way from here: make cluster boots one that has")
    kubectl = Kubectl(compiled.folder / "kubectl", cluster.kubeconfig)
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(installed(cluster, kubectl, models, tmp_path_factory.mktemp("overlay")))
        except CannotBeHad as reason:
            pytest.skip(str(reason))
        yield found


class Callers:
    """Clients who ask for the same photograph again and again, each as soon as it has its answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._photograph = photograph_path().read_bytes()
        self._ended = False
        self.answers: Counter[str] = Counter()

    async def once(self) -> str:
        """The label of the photograph, or the error."""
        try:
            async with self._session.post(self._url, data=self._photograph) as answer:
                said = await answer.text()
                return str((await answer.json(content_type=None))["label"]) if answer.status == 200 else said
        except aiohttp.ClientError as error:
            return repr(error)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(self._call_on())

    def end(self) -> None:
        self._ended = True

    async def more(self, count: int) -> None:
        """Return when so many more have been answered."""
        goal = self.answers.total() + count
        async with asyncio.timeout(LIMIT_S):
            while self.answers.total() < goal:  # noqa: ASYNC110 - a counter of many tasks
                await asyncio.sleep(0.05)

    async def _call_on(self) -> None:
        while not self._ended:
            self.answers[await self.once()] += 1


async def eventually(holds: Callable[[], Any], what: str) -> Any:
    """Wait beside the event loop."""
    return await asyncio.to_thread(until, holds, what, LIMIT_S)


@contextlib.asynccontextmanager
async def served(ksvc: Ksvc) -> AsyncIterator[Callers]:
    """The service, Ready, and whoever asks it by way of the ingress. It goes with its namespace."""
    on = ksvc.on
    host = {"Host": f"{ksvc.name}.{on.namespace}.svc.cluster.local"}
    with tempfile.TemporaryDirectory() as folder, envoy.ingress(on.cluster, Path(folder), NODE_ADDRESS):
        await asyncio.to_thread(ksvc.create, ksvc.document(MODEL, envoy.CLASS))
        await eventually(lambda: ksvc.ready, f"{ksvc.name} to be Ready")
        patience = aiohttp.ClientTimeout(total=LIMIT_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=host, timeout=patience) as session:
            yield Callers(session, f"http://{NODE_ADDRESS}/")


def bursty(sample_s: float) -> dict[str, str]:
    """Within the objective, six samples' time, a Body does not answer as many as ask, and has a Shadow where it can."""
    return {
        K + "window": "8s",
        "gnomon/autoscaler": "asyfunc",
        "gnomon/max-batch": str(MAX_BATCH),
        "gnomon/slo-ms": str(round(6000 * sample_s)),
        "gnomon/deadline-ms": "60000",
    }


async def test_without_the_feature_bodies_work_alone_and_condition_event_and_doctor_say_why(
    on: Installed, sample_s: float
) -> None:
    found = (await asyncio.to_thread(examine, on.cluster.kubeconfig, platform="knative"))[0]["Knative's volumes"]
    assert found["level"] == "warn"
    assert "kubernetes.podspec-volumes-csi" in found["message"]
    refused = Ksvc(on, "refused", bursty(sample_s), mounted=True).document(MODEL, "nobodys")
    with pytest.raises(client.ApiException, match="CSI volume support is disabled"):
        await asyncio.to_thread(on.cluster.custom.create_namespaced_custom_object, *SERVING, on.namespace, "services", refused)  # type: ignore[call-arg]

    alone = Ksvc(on, "alone", bursty(sample_s))
    async with served(alone) as callers:
        assert await callers.once() == LABEL
        said = await eventually(lambda: alone.said("Shadows"), "the condition")
        assert (said["status"], said["reason"]) == ("False", "VolumesDisabled")
        assert alone.said("Ready")["status"] == "True", "it only informs"
        [event] = await eventually(lambda: alone.events("BodiesAlone"), "the Event")
        assert event == said["message"]
        assert "this Body works without Shadows" in alone.log()


async def test_a_body_gets_a_shadow_of_its_nodes_pool_under_load_and_gives_it_back(on: Installed, sample_s: float) -> None:
    await asyncio.to_thread(on.allow_volumes, "enabled")
    pair = Ksvc(on, "pair", bursty(sample_s), mounted=True)
    async with served(pair) as callers:
        assert await callers.once() == LABEL
        await eventually(lambda: pair.said("Shadows").get("status") == "True", f"Shadows: {pair.said('Shadows')}")
        assert "works with the coordinator of its node" in pair.log()

        calling = asyncio.create_task(callers.run())
        await eventually(on.shadows, "a Shadow")
        await eventually(lambda: on.gateways.figures()["gnomon_offloaded_samples_total"] >= 20, "batches that both share")
        await eventually(lambda: on.pool_cpu() == "1100m", "the scheduler's accounts to follow")
        # Its coordinator is killed: the Body answers on, and gets another from the next one.
        killed = await eventually(on.shadows, "a Shadow still")
        await asyncio.to_thread(on.kill_coordinator)
        await eventually(lambda: on.shadows() - killed, "another Shadow")
        await callers.more(50)
        callers.end()
        await calling
        assert set(callers.answers) == {LABEL}, callers.answers
        said = pair.said("ScalingPolicy")
        assert (said["reason"], "not measured" in said["message"]) == ("asyfunc", False)
        await eventually(lambda: not on.shadows(), "it to go")
        await eventually(lambda: on.pool_cpu() == "100m", "what it had to be free again")
        assert await callers.once() == LABEL
        assert pair.body.restart_count == 0
    found = (await asyncio.to_thread(examine, on.cluster.kubeconfig, platform="knative"))[0]["Knative's volumes"]
    assert found["level"] == "ok"


async def test_a_body_has_its_cores_in_place_before_its_first_batch(on: Installed) -> None:
    """Half a core by the template, and one as its Revision says; beside it a queue-proxy, which keeps what it has."""
    sized = Ksvc(on, "sized", {"gnomon/cores": "1", "gnomon/max-batch": str(MAX_BATCH)}, cores="500m")
    async with served(sized) as callers:
        assert await callers.once() == LABEL
        first = await asyncio.to_thread(lambda: sized.pod)
        given = sized.body
        assert (given.resources.limits["cpu"], given.restart_count) == ("1", 0)
        calling = asyncio.create_task(callers.run())
        await callers.more(40)
        callers.end()
        await calling
        assert set(callers.answers) == {LABEL}, callers.answers
        assert sized.pod.metadata.uid == first.metadata.uid
        assert [container.restart_count for container in sized.pod.status.container_statuses] == [0, 0]
    assert "could not be set to" not in await asyncio.to_thread(on.gateways.logs), "its process knows of them"
