"""The autoscaler class that leads is killed: what serves serves on, and what waits at zero is woken by the next one.

two `gnomon serve --platform knative` ▶ one leads ▶ killed ▶ its Lease runs out ▶ the other one sees what waits, and the load
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster import build
from tests.cluster.client import Cluster
from tests.kubernetes.kinds import install_kinds
from tests.kubernetes.knative_autoscaler.conftest import KINDS
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import grace, until
from tests.kubernetes.knative_batching.conftest import ENV, Pods, pods
from tests.kubernetes.knative_batching.test_serving_revisions import BATCHES, all_of, ingress, serving
from tests.kubernetes.knative_batching.users import Users

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
