"""How much a controller of 1,000 functions on 200 nodes costs, and how quickly it decides for all of them.

    python -m benchmarks.kubernetes.scale [--quick] [--functions 1000] [--nodes 200]

A real etcd, apiserver, controller manager and scheduler; nodes and pods are kwok's, and one small server at the address of all
pods says that they are well. The controller (`controller`) is a process of
its own. Steady: each function has one instance, one in twenty gets requests. Deciding: a leader takes over with the state of the
one before it, asks the policy of each function, and finds that 5 % need a second instance; the time ends when the API server has
shown the last of these Deployments with its new number. All of this shares the machine's cores.
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

from benchmarks.kubernetes.controller import NAMESPACE
from benchmarks.kubernetes.planes import Plane, booted
from benchmarks.pace import ROOT, pace_of, pace_parser, step
from benchmarks.programs import ProgramFailedError, ended_well
from benchmarks.report import Figure, measured, write
from gnomon_platforms.kubernetes.objects.names import PORT

FUNCTIONS, NODES, REPEATS, STEADY_S = 1000, 200, 5, 30.0
QUICK_FUNCTIONS, QUICK_NODES, QUICK_REPEATS, QUICK_STEADY_S = 60, 20, 2, 10.0
MAX_PASS_S, MAX_CORE_PERCENT, MAX_MB = 1.0, 5.0, 300.0
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
        """Nobody reads it."""


@contextlib.contextmanager
def pods() -> Iterator[None]:
    """What answers at the address of all pods."""
    server = ThreadingHTTPServer((PODS_AT, PORT), Well)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def measure(plane: Plane, functions: int, repeats: int, steady_s: float) -> dict[str, Any]:
    """Run the controller; what it has measured of itself."""
    plane.kubectl("create", "namespace", NAMESPACE)
    command = [sys.executable, "-m", "benchmarks.kubernetes.controller", str(plane.kubeconfig)]
    command += [str(functions), str(repeats), str(steady_s)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        raise ProgramFailedError(f"the controller ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


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
    with pods(), booted(controllers=True, nodes=nodes, pods_at=PODS_AT) as plane:
        step(f"{functions} functions on {nodes} nodes")
        found = measure(plane, functions, repeats, steady_s)
    shown = figures(found, functions, nodes)
    write("kubernetes_scale", shown, repeats=repeats, packages=("gnomon", "kubernetes"), folder=pace.results)


def figures(found: dict[str, Any], functions: int, nodes: int) -> list[Figure]:
    """What is published."""
    passes, steady = found["passes"], found["steady"]
    changed, decided = passes[0]["changed"], min(one["decided"] for one in passes)
    said = f"{functions} functions on {nodes} nodes; {decided} decided, {changed} written; waits for its own core, too"
    return [
        measured("decide_all_and_write", [one["written_s"] for one in passes], "s", at_most=MAX_PASS_S, detail=said),
        measured("decide_all_and_write_core", [one["cpu_s"] for one in passes], "s", detail="the controller's own time"),
        measured(
            "steady_core",
            [100 * steady["core_share"]],
            "%",
            at_most=MAX_CORE_PERCENT,
            detail=f"of one core in {steady['seconds']:.0f} s, requests for {functions // 20} functions",
        ),
        measured(
            "memory",
            [found["resident_bytes"] / 1e6],
            "MB",
            at_most=MAX_MB,
            detail=f"resident, after all; at most {found['peak_bytes'] / 1e6:.0f} MB",
        ),
        measured("changed_serve", [one["serving_s"] for one in passes], "s", detail="until the second instances were ready"),
        measured("deploy_all", [found["deploying_s"]], "s", detail="until each function had an instance, from nothing"),
    ]


if __name__ == "__main__":
    ended_well(main)
