"""What a process of the ingress class tells of itself, of its HAProxy and of the API server, on a real one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from deploy.test_cluster.clusters import Cluster
from gnomon_platforms.knative.ingress.model import ingress
from gnomon_platforms.knative.ingress.proxy import MASTER_SOCKET
from gnomon_platforms.knative.ingress.runtime_api import Master
from tests.kubernetes.knative_ingress.conftest import LIMIT_S, Ingresses
from tests.kubernetes.knative_ingress.processes import ingress_process


@pytest.fixture
async def user() -> AsyncIterator[aiohttp.ClientSession]:
    """Whoever asks at the page."""
    with tempfile.TemporaryDirectory(prefix="gnomon-") as folder:
        async with aiohttp.ClientSession("http://page", connector=aiohttp.UnixConnector(f"{folder}/page.sock")) as session:
            yield session


async def get(user: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with user.get(path) as answer:
        return answer.status, await answer.text()


async def figures(user: aiohttp.ClientSession) -> dict[str, float]:
    status, text = await get(user, "/metrics")
    assert status == 200
    samples = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


async def test_it_tells_that_it_is_well_what_it_serves_and_how_it_gets_on(
    ingress_kind: Cluster, own_namespace: str, haproxy: None, user: aiohttp.ClientSession, tmp_path: Path
) -> None:
    assert isinstance(user.connector, aiohttp.UnixConnector)
    of_class, program = f"class-{own_namespace}", tmp_path / "haproxy"
    program.symlink_to(shutil.which("haproxy") or "")
    given = (f"--ingress-class={of_class}", f"--namespace={own_namespace}", f"--haproxy={program}")
    async with ingress_process(ingress_kind.kubeconfig, *given, f"--page=unix@{user.connector.path}") as process:
        ingresses = Ingresses(ingress_kind, own_namespace, of_class, process.binds)
        await asyncio.to_thread(ingresses.service, "a", "192.0.2.1")
        one = await asyncio.to_thread(ingresses.put, "one", "a")
        await ingresses.ready("one")
        assert await get(user, "/healthz") == (200, "OK")
        told = await figures(user)
        assert (told["gnomon_leading"], told["gnomon_ingress_served"], told["gnomon_ingress_refused"]) == (1.0, 1.0, 0.0)
        assert told["gnomon_ingress_reloads_total"] >= 1.0
        assert told["gnomon_kubernetes_silence_seconds"] < 90.0
        patched = 'gnomon_kubernetes_requests_total{outcome="200",resource="ingresses/status",verb="PATCH"}'
        assert told[patched] >= 1.0
        assert "haproxy_process_current_connections" in told, "they are beside its own"

        # HAProxy dies, and cannot be begun again.
        program.unlink()
        master = (await Master(process.proxy / MASTER_SOCKET).workers()).master
        assert master is not None
        os.kill(master, signal.SIGKILL)
        await until_well(user, 503)
        told = await figures(user)
        assert (told["gnomon_leading"], "haproxy_process_current_connections" in told) == (1.0, False)
        program.symlink_to(shutil.which("haproxy") or "")
        await until_well(user, 200)
        await ingresses.serves("one", ingress(one).hash)


async def until_well(user: aiohttp.ClientSession, status: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await get(user, "/healthz"))[0] != status:  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.05)


async def test_a_page_that_cannot_be_had_is_said(
    ingress_kind: Cluster, own_namespace: str, haproxy: None, tmp_path: Path
) -> None:
    del own_namespace
    async with ingress_process(ingress_kind.kubeconfig, "--alone", f"--page=unix@{tmp_path}/nowhere/page.sock") as process:
        # Nobody ends it.
        assert await process.end(0) == 1
