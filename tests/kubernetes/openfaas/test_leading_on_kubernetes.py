"""A leader that is frozen and comes back: nothing that it decided is accepted after its successor has acted."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from deploy.test_cluster.clusters import Cluster, until
from gnomon_platforms.kubernetes.api import connect
from gnomon_platforms.kubernetes.informer import Informer
from gnomon_platforms.kubernetes.leader import EXIT_STATUS
from gnomon_platforms.kubernetes.watching import Source
from tests.kubernetes.openfaas.leading_process import CONFIG_MAPS

ROUNDS = 3
PROGRAM = Path(__file__).with_name("leading_process.py")


def epoch_of(document: dict[str, Any]) -> int:
    return int((document.get("data") or {}).get("epoch", 0))


async def test_a_frozen_leader_writes_nothing_after_its_successor(controlled: Cluster) -> None:
    name = f"leading-{secrets.token_hex(3)}"
    controlled.core.create_namespace({"metadata": {"name": name}})
    controlled.core.create_namespaced_config_map(name, {"metadata": {"name": "written"}, "data": {}})
    informer = Informer(await asyncio.to_thread(connect, controlled.kubeconfig), Source(CONFIG_MAPS, name), epoch_of)
    await informer.start()
    epochs: list[int] = []
    informer.listen(lambda change: epochs.append(change.new or 0))

    def begin(identity: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(PROGRAM), str(controlled.kubeconfig), name, identity])

    def holder() -> str:
        found = controlled.custom.list_namespaced_custom_object("coordination.k8s.io", "v1", name, "leases")["items"]
        return str(found[0]["spec"]["holderIdentity"]) if found else ""

    processes = [begin("p0")]
    try:
        await asyncio.to_thread(until, lambda: holder() == "p0", "the first leader")
        for number in range(1, ROUNDS + 1):
            await informer.until(lambda: number in epochs, 60.0)  # noqa: B023 - it is called before the next round
            leading = processes[-1]
            processes.append(begin(f"p{number}"))
            leading.send_signal(signal.SIGSTOP)
            await informer.until(lambda: number + 1 in epochs, 60.0)  # noqa: B023 - as above
            leading.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(leading.wait, 60.0) == EXIT_STATUS
        await informer.resync()
        assert epochs == sorted(epochs)
        assert set(epochs) >= set(range(1, ROUNDS + 2))
    finally:
        for process in processes:
            process.kill()
            process.wait()
        await informer.stop()
        controlled.core.delete_namespace(name)
