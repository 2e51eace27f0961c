"""Other cores in place while batches flow: none is lost, nothing restarts, and the process uses as many threads as cores."""

from __future__ import annotations

import asyncio

from gnomon_core.interfaces import BatchChannel
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_platforms.testing import Recorder, answers, request_frame, send
from tests.contracts.test_platform import deployment, instance_of
from tests.kubernetes.faults.conftest import NAMESPACE, Breakable

LIMIT_S = 30.0


async def threads(channel: BatchChannel) -> int:
    """The number of cores that the process was last set to use."""
    [(status, said)] = answers(await send(channel, request_frame(b"", meta=b"POST\n/cores\n\n")))
    assert status == 200
    return int(said)


async def test_threads_follow_cores_and_no_batch_is_lost(breakable: Breakable) -> None:
    api = await asyncio.to_thread(connect, breakable.plane.kubeconfig)
    platform, listener = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0)), Recorder()
    await platform.start(listener)
    try:
        instance = await platform.create(instance_of(deployment(annotations={"gnomon/cores": "1"})))
        channel = await listener.channel(instance.id)
        seen = [await threads(channel)]
        for cores in (2, 4, 1):
            await platform.resize(instance.id, cores)
            async with asyncio.timeout(LIMIT_S):
                while seen[-1] != cores:
                    seen.append(await threads(channel))
            async with asyncio.timeout(LIMIT_S):
                while platform.instances(instance.function)[0].cores != cores:
                    seen.append(await threads(channel))
        # Each change is seen once, and fewer threads come before fewer cores.
        assert [now for before, now in zip([0, *seen], seen, strict=False) if now != before] == [1, 2, 4, 1]
        assert listener.gone == {}
        [pod] = (await asyncio.to_thread(breakable.cluster.core.list_namespaced_pod, NAMESPACE)).items
        assert pod.status.container_statuses[0].restart_count == 0
        assert pod.spec.containers[0].resources.limits["cpu"] == "1"
    finally:
        await platform.stop()
        api.close()


async def test_pod_uses_the_cores_it_starts_with(breakable: Breakable) -> None:
    api = await asyncio.to_thread(connect, breakable.plane.kubeconfig)
    platform, listener = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0)), Recorder()
    await platform.start(listener)
    try:
        spec = deployment(annotations={"gnomon/cores": "1"})
        wide = instance_of(spec)
        instance = await platform.create(type(wide)(wide.spec, wide.version, 3, wide.node, wide.secrets))
        assert await threads(await listener.channel(instance.id)) == 3
    finally:
        await platform.stop()
        api.close()
