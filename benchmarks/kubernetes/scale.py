"""The cost of a controller with 1,000 functions on 200 nodes, and the time it takes to decide for all of them.

    python -m benchmarks.kubernetes.scale [--quick] [--functions 1000] [--nodes 200]

A real etcd and apiserver; nodes and pods are kwok's, and one small server at the address of all pods says that they are well.
What an earlier controller would have left is put there at once: for each function a Deployment, what belongs to it, and a pod.
The controller (`controller`) is a process of its own. Steady: each function has one instance; idle, one in twenty gets requests,
and busy, each of them does.
Deciding: a leader takes over with the state of the one before it, asks the policy of each function, and finds that 5 % need a
second instance; the time ends when the API server has shown the last of these Deployments with its new number. All of this
shares the machine's cores.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.kubernetes.controller import NAMESPACE, VERSION, spec
from benchmarks.kubernetes.pods import Plane, booted
from benchmarks.programs import ROOT, ProgramFailedError, ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, measured, write
from gnomon_platforms.kubernetes.objects.manifests import batch_token, deployment, disruption_budget, owned_by, service
from gnomon_platforms.kubernetes.objects.names import DELETION_COST, INSTANCE_ANNOTATION, PORT
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions

FUNCTIONS, NODES, REPEATS, STEADY_S = 1000, 200, 5, 30.0
QUICK_FUNCTIONS, QUICK_NODES, QUICK_REPEATS, QUICK_STEADY_S = 60, 20, 2, 10.0
MAX_PASS_S, MAX_IDLE_PERCENT, MAX_BUSY_PERCENT, MAX_MB = 1.0, 5.0, 10.0, 300.0
LIMIT_S = 900.0
PODS_AT = "127.77.0.1"


class Well(BaseHTTPRequestHandler):
    """Every pod: it is well."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Pods(ThreadingHTTPServer):
    """A thousand pods at one address."""

    daemon_threads = True
    request_queue_size = 1024


@contextlib.contextmanager
def pods() -> Iterator[None]:
    """A server that answers at the address of all pods."""
    server = Pods((PODS_AT, PORT), Well)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def deployed(functions: int) -> list[dict[str, Any]]:
    """The Deployments of so many functions with one instance each."""
    return [deployment(spec(number), VERSION, PodOptions(), replicas=1) for number in range(functions)]


def belongings(found: dict[str, Any], nodes: int) -> Iterator[dict[str, Any]]:
    """The objects of these Deployments, as a controller leaves them."""
    for number, owner in enumerate(found["items"]):
        function = spec(number)
        template = owner["spec"]["template"]
        annotations = {INSTANCE_ANNOTATION: f"{function.key.name}-1", DELETION_COST: "1000"}
        labels = template["metadata"]["labels"]
        metadata = {"name": f"{function.key.name}-1", "namespace": NAMESPACE, "labels": labels, "annotations": annotations}
        pod = {**template["spec"], "nodeName": f"fake-{number % nodes}"}
        for manifest in (batch_token(function.key, "t0ken"), service(function), disruption_budget(function)):
            yield owned_by(manifest, owner)
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def create(plane: Plane, items: list[dict[str, Any]]) -> None:
    """Create all objects at once."""
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    plane.kubectl("create", "-f", "-", given=json.dumps(listed), limit_s=LIMIT_S)


def measure(plane: Plane, functions: int, nodes: int, repeats: int, steady_s: float) -> dict[str, Any]:
    """Run the controller; what it has measured of itself."""
    plane.kubectl("create", "namespace", NAMESPACE)
    plane.kubectl("create", "serviceaccount", "default", "-n", NAMESPACE)
    # Every node is born with it, and a controller that is not here would take it away.
    plane.kubectl("taint", "nodes", "--all", "node.kubernetes.io/not-ready:NoSchedule-")
    step("what runs already")
    create(plane, deployed(functions))
    found = json.loads(plane.kubectl("get", "deployments", "-n", NAMESPACE, "-o", "json"))
    create(plane, list(belongings(found, nodes)))
    command = [sys.executable, "-m", "benchmarks.kubernetes.controller", str(plane.kubeconfig)]
    command += [str(functions), str(repeats), str(steady_s)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        raise ProgramFailedError(f"the controller ended with {done.returncode}")
    measured_: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured_


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--functions", type=int)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--steady", type=float, help="seconds")
    given = parser.parse_args(arguments)
    pace = pace_of(given)
    functions = given.functions or (QUICK_FUNCTIONS if pace.quick else FUNCTIONS)
    nodes = given.nodes or (QUICK_NODES if pace.quick else NODES)
    repeats, steady_s = (QUICK_REPEATS, QUICK_STEADY_S) if pace.quick else (REPEATS, STEADY_S)
    steady_s = given.steady or steady_s
    with pods(), booted(nodes=nodes, pods_at=PODS_AT) as plane:
        step(f"{functions} functions on {nodes} nodes")
        found = measure(plane, functions, nodes, repeats, steady_s)
    shown = figures(found, functions, nodes)
    write("kubernetes_scale", shown, repeats=repeats, packages=("gnomon", "kubernetes"), folder=pace.results)


def figures(found: dict[str, Any], functions: int, nodes: int) -> list[Figure]:
    """The published figures."""
    passes, idle, busy = found["passes"], found["idle"], found["busy"]
    changed, decided = passes[0]["changed"], min(row["decided"] for row in passes)
    detail = f"{functions} functions on {nodes} nodes; {decided} decided, {changed} written; waits for its own core, too"
    return [
        measured("decide_all_and_write", [row["written_s"] for row in passes], "s", at_most=MAX_PASS_S, detail=detail),
        measured("decide_all_and_write_core", [row["cpu_s"] for row in passes], "s", detail="the controller's own time"),
        measured(
            "steady_core",
            [100 * idle["core_share"]],
            "%",
            at_most=MAX_IDLE_PERCENT,
            detail=f"of one core in {idle['seconds']:.0f} s, requests for {functions // 20} functions",
        ),
        measured(
            "busy_core",
            [100 * busy["core_share"]],
            "%",
            at_most=MAX_BUSY_PERCENT,
            detail=f"of one core in {busy['seconds']:.0f} s, requests for all functions",
        ),
        measured("idle_memory", [idle["resident_bytes"] / 1e6], "MB", detail=f"requests for {functions // 20} functions"),
        measured(
            "memory",
            [found["resident_bytes"] / 1e6],
            "MB",
            at_most=MAX_MB,
            detail=f"resident, after requests for all functions and all else; at most {found['peak_bytes'] / 1e6:.0f} MB",
        ),
        measured("take_over", [found["taking_over_s"]], "s", detail="from its start until each function's pod was adopted"),
    ]


if __name__ == "__main__":
    ended_well(main)
