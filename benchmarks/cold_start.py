"""The time until the first answer.

    python -m benchmarks.cold_start [--quick]

EfficientNet-Lite0 classifying a JPEG, with `gnomon serve` running and its zygote warm: from the deployment's POST to the first
200, and, with no instance running, from a request to its answer, by the layer program and by each engine that is installed, in
turn. Each is one request, never retried. Then `gnomon serve` itself,
from the start of the process to the first 200 of /healthz, in a fresh folder, and to the first classification after a restart
with the function deployed. The model is in the repository already; files are in the page cache.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks import gnomon
from benchmarks.programs import Endpoint, Pace, start, step
from benchmarks.report import measured, write
from gnomon_core.engines import PROGRAM, REPORT, read_report
from gnomon_profiler.add import ensure_model
from gnomon_profiler.engines import add_engines, installed_engines
from gnomon_profiler.repository import DirectoryRepository

NAME = "photo"
MODEL = "efficientnet-lite0"
DEPLOY_GOAL_MS, ZERO_GOAL_MS = 500.0, 350.0
READY_GOAL_S = 6.0
CALM_S = 1.0
"""After an instance has gone, so that its end is not part of the next one's start."""


def main(pace: Pace) -> None:
    repository = DirectoryRepository(gnomon.MODELS)
    entry = add_engines(repository, ensure_model(repository, MODEL, progress=step), progress=step)
    engines = (PROGRAM, *(name for name in installed_engines() if not read_report(entry.files[REPORT]).result(name).reason))
    deployed_ms: dict[str, list[float]] = {engine: [] for engine in engines}
    zero_ms: dict[str, list[float]] = {engine: [] for engine in engines}
    with gnomon.temporary() as folder:
        with gnomon.serving(folder / "first") as ours:
            endpoint = ours.up(NAME)
            for _ in range(pace.starts):
                for engine in engines:
                    deployed_ms[engine].append(first_after_deploy(ours, endpoint, engine))
                    zero_ms[engine].append(first_from_zero(ours, endpoint))
            for engine in engines:
                step(f"{engine}: after a deploy {shown(deployed_ms[engine])} ms, from zero {shown(zero_ms[engine])} ms")
        ready_s = [serve(folder / f"fresh-{number}")[0] for number in range(pace.starts)]
        step(f"gnomon serve: {shown(ready_s)} s")
        restarted_s = [serve(folder / "first", classify=True)[1] for _ in range(pace.starts)]
        step(f"restarted: {shown(restarted_s)} s")
    figures = []
    for engine in engines:
        deploy = f"{engine}; from the POST of the deployment"
        zero = f"{engine}; from the request, with no instance"
        figures += [
            measured(f"first_answer_after_deploy_{engine}", deployed_ms[engine], "ms", at_most=DEPLOY_GOAL_MS, detail=deploy),
            measured(f"first_answer_from_zero_{engine}", zero_ms[engine], "ms", at_most=ZERO_GOAL_MS, detail=zero),
        ]
    figures += [
        measured("serve_ready", ready_s, "s", at_most=READY_GOAL_S, detail="from the start of the process to /healthz"),
        measured("serve_first_answer", restarted_s, "s", detail="from the start of the process to a classification"),
    ]
    packages = ("gnomon", "torch", *engines[1:])
    write("cold_start", figures, repeats=pace.starts, packages=packages, folder=pace.results)


def first_after_deploy(ours: gnomon.Gnomon, endpoint: Endpoint, engine: str) -> float:
    """Milliseconds from a deployment on this engine to the first answer. The function is removed before."""
    document = ours.function(NAME)
    kept: dict[str, Any] = {name: document[name] for name in ("image", "envProcess", "annotations") if name in document}
    # A start that misses the goal is measured as well.
    kept["annotations"] = {**kept.get("annotations", {}), "gnomon/engine": engine, "gnomon/deadline-ms": "30000"}
    ours.call("DELETE", "/system/functions", {"functionName": NAME})
    wait_unknown(ours)
    begun_s = time.perf_counter()
    ours.call("POST", "/system/functions", {"service": NAME, **kept})
    endpoint.ask()
    return 1e3 * (time.perf_counter() - begun_s)


def first_from_zero(ours: gnomon.Gnomon, endpoint: Endpoint) -> float:
    """Milliseconds from a request to its answer, when no instance runs."""
    ours.scale(NAME, 0)
    time.sleep(CALM_S)
    begun_s = time.perf_counter()
    endpoint.ask()
    return 1e3 * (time.perf_counter() - begun_s)


def serve(folder: Path, *, classify: bool = False) -> tuple[float, float]:
    """Seconds from the start of `gnomon serve` until it is ready, and until its function has answered."""
    begun_s = time.perf_counter()
    with gnomon.serving(folder) as ours:
        ready_s = time.perf_counter() - begun_s
        if classify:
            Endpoint.of("gnomon", f"{ours.url}/function/{NAME}", NAME).wait_for_answer()
        return ready_s, time.perf_counter() - begun_s


def wait_unknown(ours: gnomon.Gnomon) -> None:
    """Return when the function is gone and its instances with it."""
    while True:
        try:
            ours.function(NAME)
        except gnomon.RefusedError:
            time.sleep(CALM_S)
            return
        time.sleep(0.01)


def shown(values: list[float]) -> str:
    return " ".join(f"{value:.3g}" for value in values)


if __name__ == "__main__":
    start(main, __doc__)
