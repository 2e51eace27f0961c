"""Which classes a cluster takes where a service names none: Knative's ConfigMaps, changed and changed back.

`kpa` is the stock autoscaler's class; for `gnomon`, the autoscaler runs beside the cluster for as long as it is the default.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.test_cluster import cluster
from deploy.test_cluster.client import Kubectl
from deploy.test_cluster.knative import NAMESPACE
from deploy.test_cluster.phases import Trouble

STOCK, GNOMON = "kpa", "gnomon"
CLASSES = {STOCK: "kpa.autoscaling.knative.dev", GNOMON: "gnomon"}
# As Knative's own runs have them: Routes of a domain that is not the cluster's own are public, and a Revision that does not start
# has failed after two minutes.
SURROUNDINGS = {
    "config-network": {"ingress-class": "gnomon"},
    "config-domain": {"example.com": ""},
    "config-deployment": {"progress-deadline": "120s"},
}
SERVES = "Gnomon scales Revisions"
START_S = 60.0
PUT_BACK_S = 120.0


@contextlib.contextmanager
def default_class(running: cluster.Running, name: str, namespace: str) -> Iterator[None]:
    """An autoscaler class as the default, and our ingress class; `gnomon` looks after the namespace only."""
    with contextlib.ExitStack() as stack:
        if name == GNOMON:
            log = running.folders.logs / "serving-conformance-gnomon.log"
            stack.enter_context(autoscaler(running.folders.kubeconfig, namespace, log))
        wanted = {**SURROUNDINGS, "config-autoscaler": {"pod-autoscaler-class": CLASSES[name]}}
        stack.enter_context(configured(running.kubectl, wanted))
        yield


@contextlib.contextmanager
def configured(kubectl: Kubectl, wanted: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """ConfigMaps of Knative with these values; as they were afterwards."""
    before: dict[str, dict[str, str | None]] = {}
    try:
        for name, values in wanted.items():
            data = json.loads(kubectl("get", "configmap", name, "-n", NAMESPACE, "-o", "json")).get("data") or {}
            before[name] = {key: data.get(key) for key in values}
            _patch(kubectl, name, values)
        yield
    finally:
        for name, old in before.items():
            _put_back(kubectl, name, old)


def _put_back(kubectl: Kubectl, name: str, values: Mapping[str, str | None]) -> None:
    """Knative's webhook is asked for each change, and may be away for a while on a machine that has much to do."""
    deadline_s = time.monotonic() + PUT_BACK_S
    while True:
        try:
            return _patch(kubectl, name, values)
        except Trouble:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(1.0)


def _patch(kubectl: Kubectl, name: str, values: Mapping[str, str | None]) -> None:
    kubectl("patch", "configmap", name, "-n", NAMESPACE, "--type=merge", "-p", json.dumps({"data": dict(values)}))


@contextlib.contextmanager
def autoscaler(kubeconfig: Path, namespace: str, log: Path) -> Iterator[None]:
    """`gnomon serve --platform knative` for one namespace."""
    options = ["--platform=knative", f"--namespace={namespace}", f"--kubeconfig={kubeconfig}", "--port=0", "--verbose"]
    with log.open("w") as stream:
        gnomon = Path(sys.executable).with_name("gnomon")
        process = subprocess.Popen([str(gnomon), "serve", *options], stdout=stream, stderr=subprocess.STDOUT)
    try:
        deadline_s = time.monotonic() + START_S
        while SERVES not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise Trouble(f"the autoscaler does not start: {log.read_text()[-1000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)
