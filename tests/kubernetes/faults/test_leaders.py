"""A leader that is killed between two writes, or frozen: nothing is lost or doubled, nor written after its successor."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import secrets
import signal
from typing import Any

import pytest

from benchmarks.kubernetes.leader import chain
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from tests.cluster.client import Cluster
from tests.contracts.test_platform import instance_of
from tests.kubernetes.faults import dying
from tests.kubernetes.faults.conftest import NAMESPACE, Breakable, left
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
