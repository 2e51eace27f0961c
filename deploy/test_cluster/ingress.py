"""Our ingress class beside the cluster: HAProxy and its controller as processes of the machine, on the cluster's own address.

    :80 and :443  what the Service gnomon-ingress leads to        :8081  what gnomon-ingress-local leads to

It needs root for the two ports, and Debian's haproxy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from deploy.test_cluster import cluster
from deploy.test_cluster.phases import CannotBeHad, Trouble
from deploy.test_cluster.settings import HERE, NODE_ADDRESS

NAMESPACE, SERVICE = "gnomon-ingress-test", "gnomon-ingress"
TESTS_NAMESPACE = "serving-tests"
START_S = 60.0
GONE_S = 180.0


def check() -> None:
    """Refuse where something is missing for it.

    Raises:
        CannotBeHad: with what is missing.

    """
    if os.geteuid():
        raise CannotBeHad("ports 80 and 443 of the cluster's address need root")
    if shutil.which("haproxy") is None:
        raise CannotBeHad("there is no haproxy here: apt-get install haproxy")


@contextmanager
def ingress(running: cluster.Running, folder: Path, log: Path) -> Iterator[None]:
    """Our ingress class on the node, with the Services that lead to it and the tests' namespace; gone afterwards."""
    names = [f"namespace/{name}" for name in (NAMESPACE, TESTS_NAMESPACE)]
    # Of a run that has just ended, they may be ending still.
    running.kubectl("wait", "--for=delete", f"--timeout={GONE_S:.0f}s", *names, limit_s=2 * GONE_S + 10.0)
    text = (HERE / "manifests" / "ingress.yaml").read_text().replace("ADDRESS", NODE_ADDRESS)
    running.kubectl.apply(list(yaml.safe_load_all(text)))
    balancer = f'{{"status":{{"loadBalancer":{{"ingress":[{{"ip":"{NODE_ADDRESS}"}}]}}}}}}'
    running.kubectl("patch", "service", SERVICE, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", balancer)
    binds = {"http": 80, "https": 443, "local": 8081}
    options = [f"--{name}={NODE_ADDRESS}:{port}" for name, port in binds.items()]
    options += [
        f"--folder={folder}",
        f"--namespace={NAMESPACE}",
        f"--kubeconfig={running.folders.kubeconfig}",
        "--alone",
        "--drain=2",
    ]
    with log.open("w") as stream:
        command = [sys.executable, "-m", "gnomon_platforms.knative.ingress", *options]
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
    try:
        _until_serving(process, folder, log)
        yield
    finally:
        process.terminate()
        process.wait(30)
        running.kubectl("delete", *names, "--wait=false", "--ignore-not-found")


def _until_serving(process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while not (folder / "master.sock").exists():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise Trouble(f"the ingress does not start: {log.read_text()[-1000:]}")
        time.sleep(0.1)
